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
    suite = parent.config.stash.get(_keys.SUITE, None)
    if suite is None or not suite.wants(file_path, parent):
        return None
    return suite.collector(parent, file_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector: nodes are no garbage, and 100,000 of them would be walked many times."""
    is_paused = _keys.SUITE in session.config.stash and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        return (yield)
    finally:
        if is_paused:
            gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the items that are not to run."""
    if _keys.SUITE in config.stash:
        config.stash[_keys.SUITE].choose(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the suite which of its items will run."""
    if _keys.SUITE in session.config.stash:
        session.config.stash[_keys.SUITE].begin(session.items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run without log capture where it only costs."""
    suite = session.config.stash.get(_keys.SUITE, None)
    if suite is None:
        return (yield)
    from pytest_msprobe.log_capture import without_log_capture

    with without_log_capture(session, suite.item_type):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send an item's verdict row along with its report."""
    report = yield
    if _keys.SUITE in item.config.stash:
        item.config.stash[_keys.SUITE].attach(item, report)
    return report


@pytest.hookimpl
def pytest_unconfigure(config: pytest.Config) -> None:
    """End child processes."""
    suite = config.stash.get(_keys.SUITE, None)
    if suite is not None:
        suite.close()
