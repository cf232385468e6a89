from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from debugger_fixtures import make_debugger, records, step_folder

from pytest_msprobe.engines.process import restore_subnormals

__all__ = ["make_debugger", "records", "step_folder"]

# For the package `quality`. Last, so that an installed pytest_msprobe is tested, not the one beside it.
sys.path.append(str(Path(__file__).parents[3]))
NEEDS = {"test_pytorch_laws.py": "torch", "test_laws_of_dumps.py": "torch", "test_mindspore_laws.py": "mindspore"}
collect_ignore = [name for name, needed in NEEDS.items() if importlib.util.find_spec(needed) is None]


@pytest.fixture
def debugger_type():
    from msprobe_collector.pytorch import PrecisionDebugger

    return PrecisionDebugger


@pytest.fixture(autouse=True)
def _default_floating_point_mode() -> Iterator[None]:
    """Tests that call MindSpore directly must not leave flush-to-zero to the next."""
    yield
    restore_subnormals()


@pytest.fixture(autouse=True)
def _synchronous(request: pytest.FixtureRequest) -> None:
    """MindSpore is twenty times faster on few cores so; the values are the same."""
    if "mindspore" in request.path.name:
        import mindspore as ms

        ms.runtime.launch_blocking()
        ms.set_context(mode=ms.PYNATIVE_MODE)
