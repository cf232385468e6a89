"""What only the process that ran a failing item can add to the HTML page: the call stack and the plot of the error."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_msprobe import _keys
from pytest_msprobe.precheck.nodes import CheckItem

_FRAMES = 50
_LONGEST = 300


class FailureDetails:
    """Puts both on the report of a failing item, in builtin types. Registered for `--html` only."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the details of an item whose verdict is `error`, expected or not."""
        report = yield
        row = item.stash.get(_keys.ROW, None)
        if report.when == "call" and row is not None and row.status == "error" and isinstance(item, CheckItem):
            report.msprobe_details = {  # type: ignore[attr-defined]  # reports carry extra attributes
                "stack": _stack(item),
                "plot": item.stash.get(_keys.PLOT, ""),
            }
        return report


def _stack(item: CheckItem) -> list[list[str]]:
    """(place, source line) of every frame of the forward, innermost first."""
    frames = item.parent.dump.stacks.frames(f"{item.parent.call}.forward")[:_FRAMES]
    return [
        [
            f"{frame.file}:{frame.line}, in {frame.function}"[:_LONGEST] if frame.file else "",
            frame.source[:_LONGEST],
        ]
        for frame in frames
    ]
