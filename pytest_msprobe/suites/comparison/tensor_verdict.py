"""Two tensors compared by the best that both dumps hold: real data, fingerprints or checksums, else statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace

from msprobe_collector.dump_format import DumpError, TensorFolder, TensorValue
from msprobe_collector.dump_format.leaves import Leaf, canonical_dtype
from msprobe_collector.dump_format.text import shown
from pytest_msprobe.suites.comparison.agreement import DistanceLimits, has_common_statistics, statistics_reasons
from pytest_msprobe.suites.comparison.value_comparison import RealFigures, ValueComparison

#: Tensor files of the target and of the golden dump.
Folders = tuple[TensorFolder, TensorFolder]


@dataclass(frozen=True, slots=True)
class Differences:
    """What is said of a pair before its numbers are looked at: `hard` makes an error, `soft` a warning."""

    hard: tuple[str, ...]
    soft: tuple[str, ...]


def judge_tensors(
    target: Leaf,
    golden: Leaf,
    folders: Folders,
    agreement: DistanceLimits,
    *,
    accept: frozenset[str],
    limit: float | None = None,
) -> ValueComparison:
    """The verdict on two tensors; `accept` names differences that only warn, `limit` is in place of the dtype's."""
    if target.tensor is None or golden.tensor is None:
        faults = tuple(
            leaf.fault or f"{leaf.name} is not a tensor." for leaf in (target, golden) if leaf.tensor is None
        )
        status = "unreadable" if target.fault or golden.fault else "error"
        return ValueComparison(target, golden, status, faults)  # type: ignore[arg-type]  # both are ValueStatus
    found = _differences(target, golden, accept)
    limit = agreement.limit(target.dtype, golden.dtype) if limit is None else limit
    if target.data_name and golden.data_name:
        return _by_data(target, golden, folders, (limit, agreement), found)
    if target.md5 and golden.md5:
        return _by_checksum(target, golden, found)
    if not has_common_statistics(target.tensor, golden.tensor):
        return ValueComparison(target, golden, "unmatched", ("The dumps hold nothing in common about this value.",))
    if found.hard:
        return ValueComparison(target, golden, "error", found.hard + found.soft, float("inf"))
    reasons, distance = statistics_reasons(target.tensor, golden.tensor, limit, agreement)
    is_one_dtype = canonical_dtype(target.dtype) == canonical_dtype(golden.dtype)
    if not (target.fingerprint and golden.fingerprint and is_one_dtype):
        return _verdict(target, golden, found, reasons, distance)
    return _by_fingerprint(target, golden, found, (reasons, distance), accepts_bits="bits" in accept)


def _differences(target: Leaf, golden: Leaf, accept: frozenset[str]) -> Differences:
    assert target.tensor is not None
    assert golden.tensor is not None
    hard: list[str] = []
    soft: list[str] = []
    if canonical_dtype(target.dtype) != canonical_dtype(golden.dtype):
        kind = _kind(target.tensor)
        is_accepted = "dtype" in accept or (kind == "int" and "integers" in accept)
        is_rounding = kind == _kind(golden.tensor) and is_accepted
        (soft if is_rounding else hard).append(f"Dtypes differ: target {target.dtype}, golden {golden.dtype}.")
    if target.shape != golden.shape:
        hard.append(f"Shapes differ: target {list(target.shape)}, golden {list(golden.shape)}.")
    if target.requires_grad and golden.requires_grad and target.requires_grad != golden.requires_grad:
        words = f"Requires_grad differs: target {target.requires_grad}, golden {golden.requires_grad}."
        (soft if "requires_grad" in accept else hard).append(words)
    return Differences(tuple(hard), tuple(soft))


def _kind(tensor: TensorValue) -> str:
    return tensor.dtype.kind if tensor.dtype is not None else ""


def _verdict(
    target: Leaf, golden: Leaf, found: Differences, reasons: tuple[str, ...], distance: float
) -> ValueComparison:
    if found.hard or reasons:
        distance = float("inf") if found.hard else distance
        return ValueComparison(target, golden, "error", found.hard + reasons + found.soft, distance)
    return ValueComparison(target, golden, "warning" if found.soft else "pass", found.soft, distance)


def _by_checksum(target: Leaf, golden: Leaf, found: Differences) -> ValueComparison:
    if target.md5 == golden.md5:
        return _verdict(target, golden, found, (), 0.0)
    reason = f"The checksum is {target.md5} in the target and {golden.md5} in the golden dump."
    return _verdict(target, golden, found, (reason,), float("inf"))


def _by_fingerprint(
    target: Leaf, golden: Leaf, found: Differences, statistics: tuple[tuple[str, ...], float], *, accepts_bits: bool
) -> ValueComparison:
    """Equal fingerprints are equal bits. For others the statistics say how far apart they are, if they can."""
    if target.fingerprint == golden.fingerprint:
        return _verdict(target, golden, found, (), 0.0)
    reasons, distance = statistics
    bits = f"The bits differ: fingerprint {target.fingerprint}, golden {golden.fingerprint}"
    bits += f", statistics {distance:.3g} apart." if distance else ", with equal statistics."
    if reasons or not accepts_bits:
        verdict = _verdict(target, golden, found, (*reasons, bits), distance)
    else:
        verdict = _verdict(target, golden, Differences(found.hard, (*found.soft, bits)), (), distance)
    # Equal statistics do not say that the distance is 0.
    return verdict if distance else replace(verdict, distance=None)


def _by_data(
    target: Leaf,
    golden: Leaf,
    folders: Folders,
    rule: tuple[float, DistanceLimits],
    found: Differences,
) -> ValueComparison:
    from pytest_msprobe.numerics import Judgement, explain, summarise, unforgivable_reasons
    from pytest_msprobe.suites.comparison.figures import measure_pair

    assert target.tensor is not None
    assert golden.tensor is not None
    try:
        left = folders[0].load(target.tensor, target.place)
        right = folders[1].load(golden.tensor, golden.place)
    except DumpError as error:
        return ValueComparison(target, golden, "unreadable", (str(error),))
    if left.shape != right.shape and left.squeeze().shape == right.squeeze().shape:
        left, right = left.squeeze(), right.squeeze()
    figures = measure_pair(left, right)
    metrics = figures.metrics
    table = RealFigures(metrics.cosine, figures.euclid, metrics.max_abs, metrics.max_rel, figures.shares)
    if metrics.structural:
        return ValueComparison(target, golden, "error", found.hard or (metrics.structural,), float("inf"), None)
    reasons = found.hard + unforgivable_reasons(metrics)
    is_measured = not (metrics.nonfinite_mismatches or found.hard)
    distance = figures.distance if is_measured else float("inf")
    limit, agreement = rule
    if not metrics.is_exact and is_measured and metrics.size:
        reasons += _too_far(distance, limit, metrics.max_abs or 0.0, agreement.element_limit(limit, figures.peak))
    if not reasons:
        status = "warning" if found.soft else "pass"
        return ValueComparison(target, golden, status, found.soft, distance, table)  # type: ignore[arg-type]
    judgement = Judgement("error", reasons)
    words = explain(metrics, judgement, label=shown(target.name), dtype=target.dtype, shape=target.shape)
    return ValueComparison(
        target, golden, "error", (summarise(metrics, judgement), *found.soft), distance, table, words
    )


def _too_far(distance: float, limit: float, max_abs: float, element_limit: float) -> tuple[str, ...]:
    reasons = []
    if distance > limit:
        reasons.append(f"Relative distance {distance:.3g} is above {limit:g}.")
    if max_abs > element_limit:
        reasons.append(f"An element is off by {max_abs:.3g}, allowed is {element_limit:.3g}.")
    return tuple(reasons)
