"""Where the state of this suite lives in pytest's stashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_msprobe.overflow.session import OverflowSession

#: What the items of an overflow run share.
SESSION: pytest.StashKey[OverflowSession] = pytest.StashKey()
#: An item's finding for the files, on its way to its report.
FINDING: pytest.StashKey[dict[str, Any]] = pytest.StashKey()
