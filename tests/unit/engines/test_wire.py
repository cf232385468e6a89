"""What goes through the pipe to a child process comes out as it was."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields
from io import BytesIO
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from msprobe_collector.dump_format import ApiName, find_dtype
from pytest_msprobe.engines.child import receive, send
from pytest_msprobe.engines.protocol import Call, NumpyArgument

ARRAYS = [
    np.array(2.5, dtype=np.float32),
    np.zeros((0, 3), dtype=np.float64),
    np.array([True, False]),
    np.array([2**63 - 1, -(2**63)]),
    np.array([2**64 - 1], dtype=np.uint64),
    np.array([[1.5, np.nan], [np.inf, -0.0]], dtype=np.float16),
    np.array([1 + 2j], dtype=np.complex64),
    np.arange(6).reshape(2, 3).T,
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(10)[::-3],
    np.broadcast_to(np.float32(3), (2, 2)),
    np.arange(3, dtype=">i4"),
    np.array([1.5, np.nan, -0.0], dtype=ml_dtypes.bfloat16),
    np.array(1.5, dtype=ml_dtypes.bfloat16),
    np.array([448, 0.5], dtype=ml_dtypes.float8_e4m3fn),
    np.array([57344, np.inf], dtype=ml_dtypes.float8_e5m2),
    np.array([-8, 7], dtype=ml_dtypes.int4),
]


def through(value: Any) -> Any:
    stream = BytesIO()
    send(stream, {"value": value})
    stream.seek(0)
    return receive(stream)["value"]


def is_same(one: Any, other: Any) -> bool:
    """Equal in value and type, down to dtype, shape and the bits of floats."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (
            one.dtype.newbyteorder("=") == other.dtype
            and one.shape == other.shape
            and one.astype(one.dtype.newbyteorder("=")).tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, NumpyArgument):
        return is_same(one.array, other.array)
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other or (one != one and other != other))
    return bool(one == other)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.name}{list(array.shape)}")
def test_arrays_keep_dtype_shape_and_bits(array: np.ndarray) -> None:
    found = through(array)
    assert is_same(array, found)
    assert found.flags.writeable
    assert isinstance(through(NumpyArgument(array)), NumpyArgument)
    assert is_same(through(NumpyArgument(array)).array, found)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**63,
        2**64 - 1,
        2**64,
        -(2**63),
        -(2**63) - 1,
        10**100,
        1.5,
        -0.0,
        math.nan,
        -math.inf,
        5e-324,
        "",
        "é\n\0",
        find_dtype("BFloat16"),
        find_dtype("HiFloat8"),
        slice(None, 3, -1),
        slice(-(2**70), 2**70, None),
        Ellipsis,
        (),
        ((), (1, ("a", None))),
        {},
        {"a": {"b": (slice(1), Ellipsis)}, "c": 2**70},
        NumpyArgument(np.arange(3)),
        (np.arange(3), {"k": NumpyArgument(np.ones(2))}),
    ],
    ids=repr,
)
def test_every_form_of_an_argument_comes_back(value: Any) -> None:
    assert is_same(value, through(value))


@pytest.mark.parametrize("tag", ["~array", "~dtype", "~numpy", "~slice", "~ellipsis", "~int", "~dict", "~", "~other"])
@pytest.mark.parametrize("content", [None, 5, "12", (1, 2, 3), {"~int": "5"}, {"a": 1}], ids=repr)
def test_a_users_dict_that_looks_like_our_own_words_comes_back(tag: str, content: Any) -> None:
    for value in ({tag: content}, {tag: {tag: content}}, ({tag: content}, {tag: content, "b": 1})):
        assert is_same(value, through(value))


WORDS = st.sampled_from(["~int", "~dict", "~array", "~slice", "a", ""])
ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | WORDS
    | st.just(Ellipsis)
    | st.builds(slice, st.integers()),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=10,
)


@given(ARGUMENTS)
def test_any_nesting_comes_back(value: Any) -> None:
    assert is_same(value, through(value))


def test_a_call_comes_back_with_every_field() -> None:
    call = Call(
        api=ApiName("Mint", "linalg.inv", 3),
        framework="mindtorch",
        arguments=(np.arange(3), (find_dtype("BFloat16"), slice(1))),
        keywords={"out": NumpyArgument(np.ones(2))},
        saved_roundoff=2.0**-9,
        saved_seed=7,
        arithmetic_roundoff=2.0**-24,
        total_roundoff=2.0**-9,
        attributes=MappingProxyType({"keep_dims": True}),
        is_strided=True,
    )
    usual = Call(ApiName("", "", 0), "", (), {})
    found = through(call)
    assert type(found) is Call
    for field in fields(Call):
        assert not is_same(getattr(call, field.name), getattr(usual, field.name)), f"give {field.name} a value here"
        sent = dict(value) if isinstance(value := getattr(call, field.name), MappingProxyType) else value
        assert is_same(sent, getattr(found, field.name)), field.name


def test_lists_come_back_as_tuples() -> None:
    assert through([1, [2]]) == (1, (2,))


def test_messages_follow_each_other_and_an_end_is_an_end() -> None:
    stream = BytesIO()
    send(stream, {"n": 1})
    send(stream, {"n": (2,)})
    whole = stream.getvalue()
    stream.seek(0)
    assert [receive(stream), receive(stream)] == [{"n": 1}, {"n": (2,)}]
    with pytest.raises(EOFError):
        receive(stream)
    for length in range(len(whole) // 2):  # the other side died while it wrote
        with pytest.raises(EOFError):
            receive(BytesIO(whole[:length]))


@pytest.mark.parametrize("dtype", ["U3", "float128", "S2"])
def test_an_array_that_no_dump_holds_is_refused_by_the_reader(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"no array type {np.dtype(dtype).name}"):
        through(np.zeros(2, dtype=dtype))


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        raise AssertionError("pickled")


def test_an_object_that_is_no_argument_is_refused_and_not_pickled() -> None:
    with pytest.raises(TypeError):
        send(BytesIO(), {"value": Payload()})
    with pytest.raises(TypeError):
        send(BytesIO(), {"value": 1j})


def test_a_frame_that_holds_a_pickle_is_not_unpickled() -> None:
    content = pickle.dumps(print)
    with pytest.raises(Exception, match=r"MessagePack|malformed|truncated|trailing"):
        receive(BytesIO(len(content).to_bytes(8, "little") + content))
