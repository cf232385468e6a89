"""What a repeat run amounts to: a CSV file, and which devices disagree, by digests of what each of them computed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from msprobe_collector.dump_format.values import counted
from pytest_msprobe.answers import CONFIDENCES, Answer, Finding, Place, RunRows
from pytest_msprobe.answers.from_rows import short_source
from pytest_msprobe.reports.csv_pair import WORDS, TableReport
from pytest_msprobe.suites.api_calls import direction_and_device
from pytest_msprobe.verdicts import VerdictRow


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Devices whose results of one record differ.

    Attributes:
        usual: devices that agree, more than any others.
        odd: the others; all of them where no group is the largest.
        where: which outputs differ, and where.
    """

    usual: tuple[str, ...]
    odd: tuple[str, ...]
    where: str


def compare_devices(contents: Mapping[str, Mapping[str, Any]]) -> Disagreement | None:
    """How the devices disagree on one record; None where all have the same digest.

    Args:
        contents: by device, `digest` and `outputs` of `content_digest`.
    """
    groups: dict[str, list[str]] = {}
    for device, content in contents.items():
        groups.setdefault(content["digest"], []).append(device)
    if len(groups) < 2:
        return None
    ranked = sorted(groups.values(), key=len, reverse=True)
    is_open = len(ranked[0]) == len(ranked[1])
    usual = [] if is_open else ranked[0]
    odd = [device for device in contents if device not in usual]
    first = ranked[0][0]
    other = next(device for device in odd if contents[device]["digest"] != contents[first]["digest"])
    return Disagreement(tuple(usual), tuple(odd), _where(contents[other]["outputs"], contents[first]["outputs"]))


def listed(devices: Sequence[str]) -> str:
    """`device 3`, `devices 0, 1 and 2`."""
    if len(devices) == 1:
        return f"device {devices[0]}"
    return f"devices {', '.join(devices[:-1])} and {devices[-1]}"


def _where(parts: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]]) -> str:
    """The outputs that differ, with the places of their blocks that do."""
    texts = []
    for part, other in zip(parts, right):
        if part["shape"] != other["shape"] or len(part["blocks"]) != len(other["blocks"]):
            texts.append(f"{part['label']} of shape {tuple(part['shape'])} in place of {tuple(other['shape'])}")
            continue
        blocks = [place for place, pair in enumerate(zip(part["blocks"], other["blocks"])) if pair[0] != pair[1]]
        if blocks:
            region = _region(blocks, part["length"], tuple(part["shape"]))
            texts.append(f"{part['label']}{f' within {region}' if region else ''}")
    return ", ".join(texts) or "other outputs"


def _region(blocks: Sequence[int], length: int, shape: tuple[int, ...]) -> str:
    """Where the elements of `blocks` are, each of so many elements; "" where they are everywhere."""
    size = math.prod(shape)
    # Outputs with more elements are described by their flat positions.
    if size > 1 << 24:
        return f"elements {blocks[0] * length} to {min(size, (blocks[-1] + 1) * length) - 1}"
    import numpy as np

    from pytest_msprobe.numerics.patterns import describe_region

    is_off = np.zeros(size, np.bool_)
    for block in blocks:
        is_off[block * length : (block + 1) * length] = True
    return describe_region(is_off.reshape(shape))


COLUMNS = ("API Name", "Direction", "Device", "Status", "Digest", "Devices", "Message")
_SHOWN = 10
#: `DEPENDS_ON_BATCH` of check.py, which would load NumPy here.
_DEPENDS_ON_BATCH = "depends on the batch"


class RepeatReport(TableReport):
    """Compares the devices as soon as all have judged an API call."""

    stem = "repeat_result"
    columns = COLUMNS

    def __init__(self, out: Path, devices: Sequence[str], *, are_elsewhere: bool) -> None:
        """A report into the folder `out`, of a run on these devices, () for one; `are_elsewhere`: on several hosts."""
        super().__init__(out)
        self._devices = devices
        self._alone = "with its host alone in --tx" if are_elsewhere else "with -n 1 --msprobe-device-ids={device}"
        self._open: dict[tuple[str, str], list[VerdictRow]] = {}
        self._compared = 0
        self._odd: Counter[str] = Counter()
        self._lines: list[str] = []
        self._odd_rows: list[tuple[VerdictRow, Disagreement]] = []
        self._rows: Counter[bool] = Counter()

    def receive(self, name: str, row: VerdictRow) -> None:
        counts = [output.figures["rows"] for output in row.outputs if output.figures.get("rows") is not None]
        if counts:
            self._rows[any(counts)] += 1
        self._open.setdefault((row.dump, row.call), []).append(row)

    def receive_call(self, name: str, rows: Sequence[VerdictRow]) -> None:
        whole = self._open.pop((rows[0].dump, rows[0].call))
        whole.sort(key=lambda row: row.recorded.index(row.part))
        directions = dict.fromkeys(direction_and_device(row.part)[0] for row in whole)
        disagreements = {direction: self._compare(name, direction, whole) for direction in directions}
        self.write(_cells(name, row, disagreements) for row in whole)

    def findings(self) -> Iterator[str]:
        if self._rows:
            yield f"rows change with the batch in {self._rows[True]} of {counted(self._rows.total(), 'results')}"
        if not self._compared:
            held = "no result of two devices" if self._devices else "results of one device"
            yield f"{held}: nothing was compared between devices"
            return
        if not self._odd:
            yield f"{listed(self._devices)} agree to the bit, in all of {counted(self._compared, 'results')}"
            return
        for device, count in self._odd.most_common():
            yield f"device {device} differs from the others in {count} of {counted(self._compared, 'results')}"
        yield from self._lines[:_SHOWN]
        if len(self._lines) > _SHOWN:
            yield f"and {len(self._lines) - _SHOWN} more, in the file of the results"

    def answer(self, rows: RunRows) -> Answer:
        """Calls that do not repeat, and devices that disagree."""
        findings = list(rows.findings())
        for place, finding in enumerate(findings):
            if finding.kind == _DEPENDS_ON_BATCH:
                findings[place] = structs.replace(finding, confidence="possible")
        findings.sort(key=lambda finding: CONFIDENCES.index(finding.confidence))
        if not self._odd_rows or all(map(rows.is_known, self.fault_keys())):
            return rows.made(findings)
        row, odd = self._odd_rows[0]
        (first, count), *others = self._odd.most_common()
        operation = f"device {first} and {len(others)} more" if others else f"device {first}"
        verb = "differs" if len(odd.odd) == 1 else "differ"
        device = Finding(
            id=row.node_id,
            kind="device",
            confidence="proved" if odd.usual else "likely",
            place=Place(
                record=f"{row.call}.{direction_and_device(row.part)[0]}",
                operation=operation,
                source=short_source(row.place.source) if row.place is not None else "",
            ),
            figures={"differing": count, "of": self._compared},
            count=count,
            detail=f"{listed(odd.odd)} {verb} from the others, first in {row.call}: {odd.where}",
        )
        return rows.made([*findings, device])

    def fault(self) -> str:
        """Devices that disagree: none of their items has failed, since each agrees with itself."""
        if not self._odd:
            return ""
        (first, count), *others = self._odd.most_common()
        more = f" (and {listed(sorted(device for device, _ in others))} in fewer or as many)" if others else ""
        results = counted(self._compared, "results")
        return (
            f"the devices do not compute the same: device {first} differs in {count} of {results}"
            f"{more}; see above, and repeat the run on it alone, {self._alone.format(device=first)}"
        )

    def _compare(self, name: str, direction: str, rows: Sequence[VerdictRow]) -> Disagreement | None:
        of_devices: dict[str, VerdictRow] = {}
        contents: dict[str, Mapping[str, Any]] = {}
        for row in rows:
            part, device = direction_and_device(row.part)
            if part == direction and device and row.attachment and row.attachment.get("digest"):
                of_devices[device], contents[device] = row, row.attachment
        if len(contents) < 2:
            return None
        self._compared += 1
        disagreement = compare_devices(contents)
        if disagreement is not None:
            self._odd.update(disagreement.odd)
            others = f"against {listed(disagreement.usual)}" if disagreement.usual else "differ, without a majority"
            self._lines.append(f"  {name} {direction}: {listed(disagreement.odd)} {others}: {disagreement.where}")
            self._odd_rows.append((of_devices[disagreement.odd[0]], disagreement))
        return disagreement


def _cells(name: str, row: VerdictRow, disagreements: dict[str, Disagreement | None]) -> tuple[str, ...]:
    direction, device = direction_and_device(row.part)
    digest = (row.attachment or {}).get("digest", "")
    other = disagreements.get(direction)
    agreement = "agrees" if device and digest else ""
    if other is not None and device in other.odd:
        agreement = f"differs: {other.where}"
    texts = [row.message, *(f"{output.label}: {output.message}" for output in row.outputs if output.message)]
    return name, direction, device, WORDS[row.status], digest, agreement, "\n".join(filter(None, texts))
