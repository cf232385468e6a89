"""Where our state is kept in pytest's stashes. One place for every key and its type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_msprobe.run.run import Run
    from pytest_msprobe.suites.contract import Suite
    from pytest_msprobe.verdicts import VerdictRow

#: The run of this process; unset in a run that has nothing to judge.
RUN: pytest.StashKey[Run] = pytest.StashKey()
#: Its suite.
SUITE: pytest.StashKey[Suite] = pytest.StashKey()
#: The row of an item that has run.
ROW: pytest.StashKey[VerdictRow] = pytest.StashKey()
#: A picture of what a failed item is off by, PNG in base64.
PLOT: pytest.StashKey[str] = pytest.StashKey()
#: A dump.json that was seen in the collection and not asked for.
UNASKED: pytest.StashKey[str] = pytest.StashKey()
