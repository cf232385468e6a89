"""The answer of a run as one value, the same for every suite: for terminal, page, pipelines and programs.

docs/two_runs.md explains it; `diagnosis-1.schema.json` beside this file is its JSON Schema.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, structs

from msprobe_collector.dump_format.values import counted, printable

#: Version of the schema: another one where a reader of this one would read wrongly. New keys do not change it.
SCHEMA = 1
#: The JSON Schema of `Diagnosis.to_json`.
SCHEMA_FILE = Path(__file__).with_name("diagnosis-1.schema.json")
#: Largest size of the JSON, in bytes; most lines of the text; most characters of the headline.
MOST_BYTES = 4096
MOST_LINES = 12
MOST_HEADLINE = 90

Outcome = Literal["fault", "unaccounted", "rounding", "equal", "not_judged"]
#: The worst of several first; `not_judged` only where nothing else is known.
OUTCOMES: tuple[Outcome, ...] = ("fault", "unaccounted", "rounding", "equal", "not_judged")
Confidence = Literal["proved", "likely", "possible", "first difference only"]
CONFIDENCES: tuple[Confidence, ...] = ("proved", "likely", "possible", "first difference only")
#: The first word of a headline.
WORDS: dict[Outcome, str] = {
    "fault": "Fault",
    "unaccounted": "Undecided",
    "rounding": "Rounding only",
    "equal": "Equal",
    "not_judged": "Not judged",
}


class AtFault(msgspec.Struct, frozen=True, kw_only=True):
    """One cause: the same fault in several layers, calls, steps or ranks is one."""

    id: Annotated[str, Meta(description="node id of the first pytest item that shows it; stable between runs")]
    record: Annotated[str, Meta(description="the first record at fault, or the first one that uses a value at fault")]
    kind: Annotated[str, Meta(description="what is wrong, in one word of the suite: see docs/two_runs.md")]
    confidence: Annotated[
        Confidence,
        Meta(
            description="proved: computed again, read twice or against a law, and off by more than rounding makes; "
            "likely: what is known points here, and something else is not excluded; possible: right runs have the like "
            "now and then; first difference only: nothing before it differs, and nothing shows that it is wrong"
        ),
    ]
    name: Annotated[str, Meta(description="operation or value, with all layers, calls and directions that are meant")]
    sentence: Annotated[str, Meta(description="what is wrong, with figures")]
    how: Annotated[str, Meta(description="how wrong, in a few words; empty where no figure says it")] = ""
    value: Annotated[str, Meta(description="place of the value in the record: output.0; else empty")] = ""
    size: Annotated[float | None, Meta(description="largest relative size of the error; null where unknown")] = None
    source: Annotated[str, Meta(description="line of the training script, file:line; empty if unknown")] = ""
    cell: Annotated[str, Meta(description="innermost Cell or Module; empty if unknown")] = ""
    ranks: Annotated[tuple[int, ...], Meta(description="ranks that show it, at most 16 of them; empty if unknown")] = ()
    steps: Annotated[tuple[int, ...], Meta(description="training steps that show it, at most 8; empty if unknown")] = ()
    count: Annotated[int, Meta(description="number of pytest items that show it")] = 1
    evidence: Annotated[
        dict[str, float | int | str],
        Meta(description="figures of the worst of them: names are columns of the suite's tables"),
    ] = {}


class Inherited(msgspec.Struct, frozen=True):
    """What follows from the causes."""

    count: Annotated[int, Meta(description="number of records whose difference came in with their inputs")] = 0
    last: Annotated[str, Meta(description="the last of them in the order of execution; empty if unknown")] = ""


class CannotSay(msgspec.Struct, frozen=True):
    """What the answer does not cover."""

    what: Annotated[str, Meta(description="what was not judged: a record, a path, or how many of what")]
    why: Annotated[str, Meta(description="the reason, with what to do where there is something")]
    count: Annotated[int, Meta(description="how many are meant")] = 1


class NextStep(msgspec.Struct, frozen=True):
    """A command that tells more."""

    arguments: Annotated[tuple[str, ...], Meta(description="command line, one argument each; empty: done by hand")]
    tells: Annotated[str, Meta(description="what it would tell, or what to do by hand")]

    def __str__(self) -> str:
        """The command line as one types it."""
        return shlex.join(self.arguments)


class TakenStep(msgspec.Struct, frozen=True):
    """One pytest run of `python -m pytest_msprobe diagnose`."""

    arguments: Annotated[tuple[str, ...], Meta(description="command line that repeats it")]
    outcome: Outcome
    headline: str


_Entry = TypeVar("_Entry")
#: Most entries of each list, and of how few it is left first where the whole is too large.
_MOST = {"at_fault": 8, "cannot_say": 8, "next": 5, "manifest": 8, "dumps": 4, "steps": 6}
_LONGEST = {"sentence": 300, "name": 120, "why": 240, "what": 160, "tells": 200, "source": 160, "how": 40}
_ELLIPSIS = "..."


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What a run amounts to."""

    schema: Annotated[Literal[1], Meta(description="version of this form")] = 1
    suite: Annotated[str, Meta(description="which suite judged; diagnose: several, one after the other")]
    outcome: Annotated[
        Outcome,
        Meta(
            description="fault: something is wrong; unaccounted: it is not shown that nothing is wrong: something "
            "differs and nothing shows why, or a part was not judged; rounding: all was judged, and rounding explains "
            "what differs; equal: all was judged, and nothing differs; not_judged: nothing was judged"
        ),
    ]
    headline: Annotated[str, Meta(max_length=MOST_HEADLINE, description="the answer in one line")]
    at_fault: Annotated[tuple[AtFault, ...], Meta(description="causes, the most important first")] = ()
    inherited: Inherited = Inherited()
    cannot_say: Annotated[tuple[CannotSay, ...], Meta(description="what was not judged, and why")] = ()
    next: Annotated[tuple[NextStep, ...], Meta(description="what tells more, the most useful first")] = ()
    manifest: Annotated[tuple[str, ...], Meta(description="how the two runs are set up differently")] = ()
    dumps: Annotated[tuple[str, ...], Meta(description="paths of what was judged, then of what it is held to")] = ()
    counts: Annotated[dict[str, int], Meta(description="items by result: passed, failed, skipped, xfailed")] = {}
    steps: Annotated[tuple[TakenStep, ...], Meta(description="of diagnose: the runs that were made")] = ()
    basis: Annotated[
        str, Meta(description="of a comparison: what values are known by, such as tensors or statistics; else empty")
    ] = ""
    next_collection: Annotated[
        dict[str, Any] | None,
        Meta(description="what `python -m pytest_msprobe next` writes: calls, and config.json of both runs"),
    ] = None
    cut: Annotated[dict[str, int], Meta(description="entries left out of a list for its length, by its name")] = {}

    @property
    def is_judged(self) -> bool:
        """Whether anything was judged."""
        return self.outcome != "not_judged"

    def to_json(self) -> bytes:
        """The diagnosis as JSON of at most `MOST_BYTES` bytes, with a newline at its end.

        Lists are cut from their ends, and `cut` counts what is left out.
        """
        found = self._shortened()
        while len(text := _encoded(found)) > MOST_BYTES:
            smaller = found._with_less()
            if smaller is None:
                return _encoded(found._bare())
            found = smaller
        return text

    def lines(self, width: int = 80) -> list[str]:
        """The answer for a terminal of `width` columns, in at most `MOST_LINES` lines: the headline is the first.

        Text is wrapped; commands are not, so that they can be copied.
        """
        room = MOST_LINES - 1
        blocks = list(self._blocks(max(width, 40)))
        shown = [block[:1] for block in blocks]
        while sum(map(len, shown)) > room:
            shown.pop()
        # What is left of the room goes to the first blocks, which say what is wrong.
        for place, block in enumerate(blocks[: len(shown)]):
            free = room - sum(map(len, shown))
            shown[place] = block[: 1 + free]
            is_command = block[1:] and block[1].startswith(_TELLS)
            if len(shown[place]) < len(block) and len(shown[place]) > bool(is_command):
                last = shown[place][-1]
                shown[place][-1] = f"{last[: max(width, 40) - len(_ELLIPSIS)].rstrip()}{_ELLIPSIS}"
        return [printable(line) for line in (self.headline, *(line for block in shown for line in block))]

    def _blocks(self, width: int) -> Iterator[list[str]]:
        """Parts of the text behind the headline, each of a few lines, the most important first."""
        if self.manifest:
            more = f" (and {len(self.manifest) - 2} more)" if len(self.manifest) > 2 else ""
            yield _wrapped("runs differ: ", f"{'; '.join(self.manifest[:2])}{more}", width)
        most = 1 if len(self.at_fault) == 1 else 3
        for place, fault in enumerate(self.at_fault[:most], 1):
            number = f"{place}. " if len(self.at_fault) > 1 else ""
            where = f"{self._told_apart(fault)}{f', at {fault.source}' if fault.source else ''}"
            kind = "" if fault.kind == "first" else f"{_KIND_WORDS.get(fault.kind, fault.kind)}, "
            text = f"{fault.name} ({kind}{fault.confidence}): {_ended(fault.sentence)}{where}"
            yield _wrapped(number, text, width)
        left = len(self.at_fault) - most + self.cut.get("at_fault", 0)
        if self.at_fault and left > 0:
            yield _wrapped("", f"and {counted(left, 'more causes')}, in the JSON, the page and the rows", width)
        if self.inherited.count:
            last = f", the last {self.inherited.last}" if self.inherited.last else ""
            yield _wrapped(
                "follows from it: ",
                f"{counted(self.inherited.count, 'records')}{last}",
                width,
            )
        if self.cannot_say and not (self.outcome == "not_judged" and self.cannot_say[0].why in self.headline):
            first = self.cannot_say[0]
            left = len(self.cannot_say) - 1 + self.cut.get("cannot_say", 0)
            more = f" (and {left} more)" if left else ""
            yield _wrapped("not judged: ", f"{first.what}: {first.why}{more}", width)
        for step in self.next[:2]:
            if step.arguments:
                yield [f"{_COMMAND}{step}", *_wrapped(_TELLS, f"{step.tells})", width)]
            else:
                yield _wrapped(_COMMAND, step.tells, width)

    def _told_apart(self, fault: AtFault) -> str:
        """Steps and ranks of a cause where another one has others: the same call may be wrong in each of them."""
        found = (
            (noun, places)
            for noun, places, others in (
                ("step", fault.steps, {each.steps for each in self.at_fault}),
                ("rank", fault.ranks, {each.ranks for each in self.at_fault}),
            )
            if places and len(others) > 1
        )
        return "".join(f", {noun}{'s' if len(many) > 1 else ''} {', '.join(map(str, many))}" for noun, many in found)

    def _shortened(self) -> Diagnosis:
        """A copy with texts and lists of bounded length, and rounded figures."""
        kept: dict[str, Any] = {name: tuple(getattr(self, name))[:most] for name, most in _MOST.items()}
        cut = dict(self.cut)
        for name in _MOST:
            if (left := len(getattr(self, name)) - len(kept[name])) > 0:
                cut[name] = cut.get(name, 0) + left
        for name, entries in kept.items():
            kept[name] = tuple(_short(entry) if isinstance(entry, msgspec.Struct) else entry for entry in entries)
        kept["manifest"] = tuple(abridged(sentence, _LONGEST["why"]) for sentence in kept["manifest"])
        return structs.replace(self, **kept, cut=cut, headline=abridged(self.headline, MOST_HEADLINE))

    def _with_less(self) -> Diagnosis | None:
        """A copy without the entry that is missed least; None where nothing is left to take away."""
        for name, least in _LEAST:
            entries = getattr(self, name)
            if len(entries) > least:
                return structs.replace(self, **{name: entries[:-1]}, cut={**self.cut, name: self.cut.get(name, 0) + 1})
        return None

    def _bare(self) -> Diagnosis:
        """What is left where single entries are too large, as with paths of thousands of characters."""
        lists = ("at_fault", "cannot_say", "next", "manifest", "dumps", "steps")
        cut = {name: self.cut.get(name, 0) + len(getattr(self, name)) for name in lists}
        return structs.replace(
            self,
            **dict.fromkeys(lists, ()),
            inherited=structs.replace(self.inherited, last=""),
            next_collection=None,
            cut={name: count for name, count in cut.items() if count},
        )


#: Kinds that a reader of the text would have to look up, in plain words.
_KIND_WORDS = {
    "normal-range": "range of the dtype too small",
    "normal-math": "mathematically not finite",
    "abnormal": "wrong result",
    "uncollected": "not collected",
    "born": "wrong result",
    "defined": "defined differently",
    "only_one_side": "only in one run",
    "rewired": "connected otherwise",
    "another_rank": "from another rank",
    "arguments": "other arguments",
    "dtype": "other dtype",
    "recomputed": "recomputed otherwise",
    "unrecorded": "its maker is not recorded",
    "unknown": "origin unknown",
}
#: What is taken away first where the whole is too large: the list, and how many of it are left by then.
_LEAST = (
    ("cannot_say", 4),
    ("manifest", 4),
    ("at_fault", 5),
    ("next", 3),
    ("dumps", 2),
    ("cannot_say", 2),
    ("at_fault", 3),
    ("manifest", 2),
    ("next", 2),
    ("at_fault", 2),
    ("cannot_say", 1),
    ("manifest", 1),
    ("next", 1),
    ("steps", 1),
    ("at_fault", 1),
    ("dumps", 0),
    ("manifest", 0),
    ("next", 0),
    ("cannot_say", 0),
    ("steps", 0),
)
_COMMAND = "next: "
#: Beginning of the line below a command, which says what it shows.
_TELLS = "      ("


def _encoded(found: Diagnosis) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def _short(entry: msgspec.Struct) -> msgspec.Struct:
    changes: dict[str, Any] = {
        name: abridged(getattr(entry, name), most) for name, most in _LONGEST.items() if hasattr(entry, name)
    }
    if isinstance(entry, AtFault):
        changes["ranks"], changes["steps"] = entry.ranks[:16], entry.steps[:8]
        size = rounded(entry.size)
        changes["size"] = None if isinstance(size, str) else size
        changes["evidence"] = {
            name: value if isinstance(value, str) else rounded(value) for name, value in entry.evidence.items()
        }
    return structs.replace(entry, **changes)


def _wrapped(start: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=start,
        subsequent_indent=" " * min(len(start), 6),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start]


def _ended(sentence: str) -> str:
    """A sentence without its full stop, so that it can go on; three dots stay, since they say that it was cut."""
    return sentence if sentence.endswith(_ELLIPSIS) else sentence.removesuffix(".")


def abridged(text: str, longest: int) -> str:
    """`text` on one line of at most so many characters, cut at its end."""
    line = " ".join(printable(text).split())
    return line if len(line) <= longest else f"{line[: longest - len(_ELLIPSIS)].rstrip()}{_ELLIPSIS}"


def rounded(value: float | None) -> float | int | str | None:
    """A number of four digits; what is not finite as a word, since JSON has none."""
    if value is None or isinstance(value, int):
        return value
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return float(f"{value:.4g}")


_FIGURE = re.compile(r"(?<![\w.'\"-])-?\d+\.\d+(?:e[+-]?\d+)?(?!\.?\w)")
_DIGITS, _ALL_DIGITS = 4, 17


def readable(text: str) -> str:
    """`text` with four digits of each figure, or with as many as tell it from the others."""
    values = {float(figure) for figure in _FIGURE.findall(text)}

    def short(match: re.Match[str]) -> str:
        value = float(match[0])
        for digits in range(_DIGITS, _ALL_DIGITS):
            words = f"{value:.{digits}g}"
            if all(f"{other:.{digits}g}" != words for other in values - {value}):
                return words
        return match[0]

    return _FIGURE.sub(short, text)


def figure(value: float) -> str:
    """A number for a reader, of at most four digits: `0.0123`, `37`, `1.23e-05`."""
    return f"{value:.0f}" if 100 <= abs(value) < 10_000 else f"{value:.3g}"


def listed_numbers(numbers: Iterable[int]) -> str:
    """`0 to 3, 7` of 0, 1, 2, 3, 7."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in found)


def headline(outcome: Outcome, *parts: str, source: str = "", others: int = 0, word: str = "") -> str:
    """`Fault: Functional.gelu in 2 layers (0, 1), 1.2 % off, train.py:25`, of at most `MOST_HEADLINE` characters.

    Args:
        outcome: its word comes first.
        parts: the most important first; the first one is cut where it does not fit, and later ones are left out.
        source: line of a script, of which the file's name alone is shown; it goes before parts behind the first.
        others: how many more causes there are.
        word: the first word, where it is not that of the outcome.
    """
    text = f"{word or WORDS[outcome]}: "
    line = source.rpartition("/")[2]
    end = f", {line}" if line and len(line) <= MOST_HEADLINE // 3 else ""
    first, *rest = [part for part in parts if part] or [""]
    more = f" (and {others} more)" if others else ""
    if len(f"{text}{first}{end}{more}") > MOST_HEADLINE:
        first = _IN_BRACKETS.sub("", first)
    end += more if len(f"{text}{first}{end}{more}") <= MOST_HEADLINE else ""
    room = MOST_HEADLINE - len(end)
    for place, part in enumerate((first, *rest)):
        added = f"{', ' if place else ''}{part}"
        if len(text) + len(added) <= room:
            text += added
        elif not place:
            text = abridged(f"{text}{added}", room)
            break
    return f"{text}{end}"


#: Numbers of layers and the like, which a headline can do without.
_IN_BRACKETS = re.compile(r" \([^)]*\)")


def of_ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 to 7`; "" without numbers."""
    if not numbers:
        return ""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {listed_numbers(numbers)}"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `Diagnosis.to_json`, which `SCHEMA_FILE` holds."""
    found = msgspec.json.schema(Diagnosis)
    for part in found["$defs"].values():  # every key is written, also where it has a default
        part["required"] = list(part["properties"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Diagnosis of pytest-msprobe", **found}
