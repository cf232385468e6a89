"""Findings as SARIF 2.1.0, which GitHub, GitLab and editors show beside the lines of a script.

The form is that of OASIS: Static Analysis Results Interchange Format, https://docs.oasis-open.org/sarif/sarif/v2.1.0.
"""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers import Answer, Finding
from pytest_msprobe.answers.words import said, sentence_of
from pytest_msprobe.support import version_of

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
