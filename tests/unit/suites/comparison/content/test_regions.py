"""Where two runs part, by the statistics of what they hold, whatever their calls are."""

from __future__ import annotations

import json
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.answers.finding import SharedContent
from pytest_msprobe.numerics.dtypes import unit_roundoff
from pytest_msprobe.suites.comparison.content import CommonContent, ContentRows, RowContent
from pytest_msprobe.suites.comparison.content.place import region_of, region_of_results, results_of
from pytest_msprobe.suites.comparison.content.regions import Located, islands, locate
from pytest_msprobe.suites.comparison.content.values import HeldParameter, HeldRecord, HeldRun, HeldValue

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((6, 16)).astype(np.float32)
WEIGHT = RANDOM.standard_normal((16, 16)).astype(np.float32) / 4
GAIN = RANDOM.standard_normal(16).astype(np.float32)


class Written:
    """A run that is written down call by call, in numpy."""

    def __init__(self) -> None:
        self.run = HeldRun({}, [], [])
        self._values: dict[str, np.ndarray] = {}

    def call(self, name: str, output: np.ndarray, *makers: str, leaves: Sequence[np.ndarray] = ()) -> str:
        """Record a call of values that other calls made, and of parameters; the name of what it makes."""
        record = name if name.endswith(".backward") else f"{name}.forward"
        operation = Operation.of(record, len(self.run.records))
        held = HeldRecord(
            operation, leaves=[self.value(operation, f"input.{i}", leaf) for i, leaf in enumerate(leaves)]
        )
        held.outputs.append(self.value(operation, "output.0", output))
        for maker in makers:
            self.run.records[maker.removesuffix(".output.0")].users.setdefault("output.0", set()).add(record)
            held.makers.append(maker)
            held.inputs.append(self.value(operation, "input.9", self._values[maker]))
        self.run.records[record] = held
        self._values[f"{record}.output.0"] = output
        return f"{record}.output.0"

    def optimizer(self, name: str, before: np.ndarray, gradient: np.ndarray, after: np.ndarray) -> None:
        """Record what an optimizer gets and leaves of one parameter."""
        operation = Operation.of("Optimizer.SGD.0.forward", 999)
        paths = ("input.parameters", "input.gradients", "output.0.parameters")
        values = [self.value(operation, f"{path}.{name}", it) for path, it in zip(paths, (before, gradient, after))]
        self.run.parameters.append(HeldParameter(name, *values))
        self.run.gradients.append(values[1])

    def value(self, operation: Operation, path: str, array: np.ndarray) -> HeldValue:
        exact = array.astype(np.float64)
        unit = 0.0 if array.dtype.kind in "iub" else unit_roundoff(array.dtype)
        with np.errstate(invalid="ignore"):
            statistics = [float(it) for it in (np.linalg.norm(exact), exact.max(), exact.min(), exact.mean())]
        return HeldValue(operation.record, path, array.size, array.shape, *statistics, unit)


def normed(x: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(eps)) * GAIN


def in_one_call(eps: float = 1e-5) -> HeldRun:
    """A norm and a product, and the gradient of the weight."""
    run = Written()
    hidden = run.call("Functional.linear.0", X @ WEIGHT, leaves=[WEIGHT])
    norm = normed(X @ WEIGHT, eps)
    out = run.call("Functional.rms_norm.0", norm, hidden, leaves=[GAIN])
    run.call("Functional.linear.1", norm @ WEIGHT, out, leaves=[WEIGHT])
    run.call("Functional.linear.1.backward", norm.T @ X, out, leaves=[WEIGHT])
    return run.run


def by_hand(eps: float = 1e-5, wrong: float = 1.0) -> HeldRun:
    """The same, the norm in several calls, and all under other names; the gradient `wrong` times as large."""
    run = Written()
    x = X @ WEIGHT
    hidden = run.call("Torch.einsum.0", x, leaves=[WEIGHT.T])
    squares = run.call("Torch.square.0", np.square(x), hidden)
    mean = np.square(x).mean(-1, keepdims=True)
    means = run.call("Tensor.mean.0", mean, squares)
    moved = run.call("Tensor.__add__.0", mean + np.float32(eps), means)
    scaled = x / np.sqrt(mean + np.float32(eps))
    ratio = run.call("Tensor.__truediv__.0", scaled, hidden, moved)
    out = run.call("Tensor.__mul__.0", scaled * GAIN, ratio, leaves=[GAIN])
    run.call("Torch.einsum.1", scaled * GAIN @ WEIGHT, out, leaves=[WEIGHT.T])
    run.call("Torch.einsum.1.backward", np.float32(wrong) * ((scaled * GAIN).T @ X), out, leaves=[WEIGHT.T])
    return run.run


def names(located: Located) -> tuple[list[str], list[str]]:
    """The records at which each run parts from the other one."""
    target, golden = ([record.name for record in side.first] for side in (located.target, located.golden))
    return target, golden


@pytest.mark.parametrize(("target", "golden"), [(in_one_call, by_hand), (by_hand, in_one_call), (by_hand, by_hand)])
def test_what_is_computed_in_other_steps_rejoins(target, golden) -> None:
    located = locate(target(), golden())
    assert names(located) == ([], [])
    steps = ("Torch.square.0", "Tensor.mean.0", "Tensor.__add__.0", "Tensor.__truediv__.0")
    lost = [it for record in located.target.records.values() for it in record.outputs if located.in_golden.is_lost(it)]
    assert {value.record.removesuffix(".forward") for value in lost} <= set(steps)


def test_another_number_shows_where_the_values_part_and_names_the_calls_of_both() -> None:
    located = locate(by_hand(eps=1e-3), in_one_call())
    region = region_of(located)
    assert (region.target[0], region.golden) == ("Torch.square.0.forward", ("Functional.rms_norm.0.forward",))
    assert region.target[-1] == "Tensor.__mul__.0.forward"
    assert 0 < region.distance < 1e-2


def test_the_same_place_is_found_from_the_other_side() -> None:
    region = region_of(locate(in_one_call(), by_hand(eps=1e-3)))
    assert region.target == ("Functional.rms_norm.0.forward",)
    assert region.golden[-1] == "Tensor.__mul__.0.forward"


def test_a_multiple_is_said_to_be_one() -> None:
    target, golden = Written(), Written()
    for run, factor in ((target, 2), (golden, 1)):
        hidden = run.call("Torch.matmul.0", X @ WEIGHT, leaves=[WEIGHT])
        scaled = run.call("Tensor.mul.0", np.float32(0.25 * factor) * (X @ WEIGHT), hidden)
        run.call("Torch.tanh.0", np.tanh(np.float32(0.25 * factor) * (X @ WEIGHT)), scaled)
    region = region_of(locate(target.run, golden.run))
    assert region.target == ("Tensor.mul.0.forward",)
    assert region.factor == pytest.approx(2)


@pytest.mark.parametrize("has_more", ["target", "golden"])
def test_a_call_of_one_run_alone_is_told_from_the_calls_of_both(has_more: str) -> None:
    runs = {"target": Written(), "golden": Written()}
    for side, run in runs.items():
        hidden = run.call("Torch.matmul.0", X @ WEIGHT, leaves=[WEIGHT])
        made = X @ WEIGHT
        if side == has_more:
            made = made + X
            hidden = run.call("Tensor.add.0", made, hidden)
        run.call("Functional.layer_norm.0", normed(made), hidden)
    region = region_of(locate(runs["target"].run, runs["golden"].run))
    assert (region.extra, region.is_golden_extra) == ("Tensor.add.0.forward", has_more == "golden")


def test_a_wrong_gradient_behind_a_right_forward_is_found() -> None:
    assert names(locate(by_hand(wrong=1.01), in_one_call()))[0] == ["Torch.einsum.1.backward"]


def test_layers_that_start_equal_are_not_exchanged() -> None:
    target, golden = Written(), Written()
    for run, prefix in ((target, "Torch"), (golden, "Functional")):
        first = run.call(f"{prefix}.relu.0", np.maximum(X, 0), leaves=[GAIN])
        second = run.call(f"{prefix}.relu.1", np.maximum(X, 0), leaves=[GAIN])
        run.call(f"{prefix}.sub.0", np.maximum(X, 0) - X, first, second)
    assert names(locate(target.run, golden.run)) == ([], [])


def test_a_mask_is_part_of_the_call_that_it_meets_values_in() -> None:
    target, golden = Written(), Written()
    mask = np.triu(np.full((16, 16), -np.inf, np.float32), 1)
    for run, diagonal in ((target, 2), (golden, 1)):
        mask = np.triu(np.full((16, 16), -10, np.float32), diagonal)
        places = run.call("Torch.ones.0", np.ones((16, 16), np.float32))
        shape = run.call("Torch.triu.0", mask, places)
        hidden = run.call("Torch.matmul.0", X.T @ X, leaves=[X])
        run.call("Tensor.add.0", X.T @ X + mask, hidden, shape)
    located = locate(target.run, golden.run)
    assert names(located)[0] == ["Tensor.add.0.forward"]
    assert region_of(located).target == ("Torch.triu.0.forward", "Tensor.add.0.forward")


@pytest.mark.parametrize(("noise", "is_right"), [(3e-8, True), (3e-2, False)])
def test_a_gradient_that_is_zero_but_for_rounding_is_not_judged(noise: float, is_right: bool) -> None:
    target, golden = Written(), Written()
    for run, seed in ((target, 1), (golden, 2)):
        bias = GAIN.copy()
        gradient = np.random.default_rng(seed).standard_normal(16).astype(np.float32) * np.float32(noise)
        run.call("Tensor.add.0", X + bias, leaves=[X, bias])
        incoming = run.call("Torch.mean.0.backward", X)
        run.call("Tensor.add.0.backward", gradient, incoming, leaves=[bias])
        run.optimizer("bias", bias, gradient, bias - np.sign(gradient) * np.float32(0.1))
    located = locate(target.run, golden.run)
    assert (names(located) == ([], [])) == is_right
    assert (results_of(target.run, golden.run, located).lost == []) == is_right


def test_a_loss_that_differs_for_equal_values_is_no_agreement() -> None:
    target, golden = Written(), Written()
    for run, loss in ((target, 2.5), (golden, 2.0)):
        hidden = run.call("Torch.matmul.0", X @ WEIGHT, leaves=[WEIGHT])
        run.call("Functional.mse_loss.0", np.array(loss, np.float32), hidden)
    assert names(locate(target.run, golden.run))[0] == ["Functional.mse_loss.0.forward"]


def test_infinities_of_a_mask_are_in_both_runs_and_nan_of_one_run_is_not_found() -> None:
    def masked(value: float) -> HeldRun:
        run = Written()
        mask = np.triu(np.full((16, 16), value, np.float32), 1)
        hidden = run.call("Torch.matmul.0", X.T @ X, leaves=[X])
        scores = run.call("Tensor.masked_fill.0", X.T @ X + mask, hidden)
        run.call("Torch.softmax.0", np.exp(X.T @ X + mask), scores)
        return run.run

    assert names(locate(masked(-np.inf), masked(-np.inf))) == ([], [])
    assert names(locate(masked(np.nan), masked(-np.inf)))[0] == ["Tensor.masked_fill.0.forward"]


@pytest.mark.parametrize(("dtype", "is_found"), [(ml_dtypes.bfloat16, True), (np.float32, False)])
def test_the_tolerance_is_that_of_the_coarsest_dtype_on_the_way(dtype: type, is_found: bool) -> None:
    target, golden = Written(), Written()
    for run, factor in ((target, 1.005), (golden, 1)):
        hidden = run.call("Torch.matmul.0", (X @ WEIGHT).astype(dtype), leaves=[WEIGHT])
        run.call("Tensor.float.0", (X @ WEIGHT * np.float32(factor)), hidden)
    assert (names(locate(target.run, golden.run)) == ([], [])) == is_found


def test_a_stretch_in_a_coarser_dtype_is_an_island_and_a_run_in_one_is_none() -> None:
    def run_of(coarse: Sequence[int]) -> HeldRun:
        run = Written()
        last = run.call("Torch.sub.0", X @ WEIGHT, leaves=[WEIGHT])
        for number in range(12):
            dtype = np.float16 if number in coarse else np.float32
            api = "Torch.relu" if number % 2 else "Torch.matmul"
            last = run.call(f"{api}.{number}", (X @ WEIGHT).astype(dtype), last)
        return run.run

    golden = run_of([])
    for coarse, expected in (([], []), ([7, 8], ["Torch.relu.7.forward"]), (range(12), [])):
        target = run_of(coarse)
        assert islands(target, golden, locate(target, golden).in_golden) == expected


def test_a_weight_that_is_tied_in_one_run_has_another_gradient_in_the_other_one() -> None:
    target, golden = Written(), Written()
    first, second = WEIGHT, WEIGHT.T @ WEIGHT
    for run in (target, golden):
        run.call("Torch.matmul.0", X @ WEIGHT, leaves=[WEIGHT])
    for name, gradient in (("words", first), ("head", second)):
        target.optimizer(name, WEIGHT, gradient, WEIGHT - gradient)
    golden.optimizer("shared", WEIGHT, first + second, WEIGHT - first - second)
    lost = results_of(target.run, golden.run, locate(target.run, golden.run)).lost
    region = region_of_results(lost, target.run.gradients)
    assert (region.parameters, region.golden_parameters, region.is_update) == (("words", "head"), ("shared",), False)


def test_an_update_that_differs_with_equal_gradients_is_the_optimizer_s() -> None:
    target, golden = Written(), Written()
    for run, rate in ((target, 0.1), (golden, 0.2)):
        run.call("Torch.matmul.0", X @ WEIGHT, leaves=[WEIGHT])
        run.optimizer("weight", WEIGHT, WEIGHT.T, WEIGHT - np.float32(rate) * WEIGHT.T)
    lost = results_of(target.run, golden.run, locate(target.run, golden.run)).lost
    assert region_of_results(lost, target.run.gradients).is_update


def test_the_number_of_values_that_are_compared_grows_with_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    compared: list[HeldValue] = []
    distance = HeldValue.distance

    def counted(value: HeldValue, other: HeldValue) -> float:
        compared.append(value)
        return distance(value, other)

    monkeypatch.setattr(HeldValue, "distance", counted)
    for number in (200, 800):
        run = Written()
        for call in range(number):
            run.call(f"Torch.exp.{call}", (X * np.float32(1 + call / 7)), leaves=[GAIN])
        compared.clear()
        locate(run.run, run.run)
        counts.append(len(compared))
    assert counts[1] <= 4 * counts[0]


def contents(target: HeldRun, golden: HeldRun) -> SharedContent:
    """What two runs hold of each other, from rows that come in another order and through JSON."""
    content, found = (
        CommonContent(target, golden, located := locate(target, golden), results_of(target, golden, located)),
        ContentRows(),
    )
    rows = [RowContent(content.record(record.operation)) for record in target.records.values()]
    rows += [RowContent(golden=content.record(record.operation, is_golden=True)) for record in golden.records.values()]
    for row in reversed(rows):
        found.add(RowContent.from_wire(json.loads(json.dumps(row.to_wire()))))
    shared = found.content()
    assert shared is not None
    return shared


def test_steps_of_one_run_alone_are_one_region() -> None:
    assert contents(in_one_call(), by_hand()) == SharedContent(found=4, values=4, regions=1, golden_records=4)
    assert contents(by_hand(), in_one_call()) == SharedContent(found=4, values=8, regions=1, target_records=4)


def in_two_calls() -> HeldRun:
    """The norm in two calls, of which the other runs hold the last."""
    run = Written()
    x = X @ WEIGHT
    hidden = run.call("Functional.linear.0", x, leaves=[WEIGHT])
    scale = run.call("Custom.scale.0", 1 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(1e-5)), hidden)
    out = run.call("Custom.scaled.0", normed(x), hidden, scale, leaves=[GAIN])
    run.call("Functional.linear.1", normed(x) @ WEIGHT, out, leaves=[WEIGHT])
    return run.run


def test_steps_of_both_runs_in_front_of_one_value_are_one_region() -> None:
    shared = contents(in_two_calls(), by_hand())
    assert (shared.regions, shared.target_records, shared.golden_records) == (1, 1, 4)
    assert (shared.found, shared.values) == (3, 4)


def test_what_leads_to_no_value_that_is_found_is_no_region() -> None:
    run = Written()
    hidden = run.call("Functional.linear.0", X @ WEIGHT, leaves=[WEIGHT])
    run.call("Torch.sum.0", np.square(X).sum(0), run.call("Torch.square.0", np.square(X @ WEIGHT), hidden))
    golden = Written()
    golden.call("Functional.linear.0", X @ WEIGHT, leaves=[WEIGHT])
    golden.call("Functional.linear.0.backward", X.T @ X)
    run.call("Functional.linear.0.backward", X.T @ X)
    shared = contents(run.run, golden.run)
    assert (shared.regions, shared.target_records) == (0, 0)
    assert shared.values - shared.found == 2


def test_what_an_optimizer_computes_is_not_looked_for() -> None:
    runs = []
    for factor in (1.0, 2.0):
        run = Written()
        run.call("Functional.linear.0.backward", X.T @ X, leaves=[WEIGHT])
        moments = run.call("Tensor.mul_.0", np.float32(factor) * X)
        run.call("Tensor.sqrt.0", np.abs(np.float32(factor) * X), moments)
        run.optimizer("weight", WEIGHT, X.T @ X, WEIGHT - X.T @ X)
        runs.append(run.run)
    assert contents(*runs) == SharedContent(found=1, values=1)


def test_where_the_runs_part_counts_as_no_region() -> None:
    shared = contents(by_hand(eps=1e-3), in_one_call())
    assert (shared.found, shared.values, shared.regions) == (1, 8, 0)


def of_alike_values(count: int, api: str) -> HeldRun:
    """Calls that nothing connects, whose values have nearly one norm, in bfloat16."""
    draws = np.random.default_rng(1).random((count, 4))
    records: dict[str, HeldRecord] = {}
    for index, (norm, most, least, mean) in enumerate(draws):
        held = HeldRecord(Operation.of(f"Torch.{api}.{index}.forward", index))
        statistics = 22 + norm, 3 + most, -3 - least, mean / 10
        held.outputs.append(HeldValue(held.name, "output.0", 512, (8, 64), *statistics, 2.0**-9))
        records[held.name] = held
    return HeldRun(records)


def test_values_that_are_alike_are_found_without_a_look_at_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, plain = [], HeldValue.distance
    monkeypatch.setattr(HeldValue, "distance", lambda value, other: counts.append(1) or plain(value, other))
    looks = []
    for count in (500, 1000):
        counts.clear()
        located = locate(of_alike_values(count, "exp"), of_alike_values(count, "special_exp"))
        looks.append(len(counts))
        partners = {name: it.record for name, it in located.in_golden.partners.items()}
        assert partners[f"Torch.exp.{count - 1}.forward.output.0"] == f"Torch.special_exp.{count - 1}.forward"
        assert len(partners) == count
    assert looks[1] < 3 * looks[0]


def test_parameters_are_paired_without_a_look_at_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, plain = [], HeldValue.distance
    monkeypatch.setattr(HeldValue, "distance", lambda value, other: counts.append(1) or plain(value, other))
    weights = RANDOM.standard_normal((200, 16)).astype(np.float32)
    sides = Written(), Written()
    for index, weight in enumerate(weights):
        for side, written in zip("ab", sides):
            written.optimizer(f"{side}{index}", weight, weight / 2, weight * 0.9)
    results = results_of(sides[0].run, sides[1].run, locate(sides[0].run, sides[1].run))
    assert results.are_equal
    assert len(counts) < 10 * len(weights)
