"""Where our state lives in pytest's stashes. One place for every key and its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_msprobe.comparison.session import ComparisonSession
    from pytest_msprobe.precheck.session import CheckSession
    from pytest_msprobe.reports.row import VerdictRow
    from pytest_msprobe.suite import Suite

#: Set as soon as a run has dumps.
IS_ACTIVE: pytest.StashKey[bool] = pytest.StashKey()
#: The suite of a run: how its dumps become items.
SUITE: pytest.StashKey[Suite] = pytest.StashKey()
#: What the items of a pre-check share.
SESSION: pytest.StashKey[CheckSession] = pytest.StashKey()
#: The verdict of an item that has run.
ROW: pytest.StashKey[VerdictRow] = pytest.StashKey()
#: A picture of what a failed item is off by, PNG in base64.
PLOT: pytest.StashKey[str] = pytest.StashKey()
#: What the items of a comparison share.
COMPARISON: pytest.StashKey[ComparisonSession] = pytest.StashKey()
#: An item's rows for the comparison table, on their way to its report.
TABLE_ROWS: pytest.StashKey[dict[str, Any]] = pytest.StashKey()
