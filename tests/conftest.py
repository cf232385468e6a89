"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from expected_skips import ExpectedSkips
from shared_fixtures import dumps, keep_floating_point_mode, pytest_runtest_setup, reports

from pytest_msprobe.run.settings import names_a_dump

__all__ = ["dumps", "keep_floating_point_mode", "pytest_runtest_setup", "reports"]

# pytest loads this file also for a dump in this repository: nothing here may do anything for what is no Python test, or
# need the extra `test`.
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples in every run, and no limit on their time: a busy machine is not a fault of the code.
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.load_profile("steady")

TESTS = Path(__file__).parent
# For the package `tools`. Last, so that an installed pytest_msprobe is tested, not the one beside `tools`.
sys.path.append(str(TESTS.parent))
#: Folders and modules of tests that import a framework, and which: they are skipped where it is not installed. Tests
#: that import one while they run are marked `needs`.
NEEDS = {
    "collector": "mindspore",
    "everyday": "torch",
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
    config.pluginmanager.register(ExpectedSkips(), "expected-skips")
    if names_a_dump(config):
        return
    arguments = config.invocation_params.args
    if not any(argument.startswith("-m") or ".py" in argument for argument in map(str, arguments)):
        # A run of folders; `-m ""` runs everything. Each worker of xdist decides it from the same arguments.
        config.option.markexpr = "not slow"
    if hasattr(config, "workerinput"):
        return
    if getattr(config.option, "dist", "no") == "load" and "--dist" not in " ".join(map(str, arguments)):
        config.option.dist = "loadscope"  # each fixture of a module is made once


@pytest.fixture(scope="session", autouse=True)
def _session_of_tests() -> None:
    # Workers have a width of 80, to which the runs inside tests would wrap their texts.
    os.environ.pop("COLUMNS", None)
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


class _LeftOut(pytest.Module):
    """A module of tests that need a framework which is not installed."""

    def collect(self) -> NoReturn:
        needed = next(LEFT_OUT[path] for path in (self.path, *self.path.parents) if path in LEFT_OUT)
        pytest.skip(f"{needed} is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if LEFT_OUT.keys() & {module_path, *module_path.parents}:
        return _LeftOut.from_parent(parent, path=module_path)
    return None
