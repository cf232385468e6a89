"""Verdicts for the hook `pytest_msprobe_verdict`."""

from __future__ import annotations

import pytest

from pytest_msprobe.faults import place_of
from pytest_msprobe.verdicts import VerdictRow


class VerdictObservers:
    """Hands each verdict row to the conftest.py files that want it.

    Attributes:
        problem: what an observer did wrong, as one line; "" when nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.problem = ""

    def tell(self, row: VerdictRow) -> None:
        """Hand `row` over. What an observer raises ends the observing, not the run."""
        hook = self._config.hook.pytest_msprobe_verdict
        if self.problem or not hook.get_hookimpls():
            return
        try:
            hook(config=self._config, row=row)
        except Exception as error:
            self.problem = (
                f"pytest_msprobe_verdict failed at {row.node_id}: {type(error).__name__}: {error} "
                f"({place_of(error)}); it got no later verdict, all other reports are complete"
            )
