"""What happens once when a run has dumps to check."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from msprobe_collector.dump_format import API_TYPES, DIRECTIONS
from pytest_msprobe import _keys
from pytest_msprobe.devices import choose_devices
from pytest_msprobe.engines.selection import EngineChoice
from pytest_msprobe.precheck.call_index import CallIndex
from pytest_msprobe.precheck.header import header_lines
from pytest_msprobe.precheck.session import CheckSession
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.reports.observers import VerdictObservers
from pytest_msprobe.reports.plugin import ReportPlugin
from pytest_msprobe.reports.properties import READERS, PropertyPlugin
from pytest_msprobe.reports.resume import EarlierRun, ResumeError, continue_pair
from pytest_msprobe.settings import Settings, read_settings

if TYPE_CHECKING:
    from pytest_msprobe.workers import WorkersPlugin


def names_a_dump(config: pytest.Config) -> bool:
    """Whether options, ini, YAML or a plain argument name a dump."""
    return bool(
        config.getoption("msprobe_dump")
        or config.getini("msprobe_dump")
        or config.getoption("msprobe_config")
        or config.getini("msprobe_config")
        or any(path.name == "dump.json" for path in _argument_paths(config))
    )


def activate(config: pytest.Config) -> None:
    """Set the run up: settings, arguments, markers, and reports on the process that writes them.

    Raises:
        pytest.UsageError: a setting is wrong.
    """
    settings = _with_evidence_folders(config, read_settings(config))
    session = CheckSession(settings, config)
    config.stash[_keys.SESSION] = session
    _take_dumps_as_arguments(config, settings)
    _register_markers(config)
    # A dump that cannot be read is one error; the others are still checked.
    config.option.continue_on_collection_errors = True
    named = [path for path in _argument_paths(config) if path.name == "dump.json" or path in settings.dumps]
    session.named_dumps = dumps = tuple(dict.fromkeys(named))
    if not hasattr(config, "workerinput"):
        index = CallIndex(session, dumps)
        earlier = _earlier_run(settings, index, dumps)
        session.done = earlier.done if earlier else frozenset()
        workers = _register_workers(config, session, index, earlier)

        @cache
        def header() -> list[str]:
            return header_lines(session, dumps) + (workers.header() if workers else [])

        observers = VerdictObservers(config)
        config.pluginmanager.register(observers, "msprobe-observers")
        config.pluginmanager.register(
            ReportPlugin(settings.out, dumps, header, observers.tell, jsonl=settings.jsonl, earlier=earlier),
            "msprobe-reports",
        )
        if _has_html(config):
            from pytest_msprobe.reports.html import HtmlPage

            config.pluginmanager.register(HtmlPage(settings.html_passes, header, CallNames(dumps)), "msprobe-html")
    _register_report_facts(config)


def _with_evidence_folders(config: pytest.Config, settings: Settings) -> Settings:
    """`settings` with folders that are this run's own; the workers of xdist are told which."""
    if hasattr(config, "workerinput") or not (settings.error_data or settings.reproducers):
        return settings
    from pytest_msprobe.reports.evidence_folder import EvidenceFolder, reserve
    from pytest_msprobe.reports.evidence_plugin import EvidencePlugin

    limit = settings.error_data_limit_bytes
    folders = {}
    if settings.error_data:
        settings = replace(settings, error_data=reserve(settings.error_data, "--msprobe-save-error-data"))
        config.option.msprobe_save_error_data = str(settings.error_data)
        folders["error data"] = settings.error_data
    if settings.reproducers:
        settings = replace(settings, reproducers=reserve(settings.reproducers, "--msprobe-reproducers"))
        config.option.msprobe_reproducers = str(settings.reproducers)
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
        return None
    from pytest_msprobe.workers import WorkersPlugin

    settings = session.settings
    plugin = WorkersPlugin(
        config,
        index,
        earlier=earlier,
        target=session.engines.choice.device_target(),
        wanted=settings.devices,
        per_device=settings.workers_per_device,
    )
    config.pluginmanager.register(plugin, "msprobe-workers")
    return plugin


def auto_worker_count(config: pytest.Config) -> int | None:
    """How many workers `-n auto` means: places on devices, or None for xdist's own count of cores."""
    settings = read_settings(config)
    choice = EngineChoice(settings.device, settings.bench, settings.bench_python)
    devices = choose_devices(choice.device_target(), settings.devices, workers=1)
    return len(devices) * settings.workers_per_device or None


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
    if config.args_source != pytest.Config.ArgsSource.ARGS and _keys.SESSION not in config.stash:
        return []
    return [
        Path(os.path.abspath(config.invocation_params.dir / argument.partition("::")[0])) for argument in config.args
    ]


def _register_markers(config: pytest.Config) -> None:
    for direction in DIRECTIONS:
        config.addinivalue_line("markers", f"{direction}: {direction} of an API call in a dump")
    for api_type, origin in API_TYPES.items():
        config.addinivalue_line("markers", f"{api_type}: API call of {origin} in a dump")
