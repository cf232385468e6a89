from __future__ import annotations

import pytest
from debugger_fixtures import make_debugger, records, step_folder

from msprobe_collector import PrecisionDebugger

__all__ = ["make_debugger", "records", "step_folder"]


@pytest.fixture(autouse=True)
def _synchronous():
    """Twenty times faster on few cores; the values are the same."""
    # Not above: pytest loads this file also for `pytest --help`, and where MindSpore is not installed.
    import mindspore as ms

    ms.runtime.launch_blocking()
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture
def debugger_type():
    return PrecisionDebugger
