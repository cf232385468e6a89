"""Outputs and gradients of calls, however they are held and however they hang together: nothing is lost or mistaken."""

from __future__ import annotations

import collections
import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import flatten


class Slots:
    __slots__ = ("key", "other")

    def __init__(self, key: Any) -> None:
        self.key = key


class Layer:
    def __init__(self, key: Any, cache: Any) -> None:
        self.keys, self.cache, self.seen = key, cache, 3

    @property
    def values(self) -> Any:
        raise AssertionError("code of the script ran")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"code of the script ran for {name}")


class Cache:
    def __init__(self, *keys: Any) -> None:
        self.layers = [None, *(Layer(key, self) for key in keys)]


@dataclasses.dataclass
class Inner:
    key: Any
    number: int = 1


@dataclasses.dataclass
class Outer:
    inner: Inner
    late: Any = dataclasses.field(init=False)


class Attrs:  # as attrs makes classes
    __attrs_attrs__ = (types.SimpleNamespace(name="key"), types.SimpleNamespace(name="none"))

    def __init__(self, key: Any) -> None:
        self.key, self.none = key, None


class Output(collections.OrderedDict):
    """As the outputs of transformers."""


Named = collections.namedtuple("Named", "key, rest")


@pytest.fixture
def called(framework, make_debugger, step_folder):
    """called(function, loss, **configuration) -> (forward, backward) records of one call of function.

    Args:
        function: of a tensor.
        loss: of what the function returns, a number.
    """

    def run(function: Any, loss: Any, **configuration: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        module = types.SimpleNamespace(function=function)
        debugger = make_debugger(**configuration)
        debugger.register_custom_api(module, "function", "Custom")
        with debugger.collect(rank_id=0):
            framework.gradient(lambda x: loss(module.function(x)), framework.tensor([1.0, 1.0]))
        debugger.restore_custom_api(module, "function")
        data = unique(step_folder())
        return data["Custom.function.0.forward"], data.get("Custom.function.0.backward", {})

    return run


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON in which no key stands twice."""
    assert len(dict(pairs)) == len(pairs), [key for key, _ in pairs]
    return dict(pairs)


def unique(folder: Path) -> dict[str, Any]:
    """The `data` of a dump.json in which no key stands twice."""
    return json.loads((folder / "dump.json").read_text(), object_pairs_hook=unique_keys)["data"]


def maxima(value: Any) -> Any:
    """Structure of a recorded value with the Max of each tensor."""
    if isinstance(value, list):
        return [maxima(item) for item in value]
    if isinstance(value, dict):
        return value["Max"] if "Max" in value else {key: maxima(item) for key, item in value.items()}
    return value


HOLDERS = {
    "dict": (lambda t: {"key": t, "n": 1}, ["key"]),
    "dict of lists": (lambda t: {"a": [1, {"key": t}]}, ["a.1.key"]),
    "ordered": (lambda t: Output(key=t), ["key"]),
    "dataclass": (lambda t: Outer(Inner(t)), ["inner.key"]),
    "named": (lambda t: {"n": Named(t, (t,))}, ["n.key", "n.rest.0"]),
    "attrs": (Attrs, ["key"]),
    "slots": (Slots, ["key"]),
    "cache": (lambda t: {"cache": Cache(t)}, ["cache.layers.1.keys"]),
    "namespace": (lambda t: types.SimpleNamespace(key=t), ["key"]),
    "deque": (lambda t: {"key": collections.deque([t])}, ["key.0"]),
    "equal keys": (lambda t: {"a": {"b": t}, "a.b": t, 1: t, "1": t}, ["a.b", "a.b", "1", "1~3"]),
}


@pytest.mark.parametrize(("make", "paths"), [pytest.param(*case, id=name) for name, case in HOLDERS.items()])
def test_tensors_that_objects_hold_are_values_and_take_gradients(make, paths, called, step_folder, framework) -> None:
    held: list[Any] = []

    def function(x: Any) -> Any:
        held.append(x * framework.tensor([2.0, 3.0]))
        return make(held[0])

    _, backward = called(function, lambda _: (held[0] * framework.tensor(5.0)).sum(), task="tensor")
    dump = Dump(step_folder() / "dump.json")
    found = [leaf for leaf in flatten(dump.record("Custom.function.0.forward")) if leaf.place.root == "output"]
    tensors = [leaf for leaf in found if leaf.is_tensor]
    assert [leaf.path for leaf in tensors] == [f"output.0.{path}" for path in paths]
    assert len({leaf.data_name for leaf in tensors}) == len(paths)
    for leaf in tensors:
        assert dump.tensors.load(leaf.tensor, leaf.place).tolist() == [2.0, 3.0]
    came = [leaf for leaf in flatten(dump.record("Custom.function.0.backward")) if leaf.place.root == "input"]
    # The first place of a tensor that is returned twice has its gradient.
    assert [leaf.path for leaf in came if leaf.is_tensor] == [f"input.0.{paths[0]}"]
    assert next(leaf for leaf in came if leaf.is_tensor).statistics[0] == 5.0
    assert backward["output"][0]["Max"] == 15.0


def test_a_cache_is_that_of_the_call_and_one_that_is_filled_inside_takes_no_gradient_as_an_argument(
    framework, make_debugger, step_folder
) -> None:
    module = types.SimpleNamespace(append=lambda x, cache: cache.layers.append(Layer(x * framework.tensor(2.0), cache)))
    debugger = make_debugger(common={"async_dump": True})
    debugger.register_custom_api(module, "append", "Custom")

    def loss(x: Any) -> Any:
        cache = Cache(x * framework.tensor(3.0))
        cache.layers = module.append(x, cache) or cache.layers
        return (cache.layers[-1].keys + cache.layers[1].keys).sum()

    with debugger.collect(rank_id=0):
        framework.gradient(loss, framework.tensor([1.0, 1.0]))
    debugger.restore_custom_api(module, "append")
    data = unique(step_folder())
    assert maxima(data["Custom.append.0.forward"]["input_args"]) == [1.0, {"layers": [None, {"keys": 3.0}]}]
    assert "Custom.append.0.backward" not in data  # it returns nothing
    assert not (step_folder() / "dump_error_info.log").exists()


CALLS = {
    "the other alone": (lambda p: (p * 3, p), lambda a, b: a.sum(), [1.0, None], 6.0),
    "both": (lambda p: (p * 3, p), lambda a, b: a.sum() + b.sum() * 7, [1.0, 7.0], 20.0),
    "itself alone": (lambda p: (p * 3, p), lambda a, b: b.sum() * 7, [None, 7.0], 14.0),
    "in several ways": (lambda p: (p * 3 + p * p, p), lambda a, b: a.sum() + b.sum(), [1.0, 1.0], 16.0),
    "in a dict": (lambda p: {"a": p * 3, "b": p}, lambda a, b: a.sum(), [{"a": 1.0, "b": None}], 6.0),
    "a view": (lambda p: (p, p[0:1]), lambda a, b: a.sum() + b.sum() * 7, [1.0, 7.0], 16.0),
    "twice": (lambda p: (p, p), lambda a, b: a.sum() + b.sum() * 7, [8.0, None], 16.0),
}


@pytest.mark.parametrize(
    ("outputs", "loss", "incoming", "outgoing"), [pytest.param(*case, id=name) for name, case in CALLS.items()]
)
def test_an_output_of_which_another_is_made_has_the_gradient_that_came_from_outside(
    outputs, loss, incoming, outgoing, called, framework
) -> None:
    def used(result: Any) -> Any:
        return loss(*(result.values() if isinstance(result, dict) else result))

    _, backward = called(lambda x: outputs(x * framework.tensor(2.0)), used)
    assert maxima(backward["input"]) == incoming
    assert backward["output"][0]["Max"] == outgoing


def test_networks_that_are_gone_lend_their_memory_to_no_other(framework, make_debugger, step_folder) -> None:
    """A parameter at the address of one that was released has its gradients recorded like any other."""
    debugger = make_debugger(level="L0", task="tensor")
    for _ in range(30):
        net = framework.linear()
        debugger.start(net, rank_id=0)
        framework.gradients_of(net, lambda x, net=net: net(x).sum())
        debugger.stop()
        del net
    debugger.step()
    records = [record for name, record in unique(step_folder()).items() if ".parameters_grad." in name]
    assert [len(record) for record in records] == [2] * 30


def test_networks_of_equal_names_in_one_step_keep_their_gradients(framework, make_debugger, step_folder) -> None:
    debugger = make_debugger(level="L0", task="tensor")
    for factor in (1.0, 2.0, 3.0):
        net = framework.linear()
        debugger.start(net, rank_id=0)
        framework.gradients_of(net, lambda x, net=net, factor=factor: (net(x) * framework.tensor(factor)).sum())
        debugger.stop()
    debugger.step()
    data = unique(step_folder())
    records = [record for name, record in data.items() if ".parameters_grad." in name]
    assert [record["bias"][0]["Max"] for record in records] == [1.0, 2.0, 3.0]
    files = {record["bias"][0]["data_name"] for record in records}
    assert len(files) == 3
    assert files <= {path.name for path in (step_folder() / "dump_tensor_data").iterdir()}


def test_values_saved_under_a_name_that_looks_like_a_gradient(framework, make_debugger, step_folder) -> None:
    debugger = make_debugger(level="debug", task="tensor")

    def loss(x: Any) -> Any:
        debugger.save(x, "x_grad", save_backward=False)
        debugger.save(x, "x")
        debugger.save(x * 2, "x_grad", save_backward=False)
        return (x * framework.tensor(3.0)).sum()

    framework.gradient(loss, framework.tensor(1.0))
    debugger.step()
    content = (step_folder() / "debug.json").read_text()
    found = json.loads(content, object_pairs_hook=unique_keys)["data"]
    assert {name: record["Max"] for name, record in found.items()} == {
        "x_grad.0.debug": 1.0,
        "x.1.debug": 1.0,
        "x_grad.1.debug": 3.0,
        "x_grad.2.debug": 2.0,
    }
