"""The pre-check as a suite: every API call on the device against the float64 benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msprobe_collector.dump_format import (
    DIRECTIONS,
    ApiName,
    Direction,
    Dump,
    DumpError,
    Frame,
    name_fault,
    parse_api_name,
)
from pytest_msprobe.cases.cost import estimate_cost
from pytest_msprobe.cases.edge_cases import EDGE_CASES
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.engines.specification import own_device
from pytest_msprobe.suites.api_calls import RECORD, api_headline, group_api_calls, with_call_site
from pytest_msprobe.suites.contract import Context, Group, Placement, Record, Suite, SuiteError, SuiteReport
from pytest_msprobe.suites.places import place_in
from pytest_msprobe.suites.precheck.edge_items import edge_case_groups, recorded_call
from pytest_msprobe.suites.precheck.evidence_folders import EvidenceFolders
from pytest_msprobe.suites.precheck.header import NO_DEVICE, header_lines
from pytest_msprobe.suites.precheck.hooks import Hooks
from pytest_msprobe.suites.precheck.options import OPTIONS, PrecheckSettings
from pytest_msprobe.suites.precheck.report import PrecheckReport
from pytest_msprobe.suites.precheck.standard_choice import DEFAULT, STANDARD_BOUNDS, StandardChoice, matches
from pytest_msprobe.verdicts import Figure, Place, Verdict

if TYPE_CHECKING:
    from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings


class PrecheckSuite(Suite):
    """Settings, engines and the dumps that were read.

    Attributes:
        settings: what the run was asked to do.
        engines: who executes.
    """

    name = "precheck"
    title = "API accuracy pre-check"
    noun = "API calls by direction"
    options = OPTIONS
    figures = (
        Figure("cosine", "Cosine", ".9f", is_low_bad=True),
        Figure("max_abs", "Max abs", ".3g"),
        Figure("ratio", "Error/tol", ".3g"),
        Figure("max_rel", "Max rel", ".3g"),
        Figure("max_ulp", "Max ULP", ".3g"),
    )

    def __init__(self, context: Context) -> None:
        self._context = context
        self.settings = PrecheckSettings.of(context.values, context.out)
        self._evidence = EvidenceFolders(context, self.settings)
        settings = self.settings
        self.engines = Engines(EngineChoice(settings.device, settings.bench, settings.bench_python))
        self._dumps: dict[Path, Dump] = {}
        self._check: tuple[Group, CallCheck] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The dumps."""
        return self._context.dumps

    def dump(self, path: Path) -> Dump:
        """The dump at `path`, read once. Raises DumpError."""
        if path not in self._dumps:
            self._dumps[path] = Dump(path, self._context.values["data_dir"])
        return self._dumps[path]

    def groups(self, file: Path) -> Iterator[Group]:
        """One per API call, in the order of their first records, per record without a valid name, and per edge case."""
        found = [*group_api_calls(self.dump(file).record_names)]
        yield from found
        if self._context.values["edge_cases"]:
            calls = [group.call for group in found if group.parts != (RECORD,)]
            yield from edge_case_groups(self.dump(file), calls)

    def judge(self, record: Record) -> Verdict:
        """The verdict on one direction of an API call. Both share inputs and forward."""
        if record.part == RECORD:
            return Verdict("error", f"{record.file}: {name_fault(record.call)}; it cannot be checked")
        verdict = self._check_of(record).run(cast("Direction", record.part))
        if verdict.device and own_device():
            verdict = replace(verdict, device=f"{verdict.device} (device {own_device()})")
        return self._explained(record, verdict) if verdict.status == "error" else verdict

    def headline(self, record: Record) -> str:
        """`Mint.matmul, call 2, forward`."""
        edge = record.group.payload
        if edge is None:
            return api_headline(record)
        return f"{parse_api_name(edge.call)}, {record.part}, edge case {edge.name}: {EDGE_CASES[edge.name]}"

    def api(self, record: Record) -> ApiName | None:
        """The name that hooks get; a record without a valid name has none."""
        return None if record.part == RECORD else parse_api_name(recorded_call(record.group))

    def place(self, record: Record) -> Place:
        """Place in the order and the Cells of the dump; an edge case stands where the call is that it is made from."""
        call = recorded_call(record.group)
        name = call if record.part == RECORD else f"{call}.{record.part}"
        return place_in(self.dump(record.file), name, f"{call}.forward")

    def release(self, group: Group) -> None:
        """Free the tensors of an API call."""
        if self._check is not None:
            self._check[1].close()
            self._check = None

    def cost(self, file: Path, group: Group) -> float:
        """Estimated from the shapes of its records."""
        return estimate_cost(self.dump(file), recorded_call(group))

    def frames(self, record: Record) -> Sequence[Frame]:
        """Call stack of the forward."""
        return self.dump(record.file).stacks.frames(f"{recorded_call(record.group)}.forward")

    def header(self) -> list[str]:
        """A line each on dumps, device, benchmark and chosen standards."""
        return header_lines(self, self._context.config.rootpath)

    def warnings(self) -> Iterator[str]:
        """Patterns of `standards: apis:` that match no API call: most likely misspelt."""
        choice = self.settings.standards
        apis = (
            [parse_api_name(recorded_call(group)) for group in self._all_groups() if group.parts != (RECORD,)]
            if choice.apis
            else []
        )
        for pattern, named in choice.apis:
            if not any(matches(pattern, api) for api in apis):
                yield f"{choice.source}: standards: apis: {pattern!r}: {named}: matches no API call of the dumps"

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        """The CSV pair."""
        return PrecheckReport(self._context.out, continued, self._untested)

    def _untested(self) -> str:
        """Why no verdict says anything of a device; "" when one does."""
        if self._context.has_other_hosts:
            return ""  # their devices are not known here
        dumps = [self.dump(path) for path in self.files if self._is_readable(path)]
        untested = [dump for dump in dumps if self.engines.tests_no_device(dump)]
        return f"no device was tested: {NO_DEVICE}" if untested and len(untested) == len(dumps) else ""

    def _is_readable(self, path: Path) -> bool:
        try:
            self.dump(path)
        except DumpError:
            return False  # the collection reports it
        return True

    def advice_when_empty(self) -> str:
        """What an L0 dump lacks."""
        return "the dumps hold no API call to check; collect level L1 or mix (L0 has Cells only)"

    def plugins(self) -> Iterable[tuple[str, object]]:
        """Plugins that say what the folders of error data and reproducers hold."""
        return self._evidence.plugins()

    def placement(self) -> Placement:
        """Workers on devices, also of other hosts."""
        settings = self.settings
        device = settings.device
        return Placement(
            target=self.engines.choice.device_target(),
            device_index=device.index,
            devices=settings.devices,
            workers_per_device=settings.workers_per_device,
            remote_root=settings.remote_root,
            evidence=self._evidence.paths,
            open_engine=device.engine if device.target is None else "",
        )

    def close(self) -> None:
        """End child processes."""
        self.engines.close()

    def _all_groups(self) -> Iterator[Group]:
        for path in self.files:
            try:
                yield from self.groups(path)
            except DumpError:
                continue  # the collection reports it

    def _check_of(self, record: Record) -> CallCheck:
        if self._check is None or self._check[0] is not record.group:
            from pytest_msprobe.suites.precheck.check import CallCheck

            self.release(record.group)
            directions = [part for part in DIRECTIONS if part in (record.selected or record.group.parts)]
            settings, edge = self._check_settings, record.group.payload
            if edge is not None:
                settings = replace(settings, edge_case=edge.name)
            call = recorded_call(record.group)
            check = CallCheck(self.dump(record.file), call, self.engines, settings, directions=directions)
            self._check = record.group, check
        return self._check[1]

    def _explained(self, record: Record, verdict: Verdict) -> Verdict:
        """`verdict` with all that a failure says: what differs, what was tested, which line made the call."""
        lines = []
        if verdict.device:
            names = dict.fromkeys(output.standard for output in verdict.outputs if output.standard)
            standard = f"; standard: {', '.join(names)}" if names else ""
            lines.append(f"tested: {verdict.device}; benchmark: {verdict.bench}{standard}")
        return with_call_site(verdict, lines, self.dump(record.file), recorded_call(record.group))

    @cached_property
    def _check_settings(self) -> CheckSettings:
        """The part of the settings that checking a call needs. Imports NumPy."""
        from pytest_msprobe.evidence.error_picture import ErrorPictures
        from pytest_msprobe.evidence.error_plot import ErrorPlotter
        from pytest_msprobe.suites.precheck.check import CheckSettings
        from pytest_msprobe.suites.precheck.standard_choice import NamedStandard
        from pytest_msprobe.suites.precheck.standards import Standards

        settings, config = self.settings, self._context.config
        has_rows = any(self._context.values.get(name) is not None for name in ("page", "jsonl", "resume"))
        return CheckSettings(
            seed=settings.seed,
            max_memory_bytes=settings.max_memory_bytes // self._context.sharers,
            standard=Standards(
                NamedStandard(settings.standard),
                settings.standards,
                cosine=settings.cosine,
                max_abs=settings.max_abs,
                strict=settings.numeric.strict,
            ),
            numeric=settings.numeric,
            hooks=Hooks(config),
            plotter=ErrorPlotter.if_possible() if config.getoption("htmlpath", None) else None,
            pictures=ErrorPictures() if has_rows else None,
            keeper=self._evidence.keeper(self.files, settings.seed),
        )


SUITE = PrecheckSuite


def make(context: Context) -> PrecheckSuite:
    """The suite for one process of a run.

    Raises:
        SuiteError: an engine that it needs is missing, or an option on the command line has no effect.
    """
    suite = PrecheckSuite(context)
    if context.is_writer:
        if context.values["edge_cases"] and context.values["device"].engine == "recorded":
            raise SuiteError("--msprobe-edge-cases: nobody has recorded them; name a device in --msprobe-device")
        _refuse_unused_limits(context)
        missing = "" if context.has_other_hosts else suite.engines.missing()
        if missing:
            raise SuiteError(missing)
    return suite


def _refuse_unused_limits(context: Context) -> None:
    """Refuse limits of the default standard where nothing is judged by it; ini and YAML may serve other runs."""
    choice: StandardChoice = context.values["standards"]
    chosen = {context.values["standard"]}
    chosen |= {named.name for named in (*choice.dtypes.values(), *(named for _, named in choice.apis))}
    for name in STANDARD_BOUNDS[DEFAULT]:
        if DEFAULT not in chosen and context.config.getoption(f"msprobe_{name}") is not None:
            raise SuiteError(
                f"--msprobe-{name.replace('_', '-')}: is a limit of the standard {DEFAULT}, which judges nothing in "
                f"this run; leave it out, or give the limits of {context.values['standard']} in --msprobe-config "
                f"under the key 'standards'"
            )
