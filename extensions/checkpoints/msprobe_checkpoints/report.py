"""What two checkpoints have in common and what not, as text and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msprobe_checkpoints.comparison import Difference, Result
from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.names import parted
from msprobe_checkpoints.rules import Finding
from msprobe_collector.dump_format.values import abbreviated, printable

#: Rows of each table without --all.
_SHOWN = 20
_LONGEST_NAME = 72
#: Kinds of tensors that are listed behind what was exchanged.
_MOST_KINDS = 4
_SCHEMA = 2


def lines(result: Result, sides: Sequence[tuple[Path, Contents]], *, everything: bool = False) -> Iterator[str]:
    """The report as text; tables end after 20 rows unless `everything` is wanted."""
    most = None if everything else _SHOWN
    for letter, (path, contents) in zip("AB", sides):
        files = f", {contents.files} files" if contents.files > 1 else ""
        tensors = f"{len(contents.tensors)} tensors, {_bytes(contents.nbytes)}"
        others = f", {len(contents.entries)} other values" if contents.entries else ""
        yield f"{letter}: {printable(str(path))} ({contents.form}{files}): {tensors}{others}"
    yield ""
    yield from _cut([f"cannot be read: {printable(problem)}" for problem in result.problems], most)
    yield from _cut(sentences(result.findings), most)
    yield from _casts(result)
    yield from _differing([one for one in result.differing if everything or not one.is_cast], most)
    yield from _cut([f"other shape: {_name(name)}: A {one}, B {other}" for name, one, other in result.shapes], most)
    for letter, names in zip("AB", result.only):
        yield from _cut([f"only in {letter}: {_name(name)} {dtype} {shape}" for name, dtype, shape in names], most)
    values = ((name, abbreviated(one), abbreviated(two)) for name, one, two in result.entries)
    yield from _cut([f"other value: {_name(name)}: A {one}, B {two}" for name, one, two in values], most)
    yield from _notes(result, sides, most)
    yield _summary(result)


def _casts(result: Result) -> Iterator[str]:
    """What differs as a cast rounds, all of one pair of dtypes in one line."""
    pairs = Counter(one.dtypes for one in result.compared if one.is_cast)
    for (one, other), count in pairs.items():
        yield f"cast: {count} tensors are {one} in A and {other} in B, and equal but for rounding to the narrower dtype"
    if pairs:
        yield ""


def _differing(found: Sequence[Difference], most: int | None) -> Iterator[str]:
    if not found:
        return
    shown = [_name(one.name) for one in found[:most]]
    width = max(len("tensors that differ"), *map(len, shown))
    yield f"{'tensors that differ':{width}}  relative   max abs  unequal elements"
    for name, one in zip(shown, found):
        yield f"{name:{width}}  {_number(one.relative):>8}  {_number(one.max_abs):>8}  {_share(one)}"
        yield from (f"    {remark}" for remark in _remarks(one))
    yield from _more(len(found), most)
    yield ""


def _remarks(one: Difference) -> Iterator[str]:
    if one.dtypes[0] != one.dtypes[1]:
        yield f"A {one.dtypes[0]}, B {one.dtypes[1]}{': equal but for that rounding' if one.is_cast else ''}"
    for letter, (nan, inf) in zip("AB", one.not_finite):
        if nan or inf:
            yield f"{letter} has {nan} NaN and {inf} infinite elements"
    if one.how:
        yield _how(one)


def _how(one: Difference) -> str:
    several = next((names for names in (one.target, one.golden) if len(names) > 1), ())
    if several:
        return f"{one.how}: {', '.join(map(_name, several[:4]))}{', ...' if several[4:] else ''}"
    return f"{one.how}: {_name(one.golden[0])}"


def _notes(result: Result, sides: Sequence[tuple[Path, Contents]], most: int | None) -> Iterator[str]:
    """What is no difference, but worth knowing."""
    matches = Counter(one.match for one in result.compared if one.match)
    if matches:
        yield f"names: {', '.join(f'{count} by {match}' for match, count in matches.most_common())}"
    yield from _rules(result)
    if most is None:
        for one in result.compared:
            if one.how and one.is_equal:
                yield f"equal: {_name(one.target[0] if len(one.target) == 1 else one.golden[0])}: {_how(one)}"
    counts = [0, 0]
    for one in result.compared:
        for side in (0, 1):
            counts[side] += sum(one.not_finite[side])
    if any(counts):
        yield f"elements that are NaN or infinite: {counts[0]} in A, {counts[1]} in B"
    if result.tied:
        tied = ", ".join(_name(name) for name, _ in result.tied[:3])
        yield f"in one side alone, but the same bytes as a tensor that was compared: {tied}"
    alone = [("buffers, or biases of zeros", result.buffers), ("states of an optimizer", result.states)]
    for what, names_of in [*alone, ("other values", result.entries_only)]:
        for letter, names, (_, other) in zip("AB", names_of, reversed(sides)):
            if names:
                is_known = other.holds_entries or names_of is not result.entries_only
                why = "" if is_known else f" ({other.form} holds tensors only)"
                shown = ", ".join(map(_name, names[: None if most is None else 5]))
                more = ", ..." if most is not None and names[5:] else ""
                yield f"{what} only in {letter}, not counted{why}: {len(names)}: {shown}{more}"


def _rules(result: Result) -> Iterator[str]:
    """What was said of tensors that are equal in another form: transposed, padded, rounded to few bits."""
    turned = [one for one in result.compared if one.how.startswith("transposed")]
    if turned:
        yield f"transposed in B: {len(turned)}: {', '.join(dict.fromkeys(_kind(one.name) for one in turned))}"
    for one in result.compared:
        if one.padding is not None:
            yield f"padded: {_name(one.name)}: {one.padding[0]} rows behind the first {one.shape[0]}"
    rounded = sum(one.is_rounded for one in result.compared)
    if rounded:
        yield f"numbers of 8 bits with a scale: {rounded} tensors, compared to half a step"


def _summary(result: Result) -> str:
    equal = sum(one.is_equal for one in result.compared)
    casts = sum(one.is_cast for one in result.compared)
    parts = [f"{equal} tensors equal", f"{len(result.compared) - equal} differ"]
    parts += [f"{casts} of them rounded to another dtype"] if casts else []
    parts += [f"{len(result.shapes)} of another shape"] if result.shapes else []
    parts += [f"{len(names)} only in {letter}" for letter, names in zip("AB", result.only) if names]
    if result.entries or result.equal_entries:
        parts.append(f"{result.equal_entries} other values equal, {len(result.entries)} differ")
    unread = f"{len(result.problems)} problems: what cannot be read was not compared"
    first = [*sentences(result.findings)[:1], *([unread] if result.problems else [])]
    outcome = {0: "Right", 1: "Wrong", 5: "Nothing judged"}[result.exit_code]
    return f"{outcome}: {'; '.join([*first, ', '.join(parts)])}"


def sentences(findings: Iterable[Finding]) -> list[str]:
    """What needs another rule than its siblings: what was exchanged together in one sentence."""
    found: dict[str, None] = {}
    exchanged: dict[tuple[str, str], list[set[int]]] = defaultdict(list)
    kinds: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for one in findings:
        names, kind = one.names, _kind(one.layout.golden[0])
        where = _layer(one.layout.golden[0])
        prefix = f"{where}: " if where else ""
        if one.kind == "numbers" and len(parted(one.expected[0])[1]) != len(parted(names[0])[1]):
            found[f"{prefix}{kind} is made of parts of several layers or ranks: {', '.join(map(_name, names))}"] = None
        elif one.kind == "numbers":
            (_, actual), (words, expected) = parted(names[0]), parted(one.expected[0])
            place = next((place for place, (a, b) in enumerate(zip(actual, expected)) if a != b), 0)
            rest = ", ".join(_labels(words, expected[:place]))
            key = f"{rest}: " if rest else "", _label(words, place)
            pair = {actual[place], expected[place]}
            for known in [known for known in exchanged[key] if known & pair]:
                exchanged[key].remove(known)
                pair |= known
            exchanged[key].append(pair)
            kinds[key].update(dict.fromkeys(map(_kind, one.layout.golden)))
        elif one.kind == "order":
            actual_words, expected_words = (_changing(names, several) for several in (names, one.expected))
            moved = [(a, b) for a, b in zip(actual_words, expected_words) if a != b]
            is_numbers = actual_words[0].isdecimal()
            said = f"{moved[0][1]} and {moved[0][0]} exchanged: " if len(moved) == 2 and not is_numbers else ""
            whole = one.layout.target[0] if len(one.layout.target) == 1 else one.layout.golden[0]
            joined = f"{_kind(whole)} is joined {', '.join(actual_words)}, not {', '.join(expected_words)}"
            found[f"{prefix}{said}{'parts of ' if is_numbers else ''}{joined}"] = None
        elif one.kind == "names" and one.expected:
            pairs = list(zip(names, one.expected))
            changed = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
            found[f"{prefix}{' and '.join(sorted(map(_kind, changed)))} exchanged"] = None
        elif one.kind == "names":
            found[f"{_name(one.layout.target[0])} holds what {_name(names[0])} holds in B"] = None
        elif one.kind == "ranks":
            parts = ", ".join(map(_name, names))
            found[f"{prefix}{kind}: ranks hold parts of other tensors than each other: {parts}"] = None
        else:
            count = max(len(one.layout.target), len(one.layout.golden))
            way, rule = (one_way.said(count) or "not transposed" for one_way in (one.layout.way, one.rule))
            others = "the others are not" if rule == "not transposed" else f"the others are {rule}"
            found[f"{prefix}{kind} is {way}, {others}"] = None
    for (prefix, label), several in exchanged.items():
        for numbers in several:
            names = tuple(kinds[prefix, label])
            more = f" and {len(names) - _MOST_KINDS} more" if names[_MOST_KINDS:] else ""
            *first, last = map(str, sorted(numbers))
            which = f"{prefix}{label}{'' if label.endswith('s') else 's'} {', '.join(first)} and {last}"
            found[f"{which} exchanged: {', '.join(names[:_MOST_KINDS])}{more}"] = None
    return list(found)


def _label(words: str, place: int) -> str:
    """What a number counts: the word in front of it."""
    before = re.findall(r"[A-Za-z]+", words.split("\0")[place])
    return {"l": "layer"}.get(before[-1], before[-1]) if before else "number"


def _labels(words: str, numbers: Sequence[int]) -> list[str]:
    return [f"{_label(words, place).removesuffix('s')} {number}" for place, number in enumerate(numbers)]


def _layer(name: str) -> str:
    return ", ".join(_labels(*parted(name)))


def _kind(name: str) -> str:
    """The last words of a name, which say what a tensor is in its layer."""
    words = [word for word in name.split(".") if word not in ("weight", "w")]
    return _name(words[-1] if words else name)


def _changing(names: Sequence[str], several: Sequence[str]) -> list[str]:
    """The words of several names that are not the same in all `names`."""
    split = [re.split(r"[._/]", name) for name in names]
    places = [place for place, words in enumerate(zip(*split)) if len(set(words)) > 1]
    return [".".join(re.split(r"[._/]", name)[place] for place in places) or name for name in several]


def _cut(rows: Sequence[str], most: int | None) -> Iterator[str]:
    yield from rows[:most]
    yield from _more(len(rows), most)
    if rows:
        yield ""


def _more(count: int, most: int | None) -> Iterator[str]:
    if most is not None and count > most:
        yield f"... and {count - most} more; --all lists them"


def _name(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _LONGEST_NAME else f"...{text[3 - _LONGEST_NAME :]}"


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3g}"


def _share(one: Difference) -> str:
    return f"{one.unequal} of {one.size}" if one.unequal < 10 else f"{100 * one.unequal / one.size:.3g} %"


def _bytes(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if unit != "bytes" else f"{count} bytes"
        count = count / 1000  # type: ignore[assignment]  # a figure to show
    raise AssertionError


def as_json(result: Result, sides: Sequence[tuple[Path, Contents]]) -> str:
    """The whole report; infinite figures are texts."""
    found: dict[str, Any] = {
        "schema": _SCHEMA,
        "exit_code": result.exit_code,
        "checkpoints": [
            {"path": str(path), "form": one.form, "files": one.files, "tensors": len(one.tensors), "bytes": one.nbytes}
            for path, one in sides
        ],
        "summary": _summary(result),
        "equal": sum(one.is_equal for one in result.compared),
        "differ": [_record(one) for one in result.differing],
        "layouts": [
            {"target": list(one.target), "golden": list(one.golden), "how": one.how}
            for one in result.compared
            if one.how
        ],
        "other_rule": [
            {
                "kind": one.kind,
                "target": list(one.layout.target),
                "golden": list(one.layout.golden),
                "names": list(one.names),
                "expected": list(one.expected),
            }
            for one in result.findings
        ],
        "other_shape": [
            {"name": name, "target": list(left), "golden": list(right)} for name, left, right in result.shapes
        ],
        "only_in_target": _listed(result.only[0]),
        "only_in_golden": _listed(result.only[1]),
        "values_that_differ": [
            {"name": name, "target": _plain(one), "golden": _plain(other)} for name, one, other in result.entries
        ],
        "values_only_in_target": result.entries_only[0],
        "values_only_in_golden": result.entries_only[1],
        "tied": [list(pair) for pair in result.tied],
        "buffers": [list(names) for names in result.buffers],
        "optimizer_states_of_one_side": [list(names) for names in result.states],
        "problems": result.problems,
    }
    return json.dumps(found, indent=1, allow_nan=False)


def _record(one: Difference) -> dict[str, Any]:
    return {
        "target": list(one.target),
        "golden": list(one.golden),
        "how": one.how,
        "dtypes": list(one.dtypes),
        "shape": list(one.shape),
        "unequal": one.unequal,
        "elements": one.size,
        "max_abs": _plain(one.max_abs),
        "relative": _plain(one.relative),
        "nan": [one.not_finite[0][0], one.not_finite[1][0]],
        "inf": [one.not_finite[0][1], one.not_finite[1][1]],
        "is_cast": one.is_cast,
    }


def _listed(names: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype, "shape": list(shape)} for name, dtype, shape in names]


def _plain(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (int, float, str, bool, type(None))) else abbreviated(value)
