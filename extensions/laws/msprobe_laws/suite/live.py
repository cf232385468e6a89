"""`laws.jsonl` of one rank, read with the care that a file from elsewhere needs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.suites.contract import SuiteError
from pytest_msprobe.verdicts import OutputRow

#: Of all lines, and of one.
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Described:
    """A finding, in words that can be printed.

    Attributes:
        parameter: name of the parameter, or of what else it is about.
        others: number of further names that it holds for.
        message: one sentence.
        size: how many times its tolerance the difference is; None where it has none.
        step: None where it is not known.
        source: line of the script; "" where it is not known.
    """

    parameter: str
    others: int
    message: str
    size: float | None
    step: int | None
    source: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Described:
        """Return the finding of a line of the file."""
        texts = [printable(str(entry.get(key) or "")) for key in ("parameter", "message", "source")]
        count, step = entry.get("other_count"), entry.get("step")
        number: float | None = None
        with suppress(ValueError, TypeError):
            number = float(entry.get("size"))  # type: ignore[arg-type]
        return cls(texts[0], _count(count), texts[1], number, step if isinstance(step, int) else None, texts[2])

    @property
    def row(self) -> OutputRow:
        """The finding as a row of a table."""
        return OutputRow(self.parameter, "", "", (), "error", self.message, figures={"ratio": self.size})

    def __str__(self) -> str:
        """Return `c.weight and 3 more: ... (220 times its tolerance); step 4, train.py:55, in main: ...`."""
        more = f" and {self.others} more" if self.others else ""
        size = "" if self.size is None else f" ({self.size:.3g} times its tolerance)"
        step = "" if self.step is None else f"step {self.step}"
        where = ", ".join(filter(None, (step, self.source)))
        return "; ".join(filter(None, (f"{self.parameter}{more}: {self.message}{size}", where)))


@dataclass(slots=True)
class Checked:
    """What is known of one law of one thing.

    Attributes:
        checks: how often it was checked.
        findings: in how many of them it did not hold.
        reason: why it could not be checked.
        is_moot: whether there was nothing to check.
        described: the findings that the file describes.
    """

    checks: int = 0
    findings: int = 0
    reason: str = ""
    is_moot: bool = False
    described: list[Described] = field(default_factory=list)


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
    """Return the file at `path`.

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
    laws: LawsFile | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            if laws is None:
                raise SuiteError(
                    f"{path}: line 1 is no JSON object; give a laws.jsonl that MSPROBE_LAWS has written"
                ) from None
            cut = "is cut off" if number == len(lines) else "is no JSON object"
            laws.problem = laws.problem or f"{path}: line {number} {cut}; the lines before it and after it are judged"
            continue
        if laws is None:
            if entry.get("kind") != "run" or entry.get("schema") != 1:
                raise SuiteError(
                    f"{path}: line 1 says no run of schema 1; give a laws.jsonl that MSPROBE_LAWS has written"
                )
            laws = LawsFile(entry)
        else:
            _take(laws, entry)
    if laws is None:
        raise SuiteError(f"{path}: is empty; the process ended before its first step")
    return laws


def _take(laws: LawsFile, entry: Mapping[str, Any]) -> None:
    kind, law, about = entry.get("kind"), entry.get("law"), entry.get("about")
    step = entry.get("step")
    if kind in ("replicas", "draws") and isinstance(step, int):
        if kind == "replicas":
            laws.replicas[str(about), step] = entry
        else:
            laws.draws[step] = entry
        return
    if kind == "fault":
        laws.fault = "the checks themselves failed in part: see dump_error_info.log beside the file"
    if not isinstance(law, str) or not isinstance(about, str):
        return
    item = laws.things.setdefault(about, {}).setdefault(law, Checked())
    if kind == "checked":
        item.checks, item.findings = _count(entry.get("checks")), _count(entry.get("findings"))
        item.is_moot = entry.get("moot") is True
        item.reason = printable(str(entry.get("unchecked") or ""))
    elif kind == "finding":
        item.described.append(Described.of(entry))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
