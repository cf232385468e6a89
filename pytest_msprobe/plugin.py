"""The pytest hooks. Each is a few lines that call a room of the house.

Nothing here may import NumPy, a framework or a suite: pytest loads this module in every project.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_msprobe import support

support.install_finder()

from pytest_msprobe.own_kernels import fixtures  # noqa: E402
from pytest_msprobe.own_kernels.fixtures import rounding_only as rounding_only, rounding_seed as rounding_seed  # noqa: E402
from pytest_msprobe.run.settings import RUN, UNASKED, add_options, list_common_ini_keys  # noqa: E402  # noqa: E402


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks for conftest.py files."""
    from pytest_msprobe import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--msprobe-*` options and their ini twins, and those of assertions on kernels."""
    add_options(parser)
    fixtures.add_options(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> Generator[None, object, object]:
    """Refuse misspelt options with a suggestion, when conftest.py files have declared theirs."""
    result = yield
    from pytest_msprobe.run.settings import refuse_unknown_options

    refuse_unknown_options(parser, args)
    return result


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Set the run up when there is something to judge."""
    from pytest_msprobe.run.settings import names_a_dump, refuse_unknown_ini_keys

    if config.option.help:
        list_common_ini_keys(config)
        return
    refuse_unknown_ini_keys(config)
    fixtures.set_up(config)
    if names_a_dump(config):
        from pytest_msprobe.activation import activate

        activate(config)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto` means the number of devices, where there are any."""
    from pytest_msprobe.run.settings import names_a_dump

    if not names_a_dump(config):
        return None
    from pytest_msprobe.activation import auto_worker_count

    return auto_worker_count(config)


@pytest.hookimpl
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A file that was named becomes a collector; any other dump.json is left alone."""
    if RUN in parent.config.stash:
        node: pytest.Collector | None = parent.config.stash[RUN].file_node(file_path, parent)
        return node
    if file_path.name == "dump.json":
        parent.config.stash[UNASKED] = str(file_path)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A folder that the suite reads by rules of its own."""
    run = parent.config.stash.get(RUN, None)
    return None if run is None else run.folder_node(path, parent)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector: nodes live to the end, and 100,000 of them would be scanned many times."""
    is_paused = RUN in session.config.stash and gc.isenabled()
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
    if RUN in config.stash:
        config.stash[RUN].choose(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell groups and items what they are in this run."""
    if RUN in session.config.stash:
        from pytest_msprobe.run.run import complete_items

        complete_items(session.items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run without log capture where it only costs."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return (yield)
    from pytest_msprobe.run.terminal import without_log_capture

    with without_log_capture(session, run.item_type):
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Have the files of the next record read while this one is judged."""
    if RUN in item.config.stash and nextitem is not None:
        from pytest_msprobe.run.nodes import read_ahead

        read_ahead(item, nextitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send an item's verdict row along with its report."""
    report = yield
    if RUN in item.config.stash:
        from pytest_msprobe.run.nodes import attach_row

        attach_row(item, report)
    if fixtures.ROWS in item.stash:
        fixtures.attach_rows(item, report)
    return report


@pytest.hookimpl
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of kernels under several seeds."""
    fixtures.draw_seeds(metafunc)


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """A run that found no test, but a dump, most likely wanted that."""
    dump = config.stash.get(UNASKED, "")
    if dump and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        terminalreporter.write_line(f"{dump} looks like a dump; check it with --msprobe-dump={dump}")


@pytest.hookimpl
def pytest_unconfigure(config: pytest.Config) -> None:
    """End child processes."""
    run = config.stash.get(RUN, None)
    if run is not None:
        run.suite.close()
