"""Where our state lives in pytest's stashes. One place for every key and its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_msprobe.precheck.session import CheckSession
    from pytest_msprobe.reports.row import VerdictRow

#: What the items of a run share.
SESSION: pytest.StashKey[CheckSession] = pytest.StashKey()
#: The verdict of an item that has run.
ROW: pytest.StashKey[VerdictRow] = pytest.StashKey()
#: A picture of what a failed item is off by, PNG in base64.
PLOT: pytest.StashKey[str] = pytest.StashKey()
