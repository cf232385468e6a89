"""What a check does around its engines: order, economy, hooks, and what it never touches."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.checking import Bench, X, Y
from fakes.engine import FakeEngine, FakeEngines
from fakes.operators import OPERATORS

from pytest_msprobe.api import Reference
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.numerics.standards.elementwise import AgainstSecondOpinion


def test_forward_runs_once_for_both_directions(tmp_path: Path) -> None:
    device, bench = FakeEngine(), FakeEngine("bench", is_raised=True)
    check = Bench(tmp_path, engines=FakeEngines(device, (bench,))).check()
    assert [check.run("forward").status, check.run("backward").status] == ["pass", "pass"]
    assert device.ran == bench.ran == {"forward": 1, "gradients": 1}


def test_the_backward_alone_runs_its_forward(tmp_path: Path) -> None:
    device = FakeEngine()
    assert Bench(tmp_path, engines=FakeEngines(device)).verdict("backward").status == "pass"
    assert device.ran == {"forward": 1, "gradients": 1}


def test_a_forward_that_raised_is_not_tried_again(tmp_path: Path) -> None:
    device = FakeEngine(fault="raises")
    check = Bench(tmp_path, engines=FakeEngines(device)).check()
    assert check.run("forward").message == check.run("backward").message
    assert device.ran == {"forward": 1}


def test_the_next_benchmark_steps_in(tmp_path: Path) -> None:
    benches = tuple(FakeEngine(name, is_raised=True, fault=fault) for name, fault in FALLBACK)
    found = Bench(tmp_path, engines=FakeEngines(FakeEngine(), benches)).verdict()
    assert (found.status, found.bench) == ("pass", "third CPU float64")


FALLBACK = (("first", "refusal"), ("second", "raises"), ("third", "none"))


def test_without_any_benchmark_each_says_why(tmp_path: Path) -> None:
    benches = tuple(FakeEngine(name, is_raised=True, fault=fault) for name, fault in FALLBACK[:2])
    found = Bench(tmp_path, engines=FakeEngines(FakeEngine(), benches)).verdict()
    assert (found.status, found.message) == ("error", "benchmark (second CPU float64): RuntimeError: kernel failed")
    found = Bench(tmp_path / "other", engines=FakeEngines(FakeEngine(), benches[:1])).verdict()
    assert (found.status, found.message) == ("skip", "no benchmark: first: no kernel for it")


def test_recorded_values_are_tested_without_an_engine(tmp_path: Path) -> None:
    bench = Bench(tmp_path, engines=FakeEngines())
    check = bench.check()
    assert [check.run(direction).device for direction in ("forward", "backward")] == ["recorded values"] * 2
    bench.builder = bench.recorded()
    np.save(tmp_path / "dump_tensor_data" / "Mint.mul.0.forward.output.0.npy", X * Y + np.float32(0.5))
    found = bench.check().run("forward")
    assert (found.status, "Max absolute error 0.5" in found.explanation) == ("error", True)


def test_recorded_gradients_of_one_shape_are_paired_by_value(tmp_path: Path) -> None:
    """A swap by a device is seen (the table of faults); one in the order of a dump's entries is none."""
    bench = Bench(tmp_path, api="add", arguments=[X, X], engines=FakeEngines())
    assert bench.verdict("backward").status == "pass"


def test_nothing_is_kept_after_close(tmp_path: Path) -> None:
    seen: list[weakref.ref[Any]] = []

    class Watching(FakeEngine):
        def forward(self, call: Any, *, differentiate: Any) -> Any:
            execution = super().forward(call, differentiate=differentiate)
            seen.extend(weakref.ref(output.value) for output in execution.outputs)
            return execution

    for fault in ("none", "bias", "raises in its gradient"):
        gc.disable()
        try:
            check = Bench(tmp_path / fault, engines=FakeEngines(Watching(fault=fault))).check()
            check.run("forward"), check.run("backward")
            check.close()
            assert [array for array in seen if array() is not None] == []
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_memory_bytes": 50}, "its largest tensor has shape (2, 3)"),
        ({"max_memory_bytes": 50}, "more than --msprobe-max-memory=50B"),
    ],
)
def test_too_large_is_a_skip_before_any_engine(tmp_path: Path, changes: dict[str, int], words: str) -> None:
    device = FakeEngine()
    found = Bench(tmp_path, engines=FakeEngines(device), changes=changes).verdict()
    assert (found.status, words in found.message) == ("skip", True)
    assert not device.ran


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda records: records["Mint.mul.0.forward"].pop("input_args"), "skip", "has no input_args"),
        (lambda records: records.pop("Mint.mul.0.forward"), "skip", "no forward record"),
        (lambda records: records["Mint.mul.0.backward"].pop("input"), "skip", "no incoming gradient"),
        (lambda records: records["Mint.mul.0.backward"].pop("output"), "skip", "no gradients of this call"),
        (lambda records: records["Mint.mul.0.forward"]["input_args"][0].update(dtype="Int99"), "error", "Int99"),
        (lambda records: records["Mint.mul.0.forward"]["input_args"][0].update(data_name="../x.npy"), "error", "../x"),
        (lambda records: records.update({"Mint.mul.0.backward": 3}), "error", "Mint.mul.0.backward"),
    ],
)
def test_records_that_cannot_be_used(tmp_path: Path, change: Any, status: str, words: str) -> None:
    bench = Bench(tmp_path)
    bench.builder = bench.recorded()
    change(bench.builder.records)
    found = bench.verdict("backward")
    assert (found.status, words in found.message) == (status, True), found.message


def test_a_device_is_told_what_to_differentiate(tmp_path: Path) -> None:
    asked: list[Any] = []

    class Listening(FakeEngine):
        def forward(self, call: Any, *, differentiate: Any) -> Any:
            asked.append((str(call.api), call.framework, differentiate))
            return super().forward(call, differentiate=differentiate)

    Bench(tmp_path, engines=FakeEngines(Listening())).verdict("backward")
    assert asked == [("Mint.mul.0", "mindspore", (("input", 0), ("input", 1)))]


class Conftest:
    """Hooks, each with one answer for all calls."""

    def __init__(self, **answers: Any) -> None:
        for name, answer in answers.items():
            setattr(self, f"pytest_msprobe_{name}", pytest.hookimpl(answer))


@pytest.mark.parametrize(
    ("conftest", "status", "words"),
    [
        (Conftest(reference=lambda api: Reference(np.multiply)), "pass", ""),
        (Conftest(reference=lambda api: Reference(np.subtract)), "error", "Max absolute error"),
        (
            Conftest(reference=lambda api: 3),
            "error",
            "returned 3 for Mint.mul.0; expected a Reference",
        ),
        (Conftest(reference=lambda api: api.nonsense), "error", "pytest_msprobe_reference failed: AttributeError"),
        (
            Conftest(reference=lambda api: Reference(lambda x, y: (x, y))),
            "error",
            "returned 2 outputs, the",
        ),
        (Conftest(reference=lambda api: Reference(lambda x, y: x[0])), "error", "returned shape (3,) for output 0"),
        (Conftest(reference=lambda api: pytest.skip("later")), "skip", "pytest_msprobe_reference: later"),
        (Conftest(outputs=lambda outputs: [outputs[0] * 2]), "error", "Max absolute error"),
        (
            Conftest(outputs=lambda outputs: []),
            "error",
            "returned a list of 0 for Mint.mul.0 forward; expected a",
        ),
        (Conftest(outputs=lambda outputs: [None]), "error", "entry 0 of Mint.mul.0 forward"),
        (Conftest(outputs=lambda outputs: outputs[0].fill(0)), "error", "read-only"),
        (Conftest(standard=lambda default: 7), "error", "returned 7 for Mint.mul.0 forward; expected a Standard"),
    ],
)
def test_hooks_are_held_to_their_contract(tmp_path: Path, conftest: Conftest, status: str, words: str) -> None:
    found = Bench(tmp_path, conftest=conftest).verdict()
    text = f"{found.message}\n{found.explanation}"
    assert (found.status, words in text) == (status, True), text


def test_a_hook_changes_the_standard(tmp_path: Path) -> None:
    engines = FakeEngines(FakeEngine(fault="bias"))
    for limit, status in ((0.02, "pass"), (0.005, "error")):
        conftest = Conftest(standard=lambda default, limit=limit: replace(default, max_abs=limit))
        assert Bench(tmp_path / status, engines=engines, conftest=conftest).verdict().status == status


def test_altered_outputs_are_marked(tmp_path: Path) -> None:
    found = Bench(tmp_path, conftest=Conftest(outputs=lambda outputs: list(outputs))).verdict()
    assert (found.status, found.device) == ("pass", "fake CPU, altered by pytest_msprobe_outputs")


@pytest.mark.parametrize(
    ("api", "arguments", "status", "words"),
    [
        ("split", [np.arange(6, dtype=np.float32), 2], "pass", ""),
        ("topk", [np.array([3.0, 1.0, 2.0], np.float32), 2], "pass", ""),
        ("unique", [np.array([3.0, 1.0, 3.0], np.float32)], "pass", ""),
        ("item", [np.array([2.5], np.float32)], "pass", ""),
        ("nothing", [X], "skip", "returned nothing that can be compared"),
        ("dropout", [X], "skip", "dropout"),
        ("unknown_operator", [X], "skip", "device: fake has no unknown_operator"),
    ],
)
def test_kinds_of_outputs(tmp_path: Path, api: str, arguments: list[Any], status: str, words: str) -> None:
    bench = Bench(tmp_path, api=api, arguments=arguments)
    if api not in OPERATORS:
        from dump_builder import DumpBuilder

        bench.builder = DumpBuilder(tmp_path).call(f"Mint.{api}.0", arguments, [X])
    found = bench.verdict()
    assert (found.status, words in found.message) == (status, True), found


def test_quantised_results_may_be_off_by_one_and_not_by_two(tmp_path: Path) -> None:
    x = np.array([1.2, 2.7, -3.1], np.float32)

    class Rounding(FakeEngine):
        by = 1

        def forward(self, call: Any, *, differentiate: Any) -> Any:
            execution = super().forward(call, differentiate=differentiate)
            execution.outputs[0].value[0] += self.by
            return execution

    bench = Bench(tmp_path, api="dynamic_quant_ext", arguments=[x], engines=FakeEngines(Rounding()))
    assert bench.verdict().status == "pass"
    Rounding.by = 2
    assert bench.verdict().status == "error"


def test_perturbed_benchmarks_are_asked_for_only_where_they_are_needed(tmp_path: Path) -> None:
    runs = {}
    for fault in ("none", "bias"):
        bench = FakeEngine("bench", is_raised=True)
        engines = FakeEngines(FakeEngine(fault=fault), (bench,))
        Bench(tmp_path / fault, engines=engines, standard=BackwardError()).verdict()
        runs[fault] = bench.ran["forward"]
    assert runs["none"] == 1 < runs["bias"]


def test_a_second_opinion_is_asked_by_the_standard_that_needs_one(tmp_path: Path) -> None:
    second = FakeEngine("second")
    engines = FakeEngines(FakeEngine(fault="bias"), second_opinion=second)
    assert Bench(tmp_path, engines=engines).verdict().status == "error"
    assert not second.ran
    assert Bench(tmp_path / "b", engines=engines, standard=AgainstSecondOpinion()).verdict().status == "error"
    assert second.ran == {"forward": 1}


def test_a_gradient_under_ties_goes_where_the_tested_indices_point(tmp_path: Path) -> None:
    ties = np.array([2.0, 2.0, 1.0], np.float32)

    class OtherTie(FakeEngine):
        """Chooses the second of the equal values, which is as right as the first."""

        def forward(self, call: Any, *, differentiate: Any) -> Any:
            execution = super().forward(call, differentiate=differentiate)
            execution.outputs[1].value[:] = 1
            execution.differentiate = lambda incoming: (np.array([0.0, 1.0, 0.0], np.float32),)
            return execution

    bench = Bench(tmp_path, api="topk", arguments=[ties, 1], engines=FakeEngines(OtherTie()))
    check = bench.check()
    assert [check.run(direction).status for direction in ("forward", "backward")] == ["pass", "pass"]
