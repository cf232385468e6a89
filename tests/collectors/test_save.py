"""debugger.save: values by hand, and their gradients."""

from __future__ import annotations

import numpy as np
import pytest

from msprobe_collector.dump_format import Dump
from msprobe_collector.dump_format.leaves import flatten


def test_values_and_their_gradients(framework, make_debugger, records, step_folder):
    debugger = make_debugger(level="debug", task="tensor")

    def loss(x):
        y = x * framework.tensor(2.0)
        debugger.save({"a": y, "b": [1, "text"]}, "nest")
        debugger.save(y, "y", save_backward=False)
        return (y * framework.tensor(3.0)).sum()

    framework.gradient(loss, framework.tensor(1.0))
    debugger.step()
    found = records(file="debug.json")
    assert list(found) == ["nest.0.debug", "y.0.debug", "nest_grad.0.debug"]
    assert found["nest.0.debug"]["b"] == [{"type": "int", "value": 1}, {"type": "str", "value": "text"}]
    assert found["nest_grad.0.debug"]["a"]["Max"] == 3.0
    assert found["nest_grad.0.debug"]["b"] == [None, None]
    assert found["nest_grad.0.debug"]["a"]["data_name"] == f"nest_grad.0.debug.a{framework.suffix}"
    dump = Dump(step_folder() / "debug.json")
    (leaf,) = flatten(dump.record("y.0.debug"))
    assert dump.tensors.load(leaf.tensor, leaf.place) == 2.0


def test_a_value_is_that_of_the_call_whatever_becomes_of_it(framework, make_debugger, records):
    debugger = make_debugger(level="debug", common={"async_dump": True})
    tensor = framework.tensor([1.0, 2.0])
    for factor in (1, 10):
        debugger.save(tensor, "t")
        tensor[0] = 7.0 * factor
    debugger.step()
    found = records(file="debug.json")
    assert [found[f"t.{number}.debug"]["Max"] for number in (0, 1)] == [2.0, 7.0]


def test_values_of_which_no_gradient_comes_are_written_at_the_end_of_the_step(framework, make_debugger, records):
    debugger = make_debugger(level="debug")

    def loss(x):
        debugger.save([x * 2, framework.tensor(1.0)], "lost")
        return x.sum()

    framework.gradient(loss, framework.tensor(1.0))
    debugger.step()
    assert records(file="debug.json")["lost_grad.0.debug"] == [None, None]


@pytest.mark.parametrize("value", [None, np.zeros(2), {1: 2}, [object()]])
def test_a_value_that_cannot_be_saved_is_warned_about(make_debugger, caplog, value):
    make_debugger(level="debug").save(value, "name")
    assert "nothing is saved" in caplog.text


def test_what_is_none_inside_a_value_is_null(make_debugger, framework, records):
    debugger = make_debugger(level="debug")
    debugger.save({"a": framework.tensor(1.0), "c": None, "list": [None]}, "x", save_backward=False)
    debugger.step()
    saved = records(file="debug.json")["x.0.debug"]
    assert (saved["a"]["Max"], saved["c"], saved["list"]) == (1.0, None, [None])
