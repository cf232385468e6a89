"""The page as one file: the answer, the rows as columns, template, style and scripts.

It is made from the machine rows alone, of one run or of several.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.resources import files
from itertools import filterfalse
from pathlib import Path
from typing import Any

import msgspec

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.answers import Answer, Finding, Place, RowFacts, RunRows, with_findings
from pytest_msprobe.answers.words import about_in_words, said, sentence_of
from pytest_msprobe.reports.baseline import PROPERTY, BaselineCounts
from pytest_msprobe.reports.jsonl import Covered, answer_with, encodable, read_latest_rows
from pytest_msprobe.suites.contract import KNOWN_FAULTS, RUN_FAULTS, CallNames, Suite
from pytest_msprobe.support import version_of, write_whole
from pytest_msprobe.verdicts import EXPLAINED, OutputRow, RowCounts, StepPosition, VerdictRow

#: So many causes of a run are on its page.
_CAUSES = 50


@dataclass(slots=True)
class Tally(RowCounts):
    """Counts over rows, taken in any order.

    Attributes:
        faults: failures that rounding does not explain, by API.
    """

    faults: Counter[str] = field(default_factory=Counter)

    def add(self, row: VerdictRow) -> None:
        """Count one row."""
        self.count(row)
        self.faults[row.api] += row.outcome == "failed" and row.rounding != EXPLAINED

    def content(self, findings: Sequence[str], *, is_bad: bool) -> dict[str, Any]:
        """The counts in types of JSON.

        Args:
            findings: what the suite says of the rows in its own words, line by line.
            is_bad: whether something is wrong, item or not.
        """
        faults = [[api, count, self.by_api[api].total()] for api, count in self.faults.most_common() if count]
        reasons: Counter[str] = Counter()
        for reason, count in self.reasons.items():
            reasons[reason.partition("\n")[0]] += count
        return {
            "points": list(findings),
            "is_bad": bool(faults) or is_bad,
            "outcomes": dict(self.outcomes),
            "explained": self.explained,
            "faults": faults,
            "reasons": [[count, reason] for reason, count in reasons.most_common()],
        }


_STATUS = {"pass": 0, "error": 1, "skip": 2}
_NOWHERE = StepPosition()


def heat_of(suite: type[Suite], output: OutputRow | None) -> float | None:
    """How far off an output is, the larger the worse; None where that was not measured."""
    if output is None:
        return None
    figures = output.measured
    measured = [figures[name] for name in suite.severity_figures if name in figures]
    if not measured:
        return None
    is_low_bad = any(figure.is_low_bad for figure in suite.figures if figure.name == suite.severity_figures[0])
    return 1 - measured[0] if is_low_bad else sum(measured)


class PageSection:
    """Takes rows in any order; gives columns in the order of execution."""

    def __init__(self, suite: type[Suite]) -> None:
        self._suite = suite
        self._tally = Tally()
        self._summary = suite.summary()
        self._all = RunRows(RowFacts(suite=suite.name, excuses=suite.excuses), self._tally)
        self._known = BaselineCounts()
        self._faults: dict[str, None] = {}
        self._texts: dict[str, int] = {"": 0}
        self._cells: dict[tuple[str, ...], int] = {}
        self._files: dict[str, tuple[int | None, int | None, str]] = {}
        self._runs: list[dict[str, Any]] = []
        self._rows: list[tuple[tuple[Any, ...], dict[str, Any], list[dict[str, Any]]]] = []
        self._covered = Covered()
        self._answers: dict[int, Answer] = {}

    def add(self, row: VerdictRow) -> None:
        """Take one row; of its attachment nothing is kept but the answer of a run."""
        place = row.place or _NOWHERE
        if row.dump not in self._files:
            slot = Slot.of(Path(row.dump))
            numbers = (place.step, place.rank) if row.place is not None else (slot.step, slot.rank)
            self._files[row.dump] = (*numbers, row.node_id.partition("::")[0])
        if row.run is not None:
            self._runs.append({key: row.run.get(key) for key in ("arguments", "header", "version", "folder", "limits")})
        heat = heat_of(self._suite, row.worst)
        self._summary.add(row)
        self._tally.add(row)
        self._known.add(row.call, row)
        attachment = row.attachment or {}
        self._faults.update(dict.fromkeys(map(str, attachment.get(RUN_FAULTS, ()))))
        if (answer := answer_with(row)) is not None:
            self._answers.update([answer])
        self._covered.add(row)
        self._all.known |= frozenset(map(str, attachment.get(KNOWN_FAULTS, ())))
        if not row.is_plain_pass:
            self._all.add(row)
        order = place.order if place.order >= 0 else math.inf
        step, rank, _ = self._files[row.dump]
        key = (_number(step), _number(rank), row.dump, place.side == "golden", order, row.call, row.part == "backward")
        columns = self._columns(row, place, heat)
        self._rows.append((key, columns, [self._output(output) for output in row.outputs]))

    def _facts(self) -> RowFacts:
        """What is known of the run beside its rows."""
        suite = self._suite
        first: Mapping[str, Any] = next(iter(self._runs), {})
        return RowFacts(
            suite=suite.name,
            item_noun=suite.item_noun,
            arguments=tuple(first.get("arguments") or ()),
            passing=suite.passing,
            limits=first.get("limits") or {},
            certainty=suite.certainty,
            excuses=suite.excuses,
        )

    def content(self, answer: Answer | None = None) -> dict[str, Any]:
        """Everything that the page shows of the suite, in types of JSON.

        Args:
            answer: what the run amounts to, which may know what no row says; None for what the rows amount to alone.
        """
        self._rows.sort(key=lambda entry: entry[0])
        dumps = sorted(self._files, key=lambda dump: (*map(_number, self._files[dump][:2]), dump))
        slots = {dump: index for index, dump in enumerate(dumps)}
        # A run that continued a CSV pair has rows of before whose dump it does not know.
        names = CallNames([Path(dump) for dump in dumps if dump], tell_files=self._suite.call_names_are_unique)
        findings = list(map(printable, self._summary.lines()))
        answer = answer or self._answers.get(self._covered.number)
        # The rows of a run say themselves what all of them together say of one.
        levels: Mapping[tuple[str, str, str], str] = {}
        if answer is None:
            answer = self._of_rows()
            levels = self._summary.levels()
        if self._known or self._all.known:
            self._known.add_run(self._faults, self._all.known)
        numbers = {
            (dump, self._text(call), self._text(part)): self._text(level)
            for (dump, call, part), level in levels.items()
        }
        rows, outputs, output_counts = [], [], []
        for _, columns, outputs_of_row in self._rows:
            columns["level"] = numbers.get((columns["slot"], columns["call"], columns["part"]), columns["level"])
            columns["slot"] = slots[columns["slot"]]
            rows.append(columns)
            outputs += outputs_of_row
            output_counts.append(len(outputs_of_row))
        suite = self._suite
        cells = [[cell[-1], self._cells.get(cell[:-1], -1)] for cell in self._cells]
        is_bad = self._summary.is_bad or answer.outcome == "wrong"
        return {
            "suite": suite.name,
            "title": suite.title,
            "noun": suite.item_noun,
            "kinds": suite.group_noun,
            "measure": suite.severity_figures,
            "figures": list(map(list, suite.figures)),
            "answer": self._tally.content(findings, is_bad=is_bad),
            "diagnosis": _shown(answer),
            "baseline": next(self._known.lines()).removeprefix("baseline: ") if self._known else "",
            "markup": self._summary.markup(),
            "pairs": self._summary.run_pairs(),
            "runs": self._runs,
            "slots": [self._slot(dump, names) for dump in dumps],
            "cells": cells,
            "rows": _transposed(rows),
            "counts": output_counts,
            "outputs": _transposed(outputs),
            "texts": list(self._texts),
        }

    def _of_rows(self) -> Answer:
        """What the rows of several runs amount to; what made one of these no success beside its rows still does."""
        self._all.facts = self._facts()
        answer = self._summary.answer(self._all)
        faults = list(filterfalse(self._all.is_known, self._faults))
        if answer.findings or not faults:
            return answer
        place = Place(record="", operation="")
        return with_findings(answer, [Finding(kind="incomplete", confidence="proved", place=place, detail=faults[0])])

    def _slot(self, dump: str, names: CallNames) -> dict[str, Any]:
        step, rank, node = self._files[dump]
        name = names.of(dump, "") if dump else "earlier"
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
            "partner_cell": "".join(place.partner_cells[-1:]) if place.side == "both" else "",
            "device": row.device,
            "bench": row.bench,
            "note": row.explanation,
            "level": str(facts.get("level", "")),
            "from": str(facts.get("propagated_from", "")),
            "baseline": str(facts.get(PROPERTY, "")),
        }
        usual = f"{self._files[row.dump][2]}::{row.call}::{row.part}"
        status = "error" if row.outcome == "failed" else row.status
        return {
            **self._numbered(texts),
            "slot": row.dump,
            "order": place.order,
            "status": _STATUS[status],
            "heat": _json_number(heat, 6),
            "cell": self._cell(place.cells),
            "worst": row.outputs.index(row.worst) if row.outputs else -1,
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
        columns: dict[str, Any] = {
            **self._numbered(texts),
            "status": _STATUS[output.status],
            "heat": _json_number(heat_of(self._suite, output), 6),
            "picture": output.picture,
        }
        for figure in self._suite.figures:
            columns[f"f_{figure.name}"] = _json_number(output.figures.get(figure.name), 10)
        return columns

    def _numbered(self, texts: Mapping[str, str]) -> dict[str, int]:
        """Texts as numbers of the table of texts."""
        return {name: self._text(value) for name, value in texts.items()}

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


def _shown(answer: Answer) -> dict[str, Any]:
    """The answer in types of JSON, with its first causes."""
    answer = said(answer)
    content: dict[str, Any] = msgspec.to_builtins(answer)
    causes = content["findings"]
    for cause, finding in zip(causes, answer.findings):
        cause["sentence"] = sentence_of(finding)
    content["about"] = list(map(about_in_words, answer.about))
    if len(causes) > _CAUSES:
        content |= {"findings": causes[:_CAUSES], "cut": {**content["cut"], "findings": len(causes) - _CAUSES}}
    return content


def _title(sections: Sequence[Mapping[str, Any]]) -> str:
    """Of the tab: the verdict, then the dump. A tab shows about the first 20 characters."""
    names = []
    for section in sections:
        dumps = [os.path.dirname(slot["dump"]) for slot in section["slots"] if slot["dump"]]
        folders = Path(os.path.commonpath(dumps)).parts if dumps else ()
        named = [part for part in folders if part not in _LAYOUT and not _SLOT.fullmatch(part)]
        names.append(" - ".join([section["diagnosis"]["headline"], *named[-1:]]))
    return printable("; ".join(names)) or "No rows"


def _transposed(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in next(iter(rows), ())}
    for row in rows:
        for name, values in columns.items():
            values.append(row[name])
    return columns


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


#: Parts of a dump's path that do not tell it from others.
_LAYOUT = ("/", "rank", "dump_tensor_data")
_SLOT = re.compile(r"(step|rank|proc)\d*")
#: What a page of ours begins with: nothing else is replaced.
_BEGINNING = b"<!doctype html>\n<!-- pytest-msprobe page -->"


def write_page(
    path: Path,
    sources: Sequence[Path],
    suite_of: Callable[[str], type[Suite] | None],
    answer: Answer | None = None,
) -> None:
    """Write the page of the rows in `sources`, files of `--msprobe-jsonl`, to `path`, which is whole or as it was.

    Of rows on the same record the last one counts, in the order of the sources.

    Args:
        path: of the page.
        sources: files of rows.
        suite_of: gives a suite by its name.
        answer: of the run whose rows these are; None for what the rows amount to alone.

    Raises:
        ValueError: a source holds something else than rows, or rows of a suite that is not known; the text names it.
        OSError: a source cannot be read, or the page not written; FileExistsError when another file stands there.
    """
    sections: dict[str, PageSection] = {}
    for row in read_latest_rows(sources):
        name = row.suite
        if name not in sections:
            suite = suite_of(name)
            if suite is None:
                raise ValueError(f"rows of the suite {name!r}, which this version does not know")
            sections[name] = PageSection(suite)
        sections[name].add(row)
    answers = {answer.suite: answer} if answer is not None else {}
    page = render([section.content(answers.get(name)) for name, section in sections.items()])
    check_page_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(page))


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
    # In this order: each uses only what stands before it.
    names = (folder / "scripts.txt").read_text(encoding="utf-8").split()
    scripts = [(folder / name).read_text(encoding="utf-8") for name in names]
    content = {
        "version": version_of("pytest-msprobe"),
        "made": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "sections": sections,
    }
    text = environment.get_template("page.html").render(
        title=_title(sections),
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


def _encoded(content: Any) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(content))
