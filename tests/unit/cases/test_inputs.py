"""Recorded arguments made into values for the engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import (
    DtypeValue,
    DumpError,
    ForwardRecord,
    OpaqueValue,
    PlainValue,
    TensorFolder,
    TensorValue,
    find_dtype,
)
from pytest_msprobe.cases.case import needed_bytes
from pytest_msprobe.cases.inputs import InputSource
from pytest_msprobe.engines.protocol import NumpyArgument, Unsupported

CALL = "Mint.add.0"
FLOAT16 = find_dtype("Float16")


def tensor(
    low: Any = 0.0,
    high: Any = 1.0,
    *,
    shape: tuple[int, ...] = (50,),
    data_name: str | None = None,
    is_numpy: bool = False,
) -> TensorValue:
    return TensorValue(find_dtype("Float32"), shape, high, low, 0.5, 1.0, data_name, is_numpy)


def source(folder: Path, seed: int = 0) -> InputSource:
    return InputSource("dump.json", TensorFolder(folder), seed)


def record(*arguments: Any, **keywords: Any) -> ForwardRecord:
    return ForwardRecord(arguments, keywords, None)


@pytest.mark.parametrize(
    ("recorded", "value"),
    [
        (None, None),
        (PlainValue("int", 2**70), 2**70),
        (PlainValue("bool", False), False),
        (PlainValue("float32", 0.5), 0.5),
        (PlainValue("str", "mean"), "mean"),
        (slice(1, None, 2), slice(1, None, 2)),
        (Ellipsis, Ellipsis),
        (DtypeValue(FLOAT16), FLOAT16),
        ((), ()),
        ((PlainValue("int", 1), (None,)), (1, (None,))),
        ({"a": {"b": PlainValue("int", 1)}}, {"a": {"b": 1}}),
    ],
)
def test_values_without_tensors_are_passed_as_they_were(tmp_path: Path, recorded: Any, value: Any) -> None:
    positional, keywords, notes = source(tmp_path).arguments(CALL, record(recorded, option=recorded))
    assert positional == (value,)
    assert keywords == {"option": value}
    assert type(positional[0]) is type(value)
    assert notes == []


def test_tensors_of_equal_shape_and_range_differ_wherever_they_stand(tmp_path: Path) -> None:
    one = tensor()
    positional, keywords, _ = source(tmp_path).arguments(
        CALL, record(one, one, (one, one), {"k": one}, weight=one, w=one)
    )
    first, second, (third, fourth), nested = positional
    found = [first, second, third, fourth, nested["k"], keywords["weight"], keywords["w"]]
    found += [array for array in source(tmp_path).incoming(CALL, (one, one)) if array is not None]
    assert len({array.tobytes() for array in found}) == 9
    for array in found:
        assert (array.min(), array.max()) == (0.0, 1.0)


def test_an_argument_depends_on_its_own_place_only(tmp_path: Path) -> None:
    full, _, _ = source(tmp_path).arguments(CALL, record(tensor(), tensor(-5.0, 5.0), tensor()))
    reduced, _, _ = source(tmp_path).arguments(CALL, record(None, None, tensor()))
    assert np.array_equal(full[2], reduced[2])
    other_call, _, _ = source(tmp_path).arguments("Mint.add.1", record(tensor()))
    other_seed, _, _ = source(tmp_path, seed=1).arguments(CALL, record(tensor()))
    assert not np.array_equal(full[0], other_call[0])
    assert not np.array_equal(full[0], other_seed[0])


def test_real_data_win_over_statistics(tmp_path: Path) -> None:
    stored = np.arange(3, dtype=np.float32)
    np.save(tmp_path / "x.npy", stored)
    value = tensor(-1.0, 1.0, shape=(3,), data_name="x.npy")
    positional, _, notes = source(tmp_path).arguments(CALL, record(value))
    assert np.array_equal(positional[0], stored)
    assert np.array_equal(source(tmp_path).incoming(CALL, (value,))[0], stored)
    assert notes == []


def test_gradients_that_come_into_dicts_and_lists_stand_in_the_order_of_the_outputs(tmp_path: Path) -> None:
    one, two = tensor(1.0, 1.0), tensor(2.0, 2.0)
    outputs = (PlainValue("int", 1), {"a": one, "n": None, "b": ({"c": one}, PlainValue("int", 2), one)}, one)
    found = source(tmp_path).incoming(CALL, ({"a": None, "b": (None, None, one)}, two), outputs)
    assert [array if array is None else array.max() for array in found] == [None, None, 1.0, 2.0]


def test_a_numpy_array_stays_one(tmp_path: Path) -> None:
    positional, _, _ = source(tmp_path).arguments(CALL, record(tensor(is_numpy=True), (tensor(is_numpy=True),)))
    first, (second,) = positional
    for argument in (first, second):
        assert isinstance(argument, NumpyArgument)
        assert argument.array.shape == (50,)


@pytest.mark.parametrize(
    ("arguments", "keywords", "field"),
    [
        ((tensor(None, None),), {}, "input_args[0]"),
        ((tensor(), (tensor(None, 1.0),)), {}, "input_args[1][0]"),
        ((), {"weight": tensor(0.0, None)}, "input_kwargs.weight"),
    ],
)
def test_a_range_that_the_dump_lacks_is_noted(tmp_path: Path, arguments: Any, keywords: Any, field: str) -> None:
    _, _, notes = source(tmp_path).arguments(CALL, record(*arguments, **keywords))
    assert notes == [f"{field} has no recorded range and was drawn from the default one"]


def test_an_empty_tensor_needs_no_note(tmp_path: Path) -> None:
    assert source(tmp_path).arguments(CALL, record(tensor(None, None, shape=(0, 4))))[2] == []


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        ((OpaqueValue("mindspore.ProcessGroup"),), {}, "input_args[0] is a mindspore.ProcessGroup"),
        ((None, (OpaqueValue("torch.Generator"),)), {}, "input_args[1][0] is a torch.Generator"),
        ((), {"dtype": OpaqueValue("mindspore.dtype", "3")}, "input_kwargs.dtype is a dtype 3"),
    ],
)
def test_what_the_dump_does_not_hold_is_unsupported(
    tmp_path: Path, arguments: Any, keywords: Any, sentence: str
) -> None:
    with pytest.raises(Unsupported) as caught:
        source(tmp_path).arguments(CALL, record(*arguments, **keywords))
    assert str(caught.value) == f"{sentence}, which a dump names but does not hold"


def test_a_bad_tensor_file_names_its_place(tmp_path: Path) -> None:
    value = tensor(data_name="gone.npy")
    with pytest.raises(DumpError, match=r"^dump\.json: Mint\.add\.0\.forward: input_kwargs\.w\[1\]\.data_name: 'gone"):
        source(tmp_path).arguments(CALL, record(w=(None, value)))
    with pytest.raises(DumpError, match=r"^dump\.json: Mint\.add\.0\.backward: input\[1\]\.data_name: 'gone"):
        source(tmp_path).incoming(CALL, (None, value))


def test_incoming_gradients_keep_their_positions(tmp_path: Path) -> None:
    found = source(tmp_path).incoming(CALL, (None, tensor(None, None), PlainValue("int", 3)))
    assert [item is None for item in found] == [True, False, True]


def test_a_call_without_arguments_has_none(tmp_path: Path) -> None:
    assert source(tmp_path).arguments(CALL, ForwardRecord(None, {}, None)) == ((), {}, [])


def test_needed_memory_counts_every_tensor_and_knows_absurd_shapes() -> None:
    one = needed_bytes(tensor(shape=(1000,)))
    assert one >= 1000 * (4 + 8 + 8)  # itself and float64 on both sides
    assert needed_bytes((tensor(shape=(1000,)), {"k": (tensor(shape=(1000,)), None)})) == 2 * one
    assert needed_bytes((None, PlainValue("int", 3))) == 0
    assert needed_bytes(tensor(shape=(2**40, 2**40))) > 2**80
