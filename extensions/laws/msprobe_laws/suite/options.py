"""Options of the suite `laws`; it has none beside those of every run."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_msprobe.suites.options import Option, Options


@dataclass(frozen=True)
class LawsSettings(Options):
    """Nothing: laws have no limits to choose."""


OPTIONS: tuple[Option, ...] = LawsSettings.declared()
