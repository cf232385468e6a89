"""Known failures: the file of --msprobe-baseline, what it says of a row, and how it is made of rows.

A failure is known by its suite, the place of its dump, the call and the part of it. It is as before when the same
outputs fail and no figure has grown by more than the factor of the file; where there is no figure, when the message is
the same but for its numbers.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import msgspec

from msprobe_collector.dump_format.values import first_of, optional, printable
from msprobe_collector.dump_format.yaml_files import read_plain
from pytest_msprobe.numerics.expected import Times
from pytest_msprobe.support import without_numbers
from pytest_msprobe.verdicts import BADNESS, OutputRow, VerdictRow

#: The property of a row that says what the baseline makes of it: one of `STATES`, then ": " and why.
PROPERTY = "baseline"
#: What a row is, held to a baseline. The first three fail or failed.
STATES = ("new", "worse", "known", "better", "gone", "unjudged")
_ABOUT = (
    "Known failures, for pytest --msprobe-baseline. `reason` and `since` of an entry are for people; a failure without "
    "an entry is new."
)
_LONGEST = 200
_MOST_BYTES = 1 << 28
#: Folders that say which part of a dump a file is.
_PART_OF_DUMP = re.compile(r"(step|rank|proc)\d*")


class BaselineEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failure that is known.

    Attributes:
        suite, dump, call, part: which one; `dump` is the place of its file, see `places`.
        figure: name of the figure of `outputs`; "" without one.
        outputs: the outputs that fail, with how far they are off; None for what no figure says.
        says: the message, without its numbers, where an output has no figure, or none was compared.
        since: when it was first written, and by which version.
        reason: for people.
    """

    suite: str
    dump: str
    call: str
    part: str
    figure: str = ""
    outputs: dict[str, float | None] = {}
    says: str = ""
    since: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells it from the others."""
        return self.suite, self.dump, self.call, self.part


class KnownRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """What made a run no success although no item failed, such as a parameter that differs.

    Attributes:
        suite: of the run.
        says: what it is, without numbers.
        since, reason: as in `BaselineEntry`.
    """

    suite: str
    says: str
    since: str = ""
    reason: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the others."""
        return self.suite, self.says


class Baseline(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the file holds.

    Attributes:
        baseline: version of its form.
        worse: a figure that is more than so many times that of the file is worse, one below its part is better.
        about: for people.
        known: known failures.
        run: what is known of the runs as wholes.
    """

    baseline: int
    about: str = ""
    worse: float = Times.WORSE
    known: tuple[BaselineEntry, ...] = ()
    run: tuple[KnownRun, ...] = ()

    def of_suite(self, suite: str) -> Baseline:
        """Return what is known of runs of a suite."""
        failures = tuple(failure for failure in self.known if failure.suite == suite)
        run = tuple(fault for fault in self.run if fault.suite == suite)
        return msgspec.structs.replace(self, known=failures, run=run)


class BaselineError(ValueError):
    """Why a file is no baseline, as one line."""


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        BaselineError: it cannot be read, or is no baseline.
    """
    try:
        baseline = msgspec.json.decode(read_plain(path, most_bytes=_MOST_BYTES), type=Baseline)
    except OSError as error:
        raise BaselineError(f"cannot be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        hint = "`python -m pytest_msprobe baseline` writes one"
        raise BaselineError(f"is not a baseline: {printable(str(error))}; {hint}") from None
    if baseline.baseline != 1:
        raise BaselineError(
            f"is a baseline of form {baseline.baseline}, which this version does not know; it knows form 1"
        )
    if not 1 <= baseline.worse < math.inf:
        raise BaselineError(f"key 'worse': {baseline.worse} is not a factor of 1 or more")
    return baseline


def encode_baseline(baseline: Baseline) -> bytes:
    """The file: JSON with a line for each failure, in a stable order, so that two versions can be compared."""
    lines = ["{", ' "baseline": 1,', f' "about": {_json(_ABOUT)},', f' "worse": {_json(baseline.worse)},']
    lines += [*_listed("known", baseline.known), " ],", *_listed("run", baseline.run), " ]"]
    return "\n".join([*lines, "}", ""]).encode()


def _listed(key: str, entries: Sequence[BaselineEntry | KnownRun]) -> Iterator[str]:
    yield f' "{key}": ['
    lines = [f"  {_json(entry)}" for entry in sorted(entries, key=attrgetter("key"))]
    if lines:
        yield ",\n".join(lines)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def places(files: Iterable[str]) -> dict[str, str]:
    """The place of each file of a run, the same on every machine and whichever folder around it was named.

    It begins below the folder that all share, and with its step and rank: `step0/rank1`. A file that is no dump.json
    has its name in it.
    """
    folders = {file: Path(file).parent for file in files}
    common = len(Path(os.path.commonpath(folders.values())).parts) if folders else 0
    place_of = {}
    for file, folder in folders.items():
        parts, start = folder.parts, common
        while start > 0 and _PART_OF_DUMP.fullmatch(parts[start - 1]):
            start -= 1
        place_of[file] = printable("/".join(_parts(file)[start:]))
    return place_of


def _parts(file: str) -> tuple[str, ...]:
    """The parts of a path; without its name where that says nothing."""
    path = Path(file)
    return path.parent.parts if path.name == "dump.json" else path.parts


def known_places(files: Iterable[str], baseline: Iterable[str]) -> dict[str, str]:
    """The place in a baseline that each file of a run has; files without one are left out.

    It is the file's place in this run, else the only one of the baseline that its path ends with, where no other
    file's does.

    Args:
        files: of the run.
        baseline: places in the baseline.
    """
    here, asked = places(files), set(baseline)
    place_of = {file: place for file, place in here.items() if place in asked}
    free = asked - set(place_of.values())
    ends: dict[str, list[str]] = {}
    for file in here.keys() - place_of.keys():
        parts = _parts(file)
        for start in range(1, len(parts)):
            if (end := printable("/".join(parts[start:]))) in free:
                ends.setdefault(end, []).append(file)
    place_of.update((files[0], end) for end, files in ends.items() if len(files) == 1)
    return place_of


def way_of(row: VerdictRow) -> tuple[str, dict[str, float | None], str]:
    """(figure, outputs, message): how a row fails, as `BaselineEntry` has it."""
    wrong = row.failures
    known_by = {name for output in wrong for name in output.figures if _finite(output, name) is not None}
    figure = next(filter(known_by.__contains__, BADNESS), "")
    outputs = {output.label: _finite(output, figure) for output in wrong}
    messages = [output.message or row.message for output in wrong if outputs[output.label] is None]
    if not wrong:
        messages = [row.message]
    texts = dict.fromkeys(map(without_numbers, map(printable, messages)))
    return figure, outputs, "; ".join(texts)[:_LONGEST]


def _finite(output: OutputRow, figure: str) -> float | None:
    value = output.figures.get(figure)
    if value is None or not math.isfinite(value):
        return None
    return 1 - value if figure == "similarity" else abs(value)


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A row held to the baseline.

    Attributes:
        state: one of `STATES`.
        text: why, in one line; "" where there is nothing to say.
    """

    state: str
    text: str = ""

    @property
    def is_expected(self) -> bool:
        """Whether the failure is an expected one."""
        return self.state in ("known", "better")

    @property
    def as_property(self) -> str:
        """The value of `PROPERTY`."""
        return ": ".join(filter(None, (self.state, self.text)))


def state_of(row: VerdictRow) -> BaselineRow | None:
    """What the baseline said of a row; None where it said nothing, or there was none."""
    state, _, why = str(dict(row.properties).get(PROPERTY, "")).partition(": ")
    return BaselineRow(state, why) if state in STATES else None


def complaint_of(row: VerdictRow) -> str:
    """Why a failure is none of the expected ones; "" without a baseline."""
    held = state_of(row)
    if held is not None and held.state == "worse":
        return f"worse than in the baseline: {held.text}"
    return "not in the baseline" if held is not None and held.state == "new" else ""


class KnownFailures:
    """The baseline of one suite, for the files of one run.

    Attributes:
        known: failures of files of this run.
        run: what is known of such runs as wholes.
        elsewhere: how many known failures of the suite are of other dumps.
    """

    def __init__(self, baseline: Baseline, suite: str, files: Iterable[str]) -> None:
        """Of `baseline` what a run of `suite` over `files` may meet."""
        baseline = baseline.of_suite(suite)
        self._places = known_places(files, map(attrgetter("dump"), baseline.known))
        places_here = set(self._places.values())
        self.known = {failure.key: failure for failure in baseline.known if failure.dump in places_here}
        self.elsewhere = len(baseline.known) - len(self.known)
        self._suite = suite
        self._worse = baseline.worse
        self.run = frozenset(map(attrgetter("says"), baseline.run))

    def hold(self, row: VerdictRow, *, fails: bool) -> BaselineRow | None:
        """What the baseline says of a row, which `fails` or not; None where neither says anything."""
        before = None
        if (place := self._places.get(row.dump)) is not None:
            before = self.known.get((self._suite, place, printable(row.call), row.part))
        if fails:
            return BaselineRow("new") if before is None else self._compared(before, row)
        if before is None:
            return None
        if row.status == "skip":
            return BaselineRow("unjudged", "it failed in the baseline, and was not judged")
        return BaselineRow("gone")

    def _compared(self, before: BaselineEntry, row: VerdictRow) -> BaselineRow:
        figure, outputs, says = way_of(row)
        reference = f"known since {before.since}" if before.since else "known"
        if before.reason:
            reference += f": {before.reason}"
        source = f"in the baseline, {reference}"
        if others := [label for label in outputs if label not in before.outputs]:
            was = ", ".join(before.outputs) or "none"
            return BaselineRow("worse", f"{', '.join(others)} fails as well, not only {was} as {source}")
        if before.figure and figure and figure != before.figure:
            return BaselineRow("worse", f"it is judged by {figure}, not by {before.figure} as {source}")
        for label, value in outputs.items():
            then = before.outputs[label]
            if value is None and then is not None:
                return BaselineRow("worse", f"{label}: no figure ({says}), {before.figure} {then:.4g} {source}")
            if value is not None and then is not None and value > self._worse * then:
                more = f"more than {self._worse:g} times as much"
                return BaselineRow("worse", f"{label}: {figure} {value:.4g}, {then:.4g} {source}: {more}")
        if says and says != before.says and not any(then is not None for then in before.outputs.values()):
            return BaselineRow("worse", f"it fails in another way than {source}: {before.says or 'with figures'}")
        if outputs and self._is_better(before, outputs):
            largest, largest_before = _largest(outputs.values()), _largest(before.outputs.values())
            return BaselineRow("better", f"{reference}; better: {figure} {largest}, {largest_before} in the baseline")
        return BaselineRow("known", reference)

    def _is_better(self, before: BaselineEntry, outputs: Mapping[str, float | None]) -> bool:
        """Whether fewer outputs fail, or all of them by much less."""
        if len(outputs) < len(before.outputs):
            return True
        for label, value in outputs.items():
            then = before.outputs[label]
            if value is None or (then is not None and value * self._worse >= then):
                return False
        return True


def _largest(values: Iterable[float | None]) -> str:
    largest = max((value for value in values if value is not None), default=None)
    return "none" if largest is None else f"{largest:.4g}"


@dataclass(slots=True)
class BaselineCounts:
    """What became of known failures, from rows in any order; nothing in a run without a baseline.

    Attributes:
        states: rows by state.
        gone: names of those that are gone.
    """

    states: Counter[str] = field(default_factory=Counter)
    gone: list[str] = field(default_factory=list)

    def add(self, name: str, row: VerdictRow, *, has_baseline: bool = False) -> None:
        """Count one row; a failure without the property is new where there is a baseline."""
        held = state_of(row)
        state = held.state if held else ""
        if row.outcome != "failed" and state in ("new", "worse"):
            return  # a mark of a conftest.py expects it
        if not state and has_baseline and row.outcome == "failed":
            state = "new"
        if state:
            self.states[state] += 1
        if state == "gone":
            self.gone.append(f"{name} {row.label}".rstrip())

    def add_run(self, now: Collection[str], before: Collection[str]) -> None:
        """Count what makes a run no success as a whole, and what does in the baseline."""
        now, before = set(now), set(before)
        self.states["new"] += len(now - before)
        self.states["known"] += len(now & before)
        self.states["gone"] += len(before - now)
        self.gone += sorted(before - now)

    def lines(self, *, absent: int = 0) -> Iterator[str]:
        """The line on all of it, and what to do about those that are gone; `absent` entries had no row."""
        shown = [f"{self.states['new']} new"]
        if self.states["worse"]:
            shown.append(f"{self.states['worse']} worse")
        shown.append(f"{self.states['gone']} gone")
        better = optional(" ({} of them better)", self.states["better"])
        shown.append(f"{self.states['known'] + self.states['better']} as before{better}")
        if self.states["unjudged"]:
            shown.append(f"{self.states['unjudged']} not judged")
        if absent:
            shown.append(f"{absent} without a record in this run")
        yield f"baseline: {', '.join(shown)}"
        if self.gone:
            yield f"gone from the baseline: {first_of(self.gone, 5)}"

    def __bool__(self) -> bool:
        """Whether a row was held to a baseline."""
        return bool(self.states)


def baseline_of(
    rows: Iterable[VerdictRow],
    run_keys: Mapping[str, Iterable[str]],
    since: str,
    earlier: Baseline | None = None,
    *,
    is_partial: bool = False,
) -> Baseline:
    """The baseline of finished runs.

    Args:
        rows: of the runs; of rows on one record the last one counts.
        run_keys: what makes the runs no success beside their rows, by suite.
        since: for entries that are new.
        earlier: the baseline that it replaces: entries that go on keep their `since` and `reason`, those of suites
            that have no row here stay.
        is_partial: whether rows are missing: entries that no row speaks of stay then as well.
    """
    by_suite: dict[str, list[VerdictRow]] = {}
    for row in rows:
        by_suite.setdefault(row.suite, []).append(row)
    earlier = earlier or Baseline(1)
    before = {failure.key: failure for failure in earlier.known}
    faults_before = {fault.key: fault for fault in earlier.run}
    failures: dict[tuple[str, str, str, str], BaselineEntry] = {}
    faults: dict[tuple[str, str], KnownRun] = {}
    judged: set[tuple[str, str, str, str]] = set()
    for suite, rows_of_suite in by_suite.items():
        place = places(map(attrgetter("dump"), rows_of_suite))
        for row in rows_of_suite:
            key = suite, place[row.dump], printable(row.call), row.part
            judged.add(key)
            if _is_failure(row):
                was = before.get(key, BaselineEntry(*key, since=since))
                failures[key] = BaselineEntry(*key, *way_of(row), was.since, was.reason)
        for says in run_keys.get(suite, ()):
            faults[suite, says] = faults_before.get((suite, says), KnownRun(suite, says, since))
    for failure in earlier.known:
        if (is_partial or failure.suite not in by_suite) and failure.key not in judged:
            failures[failure.key] = failure
    for fault in earlier.run:
        if is_partial or fault.suite not in by_suite:
            faults[fault.key] = fault
    return Baseline(1, "", earlier.worse, tuple(failures.values()), tuple(faults.values()))


def _is_failure(row: VerdictRow) -> bool:
    """Whether a row fails, a known failure of an earlier baseline included."""
    held = state_of(row)
    is_known = held is not None and held.is_expected and row.outcome == "xfailed"
    return row.status == "error" and (row.outcome == "failed" or is_known)
