"""What happens once when a run has something to judge."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from pytest_msprobe.reports.other_tools import PropertyPlugin, are_read
from pytest_msprobe.reports.resume import EarlierRun, ResumeError, resume
from pytest_msprobe.run.answering import Unjudged, write_refusal
from pytest_msprobe.run.baseline import BaselineForWorkers, baseline_header
from pytest_msprobe.run.dump_folders import DumpFolder, judged_in, plain_folders
from pytest_msprobe.run.record_index import RecordIndex
from pytest_msprobe.run.reporting import register_reports
from pytest_msprobe.run.run import MARKERS, Run
from pytest_msprobe.run.settings import RUN, SUITE, Settings, named_paths, path_of, read_settings
from pytest_msprobe.suites.contract import Context, Suite, SuiteError
from pytest_msprobe.suites.registry import make_suite
from pytest_msprobe.support import place_of
from pytest_msprobe.workers.hosts import check_index, choose_devices

if TYPE_CHECKING:
    from pytest_msprobe.workers.controller import WorkersPlugin


def activate(config: pytest.Config) -> None:
    """Set the run up: settings, suite, arguments, markers, and on the process that writes the reports.

    Raises:
        pytest.UsageError: a setting is wrong; the diagnosis that was asked for says so as well.
    """
    write_refusal(config, "the run has not ended")
    try:
        _activate(config)
    except pytest.UsageError as error:
        write_refusal(config, str(error))
        raise
    except Exception as error:
        write_refusal(config, f"internal error of pytest-msprobe: {type(error).__name__}: {error} ({place_of(error)})")
        raise


def _activate(config: pytest.Config) -> None:
    if getattr(config.option, "forked", False):
        raise pytest.UsageError("--forked: a framework hangs in a process that was forked; use -n 1 instead")
    settings = read_settings(config)
    plain = plain_folders(config, named_paths(config))
    suite = _make_suite(config, settings, plain)
    # A dump that cannot be read is one error; the others are still judged.
    config.option.continue_on_collection_errors = True
    # Where the variable CI is set pytest repeats each failure whole below its report.
    if config.option.verbose < 2:
        config.option.force_short_summary = True
    _collect(config, settings, suite, plain)
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    run = Run(config, settings, suite)
    config.stash[RUN], config.stash[SUITE] = run, suite
    suite.assign(tuple(getattr(config, "workerinput", {}).get("msprobe_devices", ())))
    if not hasattr(config, "workerinput"):
        _set_up_writer(config, run, Unjudged(config, settings, suite, plain))
    if config.getoption("htmlpath", None):
        from pytest_msprobe.run.nodes import StackReports

        config.pluginmanager.register(StackReports(), "msprobe-call-stacks")
    if are_read(config):
        config.pluginmanager.register(PropertyPlugin(), "msprobe-properties")


def auto_worker_count(config: pytest.Config) -> int | None:
    """How many workers `-n auto` means: places on devices, or None for xdist's own count of cores."""
    placement = _make_suite(config, read_settings(config)).placement()
    devices = choose_devices(placement.target, placement.devices, workers=1)
    return len(devices) * placement.workers_per_device or None


def _make_suite(config: pytest.Config, settings: Settings, plain: Sequence[DumpFolder] = ()) -> Suite:
    worker_input = getattr(config, "workerinput", {})
    named = [path for path in named_paths(config) if path.name == "dump.json"]
    in_folders = chain.from_iterable(map(judged_in, plain))
    context = Context(
        config,
        settings.values,
        dumps=tuple(dict.fromkeys([*settings.dumps, *named, *in_folders])),
        out=settings.out,
        is_writer=not hasattr(config, "workerinput"),
        has_other_hosts=any("ssh=" in spec or "socket=" in spec for spec in getattr(config.option, "tx", None) or ()),
        sharers=worker_input.get("msprobe_sharers", 1),
        evidence=worker_input.get("msprobe_evidence", {}),
    )
    try:
        return make_suite(settings.suite, context)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None


def _collect(config: pytest.Config, settings: Settings, suite: Suite, plain: Sequence[DumpFolder]) -> None:
    """Have the suite's files collected. xdist starts workers with these arguments; absolute paths mean the same there.

    Without paths on the command line they replace what pytest would collect, or, where only the ini file names them,
    stand beside it. A plain folder of dumps gives way to what is judged in it.
    """
    if settings.dumps:
        config.option.msprobe_dump = list(map(str, settings.dumps))
    roots = list(map(str, suite.roots))
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args[:] = roots if settings.is_exclusive and roots else [*config.args, *roots]
        return
    of_dumps = {folder.path for folder in plain if folder.dumps and not folder.holds_python}
    config.args[:] = [argument for argument in config.args if path_of(config, argument) not in of_dumps]
    named = named_paths(config)
    for root in roots:
        if not any(path.is_relative_to(root) for path in named):
            config.args.append(root)


def _set_up_writer(config: pytest.Config, run: Run, unjudged: Unjudged) -> None:
    settings, suite = run.settings, run.suite
    index = RecordIndex(suite, config.rootpath, settings.timeout_seconds, settings.values["seed"])
    workers = _plan_workers(config, run, index)
    # Which records there are may depend on the devices, so that these come first.
    suite.assign(workers.devices if workers else ())
    earlier = _earlier_run(settings, index)
    run.done = earlier.done if earlier else frozenset()
    if workers:
        workers.earlier = earlier
        if settings.baseline is not None:
            config.pluginmanager.register(BaselineForWorkers(settings.baseline, suite.name), "msprobe-baseline")
        config.pluginmanager.register(workers, "msprobe-workers")

    @cache
    def header() -> list[str]:
        return [
            *suite.header(),
            *(workers.header() if workers else ()),
            *baseline_header(settings, run.known_failures),
            *unjudged.header(),
        ]

    for name, plugin in suite.plugins():
        config.pluginmanager.register(plugin, name)
    register_reports(config, settings, suite, header, earlier, unjudged)


def _earlier_run(settings: Settings, index: RecordIndex) -> EarlierRun | None:
    if settings.resume is None:
        return None
    try:
        return resume(settings.resume, settings.suite, index.parts_of)
    except ResumeError as error:
        raise pytest.UsageError(f"--msprobe-resume={settings.resume}: {error}") from None
    except OSError as error:
        raise pytest.UsageError(f"--msprobe-resume={settings.resume}: cannot be written: {error.strerror}") from None


def _plan_workers(config: pytest.Config, run: Run, index: RecordIndex) -> WorkersPlugin | None:
    """The plan for workers; None for a single process."""
    if not getattr(config.option, "tx", None) or config.option.dist == "no":
        _check_single_process(config, run)
        return None
    from pytest_msprobe.workers.controller import WorkersPlugin

    _check_names(config, run)
    return WorkersPlugin(config, run.settings.dumps, run.suite.placement(), index)


def _check_names(config: pytest.Config, run: Run) -> None:
    """Refuse paths that are no UTF-8: execnet sends texts, and node ids hold the paths of dumps."""
    params = config.invocation_params
    for name in map(str, (*params.args, params.dir, config.rootpath, *run.suite.roots, *run.suite.files)):
        if name != name.encode("utf-8", "replace").decode("utf-8"):
            raise pytest.UsageError(f"{name!a}: is not UTF-8, which workers cannot be told; rename it, or leave out -n")


def _check_single_process(config: pytest.Config, run: Run) -> None:
    """Refuse options for workers on the command line; ini and YAML may serve runs with -n, too."""
    is_deliberate = config.getoption("numprocesses", None) == 0  # -n 0 takes back what else stands there
    if config.getoption("msprobe_timeout") and run.settings.timeout_seconds != 0 and not is_deliberate:
        raise pytest.UsageError("--msprobe-timeout: ends a worker, and a run without -n has none; add -n 1")
    if config.getoption("msprobe_device_ids") and not is_deliberate:
        raise pytest.UsageError(
            "--msprobe-device-ids: is for workers; add -n, or name the device of a single process in --msprobe-device"
        )
    placement = run.suite.placement()
    check_index(placement.target, placement.device_index or 0)
