"""What single elements of an output are the sum of, and how errors in them are judged by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counted_engine import CountedEngine
from dump_builder import DumpBuilder
from ml_dtypes import bfloat16

pytest.importorskip("torch")

from sensitivities import Without

from msprobe_collector.dump_format import Dump
from pytest_msprobe.cases.call_run import CallRun
from pytest_msprobe.cases.second_runs import Bench, ExtraRuns
from pytest_msprobe.engines.torch_engine import TorchEngine
from pytest_msprobe.numerics.judgement import OutputPair, Sensitivity
from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.backward_error import BackwardError, Fused
from pytest_msprobe.numerics.standards.sensitivity import largest_error_of_sums, largest_partial_sums

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)


def drawn(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def pair_of(
    folder: Path,
    name: str,
    arguments: list[Any],
    *,
    incoming: Array | None = None,
    position: int = 0,
    tested: Any = None,
    engine: TorchEngine | None = None,
) -> OutputPair:
    """Output or gradient number `position` of a call as PyTorch computes it in float64, against `tested`."""
    engine = engine or TorchEngine(is_raised=True)
    gradients = [np.zeros_like(item) for item in arguments if isinstance(item, np.ndarray)]
    builder = DumpBuilder(folder, framework="pytorch")
    builder.call(name, arguments, [], incoming=[incoming], gradients=gradients if incoming is not None else None)
    run = CallRun(Dump(builder.write()), name, with_backward=incoming is not None, max_memory_bytes=1 << 30)
    execution = engine.forward(run.case.call, differentiate=run.case.wanted)
    given = () if incoming is None else (incoming,)
    found: Any = execution.gradients(given)[position] if given else execution.outputs[position].value
    tested = found.astype(np.float32) if tested is None else tested
    extra = ExtraRuns(run, Bench(engine, None), given)
    return extra.pair(position, tested, found, measure(tested, found, off_bound=1.0))


X, WEIGHT, BIAS = drawn(3, 5), drawn(4, 5), drawn(4)
IMAGE, KERNEL = drawn(2, 4, 6, 6), drawn(6, 2, 3, 3)


def of_convolution(at: tuple[int, int, int, int]) -> Array:
    """Products of one output element of a grouped convolution with stride 2 and padding 1."""
    image, channel, row, column = at
    padded = np.pad(IMAGE, ((0, 0), (0, 0), (1, 1), (1, 1)))
    group = slice(2 * (channel // 3), 2 * (channel // 3) + 2)
    window = padded[image, group, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
    return window.astype(np.float64) * KERNEL[channel]


@pytest.mark.parametrize(
    ("name", "arguments", "at", "expected"),
    [
        ("Functional.linear.0", [X, WEIGHT, BIAS], 6, [*(X[1].astype(float) * WEIGHT[2]), BIAS[2]]),
        ("Torch.addmm.0", [BIAS, X, WEIGHT.T.copy()], 6, [*(X[1].astype(float) * WEIGHT[2]), BIAS[2]]),
        ("Torch.sum.0", [X], 0, X.reshape(-1)),
        ("Torch.outer.0", [BIAS, BIAS], 5, [float(BIAS[1]) * float(BIAS[1])]),
        ("Functional.conv2d.0", [IMAGE, KERNEL, None, 2, 1, 1, 2], 9 + 4, of_convolution((0, 1, 1, 1))),
    ],
)
def test_terms_of_an_output(tmp_path: Path, name: str, arguments: list[Any], at: int, expected: Any) -> None:
    orders = pair_of(tmp_path, name, arguments).sensitivity.terms(at)
    assert orders
    for terms in orders:
        np.testing.assert_allclose(np.sort(terms), np.sort(np.ravel(expected)), rtol=1e-12)


INCOMING = drawn(3, 4)


@pytest.mark.parametrize(
    ("position", "at", "expected"),
    [
        (0, 7, INCOMING[1].astype(float) * WEIGHT[:, 2]),
        (1, 12, INCOMING[:, 2].astype(float) * X[:, 2]),
        (2, 3, INCOMING[:, 3]),
    ],
)
def test_terms_of_a_gradient(tmp_path: Path, position: int, at: int, expected: Array) -> None:
    pair = pair_of(tmp_path, "Functional.linear.0", [X, WEIGHT, BIAS], incoming=INCOMING, position=position)
    np.testing.assert_allclose(pair.sensitivity.terms(at)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["Functional.softmax.0", "Functional.gelu.0", "Torch.exp.0"])
@pytest.mark.parametrize("incoming", [None, drawn(3, 5)])
def test_what_is_no_sum_has_no_terms(tmp_path: Path, name: str, incoming: Array | None) -> None:
    assert pair_of(tmp_path, name, [X, -1] if "softmax" in name else [X], incoming=incoming).sensitivity.terms(3) == ()


def one_by_one(left: Array, right: Array) -> Array:
    """left.T @ right in float32, one row of both after the other."""
    products = left.astype(np.float32)[:, :, None] * right.astype(np.float32)[:, None, :]
    return np.cumsum(products, axis=0, dtype=np.float32)[-1]


def alike_tokens() -> tuple[Array, Array]:
    """Incoming gradients, one of which cancels late, and activations that are nearly the same in all rows."""
    incoming = drawn(512, 6)
    incoming[:, 2] = np.sort(incoming[:, 2])
    incoming -= incoming.mean(axis=0)
    return incoming, (3 + 0.01 * drawn(512, 8)).astype(np.float32)


def test_partial_sums_that_leave_and_return_explain_an_error(tmp_path: Path) -> None:
    incoming, activations = alike_tokens()
    tested = one_by_one(incoming, activations)
    pair = pair_of(
        tmp_path, "Functional.linear.0", [activations, drawn(6, 8)], incoming=incoming, position=1, tested=tested
    )
    assert not BackwardError().judge_pair(without_terms(pair)).is_pass
    assert BackwardError().judge_pair(pair).is_pass
    assert Fused().judge_pair(pair).is_pass


def without_terms(pair: OutputPair) -> OutputPair:
    return replace(pair, sensitivity=Without(pair.sensitivity, "terms"))


@pytest.mark.parametrize("standard", [BackwardError(), Fused()])
def test_a_lost_term_is_seen_among_them(tmp_path: Path, standard: BackwardError) -> None:
    incoming, activations = alike_tokens()
    tested = one_by_one(incoming, activations)
    tested[2, 3] -= incoming[300, 2] * activations[300, 3]
    pair = pair_of(
        tmp_path, "Functional.linear.0", [activations, drawn(6, 8)], incoming=incoming, position=1, tested=tested
    )
    found = standard.judge_pair(pair)
    assert not found.is_pass
    assert "at [2, 3]" in found.reasons[0]


def test_partial_sums_of_equal_terms() -> None:
    """1, 2, ..., n: no order of adding has larger ones."""
    assert largest_partial_sums(np.ones(100)) == pytest.approx((100 * 101 * 201 / 6) ** 0.5)
    assert largest_partial_sums(np.zeros(0)) == 0


def test_equal_terms_round_to_the_same_side() -> None:
    """Equal terms, as of equal tokens: twenty standard deviations of independent roundings."""
    terms = np.full(1000, float(np.float32(0.1)))
    by_chance = 0.41 * 2.0**-24 * largest_partial_sums(terms)
    assert largest_error_of_sums(terms) > 10 * by_chance
    assert largest_error_of_sums(np.ones(1000)) == 0


LEFT, RIGHT, INTO = drawn(96, 64), drawn(48, 64), drawn(96, 48)
IMAGES, KERNELS, INTO_IMAGES = drawn(4, 6, 12, 12), drawn(8, 6, 3, 3), drawn(4, 8, 10, 10)
#: The name of a call, its arguments, its incoming gradient, and the number of the output or gradient.
SUMS: dict[str, tuple[str, list[Any], Array | None, int]] = {
    "product": ("Functional.linear.0", [LEFT, RIGHT], None, 0),
    "gradient of activations": ("Functional.linear.0", [LEFT, RIGHT], INTO, 0),
    "gradient of a weight": ("Functional.linear.0", [LEFT, RIGHT], INTO, 1),
    "convolution": ("Functional.conv2d.0", [IMAGES, KERNELS], None, 0),
    "gradient of images": ("Functional.conv2d.0", [IMAGES, KERNELS], INTO_IMAGES, 0),
    "gradient of kernels": ("Functional.conv2d.0", [IMAGES, KERNELS], INTO_IMAGES, 1),
    "gradient of a scale": ("Torch.mul.0", [INTO, drawn(48)], drawn(96, 48), 1),
    "gradient of a table": ("Functional.embedding.0", [RNG.integers(0, 20, 400), drawn(20, 8)], drawn(400, 8), 0),
}


ROWS, INTO_ROWS = np.random.default_rng(11).standard_normal((2, 64, 40)).astype(np.float32)
SCALE, SHIFT = np.random.default_rng(12).standard_normal((2, 40)).astype(np.float32)
NORMALISED = [ROWS + 0.3, (40,), SCALE, SHIFT, 1e-5]
SUMS |= {
    "softmax": ("Torch.softmax.0", [ROWS, -1], None, 0),
    "gradient of softmax": ("Torch.softmax.0", [ROWS, -1], INTO_ROWS, 0),
    "log_softmax": ("Torch.log_softmax.0", [ROWS, -1], None, 0),
    "gradient of log_softmax": ("Torch.log_softmax.0", [ROWS, -1], INTO_ROWS, 0),
    "layer_norm": ("Functional.layer_norm.0", NORMALISED, None, 0),
    "gradient of layer_norm": ("Functional.layer_norm.0", NORMALISED, INTO_ROWS, 0),
    "rms_norm": ("Functional.rms_norm.0", [ROWS, (40,), SCALE, 1e-5], None, 0),
    "gradient of rms_norm": ("Functional.rms_norm.0", [ROWS, (40,), SCALE, 1e-5], INTO_ROWS, 0),
}


@pytest.mark.parametrize(("name", "arguments", "incoming", "position"), SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16], ids=["float32", "float16", "bfloat16"])
def test_sizes_of_terms_say_what_moved_runs_would(
    tmp_path: Path, name: str, arguments: list[Any], incoming: Array | None, position: int, dtype: Any
) -> None:
    narrow = [item.astype(dtype) if getattr(item, "dtype", None) == np.float32 else item for item in arguments]
    given = None if incoming is None else incoming.astype(dtype)
    pair = pair_of(tmp_path, name, narrow, incoming=given, position=position)
    known = pair.sensitivity.deviations()
    assert known is not None
    norms = known.values()
    assert norms is not None
    moves = [np.abs(run.result - pair.reference).reshape(-1) / run.size for run in pair.sensitivity.runs("inputs")]
    measured = np.sqrt(np.mean([np.square(move / norms) for move in moves]))
    assert 0.7 < measured < 1.4
    probes = pair.sensitivity.probes("inputs", 16)
    probed = np.max([np.abs(probe - pair.reference).reshape(-1) for probe in probes], axis=0)
    assert 0.8 < np.median(probed / norms) / 2.0 < 1.25


def test_a_factor_beside_the_tensors_is_no_term(tmp_path: Path) -> None:
    assert pair_of(tmp_path, "Torch.mul.0", [LEFT, 0.5]).sensitivity.deviations() is None


def test_a_right_product_is_judged_without_another_run(tmp_path: Path) -> None:
    engine = CountedEngine()
    pair = pair_of(tmp_path, "Functional.linear.0", [LEFT, RIGHT], tested=LEFT @ RIGHT.T, engine=engine)
    before = engine.forwards
    assert pair.metrics.max_ulp is not None
    assert pair.metrics.max_ulp > 1
    assert BackwardError().judge_pair(pair).is_pass
    assert engine.forwards == before


@pytest.mark.parametrize("dropped", range(8))
def test_one_lost_term_of_a_product_is_seen(tmp_path: Path, dropped: int) -> None:
    """It is one of 64, far above rounding; the element that lacks it is the only one that is wrong."""
    tested = LEFT @ RIGHT.T
    lost = int(np.argsort(-np.abs(LEFT[dropped] * RIGHT[dropped]))[32])
    tested[dropped, dropped] -= LEFT[dropped, lost] * RIGHT[dropped, lost]
    pair = pair_of(tmp_path, "Functional.linear.0", [LEFT, RIGHT], tested=tested)
    assert not BackwardError().judge_pair(pair).is_pass


def test_terms_beyond_the_range_of_float32_explain_nothing_and_end(tmp_path: Path) -> None:
    x, incoming = drawn(24, 6) * np.float32(1e30), drawn(24, 4) * np.float32(1e30)
    with np.errstate(all="ignore"):
        tested = incoming.T @ x
    tested[0, 0] = 1e30  # NaN would be Inf - Inf
    pair = pair_of(tmp_path, "Functional.linear.0", [x, drawn(4, 6)], incoming=incoming, position=1, tested=tested)
    assert not BackwardError().judge_pair(pair).is_pass


QUESTIONS: dict[str, Callable[[Sensitivity], Any]] = {
    "deviations": lambda asked: (known := asked.deviations()) and known.values(),
    "terms": lambda asked: asked.terms(6),
    "inputs": lambda asked: [run.result for run in asked.runs("inputs")],
    "inside": lambda asked: [run.result for run in asked.runs("inside")],
    "probes": lambda asked: asked.probes("arithmetic", 2),
    "magnitudes": lambda asked: asked.sums_of_magnitudes(),
    "partial sums": lambda asked: asked.partial_sums(),
}


@pytest.mark.parametrize("incoming", [None, drawn(3, 4)])
def test_answers_are_the_same_asked_twice_and_in_another_order(tmp_path: Path, incoming: Array | None) -> None:
    (tmp_path / "again").mkdir()
    first, second = (
        pair_of(folder, "Functional.linear.0", [X, WEIGHT, BIAS], incoming=incoming)
        for folder in (tmp_path, tmp_path / "again")
    )
    answers = {name: ask(first.sensitivity) for name, ask in QUESTIONS.items()}
    assert answers["terms"]
    assert BackwardError().judge_pair(first) == BackwardError().judge_pair(first)
    for name in reversed(QUESTIONS):
        for asked in (first, second):
            np.testing.assert_equal(QUESTIONS[name](asked.sensitivity), answers[name], err_msg=name)
