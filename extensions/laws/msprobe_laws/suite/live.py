"""`laws.jsonl` of one rank, read with the care that a file from elsewhere needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.contract import SuiteError

#: Of all lines, and of one.
_MOST_BYTES, _MOST_LINE = 1 << 28, 1 << 20


@dataclass(slots=True)
class Checked:
    """What is known of one law of one thing.

    Attributes:
        checks: how often it was checked.
        findings: in how many of them it did not hold.
        reason: why it could not be checked.
        is_moot: whether there was nothing to check.
        told: the findings that are described.
    """

    checks: int = 0
    findings: int = 0
    reason: str = ""
    is_moot: bool = False
    told: list[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class LawsFile:
    """A whole file.

    Attributes:
        run: its first line.
        things: what was checked, by thing and law.
        replicas: lines on replicas, by optimizer and step.
        draws: lines on dropout masks, by step.
        problem: what makes it not whole, as one line.
        fault: why not everything was checked that could be, as one line.
    """

    run: Mapping[str, Any]
    things: dict[str, dict[str, Checked]] = field(default_factory=dict)
    replicas: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    draws: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""
    fault: str = ""

    @property
    def rank(self) -> int:
        """Number of the rank that wrote it."""
        rank = self.run.get("rank")
        return rank if isinstance(rank, int) else 0


def read_laws(path: Path) -> LawsFile:
    """The file at `path`.

    Raises:
        SuiteError: it cannot be read, or is no such file.
    """
    from msprobe_collector.dump_format.tensors import open_plain

    try:
        with open_plain(path) as stream:
            text = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(text) > _MOST_BYTES:
        raise SuiteError(f"{path}: has more than {_MOST_BYTES} bytes, which no run of laws writes")
    lines = text.split(b"\n")
    decoder = msgspec.json.Decoder(dict[str, Any])
    found: LawsFile | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            if found is None:
                raise SuiteError(
                    f"{path}: line 1 is no JSON object; give a laws.jsonl that MSPROBE_LAWS has written"
                ) from None
            cut = "is cut off" if number == len(lines) else "is no JSON object"
            found.problem = found.problem or f"{path}: line {number} {cut}; the lines before it and after it are judged"
            continue
        if found is None:
            if entry.get("kind") != "run" or entry.get("schema") != 1:
                raise SuiteError(
                    f"{path}: line 1 says no run of schema 1; give a laws.jsonl that MSPROBE_LAWS has written"
                )
            found = LawsFile(entry)
        else:
            _take(found, entry)
    if found is None:
        raise SuiteError(f"{path}: is empty; the process ended before its first step")
    return found


def _take(found: LawsFile, entry: Mapping[str, Any]) -> None:
    kind, law, about = entry.get("kind"), entry.get("law"), entry.get("about")
    step = entry.get("step")
    if kind in ("replicas", "draws") and isinstance(step, int):
        if kind == "replicas":
            found.replicas[str(about), step] = entry
        else:
            found.draws[step] = entry
        return
    if kind == "fault":
        found.fault = "the checks themselves failed in part: see dump_error_info.log beside the file"
    if not isinstance(law, str) or not isinstance(about, str):
        return
    item = found.things.setdefault(about, {}).setdefault(law, Checked())
    if kind == "checked":
        item.checks, item.findings = _count(entry.get("checks")), _count(entry.get("findings"))
        item.is_moot = entry.get("moot") is True
        item.reason = printable(str(entry.get("unchecked") or ""))
    elif kind == "finding":
        item.told.append(entry)


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
