"""What only the process that ran a failing item can add to the HTML page: the call stack and the plot of the error."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_msprobe.run import keys
from pytest_msprobe.run.nodes import RecordItem

if TYPE_CHECKING:
    from msprobe_collector.dump_format import Frame

_FRAMES = 50
_LONGEST = 300


class FailureDetails:
    """Puts both on the report of a failing item, in builtin types. Registered for `--html` only."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the details of an item whose verdict is `error`, expected or not."""
        report = yield
        row = item.stash.get(keys.ROW, None)
        if report.when == "call" and row is not None and row.status == "error" and isinstance(item, RecordItem):
            frames = item.config.stash[keys.SUITE].frames(item.record)
            report.msprobe_details = {  # type: ignore[attr-defined]  # reports carry extra attributes
                "stack": _stack(frames),
                "plot": item.stash.get(keys.PLOT, ""),
            }
        return report


def _stack(frames: Sequence[Frame]) -> list[list[str]]:
    """(place, source line) of every frame, innermost first."""
    return [
        [
            f"{frame.file}:{frame.line}, in {frame.function}"[:_LONGEST] if frame.file else "",
            frame.source[:_LONGEST],
        ]
        for frame in frames[:_FRAMES]
    ]
