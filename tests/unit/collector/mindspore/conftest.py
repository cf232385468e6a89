from __future__ import annotations

import pytest
from debugger_fixtures import make_debugger, records, step_folder

from msprobe_collector import PrecisionDebugger

__all__ = ["make_debugger", "records", "step_folder"]


@pytest.fixture
def debugger_type():
    return PrecisionDebugger
