from __future__ import annotations

from pytest_msprobe.numerics import diagnosis
from pytest_msprobe.verdicts import EXPLAINED


def test_reports_and_numerics_use_one_word() -> None:
    """`verdicts` imports no NumPy, and `numerics` nothing of ours: each has the word for itself."""
    assert EXPLAINED == diagnosis._EXPLAINED
