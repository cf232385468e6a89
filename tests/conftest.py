"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from expected_skips import ExpectedSkips
from shared_fixtures import dumps, keep_floating_point_mode, pytest_runtest_setup, reports

__all__ = ["dumps", "keep_floating_point_mode", "pytest_runtest_setup", "reports"]

# pytest loads this file also for a dump that is checked inside this repository, where the test extra may be missing.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run, and no limit on their time: a busy machine is not a fault of the code.
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.load_profile("steady")

TESTS = Path(__file__).parent
# For the package `tools`. Last, so that an installed pytest_msprobe is tested, not the one beside `tools`.
sys.path.append(str(TESTS.parent))
#: Folders and modules of tests that import a framework, and which. Where it is not installed they are left out, and the
#: end of the run says so. Tests that import one while they run are marked `needs`.
NEEDS = {
    "collector": "mindspore",
    "plugin/test_engines.py": "torch",
    "pytorch_collector": "torch",
    "plugin/test_sharded_example.py": "torch",
    "unit/cases/test_argument_roles.py": "torch",
    "unit/collector/gradient_monitor/test_gradient_monitor.py": "mindspore",
    "unit/collector/mindspore/test_callbacks.py": "mindspore",
    "unit/dump_format/test_pytorch_files.py": "torch",
    "unit/engines/references": "torch",
}
LEFT_OUT = {TESTS / name: needed for name, needed in NEEDS.items() if importlib.util.find_spec(needed) is None}


def pytest_configure(config: pytest.Config) -> None:
    # Workers have a width of 80, to which the runs inside tests would wrap their texts.
    os.environ.pop("COLUMNS", None)
    config.pluginmanager.register(ExpectedSkips(TESTS / "expected_skips.txt"), "expected-skips")


def pytest_collection_finish() -> None:
    # 15,000 items live to the end: they need not be passed by each collection of garbage, nor by the collector where it
    # looks through the objects of the process for models and optimizers.
    gc.freeze()


#: What MindSpore 2.10 says of a graph that it has compiled to nothing, or whose gradient it has mixed up, each about
#: once in 10,000 tests.
LOST_GRAPHS = ("func_graph->get_return()] is null", "For LayerNormGrad, the index 7 is out of range of input num 7")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Run a test of MindSpore's graph compiler once more where the compiler lost its graph, and nothing else failed."""
    try:
        return (yield)
    except Exception as error:
        is_lost = any(words in str(error) for words in LOST_GRAPHS)
        if not is_lost or pyfuncitem.get_closest_marker("graph_compiler") is None:
            raise
    names = pyfuncitem._fixtureinfo.argnames
    return pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if LEFT_OUT.keys() & {collection_path, *collection_path.parents} else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("msprobe_dump", None):
        return  # a dump of this repository is checked, not the project
    for path, needed in LEFT_OUT.items():
        terminalreporter.write_line(f"left out: {path.relative_to(TESTS).as_posix()}: {needed} is not installed")
