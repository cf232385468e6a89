"""Counts over rows, and what the terminal says of them: verdicts, the worst records, why records were skipped."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from msprobe_collector.dump_format.values import counted, first_of, optional
from pytest_msprobe.answers.words import wrap_words
from pytest_msprobe.suites.contract import Suite
from pytest_msprobe.verdicts import EXPLAINED, LAW, Change, Figure, OutputRow, RowCounts, VerdictRow

_WORST = 10
_WORST_VERBOSE = 50
_NEAREST = 3
_REASONS = 10
#: With -q, of a run that judged nothing.
_REASONS_QUIET = 3
_REASON_WIDTH = 150
#: Width of lines that go into a file, where no terminal says how wide it is.
FILE_WIDTH = 120
_GAP = "  "
#: Outcomes in the words of the summary, in its order; the first three are always shown.
OUTCOME_WORDS = {
    "passed": "passed",
    "failed": "failed",
    "skipped": "skipped",
    "xfailed": "expected failures",
    "xpassed": "unexpected passes",
}


class Line(NamedTuple):
    """One line of the summary.

    Attributes:
        text: without control characters of its own; what it quotes from a dump may have some.
        colour: as pytest colours the same: `red`, `yellow`, `green`; "" for none.
        is_whole: whether it stays on one line whatever the width, as paths and tables do.
    """

    text: str
    colour: str = ""
    is_whole: bool = False

    @property
    def markup(self) -> dict[str, bool]:
        """Arguments of pytest's `write_line`."""
        return {self.colour: True} if self.colour else {}


def wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` characters, as far as its words allow: paths and commands stay whole.

    Lines behind the first are indented, so that one sees where the next text begins. A `width` of 0 leaves it as it is.
    """
    if not width:
        return [text]
    start = text[: len(text) - len(text.lstrip())]
    return wrap_words(text, width, subsequent_indent=f"{start}  ", replace_whitespace=False) or [""]


def shortened(name: str, longest: int) -> str:
    """A name of at most so many characters, with its beginning and its end, which tell it from others."""
    if len(name) <= longest:
        return name
    end = max(1, (longest - 3) // 2)
    return f"{name[: max(1, longest - 3 - end)]}...{name[-end:]}"


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        title: above it.
        cells: of the rows.
        is_number: whether it is flush right.
        can_go: place among the columns that a narrow terminal does without, 1 the first one; 0 for a column that stays.
    """

    title: str
    cells: list[str]
    is_number: bool = False
    can_go: int = 0

    @property
    def width(self) -> int:
        """Of the widest cell."""
        return max(map(len, (self.title, *self.cells)))

    def padded(self) -> list[str]:
        """The title and the cells, of one width."""
        side = ">" if self.is_number else "<"
        return [f"{cell:{side}{self.width}}" for cell in (self.title, *self.cells)]


def table(columns: Sequence[Column], width: int) -> list[str]:
    """A table of at most `width` characters: the title line, then the rows. The first column has the names.

    Names that are longer than most are cut in their middle; columns go until the rest fits beside these.
    """
    shown = list(columns)
    least = min(columns[0].width, 40) - columns[0].width
    for column in sorted(columns, key=lambda column: column.can_go):
        if column.can_go and _width(shown) + least > width:
            shown.remove(column)
    names = shown[0]
    longest = max(20, width - _width(shown[1:]) - len(_GAP))
    shown[0] = names._replace(cells=[shortened(name, longest) for name in names.cells])
    return [f"{_GAP}{_GAP.join(line)}".rstrip() for line in zip(*map(Column.padded, shown))]


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + len(_GAP) for column in columns)


@dataclass(slots=True)
class VerdictCounts(RowCounts):
    """The summary of a run; its size does not grow with the number of rows.

    Attributes:
        suite: of the rows, or its class: how it calls them and their figures.
        benches: rows with a verdict by the benchmark that judged them.
        failed: errors by API, or by the suite's own kind, in the order of their first.
        judged: how many rows have a verdict that is not a skip.
    """

    suite: Suite | type[Suite] = Suite
    benches: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    _unexplained: list[str] = field(default_factory=list)
    _first: tuple[tuple[bool, int, int], str, str] | None = None
    _worst: list[tuple[tuple[bool, bool, float], int, str, VerdictRow, OutputRow | None]] = field(default_factory=list)

    def add(self, name: str, row: VerdictRow) -> None:
        """Count one row; `name` is how reports call its group."""
        self.count(row)
        if row.status == "skip":
            return
        if row.bench:  # random calls have a law each, and are counted together
            self.benches["of their laws" if row.bench.startswith(LAW) else row.bench] += 1
        self.judged += 1
        is_failed = row.outcome == "failed"
        is_wrong = is_failed and row.rounding != EXPLAINED
        if is_failed:
            self.failed[row.api] += 1
            self._note_first(name, row, is_wrong=is_wrong)
        if is_wrong and row.rounding:
            far = row.rounding.partition("(")[2].partition(" times")[0]
            self._unexplained.append(f"{name} {row.label}{optional(' ({}x)', far)}")
        output = row.worst
        badness = output.badness[1] if output else math.inf
        entry = ((is_failed, is_wrong, badness), -self.judged, name, row, output)
        keep = heapq.heappush if len(self._worst) < _WORST_VERBOSE else heapq.heappushpop
        keep(self._worst, entry)

    def correct(self, changes: Mapping[str, Change]) -> None:
        """Count items as what the whole run makes of them, by their node ids."""
        for node_id, change in changes.items():
            self.outcomes[change.before] -= 1
            self.outcomes[change.after] += 1
            call = node_id.split("::")[1]
            self.failed[call.rpartition(".")[0] or call] += 1 if change.after == "failed" else -1
        self.failed = +self.failed

    def lines(self, verbosity: int = 0, width: int = FILE_WIDTH, record: str = "") -> Iterator[Line]:
        """The summary, line by line: with `-q` (-1) counts and what failed, with `-v` (1) more records and reasons.

        Args:
            verbosity: of pytest.
            width: that tables have at most; 0 for that of a file.
            record: the one that the answer above names first, which is not named once more; "" for none.
        """
        counts, words = self.outcomes, enumerate(OUTCOME_WORDS.items())
        shown = [f"{counts[outcome]} {word}" for place, (outcome, word) in words if counts[outcome] or place < 3]
        yield Line(f"{', '.join(shown)} ({self.suite.item_noun})", self._colour)
        yield from self._rounding_lines()
        # The header names the engines: of one that gave every benchmark there is no more to say.
        is_in_header = len(self.benches) == 1 and next(iter(self.benches)).endswith(" float64")
        if verbosity >= 0 and not is_in_header:
            yield from (Line(f"benchmark {bench}: {count} judged") for bench, count in self.benches.most_common())
        if self.failed and not (record and self.failed.total() == 1):
            kinds = [f"{kind} ({count})" for kind, count in self.failed.most_common()]
            yield Line(f"failing {self.suite.group_noun}: {first_of(kinds, _WORST)}", "red")
        if verbosity >= 0:
            if self._first is not None and self.failed.total() > 1 and self._first[2] != record:
                yield Line(f"first in execution order: {self._first[1]}", "red")
            yield from self._worst_lines(width or FILE_WIDTH, is_verbose=verbosity > 0)
            yield from self._reason_lines(len(self.reasons) if verbosity > 0 else _REASONS)
        elif not self.judged:
            yield from self._reason_lines(_REASONS_QUIET)

    @property
    def _colour(self) -> str:
        """Colour of the line, by pytest's rules for its own last line."""
        if self.failed:
            return "red"
        return "green" if self.outcomes["passed"] else "yellow"

    def _reason_lines(self, most: int) -> Iterator[Line]:
        if not self.reasons:
            return
        yield Line("")
        yield Line("not judged:", "yellow")
        for reason, count in self.reasons.most_common(most):
            first = reason.partition("\n")[0]
            yield Line(f"  {count:>6}  {first if len(first) <= _REASON_WIDTH else f'{first[: _REASON_WIDTH - 3]}...'}")
        if len(self.reasons) > most:
            yield Line(f"  and {counted(len(self.reasons) - most, 'more reasons')}; pytest -v shows all of them")

    def _note_first(self, name: str, row: VerdictRow, *, is_wrong: bool) -> None:
        """Keep the failure that comes first in the training; those that rounding explains come after all others."""
        place = row.place
        if place is None or place.order < 0:
            return
        key = not is_wrong, place.step or 0, place.order
        if self._first is None or key < self._first[0]:
            source = place.source.partition(", in ")[0]
            text = ", ".join(filter(None, (f"{name} {row.label}".rstrip(), source)))
            self._first = key, text, row.record

    def _rounding_lines(self) -> Iterator[Line]:
        """How many failures rounding explains, where a standard with fixed limits judged."""
        if not self.explained:
            return
        failed = self.failed.total()
        others = optional(", {} not", failed - self.explained)
        if others and self._unexplained:
            others += f": {first_of(self._unexplained, _NEAREST)}"
        yield Line(
            f"{failed} failed: {self.explained} explained by rounding{others}; "
            "--msprobe-standard=backward-error passes those that rounding explains",
            "red",
        )

    def _worst_lines(self, width: int, *, is_verbose: bool) -> Iterator[Line]:
        """Tabulate the records that are furthest off; those that passed where it `is_verbose`."""
        has_failed = bool(self.failed)
        most = _NEAREST
        if has_failed:
            most = _WORST_VERBOSE if is_verbose else _WORST
        shown: list[tuple[str, VerdictRow, OutputRow]] = []
        for (is_failed, *_), _, name, row, output in sorted(self._worst, key=lambda entry: entry[:2], reverse=True):
            if output and (is_failed or not has_failed) and len(shown) < most:
                shown.append((name, row, output))
        outputs = [output for _, _, output in shown]
        figures = self._figures(outputs)
        if not shown or not (has_failed or self._differs(figures, outputs)):
            return
        is_off = any(row.status == "error" for _, row, _ in shown)
        if not (is_off or is_verbose):
            return
        yield Line("")
        title = "furthest off" if is_off else "nearest to the limit"
        yield Line(f"worst {self.suite.item_noun}:" if has_failed else f"{title}:")
        columns = [Column("", [f"{name} {row.label}".rstrip() for name, row, _ in shown])]
        for place, figure in enumerate(figures):
            cells = [_figure_text(output.figures.get(figure.name), figure) for output in outputs]
            columns.append(Column(figure.title.lower(), cells, is_number=True, can_go=4 - place if place else 0))
        columns.append(Column("output", list(map(_output_text, outputs)), can_go=1))
        for place, line in enumerate(table(columns, width)):
            yield Line(line, "red" if has_failed and place else "", is_whole=True)
        if any(output.status == "pass" and output.ratio == 1 and output.max_ulp == 1 for output in outputs):
            yield Line("  1 is one unit in the last place there, which this standard always allows: no near failure")

    @staticmethod
    def _differs(figures: Sequence[Figure], outputs: Iterable[OutputRow]) -> bool:
        """Whether any output is off at all, by the first figure."""
        if not figures:
            return False
        equal = 1.0 if figures[0].is_low_bad else 0.0
        return any(output.figures.get(figures[0].name) not in (None, equal) for output in outputs)

    def _figures(self, outputs: Iterable[OutputRow]) -> list[Figure]:
        """Those that say how far off an output is, then others, at most so many: those that any output has."""
        names = set(chain.from_iterable(map(attrgetter("measured"), outputs)))
        severity = self.suite.severity_figures
        ranked = sorted(self.suite.figures, key=lambda figure: figure.name not in severity)
        return [figure for figure in ranked if figure.name in names][:3]


def _figure_text(value: float | None, figure: Figure) -> str:
    """At most four digits; those that are nearly 1, such as a cosine, have the digits that tell them from 1."""
    if value is None:
        return "-"
    return f"{value:{figure.form}}" if figure.is_low_bad else f"{value:.3g}"


def _output_text(output: OutputRow) -> str:
    return f"{output.label}{optional(' {}', output.tested_dtype)}{optional(' {}', list(output.shape))}"
