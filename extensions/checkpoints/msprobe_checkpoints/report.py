"""What two checkpoints have in common and what not, as text and as JSON."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from msprobe_checkpoints.comparison import ComparedTensor, Difference
from msprobe_checkpoints.files import Contents
from msprobe_checkpoints.names import parted
from msprobe_checkpoints.rules import RuleMismatch
from msprobe_collector.dump_format.values import abbreviated, printable

#: Rows of each table without --all.
_SHOWN = 20
_LONGEST_NAME = 72
#: Kinds of tensors that are listed behind what was exchanged.
_MOST_KINDS = 4
_SCHEMA = 2


def lines(result: ComparedTensor, sides: Sequence[tuple[Path, Contents]], *, everything: bool = False) -> Iterator[str]:
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
    yield from _differing([tensor for tensor in result.differing if everything or not tensor.is_cast], most)
    shapes = [f"other shape: {_name(name)}: A {ours}, B {theirs}" for name, ours, theirs in result.shapes]
    yield from _cut(shapes, most)
    for letter, names in zip("AB", result.only):
        yield from _cut([f"only in {letter}: {_name(name)} {dtype} {shape}" for name, dtype, shape in names], most)
    yield from _cut([_other_value(*entry) for entry in result.entries], most)
    yield from _notes(result, sides, most)
    yield _summary(result)


def _other_value(name: str, target: object, golden: object) -> str:
    return f"other value: {_name(name)}: A {abbreviated(target)}, B {abbreviated(golden)}"


def _casts(result: ComparedTensor) -> Iterator[str]:
    """What differs as a cast rounds, all of one pair of dtypes in one line."""
    pairs = Counter(tensor.dtypes for tensor in result.compared if tensor.is_cast)
    for (dtype, other), count in pairs.items():
        dtypes = f"{dtype} in A and {other} in B"
        yield f"cast: {count} tensors are {dtypes}, and equal but for rounding to the narrower dtype"
    if pairs:
        yield ""


def _differing(differing: Sequence[Difference], most: int | None) -> Iterator[str]:
    if not differing:
        return
    shown = [_name(tensor.name) for tensor in differing[:most]]
    width = max(len("tensors that differ"), *map(len, shown))
    yield f"{'tensors that differ':{width}}  relative   max abs  unequal elements"
    for name, tensor in zip(shown, differing):
        yield f"{name:{width}}  {_number(tensor.relative):>8}  {_number(tensor.max_abs):>8}  {_share(tensor)}"
        yield from (f"    {remark}" for remark in _remarks(tensor))
    yield from _more(len(differing), most)
    yield ""


def _remarks(tensor: Difference) -> Iterator[str]:
    if tensor.dtypes[0] != tensor.dtypes[1]:
        rounding = ": equal but for that rounding" if tensor.is_cast else ""
        yield f"A {tensor.dtypes[0]}, B {tensor.dtypes[1]}{rounding}"
    for letter, (nan, inf) in zip("AB", tensor.not_finite):
        if nan or inf:
            yield f"{letter} has {nan} NaN and {inf} infinite elements"
    if tensor.how:
        yield _how(tensor)


def _how(tensor: Difference) -> str:
    several = next((names for names in (tensor.target, tensor.golden) if len(names) > 1), ())
    if several:
        return f"{tensor.how}: {', '.join(map(_name, several[:4]))}{', ...' if several[4:] else ''}"
    return f"{tensor.how}: {_name(tensor.golden[0])}"


def _notes(result: ComparedTensor, sides: Sequence[tuple[Path, Contents]], most: int | None) -> Iterator[str]:
    """What is no difference, but worth knowing."""
    matches = Counter(tensor.match for tensor in result.compared if tensor.match)
    if matches:
        yield f"names: {', '.join(f'{count} by {match}' for match, count in matches.most_common())}"
    yield from _rules(result)
    if most is None:
        for tensor in result.compared:
            if tensor.how and tensor.is_equal:
                yield f"equal: {_name(tensor.name)}: {_how(tensor)}"
    counts = [0, 0]
    for tensor in result.compared:
        for side in (0, 1):
            counts[side] += sum(tensor.not_finite[side])
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


def _rules(result: ComparedTensor) -> Iterator[str]:
    """What was said of tensors that are equal in another form: transposed, padded, rounded to few bits."""
    turned = [_kind(tensor.name) for tensor in result.compared if tensor.how.startswith("transposed")]
    if turned:
        yield f"transposed in B: {len(turned)}: {', '.join(dict.fromkeys(turned))}"
    for tensor in result.compared:
        if tensor.padding is not None:
            yield f"padded: {_name(tensor.name)}: {tensor.padding[0]} rows behind the first {tensor.shape[0]}"
    rounded = sum(tensor.is_rounded for tensor in result.compared)
    if rounded:
        yield f"numbers of 8 bits with a scale: {rounded} tensors, compared to half a step"


def _summary(result: ComparedTensor) -> str:
    equal = sum(tensor.is_equal for tensor in result.compared)
    casts = sum(tensor.is_cast for tensor in result.compared)
    parts = [f"{equal} tensors equal", f"{len(result.compared) - equal} differ"]
    if casts:
        parts.append(f"{casts} of them rounded to another dtype")
    if result.shapes:
        parts.append(f"{len(result.shapes)} of another shape")
    parts += [f"{len(names)} only in {letter}" for letter, names in zip("AB", result.only) if names]
    if result.entries or result.equal_entries:
        parts.append(f"{result.equal_entries} other values equal, {len(result.entries)} differ")
    clauses = sentences(result.findings)[:1]
    if result.problems:
        clauses.append(f"{len(result.problems)} problems: what cannot be read was not compared")
    clauses.append(", ".join(parts))
    outcome = {0: "Right", 1: "Wrong", 5: "Nothing judged"}[result.exit_code]
    return f"{outcome}: {'; '.join(clauses)}"


def sentences(findings: Iterable[RuleMismatch]) -> list[str]:
    """What needs another rule than its siblings: what was exchanged together in one sentence."""
    listed: dict[str, None] = {}
    exchanges = _Exchanges()
    for finding in findings:
        if finding.kind == "numbers" and _have_same_form(finding.expected[0], finding.names[0]):
            exchanges.add(finding)
        else:
            listed[_sentence(finding)] = None
    return list(dict.fromkeys((*listed, *exchanges.sentences())))


def _have_same_form(name: str, other: str) -> bool:
    return len(parted(name)[1]) == len(parted(other)[1])


def _sentence(finding: RuleMismatch) -> str:
    """What a finding says that is no exchange of numbers."""
    layout, names = finding.layout, finding.names
    kind, where = _kind(layout.golden[0]), _layer(layout.golden[0])
    prefix = f"{where}: " if where else ""
    if finding.kind == "numbers":
        return f"{prefix}{kind} is made of parts of several layers or ranks: {', '.join(map(_name, names))}"
    if finding.kind == "order":
        return f"{prefix}{_order(finding)}"
    if finding.kind == "names" and finding.expected:
        pairs = list(zip(names, finding.expected))
        changed = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
        return f"{prefix}{' and '.join(sorted(map(_kind, changed)))} exchanged"
    if finding.kind == "names":
        return f"{_name(layout.target[0])} holds what {_name(names[0])} holds in B"
    if finding.kind == "ranks":
        return f"{prefix}{kind}: ranks hold parts of other tensors than each other: {', '.join(map(_name, names))}"
    count = max(len(layout.target), len(layout.golden))
    way, rule = layout.way.said(count) or "not transposed", finding.rule.said(count)
    others = f"the others are {rule}" if rule else "the others are not"
    return f"{prefix}{kind} is {way}, {others}"


def _order(finding: RuleMismatch) -> str:
    """How parts are joined in another order."""
    layout, names, expected = finding.layout, finding.names, finding.expected
    words, expected_words = _changing(names, names), _changing(names, expected)
    whole = _kind(layout.target[0] if len(layout.target) == 1 else layout.golden[0])
    joined = f"{whole} is joined {', '.join(words)}, not {', '.join(expected_words)}"
    if words[0].isdecimal():
        return f"parts of {joined}"
    moved = [pair for pair in zip(words, expected_words) if pair[0] != pair[1]]
    return f"{moved[0][1]} and {moved[0][0]} exchanged: {joined}" if len(moved) == 2 else joined


class _Exchanges:
    """Numbers of layers, experts and ranks that stand in place of each other, by where and what they count."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], list[set[int]]] = defaultdict(list)
        self._kinds: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)

    def add(self, finding: RuleMismatch) -> None:
        """Take a finding; numbers that it has in common with earlier ones were exchanged together."""
        (_, actual), (words, expected) = parted(finding.names[0]), parted(finding.expected[0])
        place = next((place for place, numbers in enumerate(zip(actual, expected)) if numbers[0] != numbers[1]), 0)
        rest = ", ".join(_labels(words, expected[:place]))
        key = f"{rest}: " if rest else "", _label(words, place)
        together, apart = {actual[place], expected[place]}, []
        for numbers in self._numbers[key]:
            if numbers & together:
                together |= numbers
            else:
                apart.append(numbers)
        self._numbers[key] = [*apart, together]
        self._kinds[key].update(dict.fromkeys(map(_kind, finding.layout.golden)))

    def sentences(self) -> Iterator[str]:
        """One sentence for the numbers that were exchanged together."""
        for (prefix, label), several in self._numbers.items():
            names = tuple(self._kinds[prefix, label])
            more = f" and {len(names) - _MOST_KINDS} more" if names[_MOST_KINDS:] else ""
            for numbers in several:
                *first, last = map(str, sorted(numbers))
                which = f"{prefix}{label.removesuffix('s')}s {', '.join(first)} and {last}"
                yield f"{which} exchanged: {', '.join(names[:_MOST_KINDS])}{more}"


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
    changing = []
    for name in several:
        words = re.split(r"[._/]", name)
        changing.append(".".join(map(words.__getitem__, places)) or name)
    return changing


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


def _share(tensor: Difference) -> str:
    if tensor.unequal < 10:
        return f"{tensor.unequal} of {tensor.size}"
    return f"{100 * tensor.unequal / tensor.size:.3g} %"


def _bytes(count: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if unit != "bytes" else f"{count} bytes"
        count = count / 1000  # type: ignore[assignment]  # a figure to show
    raise AssertionError


def as_json(result: ComparedTensor, sides: Sequence[tuple[Path, Contents]]) -> str:
    """The whole report; infinite figures are texts."""
    layouts = [tensor for tensor in result.compared if tensor.how]
    shapes = [{"name": name, "target": shape, "golden": other} for name, shape, other in result.shapes]
    values = [{"name": name, "target": _plain(value), "golden": _plain(other)} for name, value, other in result.entries]
    content = {
        "schema": _SCHEMA,
        "exit_code": result.exit_code,
        "checkpoints": list(starmap(_checkpoint, sides)),
        "summary": _summary(result),
        "equal": sum(tensor.is_equal for tensor in result.compared),
        "differ": list(map(_record, result.differing)),
        "layouts": list(map(_layout, layouts)),
        "other_rule": list(map(_rule, result.findings)),
        "other_shape": shapes,
        "only_in_target": _listed(result.only[0]),
        "only_in_golden": _listed(result.only[1]),
        "values_that_differ": values,
        "values_only_in_target": result.entries_only[0],
        "values_only_in_golden": result.entries_only[1],
        "tied": result.tied,
        "buffers": result.buffers,
        "optimizer_states_of_one_side": result.states,
        "problems": result.problems,
    }
    return json.dumps(content, indent=1, allow_nan=False)


def _layout(tensor: Difference) -> dict[str, Any]:
    return {"target": tensor.target, "golden": tensor.golden, "how": tensor.how}


def _checkpoint(path: Path, contents: Contents) -> dict[str, Any]:
    return {
        "path": str(path),
        "form": contents.form,
        "files": contents.files,
        "tensors": len(contents.tensors),
        "bytes": contents.nbytes,
    }


def _rule(finding: RuleMismatch) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "target": finding.layout.target,
        "golden": finding.layout.golden,
        "names": finding.names,
        "expected": finding.expected,
    }


def _record(tensor: Difference) -> dict[str, Any]:
    nan, inf = zip(*tensor.not_finite)
    return {
        **_layout(tensor),
        "dtypes": tensor.dtypes,
        "shape": tensor.shape,
        "unequal": tensor.unequal,
        "elements": tensor.size,
        "max_abs": _plain(tensor.max_abs),
        "relative": _plain(tensor.relative),
        "nan": nan,
        "inf": inf,
        "is_cast": tensor.is_cast,
    }


def _listed(names: Iterable[tuple[str, str, tuple[int, ...]]]) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in names]


def _plain(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (int, float, str, bool, type(None))) else abbreviated(value)
