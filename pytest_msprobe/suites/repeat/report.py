"""What a repeat run amounts to, on the one process that writes: a CSV file, and which devices disagree."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

from pytest_msprobe.reports.csv_pair import WORDS, neutral
from pytest_msprobe.reports.result_file import new_result_file
from pytest_msprobe.suites.api_calls import direction_and_device
from pytest_msprobe.suites.contract import SuiteReport
from pytest_msprobe.suites.repeat.devices import Disagreement, compare_devices, listed
from pytest_msprobe.verdicts import VerdictRow

COLUMNS = ("API Name", "Direction", "Device", "Status", "Digest", "Devices", "Message")
_SHOWN = 10


class RepeatReport(SuiteReport):
    """Compares the devices as soon as all have judged an API call."""

    def __init__(self, out: Path, devices: Sequence[str], *, are_elsewhere: bool) -> None:
        """A report into the folder `out`, of a run on these devices, () for one; `are_elsewhere`: on several hosts."""
        self._out = out
        self._devices = devices
        self._alone = "with its host alone in --tx" if are_elsewhere else "with -n 1 --msprobe-devices={device}"
        self._file: TextIOWrapper | None = None
        self._open: dict[tuple[str, str], list[VerdictRow]] = {}
        self._compared = 0
        self._odd: Counter[str] = Counter()
        self._lines: list[str] = []

    def receive(self, name: str, row: VerdictRow) -> None:
        """Keep a row, with its attachment, until its call is complete."""
        self._open.setdefault((row.dump, row.call), []).append(row)

    def receive_call(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Compare the devices, and write the rows. Raises OSError."""
        whole = self._open.pop((rows[0].dump, rows[0].call))
        whole.sort(key=lambda row: row.recorded.index(row.part))
        found = {}
        for direction in dict.fromkeys(direction_and_device(row.part)[0] for row in whole):
            found[direction] = self._compare(name, direction, whole)
        if self._file is None:
            self._file = new_result_file(self._out, "repeat_result")
            csv.writer(self._file).writerow(COLUMNS)
        for row in whole:
            csv.writer(self._file).writerow([neutral(cell) for cell in _cells(name, row, found)])
        self._file.flush()

    def finish(self) -> None:
        """Close the file. Raises OSError."""
        if self._file is not None:
            self._file.close()

    def findings(self) -> Iterator[str]:
        """Which devices disagree with the others, and on what."""
        if not self._compared:
            yield (
                "results of one device: nothing was compared between devices"
                if not self._devices
                else ("no result of two devices: nothing was compared between devices")
            )
            return
        if not self._odd:
            yield f"{listed(self._devices)} agree to the bit, in all of {self._compared} results"
            return
        for device, count in self._odd.most_common():
            yield f"device {device} differs from the others in {count} of {self._compared} results"
        yield from self._lines[:_SHOWN]
        if len(self._lines) > _SHOWN:
            yield f"and {len(self._lines) - _SHOWN} more, in the file of the results"

    def files(self) -> Iterator[tuple[str, Path]]:
        """The CSV file."""
        if self._file is not None:
            yield "results", Path(self._file.name)

    def fault(self) -> str:
        """Devices that disagree: none of their items has failed, since each agrees with itself."""
        if not self._odd:
            return ""
        (first, count), *others = self._odd.most_common()
        more = f" (and {listed(sorted(device for device, _ in others))} in fewer or as many)" if others else ""
        return (
            f"the devices do not compute the same: device {first} differs in {count} of {self._compared} results"
            f"{more}; see above, and repeat the run on it alone, {self._alone.format(device=first)}"
        )

    def _compare(self, name: str, direction: str, rows: Sequence[VerdictRow]) -> Disagreement | None:
        contents = {
            device: row.attachment
            for row in rows
            for own, device in [direction_and_device(row.part)]
            if own == direction and device and row.attachment and row.attachment.get("digest")
        }
        if len(contents) < 2:
            return None
        self._compared += 1
        found = compare_devices(contents)
        if found is not None:
            self._odd.update(found.odd)
            who = (
                f"{listed(found.odd)} against {listed(found.usual)}"
                if found.usual
                else f"{listed(found.odd)} differ, without a majority"
            )
            self._lines.append(f"  {name} {direction}: {who}: {found.where}")
        return found


def _cells(name: str, row: VerdictRow, found: dict[str, Disagreement | None]) -> tuple[str, ...]:
    direction, device = direction_and_device(row.part)
    digest = (row.attachment or {}).get("digest", "")
    other = found.get(direction)
    agreement = "agrees" if device and digest else ""
    if other is not None and device in other.odd:
        agreement = f"differs: {other.where}"
    texts = [row.message, *(f"{output.label}: {output.message}" for output in row.outputs if output.message)]
    return name, direction, device, WORDS[row.status], digest, agreement, "\n".join(filter(None, texts))
