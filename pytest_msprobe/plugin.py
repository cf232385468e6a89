"""The pytest hooks. Each is a few lines that call a room of the house; a run without a dump costs nothing.

Nothing here may import NumPy or a framework: pytest loads this module in every project.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_msprobe import _keys
from pytest_msprobe.settings import add_options


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks for conftest.py files."""
    from pytest_msprobe import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--msprobe-*` options and their ini twins."""
    add_options(parser)


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and take the dumps into the collection, when there are any."""
    from pytest_msprobe.activation import activate, names_a_dump

    if names_a_dump(config):
        activate(config)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto` means the number of devices, where there are any."""
    from pytest_msprobe.activation import auto_worker_count, names_a_dump

    return auto_worker_count(config) if names_a_dump(config) else None


@pytest.hookimpl
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A dump that was named becomes a collector; a stray dump.json stays alone."""
    session = parent.config.stash.get(_keys.SESSION, None)
    if session is None or not session.wants(file_path, parent):
        return None
    from pytest_msprobe.precheck.nodes import DumpFile

    return DumpFile.of(parent, file_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector: nodes are no garbage, and 100,000 of them would be walked many times."""
    is_paused = _keys.SESSION in session.config.stash and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        return (yield)
    finally:
        if is_paused:
            gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out API calls: of other shards, those that a conftest.py does not want, and what a resumed run has done."""
    if _keys.SESSION in config.stash:
        from pytest_msprobe.precheck.nodes import deselect, deselect_done
        from pytest_msprobe.precheck.shard import deselect_other_shards

        deselect_other_shards(config, items)
        deselect(config, items)
        deselect_done(config, items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell each API call which of its directions will run."""
    if _keys.SESSION in session.config.stash:
        from pytest_msprobe.precheck.nodes import mark_selected

        mark_selected(session.items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run without log capture where it only costs."""
    if _keys.SESSION not in session.config.stash:
        return (yield)
    from pytest_msprobe.log_capture import without_log_capture

    with without_log_capture(session):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send an item's verdict row along with its report."""
    report = yield
    if _keys.SESSION in item.config.stash:
        from pytest_msprobe.precheck.nodes import attach_row

        attach_row(item, report)
    return report


@pytest.hookimpl
def pytest_unconfigure(config: pytest.Config) -> None:
    """End child processes."""
    session = config.stash.get(_keys.SESSION, None)
    if session is not None:
        session.close()
