"""What other tools read: what a JUnit file says of a record, and findings as SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import pytest
from _pytest.junitxml import (
    bin_xml_escape,  # pytest has no public way to name a test case; the fixture record_xml_* uses this
    xml_key,
)

from msprobe_collector.dump_format import DIRECTIONS
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers import Answer, Finding
from pytest_msprobe.answers.words import said, sentence_of
from pytest_msprobe.support import version_of
from pytest_msprobe.verdicts import Change, VerdictRow

if TYPE_CHECKING:
    from _pytest.junitxml import LogXML


#: Counts of a JUnit file, by outcome.
_STATS = {"passed": "passed", "failed": "failure", "skipped": "skipped", "xfailed": "skipped"}


class JUnitNames:
    """Names each test case `Mint.matmul.3.forward` and its class after its dump. Registered for `--junitxml` only."""

    def __init__(self) -> None:
        """Name the test cases of the session that starts next."""
        self._xml: LogXML | None = None
        self._cases: dict[str, Any] = {}

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
        case.add_attribute("name", case_name(wire["call"], wire["part"]))
        if report.when == "call":
            self._cases[report.nodeid] = case

    def change(self, changes: Mapping[str, Change]) -> None:
        """Change the cases of items, by their node ids, before the file is written."""
        for node_id, change in changes.items():
            case = self._cases.get(node_id)
            if case is None or self._xml is None:
                continue
            element = case.to_xml()
            for old in (*element.findall("skipped"), *element.findall("failure")):
                element.remove(old)
            first = bin_xml_escape(change.text.partition("\n")[0])
            if change.after == "failed":
                new = ET.SubElement(element, "failure", message=first)
                new.text = bin_xml_escape(change.text)
            else:
                ET.SubElement(element, "skipped", type="pytest.xfail", message=first)
            case.to_xml = lambda element=element: element
            self._xml.stats[_STATS[change.before]] -= 1
            self._xml.stats[_STATS[change.after]] += 1

    def tell(self, answer: Answer) -> None:
        """Add what the run amounts to, as properties of the test suite: outcome, headline and findings."""
        if self._xml is None:
            return
        answer = said(answer)
        self._xml.add_global_property("msprobe.outcome", answer.outcome)
        self._xml.add_global_property("msprobe.headline", printable(answer.headline))
        # Of a run, as properties of its suite of tests.
        for finding in answer.findings[:8]:
            self._xml.add_global_property("msprobe.finding", printable(sentence_of(finding)))


def case_name(call: str, part: str) -> str:
    """Give the name of a record for people: `Mint.matmul.3.forward`, or that of the call where it has no direction."""
    has_direction = part.partition("-")[0] in DIRECTIONS  # also of `forward-device3`
    return f"{printable(call)}.{part}" if has_direction else printable(call)


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
            for name, value in properties(VerdictRow.from_wire(wire)):
                entry = name, printable(value) if isinstance(value, str) else value
                item.user_properties.append(entry)
                report.user_properties.append(entry)
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
        yield from output.measured.items()
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


#: OASIS: Static Analysis Results Interchange Format, https://docs.oasis-open.org/sarif/sarif/v2.1.0.
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_BEGINNING = f'{{\n "$schema": "{_SCHEMA}"'


def check_replaceable(path: Path) -> None:
    """Refuse to write over a file that this plugin did not write.

    Raises:
        FileExistsError: the file at `path` is no SARIF of this form.
        OSError: it cannot be read.
    """
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as file:
            beginning = file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(beginning):  # a run that is killed may leave less
            raise FileExistsError(f"{path} holds something else than findings, and is not replaced")


def write_answer(path: Path, answer: Answer) -> None:
    """Write the findings of `answer` into the file at `path`. Raises OSError."""
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_sarif(answer), indent=1) + "\n", encoding="utf-8")


def to_sarif(answer: Answer) -> dict[str, Any]:
    """Return `answer` as a SARIF log: a result for each finding, and what was not judged as notifications."""
    answer = said(answer)
    kinds = sorted(set(map(attrgetter("kind"), answer.findings)))
    driver = {
        "name": "pytest-msprobe",
        "version": version_of("pytest-msprobe"),
        "rules": [{"id": _rule(answer, kind), "name": kind} for kind in kinds],
    }
    notes = [{"level": "note", "message": {"text": gap.text}} for gap in answer.open]
    is_judged = answer.outcome != "nothing judged"
    run = {
        "tool": {"driver": driver},
        "results": [_result(answer, finding) for finding in answer.findings],
        "invocations": [{"executionSuccessful": is_judged, "toolExecutionNotifications": notes}],
        "properties": {"outcome": answer.outcome, "headline": answer.headline},
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(answer: Answer, kind: str) -> str:
    return f"{answer.suite}/{kind.replace(' ', '-')}"


def _result(answer: Answer, finding: Finding) -> dict[str, Any]:
    text = finding.detail or sentence_of(finding)
    place = finding.place
    result: dict[str, Any] = {
        "ruleId": _rule(answer, finding.kind),
        "level": "error",
        "message": {"text": printable(f"{finding.name} {finding.how}: {text}".strip(": "))},
        "properties": {"confidence": finding.confidence, "count": finding.count, **finding.figures},
        "partialFingerprints": {"msprobe/v1": finding.id or f"{finding.kind}:{place.record}"},
    }
    file, _, line = place.source.rpartition(":")
    if file and line.isdigit():
        path, here = Path(file), Path.cwd()
        # Services look for the file in the checkout, where pytest runs.
        path = path.relative_to(here) if path.is_relative_to(here) else path
        uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
        region = {"startLine": int(line)}
        location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
        if place.record:
            location["logicalLocations"] = [{"fullyQualifiedName": place.record}]
        result["locations"] = [location]
    return result
