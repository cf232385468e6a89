"""The lines above a run: what is checked, on what, against what, and how much of it the benchmark covers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import DumpError, is_cell_record, parse_api_name, split_record_name
from pytest_msprobe.engines.selection import NO_TORCH
from pytest_msprobe.engines.specification import DeviceSpecification
from pytest_msprobe.installing import is_installed, version_of
from pytest_msprobe.suites.node_names import file_id
from pytest_msprobe.suites.precheck.standard_choice import DEFAULT, STANDARDS, NamedStandard

if TYPE_CHECKING:
    from pytest_msprobe.suites.precheck.suite import PrecheckSuite

_HALF_DTYPES = ("Float16", "BFloat16")
#: The max_abs with which the rates of false alarms in `_half_lines` were measured, on kernels with float32 inside.
_MEASURED_WITH = 1e-4


#: Why a run of PyTorch statistics on a machine without a device says nothing, and what does.
NO_DEVICE = (
    "they hold statistics only, so that PyTorch on CPU is compared with itself; choose a device with "
    "--msprobe-device, or collect with task tensor to judge the recorded values"
)


def header_lines(suite: PrecheckSuite, root: Path) -> list[str]:
    """A line each on dumps, device, benchmark and chosen standards. Reads the names of the records, runs nothing."""
    calls: dict[tuple[Path, str], str] = {}
    half: set[tuple[Path, str]] = set()
    cells = 0
    problems: list[str] = []
    devices: Counter[DeviceSpecification] = Counter()
    untested = 0
    for path in suite.files:
        try:
            dump = suite.dump(path)
        except DumpError:
            continue  # the collection reports it
        if dump.problem:
            problems.append(f"msprobe: {dump.problem}")
        devices[suite.engines.device_for(dump)] += 1
        untested += suite.engines.tests_no_device(dump)
        for record in dump.record_names:
            found = split_record_name(record)
            if is_cell_record(record):
                cells += 1
            elif found is not None:
                calls[path, found[0]] = dump.framework
                if dump.holds_half(record):
                    half.add((path, found[0]))
    left = f"; {cells} Cell records are left to the other suites" if cells else ""
    files = suite.files
    shown = file_id(files[0], root) if len(files) == 1 else f"{len(files)} dumps"
    lines = [f"msprobe: {shown}: {len(calls)} API calls{left}"]
    lines += problems
    lines.append(f"msprobe: tested: {', '.join(_device_text(device) for device in devices)}")
    if untested:
        lines.append(f"msprobe: no device was tested in {untested} of {len(files)} dumps: {NO_DEVICE}")
    return [
        *lines,
        *_benchmark_lines(suite, calls),
        *_standard_lines(suite),
        *_half_lines(suite, len(half), len(calls)),
    ]


def _standard_lines(suite: PrecheckSuite) -> list[str]:
    """The rule for verdicts, where it is not the default one for all."""
    settings = suite.settings
    chosen = settings.standards
    exceptions = [f"{name}: {named}" for name, named in (*chosen.dtypes.items(), *chosen.apis)]
    if settings.standard == STANDARDS[0] and not exceptions:
        return []
    default = str(NamedStandard(settings.standard, chosen.bounds.get(settings.standard, ())))
    return [f"msprobe: standard: {'; '.join([default, *exceptions])}"]


def _half_lines(suite: PrecheckSuite, half: int, calls: int) -> list[str]:
    """A warning where fixed limits judge dtypes that are coarser than these limits."""
    settings = suite.settings
    is_default = settings.standard == DEFAULT and settings.max_abs <= _MEASURED_WITH
    if not half or not is_default or any(dtype in settings.standards.dtypes for dtype in _HALF_DTYPES):
        return []
    return [
        f"msprobe: {half} of {calls} API calls hold float16 or bfloat16: there the default standard fails 32 to "
        "47 % of good records; choose --msprobe-standard=backward-error, or for good in the ini file "
        "`msprobe_standard = backward-error`"
    ]


def _device_text(device: DeviceSpecification) -> str:
    if device.engine == "recorded":
        return "recorded values (what the training run itself computed)"
    target = {"cpu": "CPU", "ascend": "Ascend", "cuda": "CUDA", "npu": "Ascend (torch_npu)"}[device.target or "cpu"]
    index = "" if device.index is None else f":{device.index}"
    return f"{device.engine} {version_of(device.engine)} on {target}{index}"


def _benchmark_lines(suite: PrecheckSuite, calls: dict[tuple[Path, str], str]) -> list[str]:
    covered: Counter[str] = Counter()
    for (_, name), framework in calls.items():
        engine = suite.engines.benchmark_for(parse_api_name(name), framework)
        if engine is not None:
            covered[engine.name] += 1
    parts = [
        f"{engine.name} {version_of(engine.name)} float64 for {covered[engine.name]} of {len(calls)} API calls"
        for engine in suite.engines.benchmarks
    ]
    lines = [f"msprobe: benchmark: {', '.join(parts)}"]
    if suite.engines.choice.bench == "auto" and not is_installed("torch"):
        lines.append(f"msprobe: {NO_TORCH}")
    return lines
