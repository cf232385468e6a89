"""Calls restricted to parts of an output: when that holds, and large outputs judged by such parts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

pytest.importorskip("torch")

from sensitivities import Without

from msprobe_collector.dump_format import Dump, parse_api_name
from pytest_msprobe.cases.call_run import CallRun
from pytest_msprobe.cases.restricted_call import Restriction
from pytest_msprobe.cases.second_runs import Bench, ExtraRuns
from pytest_msprobe.engines.protocol import Call, Execution, LeafPath, leaves
from pytest_msprobe.engines.torch_engine import TorchEngine
from pytest_msprobe.numerics.judgement import OutputPair, Standard, judge_pair
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def drawn(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


class CountingEngine(TorchEngine):
    """The benchmark; `sizes` are those of the first tensor of each forward."""

    def __init__(self) -> None:
        super().__init__(is_raised=True)
        self.sizes: list[int] = []

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Execution:
        self.sizes.append(next(value.size for _, value in leaves(call) if hasattr(value, "size")))
        return super().forward(call, differentiate=differentiate)


def restriction(
    name: str, arguments: Sequence[Any], keywords: dict[str, Any], *, incoming: Array | None = None, position: int = 0
) -> tuple[Restriction, Array, CountingEngine]:
    """Output or gradient `position` of a call, what PyTorch computes for it in float64, and what was run besides."""
    call = Call(parse_api_name(f"{name}.0"), "mindspore", tuple(arguments), keywords)
    wanted = tuple(path for path, value in leaves(call) if getattr(value, "dtype", None) == np.float32)
    given = () if incoming is None else (incoming,)
    engine = CountingEngine()

    def compute(call: Call, incoming: tuple[Any, ...]) -> Any:
        try:
            execution = engine.forward(call, differentiate=wanted if given else ())
            return execution.gradients(incoming)[position] if given else execution.outputs[position].value
        except Exception:
            return None

    whole = compute(call, given)
    engine.sizes.clear()
    return Restriction(call, given, whole, compute), whole, engine


X, ROW, SQUARE = drawn(512, 64), drawn(64), drawn(400, 400)
IMAGES, KERNELS, INDICES = drawn(256, 4, 6, 6), drawn(5, 4, 3, 3), RNG.integers(0, 9, (40, 512))
STATISTICS = [np.zeros(4, np.float32), np.ones(4, np.float32)]

#: API, positional and keyword arguments, and the shape of the part for three places.
HOLDS: list[tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = [
    ("MintFunctional.gelu", [X], {}, (4099,)),
    ("Mint.mul", [X, ROW], {}, (4099,)),
    ("Mint.where", [X > 0, X, ROW], {}, (4099,)),
    ("MintFunctional.softmax", [X, -1], {}, (67, 64)),
    ("MintFunctional.softmax", [drawn(8, 64, 64), 2], {}, (67, 1, 64)),
    ("MintFunctional.softmax", [drawn(512, 6, 8), 1], {}, (89, 6, 8)),
    ("MintFunctional.log_softmax", [X, -1], {}, (67, 64)),
    ("MintFunctional.layer_norm", [X, (64,), ROW, ROW], {}, (67, 64)),
    ("MintFunctional.layer_norm", [SQUARE, (400,), SQUARE[0], SQUARE[1]], {}, (19, 400)),
    ("Functional.rms_norm", [X, ROW], {}, (67, 64)),
    ("Mint.cumsum", [X, 1], {}, (67, 64)),
    ("MintFunctional.linear", [drawn(800, 64), drawn(32, 64), drawn(32)], {}, (131, 32)),
    ("Mint.bmm", [drawn(256, 8, 16), drawn(256, 16, 16)], {}, (35, 8, 16)),
    ("MintFunctional.conv2d", [IMAGES, KERNELS], {}, (55, 5, 4, 4)),
    ("MintFunctional.batch_norm", [IMAGES, *STATISTICS], {}, (32, 4, 6, 6)),
    ("MintFunctional.embedding", [INDICES, drawn(9, 64)], {}, (67, 1, 64)),
    ("Mint.sum", [drawn(256, 128, 8), -1], {}, (35, 128)),
    ("MintFunctional.cross_entropy", [drawn(20000, 5), RNG.integers(0, 5, 20000)], {"reduction": "none"}, (4099,)),
]


@pytest.mark.parametrize(("name", "arguments", "keywords", "shape"), HOLDS)
def test_a_small_call_makes_some_elements_and_a_sample_of_others(
    name: str, arguments: list[Any], keywords: dict[str, Any], shape: tuple[int, ...]
) -> None:
    whole, reference, _ = restriction(name, arguments, keywords)
    wanted = [0, reference.size // 2, reference.size - 1]
    part = whole.part(wanted)
    assert part is not None
    assert part.result.shape == part.places.shape
    assert part.result.shape[1:] == shape[1:]
    assert shape[0] - 3 <= part.result.shape[0] <= shape[0]
    np.testing.assert_allclose(part.result, reference.reshape(-1)[part.places], rtol=1e-10)
    chosen = part.places.reshape(-1)[: part.chosen]
    assert set(wanted) <= set(chosen.tolist())
    assert np.unique(part.places).size == part.places.size


HELD_BACKWARD: list[tuple[str, list[Any], Array, int]] = [
    ("MintFunctional.silu", [X], drawn(512, 64), 0),
    ("MintFunctional.softmax", [X, -1], drawn(512, 64), 0),
    ("MintFunctional.layer_norm", [X, (64,), ROW, ROW], drawn(512, 64), 0),
    ("Mint.mul", [X, ROW], drawn(512, 64), 0),
    ("MintFunctional.conv2d", [IMAGES, KERNELS], drawn(256, 5, 4, 4), 0),
]


@pytest.mark.parametrize(("name", "arguments", "incoming", "position"), HELD_BACKWARD)
def test_so_it_does_for_a_gradient(name: str, arguments: list[Any], incoming: Array, position: int) -> None:
    whole, reference, engine = restriction(name, arguments, {}, incoming=incoming, position=position)
    part = whole.part([5])
    assert part is not None
    np.testing.assert_allclose(part.result, reference.reshape(-1)[part.places], rtol=1e-10)
    assert max(engine.sizes) <= arguments[0].size / 4


#: And whether the benchmark's results were what refused it, or the shapes and sizes of the tensors.
REFUSED: list[tuple[str, list[Any], dict[str, Any], bool]] = [
    ("Mint.cumsum", [X, 0], {}, True),
    ("MintFunctional.softmax", [X, 0], {}, True),
    ("MintFunctional.batch_norm", [IMAGES, *STATISTICS], {"training": True}, True),
    ("Mint.topk", [X, 500, 0], {}, False),
    ("Mint.flip", [X, [0]], {}, True),
    ("Mint.sum", [drawn(512, 32768), 0], {}, False),
    ("MintFunctional.conv2d", [IMAGES, drawn(256, 4, 3, 3)], {}, True),
    ("MintFunctional.linear", [SQUARE, SQUARE], {}, True),
    ("MintFunctional.gelu", [drawn(64, 64)], {}, False),
]


@pytest.mark.parametrize(("name", "arguments", "keywords", "is_tried"), REFUSED)
def test_what_other_parts_take_part_in_is_not_restricted(
    name: str, arguments: list[Any], keywords: dict[str, Any], is_tried: bool
) -> None:
    whole, _, engine = restriction(name, arguments, keywords)
    assert whole.part([3]) is None
    assert bool(engine.sizes) is is_tried


@pytest.mark.parametrize(("name", "arguments", "position"), [("MintFunctional.linear", [X, SQUARE[:, :64]], 1)])
def test_nor_are_gradients_that_sum_over_rows(name: str, arguments: list[Any], position: int) -> None:
    whole, _, _ = restriction(name, arguments, {}, incoming=drawn(512, 400), position=position)
    assert whole.part([3]) is None


def test_many_places_make_no_small_call() -> None:
    whole, _, engine = restriction("MintFunctional.softmax", [X, -1], {})
    assert whole.part(range(0, X.size, 64 * 8)) is not None
    engine.sizes.clear()
    assert whole.part(range(0, X.size, 64 * 2)) is None
    assert not engine.sizes


def test_places_where_the_small_call_makes_something_else_refuse_it() -> None:
    """A sample need not meet them."""
    odd = X[3, 3].item()

    def compute(call: Call, incoming: tuple[Any, ...]) -> Array:
        x = np.asarray(call.arguments[0]).astype(np.float64)
        return x**2 * np.where(x == odd, 1 + 1e-9, 1)

    call = Call(parse_api_name("Mint.square.0"), "mindspore", (X,), {})
    whole = Restriction(call, (), X.astype(np.float64) ** 2, compute)
    place = 3 * 64 + 3
    sample = whole.part([place - 1])
    assert sample is not None
    assert place not in sample.places
    assert whole.part([place]) is None


def of_large_call(
    folder: Path, name: str, x: Array, *rest: Any, incoming: Array | None = None
) -> tuple[OutputPair, CountingEngine]:
    """The output of a call (or the gradient of `x`) rounded once, and the engine that has run it once."""
    engine, given = CountingEngine(), () if incoming is None else (incoming,)
    builder = DumpBuilder(folder, framework="mindspore")
    gradients = None if incoming is None else [np.zeros_like(x)]
    builder.call(name, [x, *rest], [], incoming=[incoming], gradients=gradients)
    run = CallRun(Dump(builder.write()), name, with_backward=incoming is not None, max_memory_bytes=1 << 30)
    execution = engine.forward(run.case.call, differentiate=run.case.wanted)
    found: Any = execution.gradients(given)[0] if given else execution.outputs[0].value
    extra, tested = ExtraRuns(run, Bench(engine, None), given), found.astype(np.float32)
    return extra.pair(0, tested, found, measure(tested, found, off_bound=1.0)), engine


def wrong(pair: OutputPair, places: Sequence[int], roundings: float) -> OutputPair:
    """The pair with the elements at flat places off by so many roundings of each."""
    tested = pair.tested.copy()
    tested.reshape(-1)[list(places)] *= 1 + roundings * 2.0**-24
    return replace(pair, tested=tested, metrics=measure(tested, pair.reference, off_bound=1.0))


LARGE = (1025, 1024)


@pytest.mark.parametrize("standard", [BackwardError(), Fused()])
def test_elements_in_question_of_a_large_gradient_need_no_run_of_the_whole(tmp_path: Path, standard: Standard) -> None:
    """At x = -1.278 the gradient of silu crosses 0: rounding leaves no digit of it."""
    x = np.full(LARGE, 2.0, np.float32) + np.linspace(0, 1, 1024, dtype=np.float32)
    x[::100, 5] = -1.2784645
    pair, engine = of_large_call(tmp_path, "MintFunctional.silu.0", x, incoming=np.ones_like(x))
    tested = pair.tested.copy()
    tested[::100, 5] += 2.0**-25
    right = replace(pair, tested=tested, metrics=measure(tested, pair.reference, off_bound=1.0))
    assert judge_pair(standard, right).is_pass
    assert engine.sizes.count(x.size) == 1
    assert all(size < 5000 for size in engine.sizes[1:])


@pytest.mark.parametrize(("name", "rest"), [("Mint.tanh.0", []), ("MintFunctional.softmax.0", [-1])])
def test_a_wrong_element_of_a_large_output_fails_as_before(tmp_path: Path, name: str, rest: list[Any]) -> None:
    pair, engine = of_large_call(tmp_path, name, drawn(*LARGE), *rest)
    assert judge_pair(BackwardError(), wrong(pair, [77_777], 12)).is_pass
    assert engine.sizes.count(pair.tested.size) == 1
    found = wrong(pair, [77_777], 3000)
    plain = Without(found.sensitivity, "restricted")
    judgement = judge_pair(BackwardError(), found)
    assert judgement == judge_pair(BackwardError(), replace(found, sensitivity=plain))
    assert not judgement.is_pass
    assert "at [75, 977]" in judgement.reasons[0]


def test_arrays_of_a_large_call_do_not_wait_for_the_collector_of_garbage(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        pair, _ = of_large_call(tmp_path, "Mint.tanh.0", drawn(*LARGE))
        assert pair.sensitivity.restricted(pair.tested, [5]) is not None
        reference = weakref.ref(pair.reference)
        del pair
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("off", "is_pass"), [(1.0, True), (16.0, False)])
def test_one_that_cancels_inside_is_judged_by_its_own_arithmetic(tmp_path: Path, off: float, is_pass: bool) -> None:
    """0.5 x (1 + erf): 1 + erf is off by four roundings of 1, which two runs may not show by chance."""
    x = np.full(LARGE, 0.01, np.float32)
    x[7, 7] = -5.0
    pair, _ = of_large_call(tmp_path, "MintFunctional.gelu.0", x)
    tested = pair.tested.copy()
    tested[7, 7] += off * 4 * 5.0 * 2.0**-24
    found = replace(pair, tested=tested, metrics=measure(tested, pair.reference, off_bound=1.0))
    assert judge_pair(BackwardError(), found).is_pass is is_pass
