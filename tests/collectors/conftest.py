"""What both collectors must do, each with its own framework."""

from __future__ import annotations

from typing import Any

import pytest
from collectors.frameworks import FRAMEWORKS, Framework
from debugger_fixtures import make_debugger, records, step_folder

__all__ = ["make_debugger", "records", "step_folder"]


@pytest.fixture(params=[pytest.param(item, marks=pytest.mark.needs(item.name), id=item.name) for item in FRAMEWORKS])
def framework(request: pytest.FixtureRequest) -> Framework:
    """The framework under test, not loaded yet."""
    return request.param


@pytest.fixture
def debugger_type(framework: Framework) -> Any:
    framework.prepare()
    return framework.debugger_type
