"""The suite `repeat`: every API call again and again on the same inputs, on every device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msprobe_collector.dump_format import Direction
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.suites.api_calls import ApiCallSuite, direction_and_device, group_api_calls
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    ItemRecord,
    SuiteError,
    SuiteReport,
    escape,
)
from pytest_msprobe.suites.grouping import estimate_cost
from pytest_msprobe.suites.repeat import RepeatSettings
from pytest_msprobe.suites.repeat.report import RepeatReport
from pytest_msprobe.verdicts import Figure, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.suites.repeat.check import RepeatCheck


class RepeatSuite(ApiCallSuite):
    """Runs API calls on a device, and compares their bytes between runs and between devices."""

    settings: RepeatSettings
    done = "run"
    name = "repeat"
    title = "Repeated API calls"
    item_noun = "records of each device"
    passing = "repeats"
    certainty = "proved"
    compares_devices = True
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
        self.settings = settings
        self.engines = Engines(EngineChoice(settings.device, "auto", None))
        self._devices: tuple[str, ...] = ()

    def assign(self, devices: tuple[str, ...]) -> None:
        """Each of several devices judges every record."""
        self._devices = devices if len(devices) > 1 else ()

    def groups(self, file: Path) -> Iterator[Group]:
        """One per API call, with records for each device."""
        return group_api_calls(self.dump(file).record_names, self._devices)

    def device_of(self, record: ItemRecord) -> str | None:
        name = direction_and_device(record.part)[1]
        return next((device for device in self._devices if escape(device) == name), None)

    def make_check(self, record: ItemRecord) -> RepeatCheck:
        from pytest_msprobe.suites.repeat.check import RepeatCheck

        dump = self.dump(record.file)
        specification = self.engines.device_for(dump, runs=True)
        memory = self.settings.max_memory_bytes // self._context.sharers
        return RepeatCheck(
            dump,
            record.call,
            self.engines.device(specification),
            specification.target or "cpu",
            replace(self.settings, max_memory_bytes=memory),
            directions=list(_directions(record)),
        )

    def tested(self, verdict: Verdict) -> str:
        return f"tested: {verdict.device}; {self.settings.runs} runs"

    def cost(self, file: Path, group: Group) -> float:
        # Other batches of a call: some rows alone, both halves, all twice, all in other order, and
        # the batch itself.
        runs = self.settings.runs + self.settings.batch * 13
        return runs * estimate_cost(self.dump(file), group.call)

    def header(self) -> list[str]:
        where = f" on each of {len(self._devices)} devices" if self._devices else ""
        batches = ", and with other batches" if self.settings.batch else ""
        asked = f"every API call {self.settings.runs} times on the same inputs{where}{batches}"
        return [f"msprobe: {self._shown_files()}: {asked}"]

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return RepeatReport(self._context.out, self._devices, are_elsewhere=self._context.has_other_hosts)

    def advice_when_empty(self) -> str:
        return "the dumps hold no API call to run; collect level L1 or mix (L0 has Cells only)"


def _directions(record: ItemRecord) -> Iterable[Direction]:
    """Directions of the record's call that this run judges on its device."""
    device_of_record = direction_and_device(record.part)[1]
    for part in record.group.parts:
        direction, device = direction_and_device(part)
        if device == device_of_record and part in (record.selected or record.group.parts):
            yield cast("Direction", direction)
