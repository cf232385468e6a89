"""What the compiler notes of a value, and the value made of it again."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format.writing.encoding import TensorValues
from msprobe_collector.mindspore.static_graph.layouts import (
    NOT_COLLECTED,
    Layouts,
    copied,
    gradient_places,
    rebuilt,
    whole_tensors,
)

TENSOR = ("tensor", "Float32", (2,))
EMPTY = ("tensor", "Int32", (0, 3))
MOVING = ("moving", "Float32")


class Seen:
    """Keeps what arrives; numbers calls from 7."""

    def __init__(self):
        self.values = []

    def arrive(self, layout, position, number, value):
        self.values.append((layout.label, layout.moment, position, number, value.tolist()))
        return 7 if number < 0 else number


def note(layouts, receiver, description, moment="inputs"):
    return layouts.note(receiver, "Cell.a.A", moment, description, -1, -1)


def arrive(layouts, layout, number, value=(1.0,)):
    return layouts.arrive(np.array([layout, 0], np.int32), np.array([number], np.int32), np.array(value))


def test_values_go_to_the_receiver_of_their_layout():
    layouts, first, second = Layouts(), Seen(), Seen()
    numbers = [layouts.add_receiver(receiver) for receiver in (first, second)]
    places = [note(layouts, number, ("items", (TENSOR,))) for number in numbers]
    answer = arrive(layouts, places[1], -1)
    assert (answer.dtype, answer.tolist()) == (np.int32, [7])
    assert first.values == []
    assert second.values == [("Cell.a.A", "inputs", 0, -1, [1.0])]


def test_a_call_that_is_not_collected_stays_so():
    layouts, receiver = Layouts(), Seen()
    place = note(layouts, layouts.add_receiver(receiver), ("items", (TENSOR,)))
    assert arrive(layouts, place, NOT_COLLECTED).tolist() == [NOT_COLLECTED]
    assert receiver.values == []


def test_only_tensors_with_elements_and_a_known_shape_arrive():
    description = ("items", (TENSOR, EMPTY, MOVING, ("value", 3), ("keys", ("a",), (TENSOR,))))
    assert whole_tensors(description) == [TENSOR, TENSOR]
    layouts = Layouts()
    assert layouts[note(layouts, layouts.add_receiver(Seen()), description)].tensor_count == 2


def test_a_value_is_rebuilt_with_null_for_what_was_not_seen():
    description = ("items", (("keys", ("a", "b"), (TENSOR, ("value", "x"))), EMPTY, MOVING, ("unseen", ""), TENSOR))
    named, empty, moving, unseen, missing = rebuilt(description, [np.array([1, 2], np.float32)])
    assert isinstance(named["a"], TensorValues)
    assert named["a"].array.tolist() == [1, 2]
    assert named["b"] == "x"
    assert (empty.array.shape, empty.array.dtype, empty.dtype_name) == ((0, 3), np.int32, "Int32")
    assert moving is unseen is missing is None


def test_gradients_can_come_for_floats_of_known_shape_and_are_counted_among_tensors():
    items = ("items", (("value", 2), TENSOR, ("tensor", "Int64", (2,)), MOVING, EMPTY, ("items", (TENSOR,)), TENSOR))
    assert gradient_places(items) == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("value", "dtype_name"),
    [
        (np.array([1.5, 2], np.float16), "Float16"),
        (np.array([1.5, 2], ml_dtypes.bfloat16), "BFloat16"),
        (np.array([1.5, 2], np.float32), "BFloat16"),  # a 0-d tensor's way
        (np.array([True, False]), "Bool"),
        (np.array([2**60, 1]), "Int64"),
    ],
)
def test_a_copy_has_the_dtype_and_does_not_follow_the_original(value, dtype_name):
    expected = value.astype(np.float64)
    copy = copied(value, ("tensor", dtype_name, (1, 2)))
    value[:] = 0
    assert copy.dtype.name == dtype_name.lower()
    assert copy.astype(np.float64).tolist() == [expected.tolist()]
