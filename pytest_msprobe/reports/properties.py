"""A few short facts of each item as `user_properties`, for JUnit and other reports that read them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from pytest_msprobe.reports.row import VerdictRow

#: Destinations of the options whose reports show properties. Nobody else pays: 100,000 items x 8 texts.
READERS = ("xmlpath", "report_log", "json_report")


class PropertyPlugin:
    """Adds the properties in the process that runs the item; pytest carries them."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Those of an item with a verdict; JUnit reads them off the teardown report, which copies the item's."""
        report = yield
        wire = getattr(report, "msprobe_row", None)
        if wire is not None:
            found = list(properties(VerdictRow.from_wire(wire)))
            item.user_properties.extend(found)
            report.user_properties.extend(found)
        return report


def properties(row: VerdictRow) -> Iterator[tuple[str, str | float]]:
    """Name and value, in builtin types; of several outputs, those of the worst. What has no value is left out."""
    yield "api", row.call
    if row.direction:
        yield "direction", row.direction
    output = row.worst
    if output is not None:
        yield "dtype", output.tested_dtype
        yield "shape", str(output.shape)
        if output.cosine is not None:
            yield "cosine", output.cosine
        if output.max_abs is not None:
            yield "max_abs", output.max_abs
    if row.device:
        yield "device", row.device
    yield "verdict", row.status
