"""What the suites that run API calls on a device share: how calls are grouped, named, placed, run and explained."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from msprobe_collector.dump_format import (
    DIRECTIONS,
    ApiName,
    Direction,
    is_cell_record,
    is_compiled_record,
    is_optimizer_record,
    name_fault,
    parse_api_name,
    split_record_name,
)
from msprobe_collector.dump_format.values import FieldPath, Value, printable, tensors_in
from pytest_msprobe.engines.protocol import own_device
from pytest_msprobe.engines.selection import Engines
from pytest_msprobe.suites.contract import Group, ItemRecord, Suite, WorkerPlacement, escape, place_in
from pytest_msprobe.suites.options import DeviceOptions
from pytest_msprobe.verdicts import StepPosition, Verdict

#: Estimated cost from which on the files of a call are worth to be read ahead.
READ_AHEAD_FROM = 1 << 18
#: Part of the node id of a record that has no valid name.
RECORD = "record"


def group_api_calls(names: Iterable[str], devices: Sequence[str] = ()) -> Iterator[Group]:
    """One group per API call, in the order of their first records, then one per record without a valid name.

    Args:
        names: of the records; those of Cells, optimizers and compiled graphs are left out.
        devices: each of which has records of its own, `forward-device3`; () for records of no particular one.
    """
    calls, invalid = defaultdict[str, list[Direction]](list), []
    for name in names:
        if is_cell_record(name) or is_optimizer_record(name) or is_compiled_record(name):
            continue
        if (parts_of_name := split_record_name(name)) is None:
            invalid.append(name)
        else:
            calls[parts_of_name[0]].append(parts_of_name[1])
    endings = [f"-device{escape(device)}" for device in devices] or [""]
    for call, directions in calls.items():
        parts = [part for part in DIRECTIONS if part in directions]
        yield Group(escape(call), call, tuple(f"{part}{ending}" for ending in endings for part in parts))
    for name in invalid:
        yield Group(escape(name), name, (RECORD,))


def direction_and_device(part: str) -> tuple[str, str]:
    """(direction, device) of a part: `("forward", "3")` of `forward-device3`; "" for no device."""
    direction, _, device = part.partition("-device")
    return direction, device


class ApiCallSuite(Suite):
    """Judges the directions of API calls, which share inputs and forward.

    Attributes:
        done: what is done to a call, for what has no name of one.
        settings: what the run was asked to do.
        engines: who executes.
        compares_devices: see `WorkerPlacement`.
    """

    done: ClassVar[str]
    compares_devices: ClassVar[bool] = False
    settings: DeviceOptions
    engines: Engines
    _check: tuple[Group, Any] | None = None

    @abstractmethod
    def make_check(self, record: ItemRecord) -> Any:
        """Return an object with a method `run(direction)`, which gives verdicts on the call of the record."""

    @abstractmethod
    def tested(self, verdict: Verdict) -> str:
        """Return what was tested, for the text of a failure on a device."""

    def call_of(self, group: Group) -> str:
        """Return the name of the recorded call that a group runs."""
        return group.call

    def judge(self, record: ItemRecord) -> Verdict:
        """Run one direction of the call; a failure says in full what differs and which line made the call."""
        if record.part == RECORD:
            return Verdict("error", f"{record.file}: {name_fault(record.call)}; it cannot be {self.done}")
        if self._check is None or self._check[0] is not record.group:
            self.release(record.group)
            self._check = record.group, self.make_check(record)
        direction = cast("Direction", direction_and_device(record.part)[0])
        verdict: Verdict = self._check[1].run(direction)
        if verdict.device and own_device():
            verdict = replace(verdict, device=f"{verdict.device} (device {own_device()})")
        if verdict.status != "error":
            return verdict
        texts = [verdict.explanation or printable(verdict.message)]
        if verdict.device:
            texts.append(self.tested(verdict))
        properties = verdict.properties
        frame = self.dump(record.file).stacks.user_frame(f"{self.call_of(record.group)}.forward")
        if frame is not None:
            texts.append(frame.told)
            properties = (*properties, ("called_from", f"{frame.file}:{frame.line}"))
        return replace(verdict, explanation="\n\n".join(texts), properties=properties)

    def read_ahead(self, record: ItemRecord) -> None:
        """Have the tensors of a large call read while the one before it is judged.

        Raises:
            DumpError: a record or a file cannot be read.
        """
        dump, call = self.dump(record.file), self.call_of(record.group)
        if not dump.holds_real_data or record.part == RECORD or self.cost(record.file, record.group) < READ_AHEAD_FROM:
            return
        forward, backward = dump.forward(call), dump.backward(call)
        parts: list[Value] = [] if forward is None else [forward.arguments, forward.keywords, forward.outputs]
        parts += [] if backward is None else [backward.incoming, backward.outgoing]
        for tensor in tensors_in(tuple(parts)):
            dump.tensors.read_ahead(tensor, FieldPath(str(dump.path), call, tensor.data_name or ""))

    def release(self, group: Group) -> None:
        """Free the tensors of an API call."""
        self._check = None

    def headline(self, record: ItemRecord) -> str:
        """Name the call: `Mint.matmul, call 2, forward`."""
        if record.part == RECORD:
            return f"record {record.call}"
        api = parse_api_name(record.call)
        return f"{api.type}.{api.api}, call {api.number}, {record.part}"

    def api(self, record: ItemRecord) -> ApiName | None:
        """Return the name that hooks get; a record without a valid name has none."""
        return None if record.part == RECORD else parse_api_name(self.call_of(record.group))

    def place(self, record: ItemRecord) -> StepPosition:
        """Return the place in the order and the Cells of the dump, on any device."""
        call = self.call_of(record.group)
        name = call if record.part == RECORD else f"{call}.{direction_and_device(record.part)[0]}"
        return place_in(self.dump(record.file), name, f"{call}.forward")

    def marks(self, record: ItemRecord) -> tuple[str, ...]:
        """Return direction and API type."""
        return direction_and_device(record.part)[0], record.call.partition(".")[0]

    def placement(self) -> WorkerPlacement:
        """Ask for workers on devices, also of other hosts."""
        settings, device = self.settings, self.settings.device
        return WorkerPlacement(
            target=self.engines.choice.device_target(),
            device_index=device.index,
            devices=settings.device_ids,
            workers_per_device=settings.workers_per_device,
            remote_root=settings.remote_root,
            open_engine=device.engine if device.target is None else "",
            compares_devices=self.compares_devices,
        )

    def close(self) -> None:
        """End child processes."""
        self.engines.close()
