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
from pathlib import Path

import msgspec

from msprobe_collector.dump_format.values import printable
from msprobe_collector.dump_format.yaml_files import read_plain
from pytest_msprobe.support import without_numbers
from pytest_msprobe.verdicts import BADNESS, OutputRow, VerdictRow

#: The property of a row that says what the baseline makes of it: one of `STATES`, then ": " and why.
PROPERTY = "baseline"
#: What a row is, held to a baseline. The first three fail or failed.
STATES = ("new", "worse", "known", "better", "gone", "unjudged")
_FACTOR = 2.0
_ABOUT = (
    "Known failures, for pytest --msprobe-baseline. `reason` and `since` of an entry are for people; a failure without "
    "an entry is new."
)
_LONGEST = 200
_MOST_BYTES = 1 << 28
#: Folders that say which part of a dump a file is.
_PART_OF_DUMP = re.compile(r"(step|rank|proc)\d*")


class Known(msgspec.Struct, frozen=True, omit_defaults=True):
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
        since, reason: as in `Known`.
    """

    suite: str
    says: str
    since: str = ""
    reason: str = ""


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
    worse: float = _FACTOR
    known: tuple[Known, ...] = ()
    run: tuple[KnownRun, ...] = ()


class BaselineError(ValueError):
    """Why a file is no baseline, as one line."""


def read_baseline(path: Path) -> Baseline:
    """The baseline in a file.

    Raises:
        BaselineError: it cannot be read, or is no baseline.
    """
    try:
        found = msgspec.json.decode(read_plain(path, most_bytes=_MOST_BYTES), type=Baseline)
    except OSError as error:
        raise BaselineError(f"cannot be read: {error.strerror or error}") from None
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        hint = "`python -m pytest_msprobe baseline` writes one"
        raise BaselineError(f"is not a baseline: {printable(str(error))}; {hint}") from None
    if found.baseline != 1:
        raise BaselineError(
            f"is a baseline of form {found.baseline}, which this version does not know; it knows form 1"
        )
    if not 1 <= found.worse < math.inf:
        raise BaselineError(f"key 'worse': {found.worse} is not a factor of 1 or more")
    return found


def encode_baseline(baseline: Baseline) -> bytes:
    """The file: JSON with a line for each failure, in a stable order, so that two versions can be compared."""
    lines = ["{", ' "baseline": 1,', f' "about": {_json(_ABOUT)},', f' "worse": {_json(baseline.worse)},']
    lines += _listed("known", list(map(_json, sorted(baseline.known, key=lambda known: known.key))), ends=",")
    lines += _listed("run", list(map(_json, sorted(baseline.run, key=lambda run: (run.suite, run.says)))), ends="")
    return "\n".join([*lines, "}", ""]).encode()


def _listed(key: str, entries: Sequence[str], ends: str) -> list[str]:
    lines = [f"  {entry}," for entry in entries[:-1]] + [f"  {entry}" for entry in entries[-1:]]
    return [f' "{key}": [', *lines, f" ]{ends}"]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def places(files: Iterable[str]) -> dict[str, str]:
    """The place of each file of a run, the same on every machine and whichever folder around it was named.

    It begins below the folder that all share, and with its step and rank: `step0/rank1`. A file that is no dump.json
    has its name in it.
    """
    different = list(dict.fromkeys(files))
    folders = {file: Path(file).parent.parts for file in different}
    common = len(Path(os.path.commonpath([Path(file).parent for file in different])).parts) if different else 0
    found = {}
    for file, parts in folders.items():
        start = common
        while start > 0 and _PART_OF_DUMP.fullmatch(parts[start - 1]):
            start -= 1
        name = Path(file).name
        found[file] = printable("/".join([*parts[start:], *([] if name == "dump.json" else [name])]))
    return found


def known_places(files: Iterable[str], known: Iterable[str]) -> dict[str, str]:
    """The place in a baseline that each file of a run has, of the places `known`; files without one are left out.

    Its own place, else the only known one that its path ends with, where no other file's does.
    """
    own, asked = places(files), set(known)
    found = {file: place for file, place in own.items() if place in asked}
    ends: dict[str, list[str]] = {}
    for file in own.keys() - found.keys():
        path = Path(file)
        parts = path.parent.parts if path.name == "dump.json" else path.parts
        for start in range(1, len(parts)):
            if (end := printable("/".join(parts[start:]))) in asked and end not in found.values():
                ends.setdefault(end, []).append(file)
    found.update((files[0], end) for end, files in ends.items() if len(files) == 1)
    return found


def way_of(row: VerdictRow) -> tuple[str, dict[str, float | None], str]:
    """(figure, outputs, message): how a row fails, as `Known` has it."""
    wrong = [output for output in row.outputs if output.status == "error"]
    figure = next((name for name in BADNESS for output in wrong if _finite(output, name) is not None), "")
    outputs = {output.label: _finite(output, figure) for output in wrong}
    without = [output.message or row.message for output in wrong if outputs[output.label] is None]
    texts = dict.fromkeys(without_numbers(printable(text)) for text in (without if wrong else [row.message]))
    return figure, outputs, "; ".join(texts)[:_LONGEST]


def _finite(output: OutputRow, figure: str) -> float | None:
    value = output.figures.get(figure)
    if value is None or not math.isfinite(value):
        return None
    return 1 - value if figure == "similarity" else abs(value)


@dataclass(frozen=True, slots=True)
class Held:
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
        return f"{self.state}: {self.text}" if self.text else self.state


def state_of(row: VerdictRow) -> Held | None:
    """What the baseline said of a row; None where it said nothing, or there was none."""
    text = next((str(value) for key, value in row.properties if key == PROPERTY), "")
    state, _, why = text.partition(": ")
    return Held(state, why) if state in STATES else None


def complaint_of(row: VerdictRow) -> str:
    """Why a failure is none of the expected ones; "" without a baseline."""
    held = state_of(row)
    words = {"worse": f"worse than in the baseline: {held.text}", "new": "not in the baseline"} if held else {}
    return words.get(held.state, "") if held else ""


class KnownFailures:
    """The baseline of one suite, for the files of one run.

    Attributes:
        known: failures of files of this run.
        run: what is known of such runs as wholes.
        elsewhere: how many known failures of the suite are of other dumps.
    """

    def __init__(self, baseline: Baseline, suite: str, files: Iterable[str]) -> None:
        """Of `baseline` what a run of `suite` over `files` may meet."""
        own = [known for known in baseline.known if known.suite == suite]
        self._places = known_places(files, {known.dump for known in own})
        met = set(self._places.values())
        self.known = {known.key: known for known in own if known.dump in met}
        self.elsewhere = len(own) - len(self.known)
        self._suite = suite
        self._worse = baseline.worse
        self.run = frozenset(known.says for known in baseline.run if known.suite == suite)

    def of(self, row: VerdictRow) -> Known | None:
        """What is known of the record of `row`; None for nothing."""
        place = self._places.get(row.dump)
        return None if place is None else self.known.get((self._suite, place, printable(row.call), row.part))

    def hold(self, row: VerdictRow, *, fails: bool) -> Held | None:
        """What the baseline says of a row, which `fails` or not; None where neither says anything."""
        known = self.of(row)
        if known is None:
            return Held("new") if fails else None
        if not fails:
            return (
                Held("unjudged", "it failed in the baseline, and was not judged")
                if row.status == "skip"
                else Held("gone")
            )
        return self._compared(known, row)

    def _compared(self, known: Known, row: VerdictRow) -> Held:
        figure, outputs, says = way_of(row)
        reference = f"known since {known.since}" if known.since else "known"
        if known.reason:
            reference += f": {known.reason}"
        before = f"in the baseline, {reference}"
        if others := [label for label in outputs if label not in known.outputs]:
            was = ", ".join(known.outputs) or "none"
            return Held("worse", f"{', '.join(others)} fails as well, not only {was} as {before}")
        if known.figure and figure and figure != known.figure:
            return Held("worse", f"it is judged by {figure}, not by {known.figure} as {before}")
        for label, value in outputs.items():
            then = known.outputs[label]
            if value is None and then is not None:
                return Held("worse", f"{label}: no figure ({says}), {known.figure} {then:.4g} {before}")
            if value is not None and then is not None and value > self._worse * then:
                more = f"more than {self._worse:g} times as much"
                return Held("worse", f"{label}: {figure} {value:.4g}, {then:.4g} {before}: {more}")
        if says and says != known.says and not any(then is not None for then in known.outputs.values()):
            return Held("worse", f"it fails in another way than {before}: {known.says or 'with figures'}")
        return self._as_before(known, figure, outputs, reference)

    def _as_before(self, known: Known, figure: str, outputs: Mapping[str, float | None], reference: str) -> Held:
        figures = [(value, known.outputs[label]) for label, value in outputs.items()]
        is_less = all(
            value is not None and (then is None or value * self._worse < then) for value, then in figures
        ) or len(outputs) < len(known.outputs)
        if figures and is_less:
            then = max((value for value in known.outputs.values() if value is not None), default=None)
            now = max((value for value, _ in figures if value is not None), default=None)
            was = f"{figure} {_shown(now)}, {_shown(then)} in the baseline"
            return Held("better", f"{reference}; better: {was}")
        return Held("known", reference)


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


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

    def add_run(self, now: Collection[str], known: Collection[str]) -> None:
        """Count what makes a run no success as a whole, and what does in the baseline."""
        self.states["new"] += sum(says not in known for says in now)
        self.states["known"] += sum(says in known for says in now)
        gone = [says for says in known if says not in now]
        self.states["gone"] += len(gone)
        self.gone += gone

    def lines(self, *, absent: int = 0) -> Iterator[str]:
        """The line on all of it, and what to do about those that are gone; `absent` entries had no row."""
        shown = [f"{self.states['new']} new"]
        if self.states["worse"]:
            shown.append(f"{self.states['worse']} worse")
        shown.append(f"{self.states['gone']} gone")
        better = f" ({self.states['better']} of them better)" if self.states["better"] else ""
        shown.append(f"{self.states['known'] + self.states['better']} as before{better}")
        if self.states["unjudged"]:
            shown.append(f"{self.states['unjudged']} not judged")
        if absent:
            shown.append(f"{absent} without a record in this run")
        yield f"baseline: {', '.join(shown)}"
        if self.gone:
            more = f" and {len(self.gone) - 5} more" if len(self.gone) > 5 else ""
            yield f"gone from the baseline: {', '.join(self.gone[:5])}{more}"

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
    before = {known.key: known for known in earlier.known} if earlier else {}
    told = {(known.suite, known.says): known for known in earlier.run} if earlier else {}
    known: dict[tuple[str, str, str, str], Known] = {}
    judged: set[tuple[str, str, str, str]] = set()
    for suite, own in by_suite.items():
        place = places(row.dump for row in own)
        for row in own:
            judged.add((suite, place[row.dump], printable(row.call), row.part))
            if not _is_failure(row):
                continue
            figure, outputs, says = way_of(row)
            entry = Known(suite, place[row.dump], printable(row.call), row.part, figure, outputs, says, since)
            if entry.key in before:
                was = before[entry.key]
                entry = msgspec.structs.replace(entry, since=was.since, reason=was.reason)
            known[entry.key] = entry
    kept = before if is_partial else {key: entry for key, entry in before.items() if entry.suite not in by_suite}
    known.update((key, entry) for key, entry in kept.items() if key not in judged)
    runs = {
        (suite, says): told.get((suite, says), KnownRun(suite, says, since))
        for suite in by_suite
        for says in run_keys.get(suite, ())
    }
    runs.update((key, entry) for key, entry in told.items() if is_partial or entry.suite not in by_suite)
    worse = earlier.worse if earlier else _FACTOR
    return Baseline(1, "", worse, tuple(known.values()), tuple(runs.values()))


def _is_failure(row: VerdictRow) -> bool:
    """Whether a row fails, a known failure of an earlier baseline included."""
    held = state_of(row)
    is_known = held is not None and held.is_expected and row.outcome == "xfailed"
    return row.status == "error" and (row.outcome == "failed" or is_known)
