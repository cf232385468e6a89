"""The page as one file: a sentence that answers the question, the rows as columns, template, style and scripts.

It is made from the machine rows alone, of one run or of several.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.reports.jsonl import CallNames, encodable, read_latest_rows
from pytest_msprobe.reports.terminal import RowCounts
from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.support import version_of
from pytest_msprobe.verdicts import EXPLAINED, OutputRow, StepPosition, VerdictRow

_NAMED = 3
_REASONS = 3
_RANKS = 8


@dataclass(slots=True)
class _Fault:
    """Failures of one API that rounding does not explain.

    Attributes:
        count: of them.
        worst: the largest error over tolerance.
        cells: outer Cells that all of them ran in.
        ranks: on which they are.
    """

    count: int = 0
    worst: float = 0.0
    cells: tuple[str, ...] | None = None
    ranks: set[int | None] = field(default_factory=set)

    def add(self, place: StepPosition, heat: float | None) -> None:
        """Count one failure, and keep what its place has in common with the others'."""
        self.count += 1
        self.worst = max(self.worst, heat or 0.0)
        self.ranks.add(place.rank)
        common = place.cells if self.cells is None else self.cells
        pairs = zip(common, place.cells)
        self.cells = tuple(cell for cell, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class Answer(RowCounts):
    """Counts over rows, taken in any order, and what they say."""

    _faults: dict[str, _Fault] = field(default_factory=dict)
    _ranks: set[int | None] = field(default_factory=set)
    _first: tuple[tuple[Any, ...], VerdictRow, StepPosition] | None = None

    def add(self, row: VerdictRow, place: StepPosition, heat: float | None) -> None:
        """Count one row."""
        self.count(row)
        self._ranks.add(place.rank)
        if row.outcome != "failed" or row.rounding == EXPLAINED:
            return
        self._faults.setdefault(row.api, _Fault()).add(place, heat)
        order = (place.step or 0, place.order if place.order >= 0 else 1 << 60, place.rank or 0)
        if self._first is None or order < self._first[0]:
            self._first = order, row, place

    def content(self, findings: Sequence[str], *, is_bad: bool = False) -> dict[str, Any]:
        """The sentences, in types of JSON. `findings` are the suite's own words, which then lead; `is_bad` if they name
        something that is wrong.
        """
        sentences = [*(findings or [self._sentence()]), *self._more(has_own=bool(findings))]
        headline, _, rest = sentences[0].strip().partition(". ")
        return {
            "headline": headline[:1].upper() + headline[1:],
            "points": [*([rest] if rest else []), *sentences[1:]],
            "is_bad": bool(self._faults) or is_bad,
            "outcomes": dict(self.outcomes),
            "explained": self.explained,
            "faults": [[api, found.count, self.by_api[api].total()] for api, found in self._ranked()],
            "reasons": [[count, reason] for reason, count in self._first_lines().most_common()],
        }

    def _first_lines(self) -> Counter[str]:
        """Skipped rows by the first line of their reason."""
        found: Counter[str] = Counter()
        for reason, count in self.reasons.items():
            found[reason.partition("\n")[0]] += count
        return found

    def _ranked(self) -> list[tuple[str, _Fault]]:
        return sorted(self._faults.items(), key=lambda entry: (-entry[1].count, -entry[1].worst))

    def _sentence(self) -> str:
        total, failed = self.outcomes.total(), self.outcomes["failed"]
        judged = total - self.outcomes["skipped"]
        if not judged:
            return "Nothing was judged."
        if not failed:
            return f"No failure: all {judged} {self.suite.item_noun} that were judged are within their tolerances."
        if not self._faults:
            which = "The only failure is" if failed == 1 else f"All {failed} failures are"
            return f"{which} explained by rounding: no operation is at fault."
        named = [f"{api} ({fault.count} of {self.by_api[api].total()})" for api, fault in self._ranked()]
        if len(named) == 1:
            ((api, fault),) = self._faults.items()
            return (
                f"{api} is at fault: {fault.count} of its {self.by_api[api].total()} records fail{self._where(fault)}."
            )
        more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
        *front, last = [*named[:_NAMED], *more]
        return f"{len(named)} operations are at fault: {', '.join(front)} and {last}."

    def _where(self, fault: _Fault) -> str:
        """What the failures have in common: a Cell, and some ranks of several."""
        every = "all " if fault.count > 1 else ""
        inside = f", {every}in {fault.cells[-1]}" if fault.cells else ""
        ranks = sorted(rank for rank in fault.ranks if rank is not None)
        if not ranks or fault.ranks == self._ranks:
            return inside
        listed = ", ".join(map(str, ranks[:_RANKS])) + (" and others" if len(ranks) > _RANKS else "")
        return f"{inside}, only on {'rank' if len(ranks) == 1 else 'ranks'} {listed}"

    def _more(self, *, has_own: bool) -> Iterator[str]:
        if self._first is not None and not has_own:
            _, row, place = self._first
            where = f", in {place.cells[-1]}" if place.cells else ""
            rank = f", rank {place.rank}" if place.rank else ""
            yield f"First in execution order: {row.call} {row.label}".rstrip() + f"{where}{rank}."
        if self.explained and self._faults:
            yield (
                f"{self.explained} of the {self.outcomes['failed']} failures are explained by rounding; "
                "--msprobe-standard=backward-error passes those."
            )
        if reasons := self._first_lines():
            listed = [f"{reason} ({count})" for reason, count in reasons.most_common(_REASONS)]
            more = f"; and {len(reasons) - _REASONS} more reasons" if len(reasons) > _REASONS else ""
            yield f"{reasons.total()} not judged: {'; '.join(listed)}{more}"


_STATUS = {"pass": 0, "error": 1, "skip": 2}
_NOWHERE = StepPosition()
#: Columns of rows and of outputs that hold texts: as numbers of the table of texts.
_TEXTS = tuple("call part outcome message source side partner partner_cell device bench note level from".split())
_OUTPUT_TEXTS = ("label", "tested", "against", "shape", "message", "standard", "rounding", "pattern")


def heat_of(suite: type[Suite], output: OutputRow | None) -> float | None:
    """How far off an output is, the larger the worse; None where that was not measured."""
    if output is None:
        return None
    values = [output.figures.get(name) for name in suite.severity_figures]
    known = [value for value in values if value is not None]
    if not known:
        return None
    is_low_bad = any(figure.is_low_bad for figure in suite.figures if figure.name == suite.severity_figures[0])
    return 1 - known[0] if is_low_bad else sum(known)


class Section:
    """Takes rows in any order; gives columns in the order of execution."""

    def __init__(self, suite: type[Suite]) -> None:
        self._suite = suite
        self._answer = Answer(suite)
        self._summary = suite.summary()
        self._texts: dict[str, int] = {"": 0}
        self._cells: dict[tuple[str, ...], int] = {}
        self._files: dict[str, tuple[int | None, int | None, str]] = {}
        self._runs: list[dict[str, Any]] = []
        self._rows: list[tuple[tuple[Any, ...], dict[str, Any], list[dict[str, Any]]]] = []

    def add(self, row: VerdictRow) -> None:
        """Take one row; of its attachment nothing is kept."""
        place = row.place or _NOWHERE
        if row.dump not in self._files:
            slot = Slot.of(Path(row.dump))
            numbers = (place.step, place.rank) if row.place is not None else (slot.step, slot.rank)
            self._files[row.dump] = (*numbers, row.node_id.partition("::")[0])
        if row.run is not None:
            self._runs.append({key: row.run.get(key) for key in ("arguments", "header", "version", "folder")})
        heat = heat_of(self._suite, row.worst)
        self._summary.add(row)
        self._answer.add(row, place, heat)
        order = place.order if place.order >= 0 else math.inf
        step, rank, _ = self._files[row.dump]
        key = (_number(step), _number(rank), row.dump, place.side == "golden", order, row.call, row.part == "backward")
        self._rows.append((key, self._columns(row, place, heat), [self._output(output) for output in row.outputs]))

    def content(self) -> dict[str, Any]:
        """Everything that the page shows of the suite, in types of JSON."""
        self._rows.sort(key=lambda entry: entry[0])
        dumps = sorted(self._files, key=lambda dump: (*map(_number, self._files[dump][:2]), dump))
        slots = {dump: index for index, dump in enumerate(dumps)}
        # A run that continued a CSV pair has rows of before whose dump it does not know.
        names = CallNames([Path(dump) for dump in dumps if dump], tell_files=self._suite.call_names_are_unique)
        rows = [columns for _, columns, _ in self._rows]
        findings = [printable(line) for line in self._summary.lines()]
        levels = {
            (dump, self._text(call), self._text(part)): self._text(level)
            for (dump, call, part), level in self._summary.levels().items()
        }
        texts = list(self._texts)
        marks = {
            (dump, self._text(call), self._text(part)): mark
            for (dump, call, part), mark in self._summary.marks().items()
        }
        for columns in rows:
            if mark := marks.get((columns["slot"], columns["call"], columns["part"])):
                columns["note"] = self._text("\n\n".join(filter(None, [mark, texts[columns["note"]]])))
            columns["level"] = levels.get((columns["slot"], columns["call"], columns["part"]), columns["level"])
            columns["slot"] = slots[columns["slot"]]
        outputs = [output for _, _, found in self._rows for output in found]
        suite = self._suite
        return {
            "suite": suite.name,
            "title": suite.title,
            "noun": suite.item_noun,
            "kinds": suite.group_noun,
            "measure": suite.severity_figures,
            "figures": [[figure.name, figure.title, figure.form, figure.is_low_bad] for figure in suite.figures],
            "answer": self._answer.content(findings, is_bad=self._summary.is_bad),
            "markup": self._summary.markup(),
            "runs": self._runs,
            "slots": [self._slot(dump, names.of(dump, "") if dump else "earlier") for dump in dumps],
            "cells": [[cell[-1], self._cells.get(cell[:-1], -1)] for cell in self._cells],
            "rows": _transposed(rows),
            "counts": [len(found) for _, _, found in self._rows],
            "outputs": _transposed(outputs),
            "texts": list(self._texts),
        }

    def _slot(self, dump: str, name: str) -> dict[str, Any]:
        step, rank, node = self._files[dump]
        return {"dump": dump, "step": step, "rank": rank, "id": node, "name": name.strip("/")}

    def _columns(self, row: VerdictRow, place: StepPosition, heat: float | None) -> dict[str, Any]:
        facts = dict(row.properties)
        texts = {
            "call": row.call,
            "part": row.part,
            "outcome": row.outcome,
            "message": row.message,
            "source": place.source or str(facts.get("called_from", "")),
            "side": place.side,
            "partner": place.partner,
            "partner_cell": place.partner_cells[-1] if place.side == "both" and place.partner_cells else "",
            "device": row.device,
            "bench": row.bench,
            "note": row.explanation,
            "level": str(facts.get("level", "")),
            "from": str(facts.get("propagated_from", "")),
        }
        worst = row.worst
        usual = f"{self._files[row.dump][2]}::{row.call}::{row.part}"
        return {
            **{name: self._text(texts[name]) for name in _TEXTS},
            "slot": row.dump,
            "order": place.order,
            "status": _STATUS[row.status],
            "heat": _json_number(heat, 6),
            "cell": self._cell(place.cells),
            "worst": next((index for index, output in enumerate(row.outputs) if output is worst), -1),
            "id": 0 if row.node_id == usual else self._text(row.node_id),
            "seconds": round(row.seconds, 4),
        }

    def _output(self, output: OutputRow) -> dict[str, Any]:
        texts = {
            "label": output.label,
            "tested": output.tested_dtype,
            "against": output.bench_dtype,
            "shape": str(list(output.shape)),
            "message": output.message,
            "standard": output.standard,
            "rounding": output.rounding,
            "pattern": output.pattern,
        }
        figures = ((figure.name, output.figures.get(figure.name)) for figure in self._suite.figures)
        return {
            **{name: self._text(texts[name]) for name in _OUTPUT_TEXTS},
            "status": _STATUS[output.status],
            "heat": _json_number(heat_of(self._suite, output), 6),
            "picture": output.picture,
            **{f"f_{name}": _json_number(value, 10) for name, value in figures},
        }

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _cell(self, path: tuple[str, ...]) -> int:
        """The number of a Cell in the table of Cells, whose outer ones come before it; -1 for none."""
        if not path:
            return -1
        if path not in self._cells:
            self._cell(path[:-1])
            self._cells[path] = len(self._cells)
        return self._cells[path]


def _transposed(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _json_number(value: float | None, digits: int) -> float | str | None:
    """`value` in few characters; NaN and infinities, which JSON lacks, as words."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


#: In this order: each uses only what stands before it.
SCRIPTS = (
    "vendored/preact.umd.js",
    "vendored/hooks.umd.js",
    "vendored/htm.umd.js",
    "data.js",
    "selection.js",
    "tree.js",
    "strip.js",
    "treeview.js",
    "table.js",
    "details.js",
    "pictures.js",
    "app.js",
)
#: What a page of ours begins with: nothing else is replaced.
_BEGINNING = b"<!doctype html>\n<!-- pytest-msprobe page -->"


def write_page(path: Path, sources: Sequence[Path], suite_of: Callable[[str], type[Suite] | None]) -> None:
    """Write the page of the rows in `sources`, files of `--msprobe-jsonl`, to `path`, which is whole or as it was.

    Of rows on the same record the last one counts, in the order of the sources. `suite_of` gives a suite by its name.

    Raises:
        ValueError: a source holds something else than rows, or rows of a suite that is not known; the text names it.
        OSError: a source cannot be read, or the page not written; FileExistsError when another file stands there.
    """
    sections: dict[str, Section] = {}
    for row in read_latest_rows(sources):
        name = row.suite or "precheck"  # rows of version 0.1 do not name theirs
        if name not in sections:
            suite = suite_of(name)
            if suite is None:
                raise ValueError(f"rows of the suite {name!r}, which this version does not know")
            sections[name] = Section(suite)
        sections[name].add(row)
    write_whole(path, render([section.content() for section in sections.values()]))


def render(sections: Sequence[dict[str, Any]]) -> bytes:
    """The page for the `content` of some sections."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pytest_msprobe.reports.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = files("pytest_msprobe.reports.page") / "assets"
    scripts = [(folder / name).read_text(encoding="utf-8") for name in SCRIPTS]
    content = {
        "version": version_of("pytest-msprobe"),
        "made": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "sections": sections,
    }
    text = environment.get_template("page.html").render(
        title=" and ".join(section["title"] for section in sections) or "No rows",
        style=(folder / "page.css").read_text(encoding="utf-8"),
        scripts=scripts,
        # No other script runs, whatever stands in the page.
        script_hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        # Letters, digits, + and /: whatever a dump holds, it cannot end the element that it stands in.
        data=base64.b64encode(gzip.compress(_encoded(content), 9, mtime=0)).decode("ascii"),
    )
    return text.encode("utf-8")


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def check_page_replaceable(path: Path) -> None:
    """Refuse to write over a file at `path` that this plugin did not write.

    Raises:
        FileExistsError: the file is no page of --msprobe-page.
    """
    if path.exists():
        with path.open("rb") as file:
            if file.read(len(_BEGINNING)) != _BEGINNING:
                raise FileExistsError(f"{path} is not a page of --msprobe-page, and is not replaced")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there only when it is whole. Raises OSError."""
    check_page_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _encoded(content: Any) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(content))
