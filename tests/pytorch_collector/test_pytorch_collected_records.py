"""What records hold: names, arguments, gradients, files."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import flatten
from msprobe_collector.pytorch.framework import PyTorch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, 2)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.head(self.front(value))


def saved(folder: Path, record: str, place: str) -> torch.Tensor:
    return torch.load(folder / "dump_tensor_data" / f"{record}.{place}.pt", weights_only=True)


def test_calls_are_named_as_they_are_written(make_debugger, records) -> None:
    debugger = make_debugger()
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    from torch import relu

    with debugger.collect():
        _ = x + 1, 1 + x, x.add(1), x - w[:3], 2 - x, x / 2, x**2, x @ w.T, x < 1, x.lt(1), -x
        y = x.clone()
        y += 1
        y[0] = 2
        relu(x), torch.relu(x), F.relu(x), x.relu(), F.linear(x, w), torch.cat([x, x]), torch.linalg.vector_norm(x)
        torch.ops.aten.sin(x), torch.ops.aten.cos.default(x), sum([x, x])
        torch.zeros(3), x.shape, x.size(), x.dim(), x.view(-1), x.detach(), x.is_contiguous(), float(x[0, 0])
    found: dict[str, int] = {}
    for name in records():
        call = name.rsplit(".", 2)[0]
        found[call] = found.get(call, 0) + 1
    assert found == {
        "Tensor.__add__": 2,
        "Tensor.add": 3,
        "Tensor.__getitem__": 2,
        "Tensor.__sub__": 1,
        "Tensor.__rsub__": 1,
        "Tensor.__truediv__": 1,
        "Tensor.__pow__": 1,
        "Tensor.__matmul__": 1,
        "Tensor.__lt__": 1,
        "Tensor.lt": 1,
        "Tensor.neg": 1,
        "Tensor.__iadd__": 1,
        "Tensor.__setitem__": 1,
        "Torch.relu": 2,
        "Functional.relu": 1,
        "Tensor.relu": 1,
        "Functional.linear": 1,
        "Torch.cat": 1,
        "Torch.linalg.vector_norm": 1,
        "Aten.sin": 1,
        "Aten.cos": 1,
    }


def test_gradients_are_those_of_autograd_through_one_call(make_debugger, records, step_folder) -> None:
    debugger = make_debugger(task="tensor")
    x = torch.randn(3, 4, requires_grad=True)
    w, b = torch.randn(5, 4, requires_grad=True), torch.randn(5, requires_grad=True)
    ids = torch.tensor([0, 2])
    with debugger.collect():
        hidden = F.linear(x, w, b)
        other = hidden * hidden  # hidden gets gradients from two calls, and twice from this one
        picked = F.embedding(ids, other)
        joined = torch.cat([picked, hidden.sin()])
        joined.sum().backward()
    h = (x @ w.T + b).detach().requires_grad_()
    data = records()
    assert len(data["Functional.linear.0.backward"]["output"]) == 3
    first, second = (saved(step_folder(), "Tensor.__mul__.0.backward", f"output.{i}") for i in (0, 1))
    (whole,) = torch.autograd.grad((h * h)[ids].sum(), h)
    torch.testing.assert_close(first + second, whole)
    assert data["Functional.embedding.0.backward"]["output"][0] is None
    torch.testing.assert_close(saved(step_folder(), "Tensor.sin.0.backward", "output.0"), h.detach().cos())
    assert list(data["Torch.cat.0.backward"]["other_gradients"]) == ["input.0.0", "input.0.1"]
    assert torch.equal(saved(step_folder(), "Functional.linear.0.backward", "output.1"), w.grad)
    assert torch.equal(saved(step_folder(), "Functional.linear.0.backward", "output.2"), b.grad)


def test_in_place_changes_of_views_have_their_own_part_of_gradients(make_debugger, step_folder) -> None:
    debugger = make_debugger(task="tensor")
    x = torch.randn(4, 3, requires_grad=True)
    y = torch.randn(3, requires_grad=True)
    with debugger.collect():
        base = x * 1
        base[1].mul_(y)
        base[2] = y
        (base * torch.arange(12.0).view(4, 3)).sum().backward()
    folder = step_folder()
    assert torch.equal(saved(folder, "Tensor.mul_.0.backward", "input.0"), torch.arange(3.0, 6.0))
    assert torch.equal(saved(folder, "Tensor.mul_.0.backward", "output.1"), torch.arange(3.0, 6.0) * x[1].detach())
    torch.testing.assert_close(saved(folder, "Tensor.mul_.0.backward", "output.0"), torch.arange(3.0, 6.0) * y.detach())
    assert torch.equal(saved(folder, "Tensor.__setitem__.0.forward", "output.0")[2], y)
    assert torch.equal(saved(folder, "Tensor.__setitem__.0.backward", "output.1"), torch.arange(6.0, 9.0))


class Turned(nn.Module):
    """Its output is a view, in another order, of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return F.linear(value, self.weight, torch.zeros(5)).transpose(0, 1)


class Spread(nn.Module):
    """Its output shows each number twice."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return (value * 2)[:1].expand(2, 3)


def _mask_(value: torch.Tensor) -> None:
    value[0] = 3.0


def _through_another_view_(value: torch.Tensor) -> None:
    value.flatten()[3:9].mul_(2)


@pytest.mark.parametrize(
    ("layer", "change"),
    [(layer, change) for layer in (nn.Linear, Turned) for change in (torch.relu_, torch.sigmoid_, _mask_)]
    + [(nn.Linear, _through_another_view_)],
)
def test_a_change_in_place_of_an_output_that_is_a_view_leaves_it_its_gradient(
    make_debugger, step_folder, layer: Any, change: Any
) -> None:
    net = layer() if layer is Turned else layer(4, 5)
    debugger, scale, x = make_debugger(level="mix", task="tensor"), torch.rand(30) + 1, torch.randn(2, 3, 4)
    with debugger.collect(nn.ModuleDict({"layer": net})):
        hidden = net(x.requires_grad_())
        change(hidden)
        (hidden * scale.view(hidden.shape) * hidden).sum().backward()
    before = net(x).detach().requires_grad_()
    changed = before * 1
    change(changed)
    (expected,) = torch.autograd.grad((changed * scale.view(changed.shape) * changed).sum(), before)
    of_layer = saved(step_folder(), f"Module.layer.{layer.__name__}.backward.0", "input.0")
    torch.testing.assert_close(of_layer, expected)
    of_call = saved(step_folder(), "Functional.linear.0.backward", "input.0")
    torch.testing.assert_close(of_call, expected.transpose(0, 1) if layer is Turned else expected)


class Twice(nn.Module):
    """Two views of what it computes."""

    def forward(self, value: torch.Tensor) -> Any:
        hidden = value * 2
        return hidden.view(-1), hidden.t()


@pytest.mark.parametrize("is_changed", [True, False])
def test_gradients_of_two_views_are_told_apart_or_left_out(make_debugger, step_folder, records, is_changed) -> None:
    net, scale = nn.ModuleDict({"layer": Twice()}), torch.arange(6.0)
    with make_debugger(level="L0", task="tensor").collect(net):
        flat, turned = net["layer"](torch.randn(2, 3, requires_grad=True))
        if is_changed:
            flat.mul_(2)
        ((flat * scale).sum() + turned.sum()).backward()
    if is_changed:
        assert records()["Module.layer.Twice.backward.0"]["input"] == [None, None]
    else:
        assert torch.equal(saved(step_folder(), "Module.layer.Twice.backward.0", "input.0"), scale)
        assert torch.equal(saved(step_folder(), "Module.layer.Twice.backward.0", "input.1"), torch.ones(3, 2))


def test_an_output_that_shows_a_number_several_times_has_the_gradient_of_each(make_debugger, step_folder) -> None:
    net, scale = nn.ModuleDict({"layer": Spread()}), torch.arange(6.0).view(2, 3)
    with make_debugger(level="L0", task="tensor").collect(net):
        (net["layer"](torch.randn(2, 3, requires_grad=True)) * scale).sum().backward()
    assert torch.equal(saved(step_folder(), "Module.layer.Spread.backward.0", "input.0"), scale)


def test_modules_have_inputs_parameters_and_gradients(make_debugger, records, step_folder) -> None:
    debugger = make_debugger(level="L0", task="tensor")
    net, x = Net(), torch.randn(3, 4, requires_grad=True)
    with debugger.collect(net):
        net(x).sum().backward()
    names = list(records())
    assert sorted(names) == sorted(
        [
            *("Module.front.Sequential.forward.0", "Module.front.0.Linear.forward.0", "Module.front.1.ReLU.forward.0"),
            *("Module.head.Linear.forward.0", "Module.head.Linear.backward.0", "Module.head.Linear.parameters_grad.0"),
            *("Module.front.Sequential.backward.0", "Module.front.0.Linear.backward.0"),
            *("Module.front.0.Linear.parameters_grad.0", "Module.front.1.ReLU.backward.0"),
        ]
    )
    folder = step_folder()
    assert torch.equal(saved(folder, "Module.front.0.Linear.backward.0", "output.0"), x.grad)
    assert torch.equal(saved(folder, "Module.head.Linear.parameters_grad.0", "weight"), net.head.weight.grad)
    assert torch.equal(saved(folder, "Module.head.Linear.forward.0", "parameters.bias"), net.head.bias)
    construct = json.loads((folder / "construct.json").read_text())
    assert construct["Module.front.0.Linear.forward.0"] == "Module.front.Sequential.forward.0"
    assert construct["Module.front.0.Linear.backward.0"] == "Module.front.Sequential.backward.0"


def test_part_of_a_model_and_several_models(make_debugger, records) -> None:
    debugger = make_debugger(level="L0")
    net = Net()
    with debugger.collect(net.front):
        net(torch.randn(3, 4)).sum().backward()
    assert {name.rsplit(".", 2)[0] for name in records()} == {"Module.0.Linear", "Module.1.ReLU"}
    with debugger.collect([net.front, net.head]):
        net(torch.randn(3, 4))
    assert {name.rsplit(".", 2)[0] for name in records(1)} == {"Module.0.0.Linear", "Module.0.1.ReLU"}


class Parts(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            value = checkpoint(self.part, value, use_reentrant=self.reentrant)
        return value


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_forward_is_no_new_call_and_has_its_gradients(
    reentrant, make_debugger, records, step_folder
) -> None:
    debugger = make_debugger(level="mix", task="tensor")
    net = Parts(reentrant=reentrant)
    with debugger.collect(net):
        net(torch.randn(3, 4, requires_grad=True)).sum().backward()
    names = set(records())
    calls = {"Functional.linear.0", "Functional.linear.1", "Torch.tanh.0", "Torch.tanh.1"}
    modules = {"Module.part.0.Linear", "Module.part.1.Tanh", "Module.part.Sequential"}
    assert names == {
        *(f"{call}.{direction}" for call in calls for direction in ("forward", "backward")),
        *(f"{module}.{way}.{n}" for module in modules for way in ("forward", "backward") for n in (0, 1)),
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Module.part.0.Linear.parameters_grad.0",
        *(["Module.part.0.Linear.parameters_grad.1"] if reentrant else []),
    }
    construct = json.loads((step_folder() / "construct.json").read_text())
    assert construct["Functional.linear.1.backward"] == "Module.part.0.Linear.backward.1"
    # A gradient belongs to its own call: that of the second linear is what its tanh hands on.
    one = saved(step_folder(), "Functional.linear.1.backward", "input.0")
    assert torch.equal(one, saved(step_folder(), "Torch.tanh.1.backward", "output.0"))


class Nested(nn.Module):
    """Checkpoints in checkpoints; `kinds` says which of them are reentrant, outermost first."""

    def __init__(self, *kinds: bool) -> None:
        super().__init__()
        self.kinds = kinds
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in kinds)

    def forward(self, value: torch.Tensor, depth: int = 0) -> torch.Tensor:
        if depth == len(self.kinds):
            return value.cos()
        deeper = checkpoint(self.parts[depth], value, use_reentrant=self.kinds[depth])
        return checkpoint(self.forward, deeper.tanh(), depth + 1, use_reentrant=self.kinds[depth])


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of those inside others
@pytest.mark.parametrize(
    "kinds", [(True, True), (True, True, True), (True, False, True), (False, True, False), (False, True, True)]
)
def test_checkpoints_in_checkpoints_have_the_gradients_of_plain_calls(
    kinds, make_debugger, records, step_folder
) -> None:
    debugger = make_debugger(level="mix", task="tensor")
    torch.manual_seed(0)
    net, x = Nested(*kinds), torch.randn(3, 4, requires_grad=True)
    with debugger.collect(net):
        loss = net(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()  # whose gradients belong to no record
    data = records()
    calls = [name.removesuffix(".forward") for name in data if name.endswith(".forward")]
    assert {f"{call}.backward" for call in calls} <= set(data)
    assert {f"Module.parts.{n}.Linear.backward.0" for n in range(len(kinds))} <= set(data)
    lines = re.findall(r'^"([^"]+)": \{', (step_folder() / "dump.json").read_text(), re.MULTILINE)
    assert sorted(lines) == sorted({*data, "data"} & {*lines})  # no name stands there twice
    gradients = [saved(step_folder(), f"Module.parts.{n}.Linear.backward.0", "output.0") for n in range(len(kinds))]
    # Each hands on what the tanh before it gets.
    for n in range(1, len(kinds)):
        assert torch.equal(gradients[n], saved(step_folder(), f"Tensor.tanh.{n - 1}.backward", "input.0"))
    assert torch.equal(2 * gradients[0], x.grad)


class Registered:
    """Keeps its tensor elsewhere, and has said to PyTorch how to take it apart."""

    __slots__ = ()
    held: ClassVar[list[torch.Tensor]] = []


class Doubled(nn.Module):
    def forward(self, value: torch.Tensor) -> Registered:
        Registered.held[:] = [value * 2]
        return Registered()


def test_what_a_class_has_registered_with_pytorch_is_a_value_and_takes_gradients(make_debugger, records) -> None:
    torch.utils._pytree.register_pytree_node(Registered, lambda value: (value.held, None), lambda *_: Registered())
    try:
        with make_debugger(level="L0").collect(nn.Sequential(Doubled())) as debugger:
            debugger.model[0](torch.ones(2, requires_grad=True))
            Registered.held[0].sum().backward()
    finally:
        torch.utils._pytree._deregister_pytree_node(Registered)
    data = records()
    assert data["Module.0.Doubled.forward.0"]["output"][0][0]["Max"] == 2.0
    backward = data["Module.0.Doubled.backward.0"]
    assert (backward["input"][0][0]["Max"], backward["output"][0]["Max"]) == (1.0, 2.0)


def test_stacks_begin_at_the_line_of_the_script(make_debugger, step_folder) -> None:
    debugger = make_debugger()
    x = torch.randn(3)
    with debugger.collect():
        F.relu(x)
        x**2
    stacks = {
        name: frames
        for names, frames in json.loads((step_folder() / "stack.json").read_text()).values()
        for name in names
    }
    for name, line in (("Functional.relu.0.forward", "F.relu(x)"), ("Tensor.__pow__.0.forward", "x**2")):
        assert stacks[name][0].endswith(line), stacks[name][:3]


def test_values_and_kinds_of_arguments(make_debugger, records) -> None:
    debugger = make_debugger()
    x = torch.randn(3, 4)
    with debugger.collect():
        torch.sum(x, dtype=torch.float64), x.to("cpu", torch.float16), x.to(torch.device("cpu"), copy=True)
        torch.full((2,), float("inf")), torch.complex(x, x), torch.ones(3, device="meta") + 1, x.new_tensor(2).add(1)
        x[0, ..., 1:3:2], x.to(memory_format=torch.contiguous_format)
    data = records()
    assert data["Torch.sum.0.forward"]["input_kwargs"]["dtype"] == {"type": "torch.dtype", "value": "torch.float64"}
    assert data["Tensor.to.0.forward"]["input_args"][2] == {"type": "torch.dtype", "value": "torch.float16"}
    assert data["Tensor.to.1.forward"]["input_args"][1] == {"type": "torch.device", "value": "cpu"}
    assert data["Tensor.to.2.forward"]["input_kwargs"]["memory_format"]["value"] == "torch.contiguous_format"
    assert data["Torch.full.0.forward"]["output"][0]["Inf_count"] == 2
    assert data["Torch.complex.0.forward"]["output"][0]["dtype"] == "torch.complex64"
    meta = data["Tensor.__add__.0.forward"]["output"][0]
    assert (meta["shape"], meta["Max"]) == ([3], None)
    assert data["Tensor.add.0.forward"]["input_args"][0]["requires_grad"] is False
    slices = data["Tensor.__getitem__.0.forward"]["input_args"][1]
    assert [item["type"] for item in slices] == ["int", "ellipsis", "slice"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (70, 1000), (5, 4096), (2, 3, 5000)])
def test_statistics_are_right_for_small_and_large(dtype, shape, make_debugger, records) -> None:
    debugger = make_debugger()
    x = (torch.randn(shape, dtype=torch.float64) * 3 + 1).to(dtype)
    with debugger.collect():
        torch.abs(x.transpose(0, -1))
    (tensor,) = records()["Torch.abs.0.forward"]["input_args"]
    wide = x.double()
    norm = wide.norm().item()
    assert (tensor["Max"], tensor["Min"]) == (wide.max().item(), wide.min().item())
    assert abs(tensor["Mean"] - wide.mean().item()) < 1e-6 * norm
    assert abs(tensor["Norm"] - norm) < 1e-6 * norm


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30, 1e-30])
def test_statistics_of_extreme_values(bad, make_debugger, records) -> None:
    debugger = make_debugger()
    x = torch.zeros(50_000)
    x[49_000] = bad
    with debugger.collect():
        torch.abs(x)
    (tensor,) = records()["Torch.abs.0.forward"]["input_args"]
    if bad == bad and abs(bad) < 1e38:
        assert tensor["Norm"] == pytest.approx(bad, rel=1e-6)
        assert tensor["Max"] == pytest.approx(bad, rel=1e-6)
    else:
        assert tensor["NaN_count" if bad != bad else "Inf_count"] == 1


def test_tensor_files_are_read_by_torch_and_by_the_reader(make_debugger, step_folder) -> None:
    debugger = make_debugger(task="tensor")
    kinds = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64, torch.complex64, torch.uint16]
    tensors = [torch.tensor([[1, 0, 1], [1, 1, 0]]).to(kind) for kind in kinds]
    with debugger.collect():
        for tensor in tensors:
            tensor.to(tensor.dtype)
    dump = Dump(step_folder() / "dump.json")
    for number, tensor in enumerate(tensors):
        name = f"Tensor.to.{number}.forward"
        assert torch.equal(saved(step_folder(), name, "input.0").to(torch.complex64), tensor.to(torch.complex64))
        leaf = flatten(dump.record(name))[0]
        assert leaf.is_tensor


def test_checksums_are_those_of_the_bytes(make_debugger, records) -> None:
    debugger = make_debugger(summary_mode="md5")
    x = torch.randn(30, 3)
    with debugger.collect():
        torch.abs(x)
    assert records()["Torch.abs.0.forward"]["input_args"][0]["md5"] == f"{zlib.crc32(x.numpy().tobytes()):08x}"


def test_structure_has_names_only(make_debugger, records, step_folder) -> None:
    debugger = make_debugger(level="mix", task="structure")
    net = Net()
    with debugger.collect(net):
        net(torch.randn(3, 4)).sum().backward()
    assert records() == {}
    construct = json.loads((step_folder() / "construct.json").read_text())
    assert construct["Functional.linear.0.forward"] == "Module.front.0.Linear.forward.0"
    assert construct["Functional.linear.0.backward"] == "Module.front.0.Linear.backward.0"


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        ({"list": ["relu"]}, {"Functional.relu.0.forward", "Functional.relu.0.backward"}),
        ({"data_mode": ["backward"]}, {"Functional.linear.0.backward", "Functional.relu.0.backward"}),
        (
            {"scope": ["Functional.linear.0.forward", "Functional.relu.0.forward"]},
            {"Functional.linear.0.forward", "Functional.relu.0.forward"},
        ),
    ],
)
def test_selection(section: dict[str, Any], kept: set[str], make_debugger, records) -> None:
    debugger = make_debugger(**section)
    w = torch.randn(2, 4, requires_grad=True)
    with debugger.collect():
        out = F.relu(F.linear(torch.randn(3, 4), w))
        out.backward(torch.ones_like(out))
    assert set(records()) == kept


def test_steps_ranks_and_token_range(make_debugger, records, tmp_path: Path) -> None:
    debugger = make_debugger(level="mix", common={"step": [1], "rank": [3]})
    net = Net()
    for _ in range(3):
        debugger.start(net, token_range=[1, 2], rank_id=3)
        for _ in range(4):
            net(torch.randn(1, 4))
        debugger.stop()
        debugger.step()
    assert [folder.name for folder in (tmp_path / "dump").iterdir()] == ["step1"]
    assert [folder.name for folder in (tmp_path / "dump" / "step1").iterdir()] == ["rank3"]
    assert sum(name.startswith("Module.head.Linear.forward") for name in records(1)) == 2


def test_the_header_says_which_ranks_are_collected(make_debugger, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(PyTorch, "ranks", lambda self: {"world_size": 8, "rank": 3, "groups": {}})
    debugger = make_debugger(common={"rank": [3, "5-6"]})
    with debugger.collect(rank_id=3):
        F.relu(torch.randn(3))
    dump = Dump(tmp_path / "dump" / "step0" / "rank3" / "dump.json")
    assert dump.ranks_of_step() == [3, 5, 6]


def test_gradients_arrive_after_stop(make_debugger, records) -> None:
    debugger = make_debugger(level="mix")
    net = Net()
    debugger.start(net)
    loss = net(torch.randn(3, 4)).sum()
    debugger.stop()
    loss.backward()
    debugger.step()
    assert {"Functional.linear.0.backward", "Module.head.Linear.backward.0", "Tensor.sum.0.backward"} <= set(records())


def test_an_error_of_the_script_leaves_its_arguments(make_debugger, records) -> None:
    debugger = make_debugger()
    with pytest.raises(RuntimeError, match="shape"), debugger.collect():
        torch.randn(3, 4).view(5, 5).sum()
    with pytest.raises(RuntimeError), debugger.collect():
        torch.matmul(torch.randn(3, 4), torch.randn(3, 4))
    assert "input_args" in records(1)["Torch.matmul.0.forward"]


def test_values_saved_by_hand(make_debugger, records) -> None:
    debugger = make_debugger(level="debug")
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    debugger.save({"a": y, "b": [1, "t"]}, "both")
    (y * 3).sum().backward()
    debugger.step()
    data = records(file="debug.json")
    assert data["both.0.debug"]["a"]["shape"] == [3]
    assert data["both_grad.0.debug"]["a"]["Max"] == 3.0


def test_own_functions_can_be_recorded(make_debugger, records, monkeypatch) -> None:
    import types

    module = types.ModuleType("fused")
    module.double = lambda value: value * 2
    debugger = make_debugger()
    debugger.register_custom_api(module, "double")
    with debugger.collect():
        module.double(torch.ones(2, requires_grad=True)).sum().backward()
    debugger.restore_custom_api(module, "double")
    assert set(records()) == {
        *("fused.double.0.forward", "fused.double.0.backward", "Tensor.sum.0.forward", "Tensor.sum.0.backward")
    }


def test_arguments_are_those_that_the_script_wrote(make_debugger, records) -> None:
    debugger = make_debugger()
    x, targets = torch.randn(3, 4), torch.tensor([0, 1, 2])
    more = {"p": 0.0}
    with debugger.collect():
        F.dropout(x, 0.5, training=False)
        F.cross_entropy(x, targets, label_smoothing=0.1)
        F.dropout(x, **more)
        list(map(F.relu, [x]))
        nn.LayerNorm(4)(x)
        F.max_pool2d(x[None], 2)
    data = records()
    written = {
        name: (len(record["input_args"]), sorted(record["input_kwargs"]))
        for name, record in data.items()
        if name.startswith(("Functional", "Torch.max_pool2d"))
    }
    assert written["Functional.dropout.0.forward"] == (2, ["training"])
    assert written["Functional.cross_entropy.0.forward"] == (2, ["label_smoothing"])
    assert written["Functional.dropout.1.forward"] == (1, ["inplace", "p", "training"])  # not known: as handed over
    assert written["Functional.relu.0.forward"][0] == 1
    assert written["Functional.layer_norm.0.forward"] == (5, [])
