"""The suite `repeat`: every API call again and again on the same inputs, on every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msprobe_collector.dump_format import ApiName, Direction, name_fault, parse_api_name
from pytest_msprobe.engines.protocol import own_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    Placement,
    Record,
    Suite,
    SuiteError,
    SuiteReport,
    escape,
    place_in,
)
from pytest_msprobe.suites.grouping import (
    RECORD,
    api_headline,
    direction_and_device,
    estimate_cost,
    group_api_calls,
    with_call_site,
)
from pytest_msprobe.suites.repeat.options import RepeatSettings
from pytest_msprobe.suites.repeat.report import RepeatReport
from pytest_msprobe.verdicts import Figure, StepPosition, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.suites.repeat.check import RepeatCheck


#: Other batches of a call: some rows alone, both halves, all twice, all in other order, and the batch itself.
_BATCH_RUNS = 13


class RepeatSuite(Suite):
    """Runs API calls on a device, and compares their bytes between runs and between devices."""

    name = "repeat"
    title = "Repeated API calls"
    item_noun = "records of each device"
    passing = "equal"
    certainty = "proved"
    severity_figures = ("elements",)
    figures = (
        Figure("results", "Results", ".0f"),
        Figure("elements", "Elements", ".0f"),
        Figure("bits", "Bits", ".0f"),
        Figure("rows", "Rows", ".0f"),
        Figure("ulp", "ulp", ".3g"),
    )

    @classmethod
    def make(cls, context: Context) -> RepeatSuite:
        """The suite for one process of a run.

        Raises:
            SuiteError: there is no dump, or nothing that can run its calls.
        """
        if not context.dumps:
            raise SuiteError(
                "--msprobe-suite=repeat needs --msprobe-dump=PATH, the dumps whose API calls are to be run"
            )
        settings = RepeatSettings.of(context.values)
        if settings.device.engine == "recorded":
            raise SuiteError("--msprobe-device=recorded: recorded values cannot be run again; name another device")
        if context.is_writer and not context.has_other_hosts:
            missing = Engines(EngineChoice(settings.device, "auto", None)).missing_device()
            if missing:
                raise SuiteError(missing)
        return cls(context, settings)

    def __init__(self, context: Context, settings: RepeatSettings) -> None:
        super().__init__(context, settings.data_dir)
        self._settings = settings
        self._engines = Engines(EngineChoice(settings.device, "auto", None))
        self._devices: tuple[str, ...] = ()
        self._check: tuple[Group, RepeatCheck] | None = None

    def assign(self, devices: tuple[str, ...]) -> None:
        """Each of several devices judges every record."""
        self._devices = devices if len(devices) > 1 else ()

    def groups(self, file: Path) -> Iterator[Group]:
        """One per API call, with records for each device."""
        return group_api_calls(self.dump(file).record_names, self._devices)

    def device_of(self, record: Record) -> str | None:
        name = direction_and_device(record.part)[1]
        return next((device for device in self._devices if escape(device) == name), None)

    def judge(self, record: Record) -> Verdict:
        if record.part == RECORD:
            return Verdict("error", f"{record.file}: {name_fault(record.call)}; it cannot be run")
        dump = self.dump(record.file)
        verdict = self._check_of(record).run(cast("Direction", direction_and_device(record.part)[0]))
        if verdict.device and own_device():
            verdict = replace(verdict, device=f"{verdict.device} (device {own_device()})")
        if verdict.status != "error":
            return verdict
        lines = [f"tested: {verdict.device}; {self._settings.runs} runs"] if verdict.device else []
        return with_call_site(verdict, lines, dump, record.call)

    def headline(self, record: Record) -> str:
        return api_headline(record)

    def api(self, record: Record) -> ApiName | None:
        """The name that hooks get; a record without a valid name has none."""
        return None if record.part == RECORD else parse_api_name(record.call)

    def place(self, record: Record) -> StepPosition:
        """Place in the order and the Cells of the dump, on any device."""
        direction = direction_and_device(record.part)[0]
        name = record.call if record.part == RECORD else f"{record.call}.{direction}"
        return place_in(self.dump(record.file), name, f"{record.call}.forward")

    def marks(self, record: Record) -> tuple[str, ...]:
        return (direction_and_device(record.part)[0], record.call.partition(".")[0])

    def release(self, group: Group) -> None:
        self._check = None

    def cost(self, file: Path, group: Group) -> float:
        runs = self._settings.runs + self._settings.batch * _BATCH_RUNS
        return runs * estimate_cost(self.dump(file), group.call)

    def header(self) -> list[str]:
        where = f" on each of {len(self._devices)} devices" if self._devices else ""
        batches = ", and with other batches" if self._settings.batch else ""
        asked = f"every API call {self._settings.runs} times on the same inputs{where}{batches}"
        return [f"msprobe: {self._shown_files()}: {asked}"]

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return RepeatReport(self._context.out, self._devices, are_elsewhere=self._context.has_other_hosts)

    def advice_when_empty(self) -> str:
        return "the dumps hold no API call to run; collect level L1 or mix (L0 has Cells only)"

    def placement(self) -> Placement:
        settings = self._settings
        device = settings.device
        return Placement(
            target=self._engines.choice.device_target(),
            device_index=device.index,
            devices=settings.device_ids,
            workers_per_device=settings.workers_per_device,
            remote_root=settings.remote_root,
            open_engine=device.engine if device.target is None else "",
        )

    def close(self) -> None:
        self._engines.close()

    def _check_of(self, record: Record) -> RepeatCheck:
        if self._check is None or self._check[0] is not record.group:
            from pytest_msprobe.suites.repeat.check import RepeatCheck

            dump = self.dump(record.file)
            specification = self._engines.device_for(dump, runs=True)
            memory = self._settings.max_memory_bytes // self._context.sharers
            check = RepeatCheck(
                dump,
                record.call,
                self._engines.device(specification),
                specification.target or "cpu",
                replace(self._settings, max_memory_bytes=memory),
                directions=list(_directions(record)),
            )
            self._check = record.group, check
        return self._check[1]


def _directions(record: Record) -> Iterable[Direction]:
    """Directions of the record's call that this run judges on its device."""
    own = direction_and_device(record.part)[1]
    for part in record.group.parts:
        direction, device = direction_and_device(part)
        if device == own and part in (record.selected or record.group.parts):
            yield cast("Direction", direction)
