"""The names of recorded calls: those under which users find them, and nothing that PyTorch calls for itself."""

from __future__ import annotations

import json
import operator
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

from msprobe_collector.pytorch.api_names import ApiNames
from pytest_msprobe.apis.operators import find_operator
from pytest_msprobe.engines.torch_bindings import NoCounterpart, lookup

PLACES = {
    "Functional": "torch.nn.functional",
    "Torch": "torch",
    "Torch.linalg": "torch.linalg",
    "Torch.fft": "torch.fft",
    "Torch.special": "torch.special",
    "Torch.sparse": "torch.sparse",
    "Torch.nested": "torch.nested",
    "Torch.nn.init": "torch.nn.init",
    "Tensor": "torch.Tensor",
    "VF": "torch._VF",
}
#: Functions that hand over another one, whose values they return.
HANDED_OVER = {f"Torch.max_pool{n}d": f"Functional.max_pool{n}d" for n in (1, 2, 3)}


def at(path: str) -> Any:
    return operator.attrgetter(path.partition(".")[2])(torch) if "." in path else torch


def public_functions() -> Iterator[tuple[str, Any]]:
    """(name by its place, function) of everything public that can be called."""
    for prefix, path in PLACES.items():
        for name in dir(at(path)):
            function = getattr(at(path), name)
            is_dunder = prefix == "Tensor" and name.startswith("__")
            is_function = callable(function) and not isinstance(function, (type, types.ModuleType))
            if is_function and (is_dunder or not name.startswith("_")):
                yield f"{prefix}.{name}", function


def test_every_public_function_is_recorded_under_a_name_that_leads_back_to_it() -> None:
    names, counts = ApiNames(), Counter()
    for place, function in public_functions():
        name = names.of(function)
        if name is None:
            counts["without record"] += 1
            continue
        prefix, _, last = name.rpartition(".")
        assert last.startswith("__") or not last.startswith("_"), (place, name)
        if HANDED_OVER.get(place) != name:
            assert getattr(at(PLACES[prefix]), last) == function, (place, name)
        api_type, _, api = name.partition(".")
        if path := find_operator("torch", api_type, api):
            assert place in HANDED_OVER or at(path) == function, (place, name, path)
            counts["known to precheck"] += 1
        else:
            refusal = lookup(api_type, api, "pytorch")
            assert isinstance(refusal, NoCounterpart)
            assert "not a known operator" in refusal.reason, (place, name)
            counts["unknown to precheck"] += 1
    assert counts["known to precheck"] > 1300
    assert counts["unknown to precheck"] < 220
    assert counts["without record"] < 190


def test_of_equal_functions_the_documented_name_is_taken() -> None:
    names = ApiNames()
    assert [names.of(function) for function in (torch.mm, torch.hspmm, torch.sspaddmm, F.threshold, torch.sym_int)] == [
        *("Torch.mm", "Torch.hspmm", "Torch.sspaddmm", "Functional.threshold", None)
    ]
    assert names.of(torch.Tensor.__idiv__) == "Tensor.__itruediv__"
    assert find_operator("torch", "Torch", "mm") == "torch.mm"


#: What is recorded of a function that is not handed over itself, since it is written in Python or stands for another.
CALLS_ANOTHER = {
    "nn.functional.upsample_bilinear": "Functional.interpolate",
    "nn.functional.upsample_nearest": "Functional.interpolate",
    "nn.functional.tanh": "Tensor.tanh",
    "nn.functional.sigmoid": "Tensor.sigmoid",
    "_segment_reduce": "Torch.segment_reduce",
    "broadcast_shapes": None,
    "__radd__": "Tensor.add",
    "__rmul__": "Tensor.mul",
    **{
        f"nn.functional.{kind}max_pool{n}d": f"Functional.{kind}max_pool{n}d_with_indices"  # of the first sample
        for kind in ("", "adaptive_")
        for n in (1, 2, 3)
    },
}


def sampled_calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """(name of its record, call) of the operators in PyTorch's own tests: as functions and as methods."""
    from torch.testing._internal.common_methods_invocations import op_db

    # That import forbids every later test of this process to set flags of PyTorch's backends.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    names = ApiNames()
    for op in op_db:
        if torch.float32 not in op.dtypes:
            continue
        # Not `sample_inputs`, which looks at every frame of the stack for each sample.
        sample = next(iter(op.sample_inputs_func(op, "cpu", torch.float32, requires_grad=False)))
        for owner, name in ((torch, op.name), (torch.Tensor, op.name), (torch.Tensor, f"{op.name}_")):
            try:
                function = operator.attrgetter(name)(owner)
            except AttributeError:
                continue
            recorded = CALLS_ANOTHER.get(name) if name in CALLS_ANOTHER else names.of(function)
            call = partial(called, function, sample)
            if recorded is not None and does_not_raise(call):
                yield recorded, call


def called(function: Callable[..., object], sample: Any) -> object:
    value = sample.input.clone() if isinstance(sample.input, torch.Tensor) else sample.input
    return function(value, *sample.args, **sample.kwargs)


def does_not_raise(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:  # the sample belongs to another form of the operator
        return False
    return True


def test_calls_of_pytorchs_own_samples_have_these_names(make_debugger, step_folder) -> None:
    debugger, expected = make_debugger(task="structure", level="mix"), Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = list(sampled_calls())
        with debugger.collect(nn.Identity()):
            for name, call in calls:
                call()
                expected[name] += 1
    made = json.loads((step_folder() / "construct.json").read_text())
    found = Counter(name.rsplit(".", 2)[0] for name in made if name.endswith(".forward"))
    assert {name: (found[name], expected[name]) for name in found | expected if found[name] != expected[name]} == {}
    assert found.total() > 900


def forwards(records: dict[str, Any]) -> list[str]:
    return [name.removesuffix(".forward") for name in records if name.endswith(".forward")]


def test_what_changes_its_argument_is_recorded(make_debugger, records, step_folder) -> None:
    debugger = make_debugger(task="tensor")
    value = torch.zeros(3, dtype=torch.bfloat16)
    with debugger.collect():
        value.copy_(torch.tensor([1.001, 2, 3]))
        value.zero_(), value.normal_(), value.uniform_(), torch.zeros(2).apply_(lambda x: x + 1)
        nn.init.constant_(value, 2.0), nn.init.kaiming_uniform_(torch.zeros(2, 2)), nn.init.zeros_(value)
        value[0] = 1
        value /= 2
    assert forwards(records()) == [
        *("Tensor.copy_.0", "Tensor.zero_.0", "Tensor.normal_.0", "Tensor.uniform_.0", "Tensor.apply_.0"),
        *("Torch.nn.init.constant_.0", "Torch.nn.init.kaiming_uniform_.0", "Tensor.zero_.1"),
        *("Tensor.__setitem__.0", "Tensor.__itruediv__.0"),
    ]
    copied = records()["Tensor.copy_.0.forward"]
    assert (copied["input_args"][0]["Max"], copied["output"][0]["Max"]) == (0.0, 3.0)
    assert torch.load(step_folder() / "dump_tensor_data" / "Tensor.copy_.0.forward.output.0.pt")[0] == 1


def test_a_copy_hands_its_gradient_on(make_debugger, records) -> None:
    debugger = make_debugger()
    weight = torch.ones(3, requires_grad=True)
    with debugger.collect():
        torch.zeros(3).copy_(weight).mul(2).sum().backward()
    assert [gradient and gradient["Max"] for gradient in records()["Tensor.copy_.0.backward"]["output"]] == [None, 2.0]


def test_names_are_as_written_under_a_mode_of_pytorch(make_debugger, records) -> None:
    debugger = make_debugger()
    value, weight = torch.randn(2, 3), torch.randn(4, 3)
    with debugger.collect(), torch.device("cpu"):
        _ = value + 1
        F.layer_norm(F.linear(value, weight), (4,), eps=1e-3)
    data = records()
    assert forwards(data) == ["Tensor.__add__.0", "Functional.linear.0", "Functional.layer_norm.0"]
    assert data["Functional.layer_norm.0.forward"]["input_kwargs"] == {"eps": {"type": "float", "value": 1e-3}}


def test_function_transforms_have_values_and_no_internal_calls(make_debugger, records, step_folder) -> None:
    debugger, weight = make_debugger(task="tensor"), torch.tensor([1.0, 2.0, 3.0])

    def loss(value: torch.Tensor) -> torch.Tensor:
        return (value.sin() * weight).sum()

    with debugger.collect():
        torch.func.grad(loss)(weight)
        torch.func.vjp(loss, weight)[1](torch.ones(()))
        torch.func.jvp(loss, (weight,), (weight,))
        with forward_ad.dual_level():
            forward_ad.unpack_dual(forward_ad.make_dual(weight, weight).cos())
        torch.func.jacfwd(torch.exp)(weight)
        torch.autograd.functional.jacobian(torch.tanh, weight)
    data = records()
    assert forwards(data) == [
        *(f"Tensor.{call}.{number}" for number in range(3) for call in ("sin", "__mul__", "sum")),
        *("Tensor.cos.0", "Torch.exp.0", "Torch.tanh.0"),
    ]
    assert not [name for name, record in data.items() if "fault" in record]
    for number in range(3):
        (output,) = data[f"Tensor.sum.{number}.forward"]["output"]
        assert output["Max"] == pytest.approx(float(loss(weight)), rel=1e-6)
        assert data[f"Tensor.__mul__.{number}.forward"]["input_args"][1]["Max"] == 3.0
    for number in range(2):
        assert data[f"Tensor.sin.{number}.backward"]["input"][0]["Max"] == 3.0
    assert not (step_folder() / "dump_error_info.log").exists()


class Through(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
        return value

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one argument
        return gradient.mul(2)


def test_what_the_script_gives_to_pytorch_is_called_by_the_script(make_debugger, records) -> None:
    debugger, value = make_debugger(), torch.ones(2, 3, requires_grad=True)
    with debugger.collect():
        torch.vmap(torch.dot)(value, value)
        torch.utils.checkpoint.checkpoint(F.gelu, value, use_reentrant=False)
        Through.apply(value).sum().backward()
    assert forwards(records()) == ["Torch.dot.0", "Functional.gelu.0", "Tensor.sum.0", "Tensor.mul.0"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_compiled_before", [True, False])
def test_a_compiled_backward_leaves_records_of_its_border_alone(
    make_debugger, records, is_compiled_before: bool
) -> None:
    torch.compiler.reset()
    inner = torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), backend="aot_eager")
    net = nn.Sequential(nn.Linear(3, 3), inner, nn.Linear(3, 3))
    value = torch.randn(2, 3)
    if is_compiled_before:
        net(value).sum().backward()
    debugger = make_debugger(level="mix")
    with debugger.collect(net):
        torch.mm(net(value), torch.eye(3)).sum().backward()
    calls = [name for name in forwards(records()) if not name.startswith("Module.")]
    linear = ["Functional.linear.0", "Compiled.Sequential.0", "Functional.linear.1"]
    assert calls == [*linear, "Torch.eye.0", "Torch.mm.0", "Tensor.sum.0"]
    assert {"Torch.mm.0.backward", "Compiled.Sequential.0.backward"} <= records().keys()
