"""Records of real steps that are computed again: lists, what calls leave in their arguments, optimizers, scalers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from debugger_fixtures import make_debugger
from diagnosing import diagnose
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump
from msprobe_collector.pytorch import PrecisionDebugger
from pytest_msprobe.cases.recorded_call import DropoutCall, RecordedCall
from pytest_msprobe.engines.protocol import CHANGED, NotJudged, parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines

torch = pytest.importorskip("torch")

ENGINES = Engines(EngineChoice(parse_device("recorded"), "torch", None))


__all__ = ["make_debugger"]


@pytest.fixture
def debugger_type() -> Any:
    return PrecisionDebugger


@pytest.fixture
def dumped(make_debugger: Callable[..., Any], tmp_path: Path) -> Callable[[Callable[[], Any]], Dump]:
    """Collects what a function calls."""

    def collect(function: Callable[[], Any], model: Any = None) -> Dump:
        torch.manual_seed(0)
        debugger = make_debugger(task="tensor", scope=[], list=[], data_mode=["all"])
        debugger.start(model=model)
        function()
        debugger.stop()
        debugger.step()
        return Dump(next((tmp_path / "dump").rglob("dump.json")))

    return collect


def off(dump: Dump, call: str, direction: Any) -> dict[str, float]:
    """How far what the run got is off what the benchmark computes, by the place of the value."""
    with_backward = f"{call}.backward" in dump
    run = RecordedCall(dump, call, ENGINES, with_backward=with_backward, max_memory_bytes=1 << 30)
    return {found.path: float(abs(found.recorded - found.reference).max()) for found in run.outputs(direction)}


def test_gradients_of_lists_are_computed_again(dumped: Callable[..., Dump]) -> None:
    def step() -> None:
        x, y = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
        (torch.stack([x * 2, y]).sum() + (torch.cat([y * 3, x]) ** 2).sum()).backward()

    dump = dumped(step)
    for call in ("Torch.stack.0", "Torch.cat.0"):
        found = off(dump, call, "backward")
        assert list(found) == ["other_gradients.input.0.0", "other_gradients.input.0.1"]
        assert max(found.values()) < 1e-5


def test_parameters_of_a_recurrent_layer_have_gradients(dumped: Callable[..., Dump]) -> None:
    layer, x = torch.nn.LSTM(4, 3), torch.randn(5, 2, 4, requires_grad=True)
    dump = dumped(lambda: layer(x * 2)[0].sum().backward(), layer)
    found = off(dump, "VF.lstm.0", "backward")
    assert {"output.0", "other_gradients.input.2.0", "other_gradients.input.2.3"} <= found.keys()
    assert max(found.values()) < 1e-4


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RMSprop"])
def test_steps_of_optimizers_are_computed_again(dumped: Callable[..., Dump], name: str) -> None:
    parameters = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = getattr(torch.optim, name)(parameters, 0.1, foreach=True)
    dump = dumped(optimizer.step)
    calls = [record.rpartition(".")[0] for record in dump.record_names if "._foreach_" in record]
    assert calls
    for call in calls:
        assert max(off(dump, call, "forward").values(), default=0) < 1e-5, call


def test_clipping_and_scaling_are_computed_again(dumped: Callable[..., Dump]) -> None:
    def step() -> None:
        torch._foreach_norm([torch.randn(3), torch.randn(4)])
        scale, tracker = torch.full((), 8.0), torch.zeros((), dtype=torch.int32)
        torch._amp_update_scale_(scale, tracker, torch.ones(()), 2.0, 0.5, 2000)

    dump = dumped(step)
    assert max(off(dump, "Torch._foreach_norm.0", "forward").values()) < 1e-6
    assert max(off(dump, "Torch._amp_update_scale_.0", "forward").values()) == 0


def test_the_benchmark_gives_what_a_call_leaves_in_its_argument(dumped: Callable[..., Dump]) -> None:
    def step() -> None:
        x = torch.zeros(3, 2)
        x[1] = torch.ones(2, requires_grad=True) * 2
        x.sum().backward()

    dump = dumped(step)
    run = RecordedCall(dump, "Tensor.__setitem__.0", ENGINES, with_backward=True, max_memory_bytes=1 << 30)
    _, outputs = run.benchmark(ENGINES, lambda execution: execution.outputs)
    changed = [output.value for output in outputs if output.path[0] == CHANGED]
    assert [array.tolist() for array in changed] == [[[0, 0], [2, 2], [0, 0]]]
    assert max(off(dump, "Tensor.__setitem__.0", "backward").values()) == 0


def test_attention_with_dropout_is_never_computed_again(dumped: Callable[..., Dump]) -> None:
    q = torch.randn(1, 2, 4, 4)
    dump = dumped(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1))
    with pytest.raises(NotJudged, match="dropout_p"):
        off(dump, "Functional.scaled_dot_product_attention.0", "forward")


@pytest.mark.parametrize(("factor", "status"), [(1.0, "pass"), (1.02, "error")])
def test_a_kernel_that_rounds_inside_as_its_tensors_do_is_no_reason_why_runs_differ(
    dumped: Callable[..., Dump], factor: float, status: str
) -> None:
    class Narrow(torch.utils._python_dispatch.TorchDispatchMode):
        """Rounds each result to float16: of x = -3 it loses three digits in 1 + erf."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunction():
                if function.overloadpacket.__name__ != "gelu":
                    return function(*args, **(kwargs or {}))
                return 0.5 * args[0] * (1 + torch.erf(args[0] * 0.5**0.5)) * factor

    def step() -> None:
        with Narrow():
            torch.nn.functional.gelu(torch.linspace(-3.3, 3.3, 960).half())

    run = RecordedCall(dumped(step), "Functional.gelu.0", ENGINES, with_backward=False, max_memory_bytes=1 << 30)
    (output,) = run.outputs("forward")
    assert abs(output.recorded / output.reference - 1).max() > 0.1
    assert run.judge("forward", output).status == status


def test_gradients_of_what_a_kernel_gives_beside_its_outputs_are_left_out(
    dumped: Callable[..., Dump], tmp_path: Path
) -> None:
    norm = torch.nn.GroupNorm(2, 4)
    dumped(lambda: norm(torch.randn(3, 4, 5)).square().sum().backward(), norm)
    file = next((tmp_path / "dump").rglob("dump.json"))
    content = json.loads(file.read_text())
    content["data"]["Functional.group_norm.0.backward"]["input"] += [None, None]
    file.write_text(json.dumps(content))
    found = off(Dump(file), "Functional.group_norm.0", "backward")
    assert list(found) == ["output.1", "output.2"]
    assert max(found.values()) < 1e-4


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32])
def test_gradients_that_a_norm_adds_up_in_its_own_dtype_are_rounding(
    dumped: Callable[..., Dump], parameters: Any
) -> None:
    x, incoming = torch.randn(256, 8).bfloat16().requires_grad_(), torch.randn(256, 8).bfloat16() + 1
    weight, bias = (torch.ones(8, dtype=parameters, requires_grad=True) for _ in range(2))
    dump = dumped(lambda: torch.nn.functional.layer_norm(x * 1, (8,), weight, bias).backward(incoming))
    run = RecordedCall(dump, "Functional.layer_norm.0", ENGINES, with_backward=True, max_memory_bytes=1 << 30)
    found = {output.path: output for output in run.outputs("backward")}
    assert [run.judge("backward", output).status for output in found.values()] == ["pass"] * 3
    for output in found.values():
        wrong = replace(output, recorded=output.recorded * output.recorded.dtype.type(1.5))
        assert run.judge("backward", wrong).status == "error"


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_what_a_dropout_drops_of_zeros_is_learnt_from_gradients_and_the_other_run(
    make_debugger: Callable[..., Any], tmp_path: Path, seeds: tuple[int, int]
) -> None:
    debugger, values = make_debugger(task="tensor", scope=[], list=[], data_mode=["all"]), torch.randn(40, 5)
    calls = []
    for seed, hidden in zip(seeds, (values > 0, values < 0.5)):
        torch.manual_seed(seed)
        debugger.start()
        x = (values * hidden).requires_grad_()
        torch.nn.functional.dropout(x, 0.5).backward(torch.ones(40, 5))
        debugger.stop()
        debugger.step()
    for file in sorted((tmp_path / "dump").rglob("dump.json")):
        dump = Dump(file)
        made = DropoutCall(dump, "Functional.dropout.0", ENGINES, with_backward=True, max_memory_bytes=1 << 30)
        calls.append(made)
    for run in calls:
        (gradient,) = run.outputs("backward")
        assert (gradient.recorded == gradient.reference).all()  # half of the inputs are 0
    assert calls[0].drops_as(calls[1]) is (seeds[0] == seeds[1])
    for run in calls:
        assert all((output.recorded == output.reference).all() for output in run.outputs("backward"))


@pytest.mark.parametrize(("left", "right"), [((8, 4), (2, 4, 8)), ((4, 8), (8, 4)), ((2, 4, 4), (4, 8)), (None, None)])
def test_products_of_groups_are_computed_again(dumped: Callable[..., Dump], left: Any, right: Any) -> None:
    ends = None if left is None else torch.tensor([3, 8], dtype=torch.int32)
    x, y = (torch.randn(shape, requires_grad=True) for shape in (left or (2, 3, 4), right or (2, 4, 8)))
    dump = dumped(lambda: torch._grouped_mm(x * 1, y * 1, offs=ends).square().sum().backward())
    assert max(off(dump, "Torch._grouped_mm.0", "forward").values()) < 1e-5
    assert max(off(dump, "Torch._grouped_mm.0", "backward").values()) < 1e-4


def test_products_of_groups_that_leave_out_rows_are_not_computed_again(dumped: Callable[..., Dump]) -> None:
    ends = torch.tensor([3, 8], dtype=torch.int32)
    dump = dumped(lambda: torch._grouped_mm(torch.randn(9, 4), torch.randn(2, 4, 8), offs=ends))
    with pytest.raises(NotJudged, match="leave out a part"):
        off(dump, "Torch._grouped_mm.0", "forward")


def test_a_gradient_that_is_exactly_0_is_rounding(make_debugger: Callable[..., Any], tmp_path: Path) -> None:
    """As that of a bias before a norm: each run holds the rounding of its own sum."""
    debugger = make_debugger(task="tensor", scope=[], list=[], data_mode=["all"])
    incoming, bias = torch.randn(4096, 4), torch.zeros(4, requires_grad=True)
    incoming -= incoming.double().mean(0).float()
    for order in (torch.arange(4096), torch.randperm(4096)):
        debugger.start()
        (torch.zeros(4096, 4) + bias).backward(incoming[order])
        debugger.stop()
        debugger.step()
    files = sorted((tmp_path / "dump").rglob("dump.json"))
    (backward,) = [step for step in diagnose(*files).steps if step.record == "Tensor.__add__.0.backward"]
    assert backward.account.reason == ""
    assert [output.blamed for output in backward.account.outputs] == [{}]


@pytest.mark.parametrize(("factor", "status"), [(1.0, "pass"), (1.02, "error")])
def test_what_mindspore_makes_of_several_operators_is_rounded_by_each(
    tmp_path: Path, factor: float, status: str
) -> None:
    x = torch.linspace(-4, 4, 999).half()
    made = x * ((x * 0.7071).erf() + 1) / 2 * factor
    builder = DumpBuilder(tmp_path, framework="mindspore")
    builder.call("Functional.gelu.0", [x.numpy()], [made.numpy()])
    builder.write()
    call = "Functional.gelu.0"
    run = RecordedCall(Dump(tmp_path / "dump.json"), call, ENGINES, with_backward=False, max_memory_bytes=1 << 30)
    (output,) = run.outputs("forward")
    assert run.judge("forward", output).status == status


@pytest.mark.parametrize(("factor", "kinds"), [(1.0, ["defined"]), (1.5, ["born"])])
def test_sizes_behind_what_differs_may_be_computed_from_it(tmp_path: Path, factor: float, kinds: list[str]) -> None:
    """As how many tokens each expert gets."""
    x = torch.linspace(-1, 1, 24).reshape(6, 4)
    for side, sizes in (("target", (4, 2)), ("golden", (3, 3))):
        made = x.exp() * (factor if side == "target" else 1)
        builder = DumpBuilder(tmp_path / side, framework="pytorch")
        builder.call("Torch.exp.0", [x.numpy()], [made.numpy()])
        builder.call("Tensor.split.0", [made.numpy(), list(sizes)], [part.numpy() for part in made.split(sizes)])
        builder.write()
    found = diagnose(tmp_path / "target" / "dump.json", tmp_path / "golden" / "dump.json")
    assert [fault.kind for fault in found.faults] == kinds
    assert [step.record for step in found.steps if step.account.kind == "fault"] == found.faults[0].records
