"""A few short facts of each item as `user_properties`, for JUnit and other reports that read them."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from msprobe_collector.dump_format.text import shown
from pytest_msprobe.verdicts import VerdictRow

#: Destinations of the options whose reports show properties. Nobody else pays: 100,000 items x 10 texts.
_READERS = ("xmlpath", "report_log", "json_report", "json_report_file", "allure_report_dir")


def are_read(config: pytest.Config) -> bool:
    """Whether a report that shows properties was asked for."""
    return any(config.getoption(reader, None) for reader in _READERS)


class PropertyPlugin:
    """Adds the properties in the process that runs the item; pytest carries them."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the properties of an item with a verdict.

        JUnit reads them off the teardown report, which copies the item's.
        """
        report = yield
        wire = getattr(report, "msprobe_row", None)
        if wire is not None:
            found = [
                (name, shown(value) if isinstance(value, str) else value)
                for name, value in properties(VerdictRow.from_wire(wire))
            ]
            item.user_properties.extend(found)
            report.user_properties.extend(found)
        return report


def properties(row: VerdictRow) -> Iterator[tuple[str, str | float]]:
    """Name and value, in builtin types; of several outputs, those of the worst. What has no value is left out."""
    yield "api", row.call
    if row.direction:
        yield "direction", row.direction
    yield "dump", row.dump
    output = row.worst
    if output is not None:
        yield "dtype", output.tested_dtype
        yield "shape", str(output.shape)
        yield from ((name, value) for name, value in output.figures.items() if value is not None)
        if output.standard:
            yield "standard", output.standard
        if output.pattern:
            yield "pattern", output.pattern
    if row.rounding:
        yield "rounding", row.rounding
    if row.device:
        yield "device", row.device
    if row.bench:
        yield "benchmark", row.bench
    yield "verdict", row.status
    yield from row.properties
