"""A step that ends in an exception of the script: run.json says so, and the exception goes on as it is."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.manifest import Manifest, read_manifest


@pytest.fixture
def manifest(step_folder: Callable[..., Path]) -> Callable[[], Manifest]:
    return lambda: read_manifest(step_folder() / "run.json")


def divide() -> None:
    print(1 / 0)


def line_of(function: Callable[..., Any]) -> int:
    return inspect.getsourcelines(function)[1] + 1


def test_an_exception_in_the_context_of_a_step(framework: Any, make_debugger: Any, manifest: Any) -> None:
    training = framework.make_training()
    debugger = make_debugger(level="L1")
    with pytest.raises(ZeroDivisionError), debugger.collect(training.net, rank_id=0):  # noqa: PT012
        training.step()
        divide()
    found = manifest().ended_in
    assert (found.kind, found.message, found.file) == ("ZeroDivisionError", "division by zero", __file__)
    assert (found.line, found.place) == (line_of(divide), f"{Path(__file__).name}:{line_of(divide)}")


def test_an_exception_while_the_script_stops_the_step(framework: Any, make_debugger: Any, manifest: Any) -> None:
    debugger, value = make_debugger(), framework.tensor([1.0, 2.0])

    def train() -> None:
        debugger.start(rank_id=0)
        try:
            framework.square(value)
            raise KeyError("x" * 2000)
        finally:
            debugger.stop()
            debugger.step()

    with pytest.raises(KeyError):
        train()
    assert manifest().ended_in.kind == "KeyError"
    assert len(manifest().ended_in.message) <= 500


def test_an_exception_that_ends_the_script(
    framework: Any, make_debugger: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    debugger = make_debugger()
    debugger.start(rank_id=0)
    framework.square(framework.tensor([1.0, 2.0]))
    try:
        divide()
    except ZeroDivisionError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)  # as Python does
    debugger._at_exit()
    assert manifest().ended_in.place == f"{Path(__file__).name}:{line_of(divide)}"


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(0), GeneratorExit()], ids=lambda error: repr(error))
def test_a_regular_end_is_none(framework: Any, make_debugger: Any, manifest: Any, error: BaseException) -> None:
    debugger = make_debugger()
    debugger.start(rank_id=0)
    framework.square(framework.tensor([1.0, 2.0]))
    try:
        raise error
    except BaseException:
        debugger.stop()
    debugger.step()
    assert manifest().ended_in is None


def test_exceptions_that_end_no_step(
    framework: Any, make_debugger: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the script catches, one that it handles as the step begins, and one after the step."""
    debugger = make_debugger()
    monkeypatch.setattr(sys, "last_value", OSError("of an earlier cell"), raising=False)
    try:
        divide()
    except ZeroDivisionError:
        debugger.start(rank_id=0)
        try:
            divide()
        except ZeroDivisionError:
            framework.square(framework.tensor([1.0, 2.0]))
        debugger.stop()
    debugger.step()
    debugger._at_exit()
    assert manifest().ended_in is None
