"""Names of test cases in a JUnit file: the record, not the last component of the node id alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from _pytest.junitxml import xml_key  # pytest has no public way to name a test case; the fixture record_xml_* uses this

from msprobe_collector.dump_format import DIRECTIONS
from msprobe_collector.dump_format.text import shown

if TYPE_CHECKING:
    from _pytest.junitxml import LogXML


class JUnitNames:
    """Names each test case `Mint.matmul.3.forward` and its class after its dump. Registered for `--junitxml` only."""

    def __init__(self) -> None:
        """Name the test cases of the session that starts next."""
        self._xml: LogXML | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find the writer of the file."""
        self._xml = session.config.stash.get(xml_key, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name the case before the writer opens it: attributes that are set already are kept."""
        wire: dict[str, Any] | None = getattr(report, "msprobe_row", None)
        if wire is None or self._xml is None:
            return
        file = report.nodeid.partition("::")[0]
        case = self._xml.node_reporter(report)
        case.add_attribute("classname", file.removeprefix("/").replace("/", "."))
        case.add_attribute("name", _name(shown(wire["call"]), wire["part"]))


def _name(call: str, part: str) -> str:
    """`forward-device3` is a direction, too."""
    return f"{call}.{part}" if part.partition("-")[0] in DIRECTIONS else call
