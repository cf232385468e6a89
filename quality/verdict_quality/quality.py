"""Runs the checks: every record as each device returned it, then with one fault at a time."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from msprobe_collector.dump_format import Direction
from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.verdicts import Status
from quality.verdict_quality.dumps import write_dump
from quality.verdict_quality.faults import CATALOGUE
from quality.verdict_quality.honest import honest_recordings, narrow_recordings
from quality.verdict_quality.judging import Alteration, Judge
from quality.verdict_quality.large import large_samples
from quality.verdict_quality.naming import is_named
from quality.verdict_quality.recordings import Recording, Results, record
from quality.verdict_quality.samples import DTYPES, opinfo_samples, seed_of
from quality.verdict_quality.sizes import NOTHING, Envelopes, Size, envelopes, kept_envelope, size_of
from quality.verdict_quality.target import Target

Returned = Literal["ideal", "native", "mindspore", "honest", "narrow"]
DEVICES: tuple[Returned, ...] = ("ideal", "native", "mindspore", "honest", "narrow")
#: So many elements that truncation moves can show it; it moves none by more than to its neighbour.
_TRUNCATED, _LEAST_TRUNCATED = "rounded towards zero", 64
#: Standards that are looked at on kernels only, where their bounds make a difference.
_NOT_FOR_FAULTS = ("fused",)
#: Generators of the honest kernels: not those that the rules were tuned with.
_SEEDS = (5,)
_EMPTY_ON_MINDSPORE = "an argument without elements: on MindSpore 2.10's CPU geqrf and others end the process"


@dataclass(frozen=True, slots=True)
class Slice:
    """What to check.

    Attributes:
        dtypes, standards, devices, faults: names.
        fraction: of all APIs, 0 to 1.
        per_api: samples of each API.
        material: number of the material: another choice of APIs, other inputs, faults in other places.
        apis: shell patterns of names (`Mint.add*`; `Mint.bmm.1001` for a large call); all when empty.
        part, parts: this one of so many shares of the samples.
    """

    dtypes: tuple[str, ...]
    standards: tuple[str, ...]
    devices: tuple[Returned, ...] = DEVICES
    faults: tuple[str, ...] = tuple(CATALOGUE)
    fraction: float = 1.0
    per_api: int = 3
    material: int = 0
    apis: tuple[str, ...] = ()
    part: int = 0
    parts: int = 1

    def holds(self, api: str) -> bool:
        """Whether this slice and this part of it hold an API; the same in every run."""
        if self.apis and not any(fnmatchcase(api, pattern) for pattern in self.apis):
            return False
        return seed_of(api, material=self.material) % 10_000 < self.fraction * 10_000 and self.is_of_part(api)

    def is_of_part(self, api: str) -> bool:
        """Whether an API belongs to this part."""
        return seed_of(api, "part") % self.parts == self.part

    def holds_kernel(self, api: str) -> bool:
        """The same as `holds` for an honest kernel: few, and looked at in full unless `apis` says otherwise."""
        is_asked = not self.apis or any(fnmatchcase(api, pattern) for pattern in self.apis)
        return is_asked and self.is_of_part(api.rpartition(".")[0] if api.rpartition(".")[2].isdecimal() else api)

    def shares(self, parts: int) -> list[Slice]:
        """The same in `parts` parts, one dtype each."""
        return [
            replace(self, dtypes=(dtype,), part=part, parts=parts) for dtype in self.dtypes for part in range(parts)
        ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one record as a device returned it.

    `is_kept`: whether what is wrong with it is no more than rounding of what the forward keeps leaves.
    """

    standard: str
    dtype: str
    device: Returned
    record: str
    status: Status
    reason: str
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Planted:
    """One fault in one result of a record; `status` is None where it was too small to be judged.

    `is_named`: whether the pattern of the failing output names it rightly; None for what passes or has no name.
    `ratio`: how many times its tolerance the fault was, below 1 for a miss.
    """

    standard: str
    dtype: str
    record: str
    fault: str
    size: Size
    status: Status | None
    is_named: bool | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was found."""

    verdicts: tuple[Verdict, ...]
    planted: tuple[Planted, ...]

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.verdicts + other.verdicts, self.planted + other.planted)


def measure(wanted: Slice) -> Figures:
    """The figures of a slice, from fixed seeds; dumps are written to a temporary folder."""
    found = Figures((), ())
    with warnings.catch_warnings():
        # OpInfo's samples go to the edges of domains, where frameworks warn.
        warnings.simplefilter("ignore")
        for dtype in wanted.dtypes:
            recordings = list(_recordings(wanted, dtype))
            with tempfile.TemporaryDirectory(prefix="verdict-quality-") as folder:
                found += _measured(wanted, dtype, recordings, Path(folder))
    return found


def measure_alone(wanted: Slice) -> Figures:
    """`measure` in a process of its own, on one thread: the other cores have processes too."""
    import torch

    torch.set_num_threads(1)
    return measure(wanted)


def _recordings(wanted: Slice, dtype: str) -> Iterator[Recording]:
    samples = (
        *opinfo_samples(wanted.holds, per_api=wanted.per_api, material=wanted.material),
        *large_samples(wanted.holds, material=wanted.material),
    )
    for sample in samples:
        recording = record(sample, DTYPES[dtype])
        if recording is not None:
            yield recording


def _measured(wanted: Slice, dtype: str, recordings: Sequence[Recording], folder: Path) -> Figures:
    ideal = write_dump(folder / "ideal", ((recording, recording.ideal) for recording in recordings))
    verdicts: list[Verdict] = []
    planted: list[Planted] = []
    judge = Judge(ideal)
    for recording in recordings:
        clean = [
            verdict
            for standard in wanted.standards
            for verdict in _verdicts(judge, recording, standard, dtype=dtype, device="ideal")
        ]
        verdicts += clean
        passed = [v for v in clean if v.status == "pass" and v.standard not in _NOT_FOR_FAULTS]
        planted += _planted(judge, recording, passed, wanted)
        judge.forget()
    for device in wanted.devices:
        if device == "native":
            native = [(recording, recording.native) for recording in recordings if recording.native is not None]
            other = Judge(write_dump(folder / "native", native))
            verdicts += _all_verdicts(other, [recording for recording, _ in native], wanted, dtype, device)
        elif device == "mindspore" and dtype == "float32":
            other = Judge(ideal, device="mindspore:cpu")
            verdicts += _all_verdicts(other, recordings, wanted, dtype, device)
        elif device == "honest" or (device == "narrow" and dtype != "float32"):
            make = honest_recordings if device == "honest" else narrow_recordings
            pairs = list(make(DTYPES[dtype], wanted.holds_kernel, seeds=_SEEDS, material=wanted.material))
            other = Judge(write_dump(folder / device, pairs))
            found = list(_all_verdicts(other, [recording for recording, _ in pairs], wanted, dtype, device))
            if device == "narrow":
                right = honest_recordings(DTYPES[dtype], wanted.holds_kernel, seeds=_SEEDS, material=wanted.material)
                wrong = dict(chain.from_iterable(visibly_wrong(*pair, kept) for pair, (_, kept) in zip(pairs, right)))
                found = [replace(v, is_kept=wrong[v.record]) for v in found if v.record in wrong]
            verdicts += found
    return Figures(tuple(verdicts), tuple(planted))


def visibly_wrong(recording: Recording, results: Results, honest: Results) -> Iterator[tuple[str, bool]]:
    """Records of a call (`Mint.sum.5000.forward`) where some element of `results` is beyond its `honest` neighbour.

    And whether rounding of what the forward keeps for its gradients, for exact inputs, moves every element as far.
    """
    outputs = [(found.value, right.value) for found, right in zip(results.outputs, honest.outputs)]
    directions: dict[Direction, list[tuple[Any, Any]]] = {
        "forward": outputs,
        "backward": list(zip(results.gradients, honest.gradients)),
    }
    for direction, pairs in directions.items():
        arrays = [
            (place, np.asarray(f), np.asarray(r)) for place, (f, r) in enumerate(pairs) if isinstance(r, np.ndarray)
        ]
        wrong = [(place, found) for place, found, right in arrays if size_of(found, right, NOTHING).is_observable]
        if wrong:
            name = f"{recording.name}.{direction}"
            is_kept = direction == "backward" and all(_is_kept(recording, place, found) for place, found in wrong)
            yield name, is_kept


def _is_kept(recording: Recording, place: int, found: Array) -> bool:
    target = Target(recording, "backward", place, np.random.default_rng(seed_of(recording.name, place)))
    envelope = kept_envelope(target)
    return not size_of(found, target.right, Envelopes(envelope, envelope, envelope)).is_visible


def _all_verdicts(
    judge: Judge, recordings: Iterable[Recording], wanted: Slice, dtype: str, device: Returned
) -> Iterator[Verdict]:
    for recording in recordings:
        for standard in wanted.standards:
            yield from _verdicts(judge, recording, standard, dtype=dtype, device=device)
        judge.forget()


def _directions(recording: Recording) -> tuple[Direction, ...]:
    return ("forward", "backward") if recording.wanted else ("forward",)


def _verdicts(judge: Judge, recording: Recording, standard: str, *, dtype: str, device: Returned) -> Iterator[Verdict]:
    for direction in _directions(recording):
        name = f"{recording.name}.{direction}"
        if device == "mindspore" and recording.has_empty_argument:
            yield Verdict(standard, dtype, device, name, "skip", _EMPTY_ON_MINDSPORE)
            continue
        finding = judge.verdict(recording.name, direction, standard)
        status: Status = finding.status
        reason = finding.message or next((row.message for row in finding.outputs if row.status != "pass"), "")
        if status == "error" and not finding.outputs:
            # Nothing was compared: the device or the benchmark raised.
            status = "skip"
        yield Verdict(standard, dtype, device, name, status, reason)


def _planted(judge: Judge, recording: Recording, clean: Sequence[Verdict], wanted: Slice) -> Iterator[Planted]:
    """Every fault that can happen to a record, each in one result; only where the right results have passed."""
    for direction in _directions(recording):
        name = f"{recording.name}.{direction}"
        passed = [verdict for verdict in clean if verdict.record == name]
        moved: dict[int, Envelopes] = {}
        for fault in wanted.faults if passed else ():
            seed = seed_of(recording.name, direction, fault, material=wanted.material)
            found = _faulty(recording, direction, fault, np.random.default_rng(seed))
            if found is None:
                continue
            target, faulty = found
            if target.place not in moved:
                moved[target.place] = envelopes(target)
            size = _size(fault, faulty, target.right, moved[target.place])
            altered = _in_place_of(target.place, faulty)
            for right in passed:
                status: Status | None = None
                ratio = named = None
                if size.is_observable:
                    finding = judge.verdict(recording.name, direction, right.standard, altered=altered)
                    status = finding.status
                    failed = next((row for row in finding.outputs if row.status == "error"), None)
                    ratio = max((row.ratio for row in finding.outputs if row.ratio is not None), default=None)
                    named = is_named(fault, failed.pattern) if failed is not None else None
                yield Planted(right.standard, right.dtype, name, fault, size, status, named, ratio)


def _size(fault: str, faulty: Array, right: Array, moved: Envelopes) -> Size:
    if fault != _TRUNCATED:
        return size_of(faulty, right, moved)
    shown = np.unique(right[faulty != right]).size
    return Size(np.inf, np.inf) if shown >= _LEAST_TRUNCATED else Size(0.0, 0.0, 0.0, 0.0)


def _faulty(
    recording: Recording, direction: Direction, fault: str, rng: np.random.Generator
) -> tuple[Target, Array] | None:
    """A result, drawn at random from those that the fault can happen to, and what it becomes."""
    results = recording.ideal.outputs if direction == "forward" else recording.ideal.gradients
    for place in rng.permutation(len(results)):
        target = Target(recording, direction, int(place), rng)
        if isinstance(target.right, np.ndarray):
            faulty = CATALOGUE[fault](target)
            if faulty is not None:
                return target, np.asarray(faulty)  # arithmetic on arrays without dimensions gives scalars
    return None


def _in_place_of(place: int, faulty: Array) -> Alteration:
    return lambda values: [faulty if index == place else value for index, value in enumerate(values)]
