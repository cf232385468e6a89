"""Every sentence of an answer: the only module that puts `Answer`, `Finding` and `Gap` into words.

Nothing reads these texts but people. A test replaces this module by nonsense, and outcomes, findings and exit codes
stay what they are.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec import structs

from msprobe_collector.dump_format.values import counted, optional, printable
from pytest_msprobe.answers.answer import MOST_HEADLINE, About, Answer, Measure, abridged
from pytest_msprobe.answers.exact_words import exact_said
from pytest_msprobe.answers.finding import Finding, Gap, NextStep, Parted, Place, SharedContent, SourceCall

#: Lines of a text of which no word is cut: paths and commands stay whole.
wrap_words = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
#: Most lines of the text of an answer.
MOST_LINES = 12
_ELLIPSIS, _SEVERAL = "...", 3
#: Beginning of a command, and of the line below it, which says what it shows.
_COMMAND, _TELLS = "next: ", "      ("


def said(answer: Answer) -> Answer:
    """`answer` with its texts: the headline, the names of findings, what was not judged, what commands tell."""
    findings = []
    for finding in answer.findings:
        detail = finding.detail
        if not detail and finding.kind in _DETAILS:
            detail = _DETAILS[finding.kind](finding)
        name, how = name_of(finding), how_wrong(finding)
        findings.append(structs.replace(finding, name=name, how=how, detail=detail))
    gaps = tuple(structs.replace(gap, text=text_of(gap)) for gap in answer.open)
    steps = tuple(structs.replace(step, tells=meaning_of(step)) for step in answer.next)
    exact = exact_said(answer.exact)
    answer = structs.replace(answer, findings=tuple(findings), open=gaps, next=steps, exact=exact)
    is_cut = answer.outcome == "wrong" and not answer.findings  # of a file in which one entry was too large
    return answer if is_cut else structs.replace(answer, headline=headline(answer))


# The first line.


def headline(answer: Answer) -> str:
    """The answer in one line of at most `MOST_HEADLINE` characters."""
    if answer.outcome == "wrong":
        return _wrong(answer)
    if answer.outcome == "nothing judged":
        gap = next(iter(answer.open), Gap(kind="refused", reason="there was nothing to judge"))
        return _fitted("Nothing judged: ", [text_of(gap) if gap.kind == "refused" else _why(gap)])
    measure = answer.measure
    if not answer.open or (measure.kind.startswith("placed") and 2 * measure.judged > measure.total):
        allowed = optional("{} allowed", " and ".join(measure.operands))
        return _fitted("Right: ", [_RIGHT.get(measure.kind, _passed)(measure), allowed])
    gap = answer.open[0]
    judged = f"{measure.judged} of {measure.total}" if measure.judged < measure.total else f"{measure.judged}"
    noun = counted(measure.total, measure.noun).partition(" ")[2]
    what = f"{gap.reason} ({gap.count})" if gap.kind in ("skipped", "random") else text_of(gap)
    return _fitted(f"Right as far as judged: {judged} {noun}; ", [what])


def _wrong(answer: Answer) -> str:
    first = answer.findings[0]
    place = first.place
    where = f" in {place.cell}" if place.cell and not place.layers and place.cell not in name_of(first) else ""
    is_first = first.confidence == "first difference only" and first.kind not in {*_NAMES, "parted"}
    start = "differs first in " if is_first else ""
    name = re.sub(r",? forward(?: and backward)?$", "", name_of(first))
    rank = of_ranks(place.ranks) if place.ranks and place.ranks != (0,) else ""
    others = len(answer.findings) - 1 + answer.cut.get("findings", 0)
    how = how_wrong(first)
    line = _fitted("Wrong: ", [f"{start}{name}{where}", how, rank], source=place.source, others=others)
    if where and how.partition(", ")[0] not in line:  # how it is wrong says more than in which layer
        line = _fitted("Wrong: ", [f"{start}{name}", how, rank], source=place.source, others=others)
    return line


def _fitted(start: str, parts: Sequence[str], *, source: str = "", others: int = 0) -> str:
    """A headline: the first part is cut where it does not fit, later ones behind a comma; the source stays."""
    text = start
    line = source.rpartition("/")[2]
    end = f", {line}" if line and len(line) <= MOST_HEADLINE // 3 else ""
    first, *rest = [" ".join(part.split()) for part in parts if part] or [""]
    more = optional(" (and {} more)", others)
    if len(f"{text}{first}{end}{more}") > MOST_HEADLINE:
        first = _IN_BRACKETS.sub("", first)
    end += more if len(f"{text}{first}{end}{more}") <= MOST_HEADLINE else ""
    room = MOST_HEADLINE - len(end)
    if len(text) + len(first) > room:
        return f"{abridged(f'{text}{first}', room)}{end}"
    text += first
    for part in rest:
        words = part.split(", ")
        while words and len(", ".join([text, *words])) > room:
            words.pop()
        text = ", ".join([text, *words])
    return f"{text}{end}"


#: Numbers of layers and the like, which a headline can do without.
_IN_BRACKETS = re.compile(r" \([^)]*\)")


# What a pass shows.


def _shares(measure: Measure) -> str:
    """`180 of 180 records are`."""
    return f"{measure.judged} of {counted(measure.total, measure.noun, 'are')}"


def _limits(measure: Measure) -> str:
    limits = " and ".join(f"{_LIMIT[name]} {_bound(value)}" for name, value in measure.limits.items() if name in _LIMIT)
    return f"{_shares(measure)} within {limits or 'the limits of the standard'}"


_LIMIT = {"cosine": "cosine >", "max_abs": "max error <"}


def _bound(value: float) -> str:
    """`0.99`, `1e-4`."""
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{value:g}" if abs(int(exponent)) < 3 else f"{float(mantissa):g}e{int(exponent)}"


_KNOWN_BY = {
    "tensors": "bit by bit",
    "values": "element by element",
    "fingerprints": "by their fingerprints, bit by bit",
    "checksums": "by their checksums, bit by bit",
    "sketches": "by their sketches and statistics",
    "statistics": "by their statistics",
}


def _equal(measure: Measure) -> str:
    basis = next(iter(measure.names), "")
    how = optional(", {}", _KNOWN_BY.get(basis))
    return f"all compared values of {counted(measure.judged, measure.noun)} are equal{how}"


def _rounding(measure: Measure) -> str:
    if measure.differing:
        every = "the only difference is" if measure.differing == 1 else f"all {measure.differing} differences are"
        return f"{every} rounding, in {counted(measure.judged, measure.noun)}"
    return f"{_shares(measure)} within what rounding explains"


def _differing(words: str) -> Callable[[Measure], str]:
    def tell(measure: Measure) -> str:
        verb = "differs" if measure.differing == 1 else "differ"
        return f"{measure.differing} of {counted(measure.judged, measure.noun)} {verb}, {words}"

    return tell


def _plain(words: str) -> Callable[[Measure], str]:
    return lambda measure: words.format(counted(measure.judged, measure.noun))


def _finite(measure: Measure) -> str:
    if not measure.differing:
        return f"no NaN or Inf begins in {counted(measure.judged, measure.noun)}"
    return f"all NaN and Inf are taken out again, in {measure.differing} of {counted(measure.judged, measure.noun)}"


def _found_again(measure: Measure) -> str:
    again = optional(", {} of them in other steps", measure.differing)
    return f"{counted(measure.judged, 'calls', 'agree')} up to rounding{again}"


def _passed(measure: Measure) -> str:
    return f"{measure.judged} of {counted(measure.total, measure.noun)} passed"


def _standard(measure: Measure) -> str:
    names = " and ".join(name or "the default" for name in measure.names)
    return f"{_shares(measure)} within the standard {names}"


_RIGHT: Mapping[str, Callable[[Measure], str]] = {
    "limits": _limits,
    "standard": _standard,
    "rounding": _rounding,
    "equal": _equal,
    "noise": _differing("by no more than the noise run does"),
    "tolerance": _differing("none by more than its limit"),
    "finite": _finite,
    "found": _found_again,
    "placed": lambda measure: f"{_shares(measure)} those of the logical run",
    "placed by laws": _plain("{} obey the laws of sharding"),
    "hold": _plain("{} hold"),
    "repeats": _plain("{} repeat bit by bit"),
    "signs": _plain("all signs of {} are equal"),
    "rules": _plain("{} break no rule"),
}


# What is wrong.

#: Kinds of values, before the operation that uses the value first.
_OF_VALUES = {
    "parted": "the runs part in",
    "batch": "the batch, in",
    "gradient": "a gradient into",
    "unrecorded": "an input of",
    "unknown": "an input of",
}
#: Kinds that a reader would have to look up, in plain words.
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
    "arguments": "called otherwise",
    "dtype": "other dtype",
    "recomputed": "recomputed otherwise",
    "unrecorded": "its maker is not recorded",
    "unknown": "origin unknown",
    "parted": "not found again",
    "setting": "set up differently",
    "model": "two models",
    "error": "an error",
    "limits": "rounding",
}


def name_of(finding: Finding) -> str:
    """`Functional.gelu in 12 layers (0 to 11), forward and backward`; of a finding on the run, what it is."""
    if finding.kind in _NAMES:
        return _NAMES[finding.kind](finding)
    place = finding.place
    if place.names and "holds" in finding.figures:
        return ", ".join(f"parameter {name} holds {finding.figures['holds']}" for name in place.names)
    if place.names:
        many = int(finding.figures.get("names", len(place.names)))
        more = ", ..." if many > len(place.names) else ""
        only = f"parameter {place.names[0]}"
        return only if many == 1 else f"{many} parameters ({', '.join(place.names[:_SEVERAL])}{more})"
    shown = place_in_words(finding.place)
    return f"{_OF_VALUES.get(finding.kind, '')} {shown}".lstrip()


def place_in_words(place: Place) -> str:
    """`Functional.gelu in 12 layers (0 to 11), forward and backward`."""
    both = [word for word in ("forward", "backward") if word in place.directions]
    if place.calls < 2:
        return f"{place.operation} {' and '.join(both)}".rstrip()
    ending = optional(", {}", " and ".join(both))
    if place.layers:
        return f"{place.operation} in {len(place.layers)} layers ({listed_numbers(place.layers)}){ending}"
    if not both and not place.numbers:
        return f"{place.operation} and {place.calls - 1} more"
    numbers = optional(" ({})", listed_numbers(place.numbers))
    return f"{place.operation} in {place.calls} calls{numbers if len(numbers) < 40 else ''}{ending}"


def _cannot_be_read(finding: Finding) -> str:
    total = finding.figures.get("total", finding.count)
    return f"{finding.count} of {counted(int(total), 'records')} cannot be read: {finding.detail}"


def _settings(finding: Finding) -> str:
    """`lr 0.01, golden 0.001`."""
    for it in finding.arguments[:1]:
        if it.target or it.golden:
            return f"{it.name} {it.target}, golden {it.golden}"
    return finding.detail


def _models(finding: Finding) -> str:
    """`two different models: embedding [64, 32] against [32, 16]`."""
    for it in finding.arguments[:1]:
        if it.target:
            return f"two different models: {it.name} {it.target} against {it.golden}"
    return f"two different models: {finding.detail}"


#: What of two runs was not compared: a noun, and what is said behind it.
_UNCOMPARED = {
    "target only": ("operations", " only in the target"),
    "golden only": ("operations", " only in the golden dump"),
    "values": ("values", " unmatched"),
    "unreadable": ("values", " unreadable"),
}


def _incomplete(finding: Finding) -> str:
    counts = []
    for name, count in finding.figures.items():
        noun, behind = _UNCOMPARED[name]
        counts.append(f"{counted(int(count), noun)}{behind}")
    return optional("not all is compared: {}", ", ".join(counts)) or finding.detail


def _detail(finding: Finding) -> str:
    return finding.detail or finding.place.operation


#: Findings that are about the whole run and not about an operation: what each is.
_NAMES: Mapping[str, Callable[[Finding], str]] = {
    "setting": _settings,
    "model": _models,
    "manifest": _detail,
    "ended": lambda finding: f"the step ended in {finding.place.operation}",
    "damaged": _detail,
    "incomplete": _incomplete,
    "run": _detail,
    "unreadable": _cannot_be_read,
    "limits": lambda finding: f"{counted(finding.count, 'records', 'are')} beyond the limits, all by rounding",
    "cause not selected": lambda finding: (
        f"{counted(finding.count, 'records', 'differ')}, and the cause is not in the selection"
    ),
    "not judged": lambda finding: "not everything could be judged, as --msprobe-strict asks",
}
#: Figures that say how wrong a value is, the first that it has.
_HOW = (
    ("ratio", "{} x its tolerance"),
    ("distance", "off by {} of its size"),
    ("max_abs", "off by {}"),
    ("similarity", "similarity {}"),
    ("nan", "{} NaN"),
    ("inf", "{} Inf"),
)


def how_wrong(finding: Finding) -> str:
    """How wrong it is, in a few words: what the wrong elements have in common, else one figure; "" without any."""
    if finding.kind == "setting" and "differing" in finding.figures:
        differing, noun = finding.figures["differing"], str(finding.figures.get("of"))
        return counted(differing, noun, "differ") if isinstance(differing, int) else f"{differing} {noun} differ"
    if finding.kind in _NAMES or "holds" in finding.figures:
        return ""
    if finding.pattern:
        return finding.pattern
    if finding.arguments:
        return "; ".join(_argument(it.name, it.target, it.golden) for it in finding.arguments[:2])
    size = finding.size
    if size is not None and math.isinf(size):
        return "not finite on one side"
    if size:
        return f"{figure(100 * size)} % off" if size >= 1e-4 else f"{figure(size)} of its size off"
    text = how_far(finding.figures, str(finding.figures.get("difference", "")))
    return text if text or finding.kind not in _HOW_OF_KIND else _HOW_OF_KIND[finding.kind](finding)


#: Differences of a value that have no size.
_DIFFERENCES = {"nonfinite": "not finite on one side", "form": "of another form", "argument": "another argument"}


def how_far(figures: Mapping[str, float | int | str | None], difference: str = "nonfinite") -> str:
    """How far off a value is by its figures, or what its `difference` is where it has no size, in a few words."""
    distance, tolerance = figures.get("distance"), figures.get("tolerance")
    if isinstance(distance, (int, float)) and isinstance(tolerance, (int, float)) and 0 < distance <= tolerance:
        return ""  # it is wrong in another way than by its size
    for name, words in _HOW:
        value = figures.get(name)
        # Of a value that must be equal the distance says how wrong it is, not how many times no tolerance.
        is_exact = name == "ratio" and tolerance == 0 and distance is not None
        if isinstance(value, (int, float)) and value and not is_exact:
            return words.format(figure(value)) if math.isfinite(value) else _DIFFERENCES.get(difference, "")
    return ""


def _only_one_side(finding: Finding) -> str:
    side = finding.figures.get("side")
    return "only in the golden run" if side == "golden" else f"only in the {side}"


def _golden_calls(finding: Finding) -> str:
    """`2 x, golden Functional.layer_norm.0`; of several calls the first and the last."""
    if "lost" in finding.figures:
        return f"another {finding.figures['lost']}"
    ratio = finding.figures.get("factor")
    factor = f"{figure(ratio)} x" if isinstance(ratio, float) else ""
    ends = [str(finding.figures[key]) for key in ("golden", "golden_until") if key in finding.figures]
    return ", ".join(filter(None, (factor, optional("golden {}", " to ".join(ends)))))


_HOW_OF_KIND: Mapping[str, Callable[[Finding], str]] = {
    "only_one_side": _only_one_side,
    "rewired": lambda finding: "from another place",
    "dtype": lambda finding: "another dtype",
    "device": lambda finding: f"in {finding.figures.get('differing')} of {finding.figures.get('of')} results",
    "arguments": lambda finding: "other arguments",
    "parted": _golden_calls,
    "error": lambda finding: abridged(finding.detail, 40),
}


def _parted(finding: Finding) -> str:
    """What is found, what is not, and what the other run computes there."""
    figures = finding.figures
    if "lost" in figures:
        tied = optional("; in the golden run it is one parameter, {}", figures.get("golden"))
        update = "the gradients are, and the update is not" if figures["lost"] == "update" else "the gradient is not"
        return f"they start equal in both runs; {update} found in the golden run{tied}"
    until = optional(", up to {},", figures.get("until"))
    text = f"what goes in is found in the golden run, and what is made of it{until} never again"
    if "golden" in figures:
        source = optional(", {}", figures.get("golden_source"))
        until = optional(" to {}", figures.get("golden_until"))
        text += f"; there it calls {figures['golden']}{until}{source}"
    if isinstance(factor := figures.get("factor"), float):
        text += f"; the result is {figure(factor)} times the golden one"
    return text


_DETAILS: Mapping[str, Callable[[Finding], str]] = {
    "parted": _parted,
    "dtype": lambda finding: "the golden run makes the same values in a finer dtype",
}


def _argument(name: str, target: str, golden: str) -> str:
    """`attn_mask only in the golden run`, `eps 1e-05, golden 1e-06`."""
    if not target:
        return f"{name} only in the golden run"
    return f"{name} {target}, golden {golden}" if golden else f"{name} only in the target"


def sentence_of(finding: Finding) -> str:
    """What is wrong with a finding, in one line with its place: for lists below a headline."""
    kind = "" if finding.kind == "first" else f"{_KIND_WORDS.get(finding.kind, finding.kind)}, "
    source = optional(", at {}", finding.place.source)
    detail = f": {_ended(finding.detail)}" if finding.detail and finding.detail not in name_of(finding) else ""
    return f"{name_of(finding)} ({kind}{finding.confidence}){detail}{source}"


def follows_from(finding: Finding) -> str:
    """Why an item that shows a cause once more, or its consequence, does not fail by itself."""
    return f"follows from {name_of(finding)}{optional(' ({})', finding.place.record)}"


# What two runs hold of each other.


def content_in_words(content: SharedContent) -> str:
    """`found 8,412 of 8,530 values; 3 regions in other steps, equal again; parted at Functional.gelu.0 (a.py:34)`."""
    regions = optional("; {} in other steps, equal again", content.regions and counted(content.regions, "regions"))
    parted = optional("; parted at {}", content.parted and parted_in_words(content.parted))
    return f"found {content.found:,} of {content.values:,} values{regions}{parted}"


def parted_in_words(parted: Parted) -> str:
    """`Functional.gelu.0 (port.py:34), golden Tensor.__mul__.1 to Tensor.__mul__.4 (original.py:52)`."""
    more = ", ..." if len(parted.parameters) > _SEVERAL else ""
    parameters = optional(f"of {{}}{more}", ", ".join(parted.parameters[:_SEVERAL]))
    golden = optional("golden {}", _span_of(parted.golden))
    return ", ".join(filter(None, (_span_of(parted.target), golden, parameters)))


def _span_of(calls: Sequence[SourceCall]) -> str:
    """`Tensor.__mul__.1 to Tensor.__mul__.4 (original.py:52)`; "" of no call."""
    names = [f"{it.call} {it.direction}".removesuffix(" forward").rstrip() for it in calls]
    span = " to ".join(dict.fromkeys((*names[:1], *names[-1:])))
    source = next((call.source.rpartition("/")[2] for call in calls if call.source), "")
    return f"{span}{optional(' ({})', source)}"


# What was not judged, and what to do.

_WHY: Mapping[str, str] = {
    "expected": "their failures were expected",
    "known": "the baseline knows it",
    "unfinished": "the run ended before them",
    "unmade": "it is not known what made them",
    "unheld": "calls that the dumps do not hold made them, which are not judged",
    "random": "{reason}; collect with seed_all(rm_dropout=True), or with a probability of 0, to judge it",
    "not in this run": "they were not part of this run",
    "not read": "{reason}",
    "not recorded": "what the training computed was not judged: tested was {reason}",
    "by default": "all convolutions of float32, as is the default; without run.json the run may have forbidden it",
    "compiled": "calls inside of compiled code are not in the dump; to judge them, dump a run without torch.compile",
    "derivative": "its calls are judged, not whether they are the derivative; compare with a run without it",
    "uncomputed": "could not be computed again: {reason}",
    "no benchmark": "nothing was computed again: install PyTorch, use --msprobe-accounting=auto",
    "not computed again": "the dumps hold no tensors, so it is not known whether an operation is wrong",
    "values unknown": "tell nothing of their values",
    "not on every rank": "not every rank has them",
    "unreadable": "cannot be read",
    "ranks alone": "the logical run has no such call",
}


def _why(gap: Gap) -> str:
    words = _WHY.get(gap.kind, "{reason}").replace("{reason}", gap.reason)
    return words.removesuffix(": ") or gap.kind


def text_of(gap: Gap) -> str:
    """What was not judged, and why: `Functional.dropout.0 forward: it is random (4)`."""
    many = f" ({gap.count})" if gap.count > 1 else ""
    if gap.what:
        return f"{gap.what}{many}: {_why(gap)}"
    if gap.count > 1 and gap.noun:
        return f"{counted(gap.count, gap.noun)}: {_why(gap)}"
    return f"{_why(gap)}{many}"


_NEXT_WORDS: Mapping[str, str] = {
    "figures": "all figures of this call",
    "error data": "the inputs of this call and both results, as files",
    "by itself": "how far this call is off by itself",
    "rounding": "passes what rounding explains",
    "collection": "the smallest collection of tensors that shows whether these calls are wrong",
    "answer file": "the file that the next command reads",
    "tensors": 'collect the step again with "task": "tensor", or compare it with the dump of a run that is right',
    "noise": "dump the golden run with debugger.perturb; --msprobe-noise=FOLDER then tells how far rounding goes",
    "recorded": "what the training computed",
    "all": "the whole run, in which the cause is",
    "both runs": "what both runs say, the first held to the other",
    "alone": "what the first one says alone",
    "set-ups": "how both runs are set up",
    "one model": "name two dumps of one model, one batch and one step",
    "same setting": "make both runs with the same {subject}, and compare again",
    "accept unmatched": "--msprobe-accept=unmatched accepts operations and values that only one side has",
    "collect": "collect a step with PrecisionDebugger (docs/collecting.md), and name its dump.json",
    "path": "check the path {subject}",
    "gradients": "dump {subject} (level mix) in both runs, and compare: look first between it and the loss",
    "this call": 'dump again with "scope": ["{subject}", "{subject}"] for this call alone',
    "values": "compare the initial values, the checkpoint and the optimizer step that gave this parameter",
    "earlier step": "dump step 0 as well and read its answer first",
    "batch": "compare the data that both runs read at this step: order, augmentation, padding, masks, seeds",
    "hooks": "look for hooks, detached branches and second backwards on this value: gradients are added there",
    "ranks": "compare the dumps of all ranks (--msprobe-dump=STEP_FOLDER): the cause is in the rank that sent it",
    "maker": "look for changes in place before this call; dump with level mix and no scope to see what makes the value",
    "checkpoint": "look in it for random numbers, changed state, unsteady kernels; compare a run without checkpoints",
    "wiring": "compare both lines that make the call {subject}: which value, output or part each of its arguments is",
    "lines": "compare both lines that make the call {subject}: arguments, dtypes, configuration of the model",
    "scope": 'dump both runs again with "task": "tensor", "scope": ["{subject}", "{subject}"], and compare those dumps',
}


def meaning_of(step: NextStep) -> str:
    """What a command tells, or what to do by hand."""
    return step.tells or _NEXT_WORDS.get(step.kind, step.kind).replace("{subject}", step.subject)


def in_words(step: NextStep) -> str:
    """The command, or what to do by hand."""
    return str(step) if step.arguments else meaning_of(step)


# The text for a terminal.


def lines(answer: Answer, width: int = 80) -> list[str]:
    """The answer for a terminal of `width` columns, in at most `MOST_LINES` lines: the headline is the first.

    Text is wrapped; commands are not, so that they can be copied.
    """
    answer = said(answer)
    room = MOST_LINES - 1
    blocks = list(_blocks(answer, max(width, 40)))
    shown = [block[:1] for block in blocks]
    while sum(map(len, shown)) > room:
        shown.pop()
    # The rest of the room goes to the first blocks, which say what is wrong.
    for place, block in enumerate(blocks[: len(shown)]):
        free = room - sum(map(len, shown))
        shown[place] = block[: 1 + free]
        is_command = block[1:] and block[1].startswith(_TELLS)
        if len(shown[place]) < len(block) and len(shown[place]) > bool(is_command):
            last = shown[place][-1]
            shown[place][-1] = f"{last[: max(width, 40) - len(_ELLIPSIS)].rstrip()}{_ELLIPSIS}"
    return list(map(printable, (answer.headline, *chain(*shown))))


def _blocks(answer: Answer, width: int) -> Iterator[list[str]]:
    """Parts of the text behind the headline, each of a few lines, the most important first."""
    if answer.setup:
        more = optional(" (and {} more)", len(answer.setup[2:]))
        yield _wrapped("runs differ: ", f"{'; '.join(answer.setup[:2])}{more}", width)
    if answer.exact is not None:
        yield _wrapped("exact run: ", answer.exact.text, width)
    findings = answer.findings
    most = 1 if len(findings) == 1 else _SEVERAL
    for place, finding in enumerate(findings[:most], 1):
        number = f"{place}. " if len(findings) > 1 else ""
        is_cut = finding.kind == "incomplete" and name_of(finding) not in answer.headline
        if len(findings) > 1 or finding.kind not in _NAMES or is_cut:
            yield _wrapped(number, f"{sentence_of(finding)}{_steps_and_ranks(answer, finding)}", width)
    surplus = len(findings) - most + answer.cut.get("findings", 0)
    if findings and surplus > 0:
        yield _wrapped("", f"and {counted(surplus, 'more causes')}, in the JSON, the page and the rows", width)
    if answer.reach.count:
        last = optional(", the last {}", answer.reach.last)
        yield _wrapped("follows from it: ", f"{counted(answer.reach.count, 'records')}{last}", width)
    for gap in answer.open[:1]:
        if _why(gap) not in answer.headline:
            surplus = len(answer.open) - 1 + answer.cut.get("open", 0)
            yield _wrapped("not judged: ", f"{text_of(gap)}{optional(' (and {} more)', surplus)}", width)
    for step in answer.next[:2]:
        if step.arguments:
            yield [f"{_COMMAND}{step}", *_wrapped(_TELLS, f"{step.tells})", width)]
        else:
            yield _wrapped(_COMMAND, step.tells, width)
    if answer.about and answer.about[0].script:
        yield _wrapped("of: ", "; ".join(map(about_in_words, answer.about[:2])), width)


def about_in_words(about: About) -> str:
    """`golden run_b/step0 (python train.py, 2026-11-27 03:12)`."""
    name = f"golden {about.path}" if about.side == "golden" else about.path
    made = ", ".join(filter(None, (about.script, about.time)))
    return f"{name}{optional(' ({})', made)}"


def _steps_and_ranks(answer: Answer, finding: Finding) -> str:
    """Steps and ranks of a cause where another one has others: the same call may be wrong in each of them."""
    text = ""
    for noun in ("steps", "ranks"):
        numbers = getattr(finding.place, noun)
        if numbers and any(getattr(other.place, noun) != numbers for other in answer.findings):
            text += f", {noun if len(numbers) > 1 else noun[:-1]} {', '.join(map(str, numbers))}"
    return text


def _wrapped(start: str, text: str, width: int) -> list[str]:
    indent = " " * min(len(start), 6)
    return wrap_words(printable(text), width, initial_indent=start, subsequent_indent=indent) or [start]


def _ended(sentence: str) -> str:
    """A sentence without its full stop, so that it can go on; three dots stay, since they say that it was cut."""
    return sentence if sentence.endswith(_ELLIPSIS) else sentence.removesuffix(".")


_FIGURE = re.compile(r"(?<![\w.'\"-])-?\d+\.\d+(?:e[+-]?\d+)?(?!\.?\w)")
_DIGITS, _ALL_DIGITS = 4, 17


def readable(text: str) -> str:
    """`text` with four digits of each figure, or with as many as tell it from the others."""
    values = set(map(float, _FIGURE.findall(text)))

    def short(match: re.Match[str]) -> str:
        value = float(match[0])
        for digits in range(_DIGITS, _ALL_DIGITS):
            words = f"{value:.{digits}g}"
            if all(f"{other:.{digits}g}" != words for other in values - {value}):
                return words
        return match[0]

    return _FIGURE.sub(short, text)


def figure(value: float) -> str:
    """A number for a reader, of three digits: `0.0123`, `37`, `1.23e-05`."""
    return f"{value:.0f}" if 100 <= abs(value) < 10_000 else f"{value:.3g}"


def listed_numbers(numbers: Iterable[int], dash: str = " to ") -> str:
    """`0 to 3, 7` of 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(dash.join(dict.fromkeys((str(run[0]), str(run[-1])))) for run in runs)


def of_ranks(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 to 7`; "" without numbers."""
    noun = ("", "rank", "ranks")[min(len(numbers), 2)]
    return f"{noun} {listed_numbers(numbers)}".strip()
