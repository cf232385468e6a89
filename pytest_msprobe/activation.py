"""What happens once when a run has dumps to check."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from msprobe_collector.dump_format import API_TYPES, DIRECTIONS
from pytest_msprobe import _keys
from pytest_msprobe.precheck.header import header_lines
from pytest_msprobe.precheck.session import CheckSession
from pytest_msprobe.reports.plugin import ReportPlugin
from pytest_msprobe.settings import Settings, read_settings


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
    settings = read_settings(config)
    session = CheckSession(settings, config)
    config.stash[_keys.SESSION] = session
    _take_dumps_as_arguments(config, settings)
    _register_markers(config)
    # A dump that cannot be read is one error; the others are still checked.
    config.option.continue_on_collection_errors = True
    if not hasattr(config, "workerinput"):
        named = [path for path in _argument_paths(config) if path.name == "dump.json" or path in settings.dumps]
        dumps = tuple(dict.fromkeys(named))

        def header() -> list[str]:
            lines = header_lines(session, dumps)
            if getattr(config.option, "numprocesses", None):
                session.forget_dumps()  # under xdist this process collects nothing
            return lines

        config.pluginmanager.register(ReportPlugin(settings.out, dumps, header), "msprobe-reports")


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
