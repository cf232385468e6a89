"""The pre-check as a suite: every API call on the device against the float64 benchmark.

- The lines above a run: what is checked, on what, against what, and how much of it the benchmark covers.
- The answer: how sure each failure is, and what a pass shows.
- What a pre-check leaves behind: the CSV pair.
- Items for edge cases: those of the first recorded call of every API of a dump.
- The folders for what failing API calls leave behind: reserved by the process that writes, filled by all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from msprobe_collector.dump_format import (
    DIRECTIONS,
    Direction,
    Dump,
    DumpError,
    Frame,
    is_cell_record,
    is_compiled_record,
    is_optimizer_record,
    parse_api_name,
    split_record_name,
)
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.answers import CONFIDENCES, Answer, Finding, Gap, NextStep, RunRows, with_open
from pytest_msprobe.answers.from_rows import call_of
from pytest_msprobe.apis.fact_table import random_api, reason_not_judged
from pytest_msprobe.cases.edge_cases import EDGE_CASES, WITH_GRADIENTS, edge_cases_of
from pytest_msprobe.engines.protocol import DeviceSpecification
from pytest_msprobe.engines.selection import NO_TORCH, EngineChoice, Engines
from pytest_msprobe.manifests.alone import default_manifest, digits
from pytest_msprobe.numerics.expected import Absolute, Times
from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.suites.api_calls import RECORD, ApiCallSuite, group_api_calls
from pytest_msprobe.suites.contract import (
    Context,
    Group,
    ItemRecord,
    RowSummary,
    SuiteError,
    SuiteReport,
    WorkerPlacement,
    escape,
    file_id,
    refuse_unused,
)
from pytest_msprobe.suites.grouping import estimate_cost
from pytest_msprobe.suites.precheck.hooks import Hooks
from pytest_msprobe.suites.precheck.options import (
    DEFAULT,
    STANDARD_BOUNDS,
    STANDARDS,
    NamedStandard,
    PrecheckSettings,
    matches,
)
from pytest_msprobe.support import is_installed, name_of, version_of
from pytest_msprobe.verdicts import EXPLAINED, Figure, Verdict, VerdictRow

if TYPE_CHECKING:
    from pytest_msprobe.evidence import FailureKeeper
    from pytest_msprobe.suites.precheck.check import CallCheck, CheckSettings


#: The standard that passes what rounding explains, and nothing else; and that of indices, which have no rounding.
OF_INDICES = "selected-values"
SHOWING_ROUNDING = ("backward-error", OF_INDICES)
_RECORDED = "recorded values"
#: Without any of these a value was not compared element by element: its shape or its kind is another one.
_MEASURED = ("cosine", "max_abs", "max_rel", "max_ulp", "ratio")


def _with_confidence(finding: Finding, *, is_recorded: bool) -> Finding:
    """Proved where the error is beyond what rounding can make by a margin, or an exact result is another one.

    Gradients are no more than possible where the dump has recorded some in the places of others (`is_recorded` False).
    """
    if finding.kind == "error":
        return finding
    ratio, rounding = finding.figures.get("ratio"), finding.figures.get("rounding")
    excess = finding.figures.get("excess", ratio)
    is_gradient = "backward" in finding.place.directions
    if (isinstance(excess, float) and excess < Times.EXCESS) or (not is_recorded and is_gradient):
        return structs.replace(finding, confidence="possible")
    is_exact = "max_abs" in finding.figures and not rounding and ratio is None
    is_beyond = rounding not in (None, EXPLAINED) and isinstance(ratio, float)
    return structs.replace(finding, confidence="proved" if is_exact or is_beyond else "likely")


def _next(rows: RunRows, findings: list[Finding]) -> list[NextStep]:
    call = call_of(findings[0].place.record)
    if not call or not rows.facts.arguments:
        return []
    steps = [NextStep("error data", rows.facts.command("--msprobe-error-data=error_data", keyword=call))]
    return [*steps, *rows.next_steps(findings)]


class PrecheckSummary(RowSummary):
    """The answer of finished rows of a pre-check."""

    def __init__(self, holds_tensors: Callable[[], bool] = bool) -> None:
        """Sum up rows; `holds_tensors` says whether a dump has the values of the training, where that is known."""
        self._holds_tensors = holds_tensors
        self._on_cpu: dict[str, str] = {}

    def add(self, row: VerdictRow) -> None:
        """Note the APIs on which an accelerator and the CPU do not agree."""
        if why := dict(row.properties).get("bench_on_cpu"):
            self._on_cpu[row.api] = str(why)

    def lines(self) -> Iterable[str]:
        """Say which APIs have the CPU as benchmark in place of the accelerator, and why."""
        return [f"benchmark: {api} is computed on the CPU: {why}" for api, why in sorted(self._on_cpu.items())]

    def answer(self, rows: RunRows) -> Answer:
        """What the rows of a pre-check amount to, the surest failure first."""
        causes = rows.findings()
        # Else the dump holds gradients of other places than those of the call.
        is_recorded = not any(
            "backward" in cause.place.directions and cause.kind == "wrong" and not cause.figures.keys() & set(_MEASURED)
            for cause in causes
        )
        findings = [_with_confidence(cause, is_recorded=is_recorded) for cause in causes]
        findings.sort(key=lambda finding: CONFIDENCES.index(finding.confidence))
        # What must be equal is judged by no standard's bounds, and has none.
        standards = {name.partition(" ")[0] for name in rows.counts.standards} - {"", OF_INDICES}
        kind = "standard" if standards else "limits"
        if standards == {SHOWING_ROUNDING[0]}:
            kind = "rounding"
        measure = rows.measure(kind, names=tuple(sorted(standards)), operands=tuple(sorted(rows.counts.operands)))
        answer = rows.made(findings, measure=measure, next_steps=_next(rows, findings) if findings else None)
        if answer.outcome == "right" and not any(_RECORDED in device for device in rows.counts.devices):
            tested = " and ".join(sorted(rows.counts.devices))
            answer = with_open(answer, [Gap(kind="not recorded", reason=tested)])
            recorded = NextStep("recorded", rows.facts.command("--msprobe-device=recorded"))
            way = recorded if self._holds_tensors() and rows.facts.arguments else NextStep("tensors")
            return structs.replace(answer, next=(*answer.next, way))
        return answer


_HALF_DTYPES = ("Float16", "BFloat16")


#: Why a run of PyTorch statistics on a machine without a device says nothing, and what does.
NO_DEVICE = (
    "PyTorch on CPU is compared with itself, since they hold statistics only; choose a device with "
    "--msprobe-device, or collect with task tensor to judge the recorded values"
)


def header_lines(suite: PrecheckSuite, root: Path) -> list[str]:
    """Say what is tested against what, and by which standard. Reads the names of the records, runs nothing."""
    calls: dict[tuple[Path, str], str] = {}
    half: set[tuple[Path, str]] = set()
    left_out: Counter[str] = Counter()
    devices: Counter[DeviceSpecification] = Counter()
    untested = drawn = 0
    for dump in suite.dumps():
        drawn += not dump.holds_real_data
        devices[suite.engines.device_for(dump)] += 1
        untested += suite.engines.tests_no_device(dump)
        for record in dump.record_names:
            parts = split_record_name(record)
            if is_cell_record(record):
                left_out["Cell records"] += 1
            elif is_optimizer_record(record):
                left_out["optimizer records"] += 1
            elif is_compiled_record(record):
                left_out["compiled records"] += 1
            elif parts is not None:
                calls[dump.path, parts[0]] = dump.framework
                if dump.holds_half(record):
                    half.add((dump.path, parts[0]))
    files = suite.files
    shown = file_id(files[0], root) if len(files) == 1 else f"{len(files)} dumps"
    tested = f", {', '.join(map(_device_text, devices))} against {_benchmark_text(suite, calls)}" if calls else ""
    others = [counted(count, noun) for noun, count in left_out.items()]
    verb = "is" if left_out.total() == 1 else "are"
    remainder = f"; {' and '.join(others)} {verb} left to the other suites" if others else ""
    lines = [f"msprobe: {shown}: {counted(len(calls), 'API calls')}{tested}{remainder}"]
    if suite.engines.choice.bench == "auto" and not is_installed("torch"):
        lines.append(f"msprobe: {NO_TORCH}")
    if drawn:
        which = "the dump holds" if len(files) == 1 else f"{drawn} of {len(files)} dumps hold"
        lines.append(f"msprobe: inputs: drawn at random in the recorded ranges, since {which} statistics only")
    lines += [
        f"msprobe: {_device_text(device)} computes by default with {few}; see --msprobe-hf32"
        for device in devices
        if device.engine != "recorded" and (few := digits(default_manifest(str(device))))
    ]
    if untested:
        lines.append(f"msprobe: no device was tested in {untested} of {len(files)} dumps: {NO_DEVICE}")
    return [*lines, *_standard_lines(suite), *_half_lines(suite, len(half), len(calls))]


def _standard_lines(suite: PrecheckSuite) -> list[str]:
    """The rule for verdicts, where it is not the default one for all."""
    settings = suite.settings
    chosen = settings.standards
    exceptions = list(starmap("{}: {}".format, chosen.named))
    if settings.standard == STANDARDS[0] and not exceptions:
        return []
    default = str(NamedStandard(settings.standard, chosen.bounds.get(settings.standard, ())))
    return [f"msprobe: standard: {'; '.join([default, *exceptions])}"]


def _half_lines(suite: PrecheckSuite, half: int, calls: int) -> list[str]:
    """A warning where fixed limits judge dtypes that are coarser than these limits."""
    settings = suite.settings
    # The rates of false alarms in `_half_lines` were measured with this max_abs, on kernels with float32 inside.
    is_default = settings.standard == DEFAULT and settings.max_abs <= Absolute.MAX_ABS
    if not half or not is_default or any(dtype in settings.standards.dtypes for dtype in _HALF_DTYPES):
        return []
    which = f"{half} of {counted(calls, 'API calls')} {'holds' if half == 1 else 'hold'}"
    return [
        f"msprobe: {which} float16 or bfloat16: there the default standard fails 32 to "
        "47 % of good records; choose --msprobe-standard=backward-error, or for good in the ini file "
        "`msprobe_standard = backward-error`"
    ]


def _device_text(device: DeviceSpecification) -> str:
    if device.engine == "recorded":
        return "recorded values"
    target = {"cpu": "CPU", "ascend": "Ascend", "cuda": "CUDA", "npu": "Ascend (torch_npu)"}[device.target or "cpu"]
    index = "" if device.index is None else f":{device.index}"
    return f"{name_of(device.engine)} {version_of(device.engine)} on {target}{index}"


def _benchmark_text(suite: PrecheckSuite, calls: dict[tuple[Path, str], str]) -> str:
    """Name the engines that give a benchmark, and for how many calls where one does not for all."""
    covered: Counter[str] = Counter()
    for (_, name), framework in calls.items():
        engine = suite.engines.benchmark_for(parse_api_name(name), framework)
        if engine is not None:
            covered[engine.name] += 1
    where = {"torch": "CUDA" if ":" in suite.engines.choice.bench else "CPU", "mindspore": "CPU"}
    parts = []
    for name, count in covered.items():
        reach = f" for {count}" if count < len(calls) else ""
        parts.append(f"{name_of(name)} {version_of(name)} {where[name]} float64{reach}")
    return ", ".join(parts) or "no benchmark"


class PrecheckReport(SuiteReport):
    """Writes the rows of an API call as soon as it is done."""

    def __init__(
        self,
        out: Path,
        continued: tuple[Path, Path] | None,
        untested: Callable[[], str],
        holds_tensors: Callable[[], bool],
    ) -> None:
        """A new pair in `out`, or the one that is `continued`: its (details, result); `untested` as the method."""
        self.summary = PrecheckSummary(holds_tensors)
        self._pair = CsvPair(out, continued)
        self._untested = untested

    def untested(self) -> str:
        """See `SuiteReport.untested`: PyTorch on CPU may have been compared with itself."""
        return self._untested()

    def receive_call(self, name: str, rows: Sequence[VerdictRow]) -> None:
        """Write them."""
        self._pair.write(name, rows)

    def finish(self) -> None:
        """Close both files."""
        self._pair.close()

    def resumable(self) -> Path | None:
        """The result CSV."""
        return self._pair.result

    def files(self) -> Iterable[tuple[str, Path]]:
        """The pair, once there is a row."""
        if self._pair.result is not None and self._pair.details is not None:
            yield "results", self._pair.result
            yield "details", self._pair.details


class EdgeCase(NamedTuple):
    """The payload of a group.

    Attributes:
        call: name of the recorded call that it is made from.
        name: a key of `EDGE_CASES`.
    """

    call: str
    name: str


def edge_case_groups(dump: Dump, calls: Iterable[str]) -> Iterator[Group]:
    """One group for each edge case, called `Mint.matmul.0-empty`; random APIs have none, nor have those not judged.

    A recorded call has no "-" behind its number, so that no other group has such a name.
    """
    apis = set()
    for call in calls:
        api = parse_api_name(call)
        if (api.type, api.api) in apis:
            continue
        if reason_not_judged(api, dump.framework) is not None or random_api(api, dump.framework) is not None:
            continue
        try:
            record = dump.forward(call)
        except DumpError:
            continue  # its own item says so
        if record is None or record.arguments is None:
            continue
        apis.add((api.type, api.api))
        directions = DIRECTIONS if f"{call}.backward" in dump else DIRECTIONS[:1]
        for name in edge_cases_of(record):
            parts = directions if name in WITH_GRADIENTS else DIRECTIONS[:1]
            yield Group(escape(f"{call}-{name}"), f"{call}-{name}", parts, EdgeCase(call, name))


_ERROR_DATA, _REPRODUCERS = "error data", "reproducers"


class EvidenceFolders:
    """Folders of one run for the evidence of failing calls."""

    def __init__(self, context: Context, settings: PrecheckSettings) -> None:
        self._context = context
        self._settings = settings

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Paths by what the folders hold; reserved when first asked, or, in a worker, as the writing process said.

        Raises:
            pytest.UsageError: a folder cannot be made.
        """
        if not self._context.is_writer:
            return {kind: Path(path) for kind, path in self._context.evidence.items()}
        settings = self._settings
        asked = (
            (_ERROR_DATA, settings.error_data_folder(self._context.out), "--msprobe-error-data"),
            (_REPRODUCERS, settings.reproducers, "--msprobe-reproducers"),
        )
        if not any(path for _, path, _ in asked):
            return {}
        from pytest_msprobe.evidence import reserve

        return {kind: reserve(path, option) for kind, path, option in asked if path is not None}

    def plugins(self) -> Iterator[tuple[str, object]]:
        """Plugins that say at the end what the folders hold, by name."""
        if self.paths:
            from pytest_msprobe.evidence import EvidenceFolder, EvidencePlugin

            limit = self._settings.error_data_limit_bytes
            folders = {kind: EvidenceFolder(path, limit) for kind, path in self.paths.items()}
            yield "msprobe-evidence", EvidencePlugin(folders)

    def keeper(self, dumps: Sequence[Path], seed: int) -> FailureKeeper | None:
        """The object that keeps what failing calls computed; None when nothing of it was asked for."""
        if not self.paths:
            return None
        from pytest_msprobe.evidence import EvidenceFolder, EvidenceWriter, FailureKeeper
        from pytest_msprobe.evidence.error_data import ErrorData
        from pytest_msprobe.evidence.reproducers import Reproducers

        makers: dict[str, Callable[[EvidenceFolder, Sequence[Path]], EvidenceWriter]] = {
            _ERROR_DATA: ErrorData,
            _REPRODUCERS: Reproducers,
        }
        limit = self._settings.error_data_limit_bytes
        writers = [makers[kind](EvidenceFolder(path, limit), dumps) for kind, path in self.paths.items()]
        return FailureKeeper(tuple(writers), seed)


class _NoDevice:
    """Stands for the check of a call of which it is known before that it would test no device."""

    def run(self, direction: Direction) -> Verdict:
        """Skip it."""
        return Verdict("skip", NO_DEVICE)

    def close(self) -> None:
        """Release nothing."""


class PrecheckSuite(ApiCallSuite):
    """Checks API calls, and edge cases made from them."""

    settings: PrecheckSettings
    done = "checked"
    name = "precheck"
    title = "API accuracy pre-check"
    figures = (
        Figure("cosine", "Cosine", ".9f", is_low_bad=True),
        Figure("max_abs", "Max abs", ".3g"),
        Figure("ratio", "Error/tol", ".3g"),
        Figure("max_rel", "Max rel", ".3g"),
        Figure("max_ulp", "Max ULP", ".3g"),
    )
    passing = "limits"
    summary = PrecheckSummary

    @classmethod
    def make(cls, context: Context) -> PrecheckSuite:
        """The suite for one process of a run.

        Raises:
            SuiteError: an engine that it needs is missing, or an option on the command line has no effect.
        """
        suite = cls(context)
        if context.is_writer:
            if suite.settings.edge_cases and suite.settings.device.engine == "recorded":
                raise SuiteError("--msprobe-edge-cases: nobody has recorded them; name a device in --msprobe-device")
            _refuse_unused_options(context, suite.settings)
            if not context.has_other_hosts and (missing := suite.engines.missing()):
                raise SuiteError(missing)
        return suite

    def __init__(self, context: Context) -> None:
        self.settings = PrecheckSettings.of(context.values)
        super().__init__(context, self.settings.data_dir)
        self._evidence = EvidenceFolders(context, self.settings)
        self._without_device: dict[Path, bool] = {}
        settings = self.settings
        self.engines = Engines(EngineChoice(settings.device, settings.bench, settings.bench_python))

    def groups(self, file: Path) -> Iterator[Group]:
        """One per API call, in the order of their first records, per record without a valid name, and per edge case."""
        groups = [*group_api_calls(self.dump(file).record_names)]
        yield from groups
        if self.settings.edge_cases:
            calls = [group.call for group in groups if group.parts != (RECORD,)]
            yield from edge_case_groups(self.dump(file), calls)

    def make_check(self, record: ItemRecord) -> CallCheck | _NoDevice:
        """The check of an API call, or of an edge case made from one."""
        if record.file not in self._without_device:
            self._without_device[record.file] = self.engines.tests_no_device(self.dump(record.file))
        if self._without_device[record.file]:
            return _NoDevice()
        from pytest_msprobe.suites.precheck.check import CallCheck

        directions = [part for part in DIRECTIONS if part in (record.selected or record.group.parts)]
        settings, edge = self._check_settings, record.group.payload
        if edge is not None:
            settings = replace(settings, edge_case=edge.name)
        dump = self.dump(record.file)
        return CallCheck(dump, self.call_of(record.group), self.engines, settings, directions=directions)

    def tested(self, verdict: Verdict) -> str:
        """What was tested against what, and by which standard."""
        names = dict.fromkeys(output.standard for output in verdict.outputs if output.standard)
        standard = f"; standard: {', '.join(names)}" if names else ""
        return f"tested: {verdict.device}; benchmark: {verdict.bench}{standard}"

    def call_of(self, group: Group) -> str:
        """Name of the recorded call of a group: of an edge case, the one that it is made from."""
        return group.payload.call if isinstance(group.payload, EdgeCase) else group.call

    def headline(self, record: ItemRecord) -> str:
        """`Mint.matmul, call 2, forward`."""
        edge = record.group.payload
        if edge is None:
            return super().headline(record)
        return f"{parse_api_name(edge.call)}, {record.part}, edge case {edge.name}: {EDGE_CASES[edge.name]}"

    def release(self, group: Group) -> None:
        """Free the tensors of an API call."""
        if self._check is not None:
            self._check[1].close()
        super().release(group)

    def cost(self, file: Path, group: Group) -> float:
        """Estimated from the shapes of its records."""
        return estimate_cost(self.dump(file), self.call_of(group))

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        """Call stack of the forward."""
        return self.dump(record.file).stacks.frames(f"{self.call_of(record.group)}.forward")

    def header(self) -> list[str]:
        """A line each on dumps, device, benchmark and chosen standards."""
        return header_lines(self, self._context.config.rootpath)

    def limits(self) -> Mapping[str, float]:
        """Those of the default standard."""
        return {"cosine": self.settings.cosine, "max_abs": self.settings.max_abs}

    def warnings(self) -> Iterator[str]:
        """Patterns of `standards: apis:` that match no API call: most likely misspelt."""
        choice = self.settings.standards
        if not choice.apis:
            return
        groups = [group for dump in self.dumps() for group in self.groups(dump.path)]
        apis = [parse_api_name(self.call_of(group)) for group in groups if group.parts != (RECORD,)]
        for pattern, named in choice.apis:
            if not any(matches(pattern, api) for api in apis):
                yield f"{choice.source}: standards: apis: {pattern!r}: {named}: matches no API call of the dumps"

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        """The CSV pair."""
        holds_tensors = lambda: any(dump.holds_real_data for dump in self.dumps())  # noqa: E731
        return PrecheckReport(self._context.out, continued, self._untested, holds_tensors)

    def _untested(self) -> str:
        """Why no verdict says anything of a device; "" when one does."""
        if self._context.has_other_hosts:
            return ""  # their devices are not known here
        are_untested = {*map(self.engines.tests_no_device, self.dumps())}
        return f"no device was tested: {NO_DEVICE}" if are_untested == {True} else ""

    def advice_when_empty(self) -> str:
        """What an L0 dump lacks."""
        return "the dumps hold no API call to check; collect level L1 or mix (L0 has Cells only)"

    def plugins(self) -> Iterable[tuple[str, object]]:
        """Plugins that say what the folders of error data and reproducers hold."""
        return self._evidence.plugins()

    def placement(self) -> WorkerPlacement:
        """Workers on devices, and the folders of what failing calls leave behind."""
        return replace(super().placement(), evidence=self._evidence.paths)

    @cached_property
    def _check_settings(self) -> CheckSettings:
        """The part of the settings that checking a call needs. Imports NumPy."""
        from pytest_msprobe.evidence.pictures import ErrorPictures
        from pytest_msprobe.suites.precheck.check import CheckSettings
        from pytest_msprobe.suites.precheck.options import NamedStandard
        from pytest_msprobe.suites.precheck.standards import Standards

        settings = self.settings
        return CheckSettings(
            seed=settings.seed,
            max_memory_bytes=settings.max_memory_bytes // self._context.sharers,
            standard=Standards(
                NamedStandard(settings.standard),
                settings.standards,
                cosine=settings.cosine,
                max_abs=settings.max_abs,
                strict=settings.numeric.fail_on,
            ),
            numeric=settings.numeric,
            hooks=Hooks.if_implemented(self._context.config),
            pictures=ErrorPictures() if self._context.shows_pictures else None,
            keeper=self._evidence.keeper(self.files, settings.seed),
        )


def _refuse_unused_options(context: Context, settings: PrecheckSettings) -> None:
    """Refuse what standards mean that judge nothing in this run, and the size of folders that it does not write."""
    choice = settings.standards
    chosen = {settings.standard, *(named.name for _, named in choice.named)}
    if DEFAULT not in chosen:
        why = (
            f"is a limit of the standard {DEFAULT}, which judges nothing in this run; leave it out, or give the limits "
            f"of {settings.standard} in --msprobe-config under the key 'standards'"
        )
        refuse_unused(context, STANDARD_BOUNDS[DEFAULT], why)
    if not chosen & {"backward-error", "fused"}:
        why = f"has no effect under {settings.standard}, only under --msprobe-standard=backward-error and fused"
        refuse_unused(context, ("fail_on",), why)
    if not (settings.error_data or settings.reproducers):
        why = "has no effect without --msprobe-error-data or --msprobe-reproducers, whose folders it limits"
        refuse_unused(context, ("error_data_limit",), why)
