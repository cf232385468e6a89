"""Who made a value, told from its elements; whether values add up to another one."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import dtype_of_array
from pytest_msprobe.suites.comparison.accounting.account import Account, AccountStep, ValueKey
from pytest_msprobe.suites.comparison.accounting.elements import Candidate, ElementFingerprint, ElementSearch
from pytest_msprobe.suites.comparison.accounting.terms import is_sum, is_wrong_sum, load
from pytest_msprobe.suites.comparison.accounting.views import ViewSearch, hash_magnitudes
from pytest_msprobe.suites.comparison.sides import ComparedDump

Array = npt.NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = (np.dtype(np.float32), BFLOAT16, np.dtype(np.float16), np.dtype(np.float64))


class Run:
    """A dump of calls, each with its inputs and outputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "dump_tensor_data").mkdir()
        self._records: dict[str, Any] = {}
        self.outputs: list[Candidate] = []

    def call(self, name: str, inputs: list[Array], *outputs: Array) -> Run:
        record = f"Torch.{name}.0.forward"
        self._records[record] = {
            "input_args": [self._value(record, f"input.{i}", array) for i, array in enumerate(inputs)],
            "input_kwargs": {},
            "output": [self._value(record, f"output.{i}", array) for i, array in enumerate(outputs)],
        }
        place = len(self._records) - 1
        self.outputs += [Candidate(record, f"output.{i}", place) for i in range(len(outputs))]
        return self

    def _value(self, record: str, path: str, array: Array) -> dict[str, Any]:
        name = f"{record}.{path}.npy"
        wide = array.astype(np.float32) if array.dtype.kind == "V" else array
        np.save(self._folder / "dump_tensor_data" / name, wide)
        real = wide.view(wide.real.dtype) if wide.dtype.kind == "c" else wide.astype(np.float64)
        dtype = dtype_of_array(array.dtype)
        assert dtype is not None
        extremes = (float(real.max()), float(real.min())) if real.size else (None, None)
        return {
            "type": "mindspore.Tensor",
            "dtype": dtype.name,
            "shape": list(array.shape),
            "Max": extremes[0],
            "Min": extremes[1],
            "Mean": 0.0,
            "Norm": 1.0,
            "data_name": name,
        }

    def dump(self) -> ComparedDump:
        dump = {"task": "tensor", "level": "L1", "framework": "mindspore", "data": self._records}
        path = self._folder / "dump.json"
        path.write_text(json.dumps({**dump, "dump_data_dir": None}))
        return ComparedDump(path)

    def search(self) -> ElementSearch:
        return ElementSearch(self.dump(), self.outputs)

    def source(self, value: Array) -> tuple[str, list[str]] | None:
        """How `value`, which the last call gets, was made, and the calls that made it."""
        search = self.call("user", [value]).search()
        found = search.source("Torch.user.0.forward", "input.0", len(self._records) - 1)
        return None if found is None else (found.how, [_name(maker) for maker in found.makers])


def _name(maker: Candidate) -> str:
    return f"{maker.record.split('.')[1]}.{maker.path[-1]}"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def others(run: Run, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
    for seed in range(10, 14):
        run.call(f"other{seed}", [], numbers(*shape, seed=seed, dtype=dtype))


VIEWS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "transposed": ("permuted", lambda x: x.transpose(0, 2, 1, 3)),
    "reshaped after a transposition": ("permuted", lambda x: x.transpose(3, 0, 2, 1).reshape(8, -1)),
    "flipped": ("permuted", lambda x: x[::-1, ::-1]),
    "rolled": ("permuted", lambda x: np.roll(x, 3)),
    "the first of three": ("part", lambda x: x[..., :8]),
    "the last of three": ("part", lambda x: x[..., 16:]),
    "a part, by heads": ("part", lambda x: x[..., 8:16].reshape(2, 6, 4, 2, 4).transpose(0, 3, 1, 2, 4)),
    "a part of batches and heads in one": ("part", lambda x: x[..., 8:16].transpose(0, 2, 1, 3).reshape(8, 6, 8)),
    "all but the last step": ("part", lambda x: x[:, :-1].reshape(-1, 24)),
    "every other number": ("part", lambda x: x[..., ::2]),
    "one index": ("part", lambda x: x[:, 2]),
    "copies": ("copies", lambda x: np.broadcast_to(x[:, :, None], (2, 6, 3, 4, 24))),
    "copies of a part": ("copies", lambda x: np.repeat(x[..., :8], 3, axis=2)),
    "copies one by one": ("copies", lambda x: np.repeat(x[..., :8], 2, axis=-1)),
    "padded": ("padded", lambda x: np.pad(x, ((0, 0), (1, 2), (0, 0), (0, 0)))),
    "negative": ("negated", lambda x: -x),
    "rotated": ("negated", lambda x: np.concatenate([-x[..., 12:], x[..., :12]], axis=-1)),
    "a part that is rotated": ("part", lambda x: np.concatenate([-x[..., 4:8], x[..., :4]], axis=-1)),
    "pairs as complex numbers": (
        "permuted",
        lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3), np.float32).view(np.complex64),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_maker_whose_elements_it_holds(run: Run, view: str, dtype: np.dtype[Any]) -> None:
    how, make = VIEWS[view]
    if "complex" in view and dtype.itemsize != 4:
        how = "cast"
    made = numbers(2, 6, 4, 24, seed=1, dtype=dtype)
    others(run, made.shape, dtype)
    run.call("made", [], made)
    others(run, (2, 6, 4, 48), dtype)
    assert run.source(make(made)) == (how, ["made.0"])


def test_views_of_views_drawn_at_random(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    for case in range(60):
        (folder := tmp_path / str(case)).mkdir()
        shape = tuple(rng.permutation([2, 3, 8, 12])[: rng.integers(2, 5)])
        made = numbers(*shape, 4, seed=case, dtype=DTYPES[case % 3])
        view = made
        for _ in range(rng.integers(1, 4)):
            view = _viewed_at_random(view, rng)
        if np.unique(view).size < 17 or view.tobytes() == made.tobytes():
            continue
        run = Run(folder)
        others(run, made.shape, made.dtype)
        run.call("made", [], made)
        others(run, made.shape, made.dtype)
        found = run.source(view)
        assert found is not None, (case, made.shape, view.shape)
        assert found[1] == ["made.0"], (case, made.shape, view.shape)


def _viewed_at_random(value: Array, rng: np.random.Generator) -> Array:
    axis = int(rng.integers(value.ndim))
    length = value.shape[axis]
    at = [slice(None)] * value.ndim
    match int(rng.integers(5)):
        case 0:
            return value.transpose(rng.permutation(value.ndim))
        case 1:
            at[axis] = slice(int(rng.integers(length)), None)
            return value[tuple(at)]
        case 2:
            at[axis] = slice(None, None, -1)
            return value[tuple(at)]
        case 3:
            return np.broadcast_to(np.expand_dims(value, axis), (*value.shape[:axis], 2, *value.shape[axis:]))
        case _:
            return value.reshape(*value.shape[:axis], 1, *value.shape[axis:])


CASTS = [(np.float32, BFLOAT16), (np.float32, np.float16), (BFLOAT16, np.float32), (np.float16, BFLOAT16)]


@pytest.mark.parametrize(("made_as", "read_as"), CASTS)
def test_a_cast_of_a_whole_or_a_part_has_its_maker(tmp_path: Path, made_as: Any, read_as: Any) -> None:
    made = numbers(4, 6, 24, dtype=made_as)
    views = {"cast": made.transpose(1, 0, 2), "part": made[..., 8:16], "copies": np.repeat(made[:, :3], 2, axis=0)}
    for how, view in views.items():
        (folder := tmp_path / how).mkdir()
        run = Run(folder)
        others(run, made.shape, made_as)
        run.call("made", [], made)
        others(run, made.shape, made_as)
        assert run.source(view.astype(read_as)) == (how, ["made.0"])


def test_a_value_that_was_bfloat16_in_between_has_its_maker(run: Run) -> None:
    made = numbers(4, 6, 24)
    run.call("made", [], made)
    assert run.source(made.astype(BFLOAT16).astype(np.float32)) == ("cast", ["made.0"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_joined_values_have_all_their_makers(run: Run, dtype: np.dtype[Any]) -> None:
    parts = [numbers(3, 5, 8, seed=seed, dtype=dtype) for seed in range(3)]
    run.call("one", [], parts[0]).call("two", [], parts[1], parts[2])
    others(run, (3, 5, 8), dtype)
    joined = np.concatenate([parts[2], -parts[0], parts[1]], axis=-1)
    assert run.source(joined) == ("joined", ["one.0", "two.0", "two.1"])


def test_a_gradient_of_parts_joins_them_in_another_order_with_zeros(run: Run) -> None:
    parts = [numbers(2, 3, 8, seed=seed) for seed in range(2)]
    run.call("one", [], parts[0]).call("two", [], parts[1])
    gradient = np.concatenate([part.transpose(1, 0, 2) for part in parts] + [np.zeros((3, 2, 8), np.float32)], axis=-1)
    assert run.source(gradient) == ("joined", ["one.0", "two.0"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_output_joined_with_a_parameter_is_most_of_a_value(run: Run, dtype: np.dtype[Any]) -> None:
    made, token = numbers(3, 9, 16, dtype=dtype), numbers(3, 1, 16, seed=4, dtype=dtype)
    others(run, made.shape, dtype)
    run.call("made", [], made)
    assert run.source(np.concatenate([token, made], axis=1)) == ("extended", ["made.0"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_output_joined_with_a_part_of_another_one_has_both_makers(run: Run, dtype: np.dtype[Any]) -> None:
    made = numbers(2, 12, 4, 16, dtype=dtype)
    turned = numbers(2, 4, 12, 6, seed=4, dtype=dtype)
    others(run, made.shape, dtype)
    run.call("linear", [], made).call("add", [], turned)
    assert run.source(np.concatenate([made[..., 6:].transpose(0, 2, 1, 3), turned], axis=-1)) == (
        "joined",
        ["linear.0", "add.0"],
    )


def test_a_call_that_gets_zeros_is_no_reason_to_stop(run: Run) -> None:
    made = numbers(4, 24)
    run.call("made", [np.zeros((4, 24), np.float32)], made)
    assert run.source(made.T) == ("permuted", ["made.0"])


def test_a_table_is_not_made_of_what_was_read_from_it(tmp_path: Path) -> None:
    table = numbers(12, 16)
    rows = table[[1, 5, 3, 2, 7, 8, 9, 10]]
    for name, given in (("embedding", table), ("reshape", rows), ("relu", table[1:])):
        (folder := tmp_path / name).mkdir()
        assert Run(folder).call(name, [given], rows if name != "relu" else table[1:]).source(table) is None


def test_both_zeros_are_one_number_and_so_are_all_nans(run: Run) -> None:
    made = numbers(4, 24)
    made[0, :5] = 0
    made[1, :3] = np.nan
    view = made.T.copy()
    view[:5, 0] = -0.0
    view[:3, 1] = -np.float32(np.nan)
    run.call("made", [], made)
    assert run.source(view) == ("permuted", ["made.0"])


def test_the_latest_of_equal_makers_counts_and_none_from_later_on(run: Run) -> None:
    made = numbers(4, 24)
    for name in ("first", "second", "third"):
        run.call(name, [], made)
    search = run.call("user", [made.T]).search()
    found = search.source("Torch.user.0.forward", "input.0", 2)
    assert found is not None
    assert _name(found.makers[0]) == "second.0"
    assert search.source("Torch.user.0.forward", "input.0", 0) is None


FOREIGN: dict[str, Callable[[Array], Array]] = {
    "masked": lambda x: np.where(np.arange(x.size).reshape(x.shape) % 7 == 0, -1e4, x),
    "one element written": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 77, 5.0, x),
    "one element written into a part": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 53, 5.0, x)[:, :24],
    "scaled": lambda x: x * 1.0000005,
    "clamped": lambda x: np.maximum(x, 0),
    "added": lambda x: x + x[::-1],
    "another one": lambda x: numbers(*x.shape, seed=99),
    "elements of many places": lambda x: np.random.default_rng(0).permutation(x.reshape(-1))[:64],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", FOREIGN)
def test_a_value_with_other_elements_has_no_maker(run: Run, case: str, dtype: np.dtype[Any]) -> None:
    made = numbers(8, 48, dtype=dtype)
    value = FOREIGN[case](made.astype(np.float64)).astype(dtype)
    if case == "scaled" and dtype.itemsize == 2:
        value = (made.astype(np.float64) * 1.02).astype(dtype)
    run.call("made", [], made)
    others(run, (8, 96), dtype)
    assert run.source(value) is None


WEAK: dict[str, Array] = {
    "zeros": np.zeros((4, 24)),
    "ones": np.ones((4, 24)),
    "a causal mask": np.triu(np.full((24, 24), -np.inf), 1),
    "a dropout mask": np.where(np.random.default_rng(0).random((24, 24)) < 0.1, 0, 1 / 0.9),
    "places": np.arange(96.0).reshape(4, 24),
    "one hot": np.eye(24),
    "few distinct numbers": numbers(15)[np.random.default_rng(0).integers(0, 15, (8, 24))],
    "few numbers": numbers(3, 5),
    "one number": numbers(),
    "none": np.zeros((0, 4)),
}


@pytest.mark.parametrize("case", WEAK)
def test_values_that_are_alike_by_chance_have_no_maker(run: Run, case: str) -> None:
    made = WEAK[case].astype(np.float32)
    run.call("made", [], made)
    assert run.source(made.T if made.ndim else made) is None


def test_integers_and_truth_values_have_no_maker(run: Run) -> None:
    made = np.arange(96).reshape(4, 24) * 2**30
    run.call("made", [], made, made > 5)
    assert run.source(made.T) is None


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16])
def test_a_parameter_is_not_made_by_the_calls_that_transpose_cast_join_or_cut_it(tmp_path: Path, dtype: Any) -> None:
    weight, bias = numbers(24, 16, dtype=dtype), numbers(24, 4, seed=5, dtype=dtype)
    calls: dict[str, tuple[list[Array], list[Array]]] = {
        "t": ([weight], [weight.T]),
        "to": ([weight], [weight.astype(np.float32), weight.astype(np.float64)]),
        "cat": ([weight, bias], [np.concatenate([weight, bias], axis=1)]),
        "split": ([weight], [weight[:, :8], weight[:, 8:]]),
        "neg": ([weight], [-weight]),
    }
    for name, (given, made) in calls.items():
        (folder := tmp_path / name).mkdir()
        assert Run(folder).call(name, given, *made).source(weight) is None
    run = Run(tmp_path).call("t", [weight], weight.T).call("contiguous", [weight.T], np.ascontiguousarray(weight.T))
    assert run.source(weight) is None


def test_an_activation_used_after_a_call_that_transposed_it_comes_from_its_own_maker(run: Run) -> None:
    made = numbers(6, 48)
    value = made[:, 8:24]
    run.call("linear", [], made).call("t", [value], value.T.copy())
    assert run.source(value) == ("part", ["linear.0"])


def test_a_view_of_what_a_call_took_from_a_value_of_unknown_origin_comes_from_that_call(run: Run) -> None:
    table = numbers(60, 16)
    run.call("gather", [table], table[2:50])
    assert run.source(np.repeat(table[2:50, :8], 2, axis=-1)) == ("copies", ["gather.0"])


def test_a_part_of_what_relu_made_comes_from_relu(run: Run) -> None:
    given = numbers(4, 16, 8)
    run.call("linear", [], given).call("relu", [given], np.maximum(given, 0))
    assert run.source(np.maximum(given, 0)[:, :8]) == ("part", ["relu.0"])


@pytest.mark.parametrize("at", [1, 2])
def test_a_part_of_a_whole_with_equal_rows_has_its_maker(run: Run, at: int) -> None:
    made = numbers(7, 24)[np.array([[0, 1, 2, 0], [3, 4, 0, 1], [0, 5, 6, 3]])]
    run.call("made", [], made)
    assert run.source(made[:, at]) == ("part", ["made.0"])


def test_a_view_of_what_a_call_transposed_comes_from_that_call(run: Run) -> None:
    made = numbers(6, 4, 8)
    run.call("linear", [], made).call("t", [made], made.transpose(0, 2, 1).copy())
    assert run.source(made.transpose(2, 1, 0)) == ("permuted", ["t.0"])


def test_what_the_dump_lacks_has_no_maker(run: Run, tmp_path: Path) -> None:
    made = numbers(4, 24)
    search = run.call("made", [], made).call("user", [made.T]).search()
    (tmp_path / "dump_tensor_data" / "Torch.made.0.forward.output.0.npy").unlink()
    assert search.source("Torch.user.0.forward", "input.0", 1) is None
    assert search.source("Torch.user.0.forward", "input.7", 1) is None
    assert search.source("Torch.nobody.0.forward", "input.0", 1) is None


def test_each_output_is_loaded_once_and_only_where_its_extremes_fit(run: Run, monkeypatch: Any) -> None:
    made = [numbers(4, 48, seed=seed) + 1 for seed in range(5)]
    for seed, array in enumerate(made):
        run.call(f"made{seed}", [], array)
        run.call(f"far{seed}", [], array + 100)
    users = [made[seed][:, 16:32] for seed in range(5)]
    for seed, value in enumerate(users):
        run.call(f"user{seed}", [value])
    search = run.search()
    loads: list[str] = []

    def counted(leaf: Any, folder: Any) -> Any:
        loads.append(leaf.name)
        return load(leaf, folder)

    monkeypatch.setattr("pytest_msprobe.suites.comparison.accounting.elements.load", counted)
    for seed in range(5):
        found = search.source(f"Torch.user{seed}.0.forward", "input.0", 10 + seed)
        assert found is not None
        assert _name(found.makers[0]) == f"made{seed}.0"
    assert not any("far" in name for name in loads)
    # each of 5 values; 5 fingerprints; one look into the maker of each value
    assert len(loads) == 15


def test_memory_stays_that_of_some_chunks_at_ten_million_elements() -> None:
    made = np.random.default_rng(0).standard_normal((100, 100_000), dtype=np.float32)
    value = made[:, 20_000:40_000]
    tracemalloc.start()
    try:
        assert not ElementFingerprint.of(made, made.dtype).is_weak
        assert ViewSearch(value, value.dtype, 1e6).in_whole(made, made.dtype) == "part"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 << 20  # the array has 40 MB, its hashes would have 80


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_in_any_order_is_one_and_another_sum_is_none(dtype: np.dtype[Any]) -> None:
    parts = [numbers(40, 60, seed=seed, dtype=dtype) for seed in range(4)]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        whole = parts[order[0]]
        for index in order[1:]:
            whole = whole + parts[index]
        assert is_sum(whole, parts) is True
    assert is_sum(whole, parts[:3]) is False
    assert is_sum(whole * dtype.type(1.5), parts) is False
    written = whole.copy()
    written[3, 4] = 100
    assert is_sum(written, parts) is False


def test_a_sum_is_judged_by_the_coarsest_dtype_on_its_way() -> None:
    parts = [numbers(40, 60, seed=seed, dtype=BFLOAT16) for seed in range(2)]
    exact = parts[0].astype(np.float32) + parts[1].astype(np.float32)
    rounded = (parts[0] + parts[1]).astype(np.float32)
    assert is_sum(exact, parts) is True
    assert is_sum(rounded, parts) is True
    assert is_sum(rounded, [part.astype(np.float32) for part in parts]) is False


def test_an_overflow_a_nan_and_a_transposed_part_in_a_sum() -> None:
    large = np.full((4, 6), 60000, np.float16)
    assert is_sum(np.full((4, 6), np.inf, np.float16), [large, large]) is True
    assert is_sum(large, [large, np.zeros_like(large)]) is True
    broken = large.copy()
    broken[0, 0] = np.nan
    assert is_sum(broken, [broken, np.zeros_like(large)]) is True
    assert is_sum(broken, [large, np.zeros_like(large)]) is False
    assert is_sum(large, [broken, np.zeros_like(large)]) is False
    one, two = numbers(4, 6), numbers(6, 4, seed=1)
    assert is_sum(one + two.T, [one, two]) is True
    assert is_sum(one + two.T, [one, two[:3]]) is None
    assert is_sum(np.ones(3, np.int64), [np.ones(3, np.int64)]) is None


@pytest.mark.parametrize(("golden", "is_wrong"), [("right", False), ("off", True), ("lost", None), ("nearly", None)])
def test_a_sum_is_wrong_where_one_side_is_shown_to_add_up_and_the_other_is_not(
    tmp_path: Path, golden: str, is_wrong: bool | None
) -> None:
    sides = []
    for side in ("target", golden):
        (folder := tmp_path / side).mkdir()
        parts = [numbers(6, 8, seed=seed) for seed in range(2)]
        whole = parts[0] + parts[1] * np.float32({"off": 0.5, "nearly": 1 + 2.0**-21}.get(side, 1))
        run = Run(folder).call("one", [], parts[0]).call("two", [], parts[1]).call("user", [whole])
        if side == "lost":
            (folder / "dump_tensor_data" / "Torch.two.0.forward.output.0.npy").unlink()
        sides.append(run.dump())
    steps = [
        AccountStep(Operation.of(f"Torch.{name}.0.forward", 0), Account("inherited", partner=f"Torch.{name}.0.forward"))
        for name in ("user", "one", "two")
    ]
    keys = [ValueKey(f"{side}.0", side == "output", "t", "g", 0.1, (6, 8)) for side in ("input", "output")]
    sources = [(steps[1], keys[1]), (steps[2], keys[1])]
    assert is_wrong_sum((sides[0], sides[1]), steps[0], keys[0], sources) is is_wrong


@pytest.mark.parametrize("distinct", [500, 1500, 100_000], ids=str)
def test_the_lowest_hashes_are_found_among_many_equal_ones(distinct: int) -> None:
    chosen = np.random.default_rng(distinct).standard_normal(distinct)
    values = np.random.default_rng(1).choice(chosen, 300_000)
    values[:200_000] = values[0]  # a chunk of few numbers, then one of all
    found = ElementFingerprint.of(values, values.dtype).lowest
    assert np.array_equal(found, np.unique(hash_magnitudes(values, values.dtype))[:1024])
