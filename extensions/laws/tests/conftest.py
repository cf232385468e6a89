from __future__ import annotations

import importlib.util

import pytest
from debugger_fixtures import make_debugger, records, step_folder
from shared_fixtures import keep_floating_point_mode, pytest_runtest_setup

__all__ = ["keep_floating_point_mode", "make_debugger", "pytest_runtest_setup", "records", "step_folder"]

NEEDS = {"test_pytorch_laws.py": "torch", "test_laws_of_dumps.py": "torch", "test_mindspore_laws.py": "mindspore"}
collect_ignore = [name for name, needed in NEEDS.items() if importlib.util.find_spec(needed) is None]


@pytest.fixture
def debugger_type():
    from msprobe_collector.pytorch import PrecisionDebugger

    return PrecisionDebugger


@pytest.fixture(autouse=True)
def _synchronous(request: pytest.FixtureRequest) -> None:
    """MindSpore is twenty times faster on few cores so; the values are the same."""
    if "mindspore" in request.path.name:
        import mindspore as ms

        ms.runtime.launch_blocking()
        ms.set_context(mode=ms.PYNATIVE_MODE)
