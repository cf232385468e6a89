from __future__ import annotations

from shared_fixtures import keep_floating_point_mode, pytest_runtest_setup

__all__ = ["keep_floating_point_mode", "pytest_runtest_setup"]
