"""What happens once when a run has dumps to check."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from msprobe_collector.dump_format import API_TYPES, DIRECTIONS
from pytest_msprobe import _keys
from pytest_msprobe.devices import check_index, choose_devices
from pytest_msprobe.precheck.call_index import CallIndex
from pytest_msprobe.precheck.header import header_lines
from pytest_msprobe.precheck.session import CheckSession
from pytest_msprobe.precheck.suite import PrecheckSuite
from pytest_msprobe.precheck.unused_patterns import UnusedPatterns
from pytest_msprobe.reports.csv_pair import CsvPair
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.properties import READERS, PropertyPlugin
from pytest_msprobe.reports.resume import EarlierRun, ResumeError, continue_pair
from pytest_msprobe.reports.suite_reports import register_reports
from pytest_msprobe.settings import Settings, read_settings
from pytest_msprobe.suite import Suite

if TYPE_CHECKING:
    from pytest_msprobe.workers import WorkersPlugin

SetUp = Callable[[pytest.Config, Settings, tuple[Path, ...]], Suite]


def names_a_dump(config: pytest.Config) -> bool:
    """Whether options, ini, YAML or a plain argument name a dump."""
    return bool(
        getattr(config, "workerinput", {}).get("msprobe_dumps")
        or config.getoption("msprobe_dump")
        or config.getini("msprobe_dump")
        or config.getoption("msprobe_config")
        or config.getini("msprobe_config")
        or config.getoption("msprobe_golden")
        or config.getoption("msprobe_suite")
        or config.getoption("msprobe_gradients")
        or config.getini("msprobe_gradients")
        or any(path.name == "dump.json" for path in _argument_paths(config))
    )


def activate(config: pytest.Config) -> None:
    """Set the run up: settings, arguments, markers, and the suite with its reports.

    Raises:
        pytest.UsageError: a setting is wrong.
    """
    settings = read_settings(config)
    set_up = _suite_named(settings)
    config.stash[_keys.IS_ACTIVE] = True
    _take_dumps_as_arguments(config, settings)
    _register_markers(config)
    # A dump that cannot be read is one error; the others are still checked.
    config.option.continue_on_collection_errors = True
    named = [path for path in _argument_paths(config) if path.name == "dump.json" or path in settings.dumps]
    config.stash[_keys.SUITE] = set_up(config, settings, tuple(dict.fromkeys(named)))
    _register_report_facts(config)


def _suite_named(settings: Settings) -> SetUp:
    name = settings.suite
    if name == "auto":
        name = "gradients" if settings.gradients.run else "comparison" if settings.golden else "precheck"
    if name not in SUITES:
        raise pytest.UsageError(f"--msprobe-suite={name}: there is no such suite; there are {', '.join(SUITES)}")
    found: SetUp = SUITES[name]()
    return found


def _precheck() -> SetUp:
    return _set_up_precheck


def _comparison() -> SetUp:
    from pytest_msprobe.comparison.suite import set_up

    return set_up


def _gradients() -> SetUp:
    from pytest_msprobe.gradients.suite import set_up

    return set_up


def _overflow() -> SetUp:
    from pytest_msprobe.overflow.suite import set_up

    return set_up


#: What `--msprobe-suite` may be. Each gives, when it is chosen, the function that sets it up in every process of a
#: run: (config, settings, absolute paths of the dumps) -> Suite.
SUITES: dict[str, Callable[[], SetUp]] = {
    "precheck": _precheck,
    "comparison": _comparison,
    "overflow": _overflow,
    "gradients": _gradients,
}


def _set_up_precheck(config: pytest.Config, settings: Settings, dumps: tuple[Path, ...]) -> Suite:
    settings = _with_evidence_folders(config, settings)
    session = CheckSession(settings, config)
    config.stash[_keys.SESSION] = session
    session.named_dumps = dumps
    if not hasattr(config, "workerinput"):
        index = CallIndex(session, dumps)
        earlier = _earlier_run(settings, index, dumps)
        session.done = earlier.done if earlier else frozenset()
        workers = _register_workers(config, session, index, earlier)

        @cache
        def header() -> list[str]:
            return header_lines(session, dumps) + (workers.header() if workers else [])

        if settings.standards.apis:
            config.pluginmanager.register(UnusedPatterns(session, dumps), "msprobe-unused-patterns")
        pair = CsvPair(settings.out, (earlier.details, earlier.result) if earlier else None)
        register_reports(
            config,
            settings,
            dumps,
            header,
            header,
            title="API accuracy pre-check",
            noun="API calls by direction",
            results=pair,
            earlier=earlier,
        )
    return PrecheckSuite(config, session)


def _with_evidence_folders(config: pytest.Config, settings: Settings) -> Settings:
    """`settings` with folders that are this run's own; the workers of xdist are told which."""
    if hasattr(config, "workerinput"):
        told = {kind: Path(path) for kind, path in config.workerinput.get("msprobe_evidence", {}).items()}
        return replace(settings, error_data=told.get("error data"), reproducers=told.get("reproducers"))
    if not (settings.error_data or settings.reproducers):
        return settings
    from pytest_msprobe.reports.evidence_folder import EvidenceFolder, reserve
    from pytest_msprobe.reports.evidence_plugin import EvidencePlugin

    limit = settings.error_data_limit_bytes
    folders = {}
    if settings.error_data:
        settings = replace(settings, error_data=reserve(settings.error_data, "--msprobe-error-data-dir"))
        folders["error data"] = settings.error_data
    if settings.reproducers:
        settings = replace(settings, reproducers=reserve(settings.reproducers, "--msprobe-reproducers"))
        folders["reproducers"] = settings.reproducers
    plugin = EvidencePlugin({kind: EvidenceFolder(folder, limit) for kind, folder in folders.items() if folder})
    config.pluginmanager.register(plugin, "msprobe-evidence")
    return settings


def _register_report_facts(config: pytest.Config) -> None:
    """In the processes that run items: what reports show beyond the verdict row, where one was asked for."""
    if _has_html(config):
        from pytest_msprobe.precheck.failure_details import FailureDetails

        config.pluginmanager.register(FailureDetails(), "msprobe-failure-details")
    if any(config.getoption(reader, None) for reader in READERS):
        config.pluginmanager.register(PropertyPlugin(), "msprobe-properties")


def _has_html(config: pytest.Config) -> bool:
    return bool(config.getoption("htmlpath", None))


def _earlier_run(settings: Settings, index: CallIndex, dumps: Sequence[Path]) -> EarlierRun | None:
    if settings.resume is None:
        return None
    try:
        return continue_pair(settings.resume, index.directions_of(CallNames(dumps)))
    except ResumeError as error:
        raise pytest.UsageError(f"--msprobe-resume={settings.resume}: {error}") from None
    except OSError as error:
        raise pytest.UsageError(f"--msprobe-resume={settings.resume}: cannot be written: {error.strerror}") from None


def _register_workers(
    config: pytest.Config, session: CheckSession, index: CallIndex, earlier: EarlierRun | None
) -> WorkersPlugin | None:
    if not getattr(config.option, "tx", None) or config.option.dist == "no":
        _check_single_process(config, session)
        return None
    from pytest_msprobe.workers import WorkersPlugin

    plugin = WorkersPlugin(
        config, session.settings, index, earlier=earlier, target=session.engines.choice.device_target()
    )
    config.pluginmanager.register(plugin, "msprobe-workers")
    return plugin


def _check_single_process(config: pytest.Config, session: CheckSession) -> None:
    """Refuse what only workers can do, where the command line says it; ini and YAML may serve runs with -n, too."""
    is_deliberate = config.getoption("numprocesses", None) == 0  # -n 0 takes back what else stands there
    if config.getoption("msprobe_timeout") and session.settings.timeout_seconds != 0 and not is_deliberate:
        raise pytest.UsageError("--msprobe-timeout: ends a worker, and a run without -n has none; add -n 1")
    if config.getoption("msprobe_devices") and not is_deliberate:
        raise pytest.UsageError(
            "--msprobe-devices: is for workers; add -n, or name the device of a single process in --msprobe-device"
        )
    device = session.settings.device
    if device.index is not None:
        check_index(session.engines.choice.device_target(), device.index)


def auto_worker_count(config: pytest.Config) -> int | None:
    """How many workers `-n auto` means: places on devices, or None for xdist's own count of cores."""
    session = CheckSession(read_settings(config), config)
    target = session.engines.choice.device_target()
    devices = choose_devices(target, session.settings.devices, workers=1)
    return len(devices) * session.settings.workers_per_device or None


def _take_dumps_as_arguments(config: pytest.Config, settings: Settings) -> None:
    # xdist starts each worker with these options and arguments; absolute paths mean the same there.
    if settings.dumps:
        config.option.msprobe_dump = [str(path) for path in settings.dumps]
    if config.args_source != pytest.Config.ArgsSource.ARGS:
        config.args[:] = [str(path) for path in settings.dumps] or config.args
        return
    named = _argument_paths(config)
    config.args.extend(str(path) for path in settings.dumps if path not in named)


def _argument_paths(config: pytest.Config) -> list[Path]:
    """Paths that the command line named, or that we put there; not those of testpaths."""
    if config.args_source != pytest.Config.ArgsSource.ARGS and _keys.IS_ACTIVE not in config.stash:
        return []
    return [
        Path(os.path.abspath(config.invocation_params.dir / argument.partition("::")[0])) for argument in config.args
    ]


def _register_markers(config: pytest.Config) -> None:
    for direction in DIRECTIONS:
        config.addinivalue_line("markers", f"{direction}: {direction} of an API call in a dump")
    for api_type, origin in API_TYPES.items():
        config.addinivalue_line("markers", f"{api_type}: API call of {origin} in a dump")
