"""Patterns of `standards: apis:` that match no API call: most likely misspelt, so the run says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from msprobe_collector.dump_format import ApiName, DumpError, parse_api_name
from pytest_msprobe.precheck.nodes import group_records
from pytest_msprobe.precheck.session import CheckSession
from pytest_msprobe.precheck.standard_choice import matches


class UnusedPatterns:
    """Warns of them on the process that writes reports. No error, because one file may serve many dumps."""

    def __init__(self, session: CheckSession, dumps: Sequence[Path]) -> None:
        self._session = session
        self._dumps = dumps

    @pytest.hookimpl
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """A warning for each; `-W error::pytest.PytestWarning` makes it end the run."""
        choice = self._session.settings.standards
        apis = list(self._apis())
        for pattern, named in choice.apis:
            if any(matches(pattern, api) for api in apis):
                continue
            text = f"{choice.source}: standards: apis: {pattern!r}: {named}: matches no API call of the dumps"
            try:
                session.config.issue_config_time_warning(pytest.PytestWarning(text), stacklevel=1)
            except pytest.PytestWarning:
                raise pytest.UsageError(text) from None

    def _apis(self) -> Iterator[ApiName]:
        for path in self._dumps:
            try:
                dump = self._session.dump(path)
            except DumpError:
                continue  # the collection reports it
            yield from map(parse_api_name, group_records(dump)[0])
