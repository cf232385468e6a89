"""The figures as tables and as lists.

A planted fault is of one of these kinds, by its size:

- below rounding: no element is further off than to its neighbour among the numbers of its dtype. It is not judged.
- hidden: moving every input by one rounding of its dtype moves the exact result as far. No rule can tell such a fault
  from a device that rounds its inputs once; catching it is luck.
- kept: larger, but rounding what the forward keeps for its gradients moves the exact result as far: tanh's gradient is
  1 - y^2 of the y that a device has stored. No rule can tell these either.
- inside: larger, but moving each result of float32 arithmetic inside the operation by up to one rounding (Monte Carlo
  arithmetic) moves the exact result as far, sums by what adding their terms one by one leaves. Honest kernels are as
  far off.
- kernels: float32 results of exp, log and the like that are off by no more than `EXP_ROUNDINGS`.
- visible: all others, split by their size in roundings of the element and of the inputs together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.apis import facts
from quality.results import Table
from quality.verdict_quality.faults import CATALOGUE
from quality.verdict_quality.large import is_large
from quality.verdict_quality.quality import Figures, Planted, Verdict

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
#: Bounds of `Size.conditioned` between the columns.
_BOUNDS = (2, 8, 64)
#: Error of MindSpore 2.10's exp on CPU for 200,000 arguments of a training step: 41 roundings of element and input at
#: most, 7 in the root mean square (`test_elementary_kernels.py`).
EXP_ROUNDINGS = 41.0
#: Names in one cell; `lists` has them all.
_SHOWN = 12
_KINDS = ("hidden", "kept", "inside", "kernels", "visible")
_SHAPES: dict[str, Callable[[str], bool]] = {"small": lambda record: not is_large(record), "large": is_large}
_DEVICE_TEXT = {
    "ideal": "ideal",
    "native": "PyTorch CPU",
    "mindspore": "MindSpore CPU",
    "honest": "honest kernels",
    "narrow": "narrow inside",
}


def false_alarms(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Right outputs that failed."""
    return [verdict for verdict in verdicts if verdict.status == "error"]


def unjudged(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Right outputs without a verdict."""
    return [verdict for verdict in verdicts if verdict.status == "skip"]


def beyond_inputs(planted: Iterable[Planted]) -> list[Planted]:
    """Faults larger than the rounding of result and inputs."""
    return [one for one in planted if one.size.is_observable and one.size.is_visible]


def visible(planted: Iterable[Planted]) -> list[Planted]:
    """Those of them that are no error of a good device either."""
    return [one for one in beyond_inputs(planted) if _kind(one) == "visible"]


def _kind(one: Planted) -> str:
    """Which of `_KINDS` an observable fault is of."""
    if not one.size.is_visible:
        return "hidden"
    if one.size.is_kept:
        return "kept"
    if one.size.is_inside:
        return "inside"
    return "kernels" if is_within_kernel(one) else "visible"


def is_within_kernel(one: Planted) -> bool:
    """Whether a kernel of exp, log and the like may be as far off in float32, as that of MindSpore's CPU exp is."""
    if one.dtype != "float32" or one.size.conditioned > EXP_ROUNDINGS:
        return False
    return facts("elementary").of(parse_api_name(one.record.rpartition(".")[0]), "mindspore") is not None


def verdict_table(figures: Figures) -> Table:
    """Verdicts on right outputs: ideal ones are the float64 result rounded once to the dtype."""
    rows = []
    right = [verdict for verdict in figures.verdicts if verdict.device != "narrow"]
    for (standard, dtype, device), group in grouped(right, lambda v: (v.standard, v.dtype, v.device)):
        for shapes, holds in _SHAPES.items():
            found = [verdict for verdict in group if holds(verdict.record)]
            if not found:
                continue
            judged = [verdict for verdict in found if verdict.status != "skip"]
            alarms = len(false_alarms(found))
            alarm_text = f"{alarms} ({share(alarms, len(judged))})"
            row = (standard, dtype, _DEVICE_TEXT[device], shapes, len(found), alarm_text, len(unjudged(found)))
            rows.append(row)
    return Table.of(
        "verdicts", ("standard", "dtype", "outputs of", "shapes", "records", "false alarms", "unjudged"), rows
    )


def narrow_table(figures: Figures) -> Table:
    """Kernels whose intermediate results are rounded to the dtype of their tensors: how many records fail.

    Kept are gradients that are no further off than rounding of what the forward keeps takes those of exact inputs.
    """
    narrow = [verdict for verdict in figures.verdicts if verdict.device == "narrow"]
    rows = []
    for (standard, dtype), group in grouped(narrow, lambda v: (v.standard, v.dtype)):
        kept, others = ([v for v in group if v.is_kept == is_kept] for is_kept in (True, False))
        rows.append((standard, dtype, _failed(kept), _failed(others), _failed(group)))
    return Table.of("low_precision_inside", ("standard", "dtype", "kept: error", "others: error", "all: error"), rows)


def naming_table(figures: Figures) -> Table:
    """Faults that were caught and have a name, by kind: how many of them the pattern names rightly."""
    caught = [one for one in visible(figures.planted) if one.is_named is not None]
    rows = []
    for fault in CATALOGUE:
        found = [one for one in caught if one.fault == fault]
        named = sum(bool(one.is_named) for one in found)
        if found:
            rows.append((fault, f"{named} of {len(found)} ({share(named, len(found))})"))
    named = sum(bool(one.is_named) for one in caught)
    rows.append(("all of these", f"{named} of {len(caught)} ({share(named, len(caught))})"))
    return Table.of("fault_patterns", ("fault", "named rightly"), rows)


def fault_table(figures: Figures) -> Table:
    """Verdicts on faulty outputs, by the size of the fault."""
    rows = []
    for (standard, dtype), group in grouped(figures.planted, lambda one: (one.standard, one.dtype)):
        for shapes, holds in _SHAPES.items():
            found = [one for one in group if holds(one.record)]
            observable = [one for one in found if one.size.is_observable]
            kinds = {kind: [one for one in observable if _kind(one) == kind] for kind in _KINDS}
            seen = kinds["visible"]
            sizes = [caught([one for one in seen if low < one.size.conditioned <= high]) for low, high in _ranges()]
            below = len(found) - len(observable)
            rows.append((standard, dtype, shapes, len(found), below, *map(caught, kinds.values()), *sizes))
    names = tuple(f"{low:g} to {high:g}" if high < float("inf") else f"over {low:g}" for low, high in _ranges())
    columns = ("standard", "dtype", "shapes", "planted", "below rounding", *(f"{what}: caught" for what in _KINDS))
    return Table.of("faults_by_size", (*columns, *names), rows)


def catalogue_table(figures: Figures) -> Table:
    """Caught visible faults by kind."""
    groups = dict(grouped(visible(figures.planted), lambda one: (one.standard, one.dtype, one.fault)))
    heads = list(dict.fromkeys((one.standard, one.dtype) for one in figures.planted))
    rows = [(fault, *(caught(groups.get((*head, fault), [])) for head in heads)) for fault in CATALOGUE]
    return Table.of("faults_by_kind", ("fault", *(f"{standard} {dtype}" for standard, dtype in heads)), rows)


def alarm_table(figures: Figures) -> Table:
    """APIs whose right outputs failed, most frequent first."""
    counted = Counter((v.standard, v.dtype, v.device, _api(v.record)) for v in _wrongly_failed(figures))
    groups: dict[tuple[str, str, str], list[str]] = {}
    for (standard, dtype, device, api), count in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
        groups.setdefault((standard, dtype, _DEVICE_TEXT[device]), []).append(f"{api} {count}")
    rows = [(*head, _first(apis)) for head, apis in sorted(groups.items())]
    return Table.of("verdict_alarms", ("standard", "dtype", "outputs of", "API and number of records"), rows)


def _wrongly_failed(figures: Figures) -> list[Verdict]:
    return [verdict for verdict in false_alarms(figures.verdicts) if verdict.device != "narrow"]


def tables_of(figures: Figures) -> tuple[Table, ...]:
    """Return all tables."""
    return (
        verdict_table(figures),
        alarm_table(figures),
        fault_table(figures),
        catalogue_table(figures),
        narrow_table(figures),
        naming_table(figures),
    )


def lists(figures: Figures) -> Iterator[str]:
    """One line for each false alarm, each record without verdict and each fault missed."""
    for verdict in _wrongly_failed(figures):
        yield f"ALARM    {verdict.standard} {verdict.dtype} {verdict.device} {verdict.record}: {verdict.reason}"
    for verdict in unjudged(figures.verdicts):
        yield f"UNJUDGED {verdict.standard} {verdict.dtype} {verdict.device} {verdict.record}: {verdict.reason}"
    for verdict in figures.verdicts:
        if verdict.device == "narrow" and verdict.status == "pass":
            kept = ", no more than rounding of what the forward keeps" if verdict.is_kept else ""
            yield f"MISSED   {verdict.standard} {verdict.dtype} {verdict.record}: low precision inside{kept}"
    for one in visible(figures.planted):
        if one.status != "error":
            sizes = f"{one.size.roundings:.3g} roundings, {one.size.conditioned:.3g} with those of the inputs"
            use = "" if one.ratio is None else f"; {one.ratio:.2f} of its tolerance"
            yield f"MISSED   {one.standard} {one.dtype} {one.record}: {one.fault} ({sizes}{use})"


def caught_share(planted: Sequence[Planted]) -> float:
    """Share of these faults with the verdict `error`; 1 when there are none."""
    return sum(one.status == "error" for one in planted) / len(planted) if planted else 1.0


def _first(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _ranges() -> list[tuple[float, float]]:
    return list(zip(_BOUNDS, (*_BOUNDS[1:], float("inf"))))


def _failed(verdicts: Sequence[Verdict]) -> str:
    failed = len(false_alarms(verdicts))
    return f"{failed} of {len(verdicts)} ({share(failed, len(verdicts))})" if verdicts else "none"


def caught(planted: Sequence[Planted]) -> str:
    caught = sum(one.status == "error" for one in planted)
    return f"{caught} of {len(planted)} ({share(caught, len(planted))})" if planted else "none"


def share(part: int, whole: int) -> str:
    """A percentage that says 100 or 0 only when it is."""
    if not whole:
        return "-"
    text = f"{100 * part / whole:.1f} %"
    if part not in (0, whole) and text in ("100.0 %", "0.0 %"):
        return f"{100 * part / whole:.3f} %"
    return text


def _api(record: str) -> str:
    return ".".join(record.split(".")[:-2])


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> list[tuple[_Key, list[_Item]]]:
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())
