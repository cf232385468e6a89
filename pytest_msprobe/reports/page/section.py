"""The rows of one suite as columns, which the page's script reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msprobe_collector.dump_format.slot import Slot
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.page.answer import Answer
from pytest_msprobe.verdicts import Figure, OutputRow, Place, VerdictRow

_STATUS = {"pass": 0, "error": 1, "skip": 2}
_NOWHERE = Place()
#: Columns of rows and of outputs that hold texts: as numbers of the table of texts.
_TEXTS = tuple("call part outcome message source side partner partner_cell device bench note level from".split())
_OUTPUT_TEXTS = ("label", "tested", "against", "shape", "message", "standard", "rounding", "pattern")


class Summary(Protocol):
    """What a suite says of finished rows: `RowSummary`."""

    def add(self, row: VerdictRow) -> None:
        """Take one row, with its attachment."""

    def lines(self) -> Iterable[str]:
        """The findings, most important first."""

    def levels(self) -> Mapping[tuple[str, str, str], str]:
        """Levels by (dump, call, part): what all rows together say that a record does; asked after `lines`."""


class ShownSuite(Protocol):
    """What the page asks of a suite: a subclass of `Suite`."""

    @property
    def name(self) -> str:
        """Name of the suite on the command line."""

    @property
    def title(self) -> str:
        """Title of the page."""

    @property
    def noun(self) -> str:
        """What a row is about, in the plural."""

    @property
    def kinds(self) -> str:
        """Plural word for what fails."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Numbers of an output."""

    @property
    def measure(self) -> tuple[str, ...]:
        """The figures whose sum pictures show."""

    @property
    def calls_tell_files(self) -> bool:
        """Whether the calls of files in one folder have different names."""

    def summary(self) -> Summary:
        """A new summary of rows."""


def heat_of(suite: ShownSuite, output: OutputRow | None) -> float | None:
    """How far off an output is, the larger the worse; None where that was not measured."""
    if output is None:
        return None
    values = [output.figures.get(name) for name in suite.measure]
    known = [value for value in values if value is not None]
    if not known:
        return None
    is_low_bad = any(figure.is_low_bad for figure in suite.figures if figure.name == suite.measure[0])
    return 1 - known[0] if is_low_bad else sum(known)


class Section:
    """Takes rows in any order; gives columns in the order of execution."""

    def __init__(self, suite: ShownSuite) -> None:
        self._suite = suite
        self._answer = Answer(suite.noun)
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
        names = CallNames([Path(dump) for dump in dumps if dump], tell_files=self._suite.calls_tell_files)
        rows = [columns for _, columns, _ in self._rows]
        findings = [shown(line) for line in self._summary.lines()]
        levels = {
            (dump, self._text(call), self._text(part)): self._text(level)
            for (dump, call, part), level in self._summary.levels().items()
        }
        for columns in rows:
            columns["level"] = levels.get((columns["slot"], columns["call"], columns["part"]), columns["level"])
            columns["slot"] = slots[columns["slot"]]
        outputs = [output for _, _, found in self._rows for output in found]
        suite = self._suite
        return {
            "suite": suite.name,
            "title": suite.title,
            "noun": suite.noun,
            "kinds": suite.kinds,
            "measure": suite.measure,
            "figures": [[figure.name, figure.title, figure.form, figure.is_low_bad] for figure in suite.figures],
            "answer": self._answer.content(findings),
            "runs": self._runs,
            "slots": [_slot(dump, *self._files[dump], names.of(dump, "") if dump else "earlier") for dump in dumps],
            "cells": [[cell[-1], self._cells.get(cell[:-1], -1)] for cell in self._cells],
            "rows": _transposed(rows),
            "counts": [len(found) for _, _, found in self._rows],
            "outputs": _transposed(outputs),
            "texts": list(self._texts),
        }

    def _columns(self, row: VerdictRow, place: Place, heat: float | None) -> dict[str, Any]:
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


def _slot(dump: str, step: int | None, rank: int | None, node: str, name: str) -> dict[str, Any]:
    return {"dump": dump, "step": step, "rank": rank, "id": node, "name": name.strip("/")}


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
