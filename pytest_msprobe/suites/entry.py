"""What there is to know of a suite before it is loaded. pytest reads the entries of all suites in every project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_msprobe.suites.options import Option

if TYPE_CHECKING:
    from pytest_msprobe.suites.contract import Suite


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """What an entry point of the group `pytest_msprobe.suites` names. Its module loads neither NumPy nor the suite.

    Attributes:
        name: of the suite, as `Suite.name` and as the entry point.
        question: what it asks of a dump, for help, without a question mark.
        options: its own, beside those of every run. One that another suite has too must be the same one.
        place: module and class of the suite, `package.module:Class`.
        files: names of files beside dump.json that it judges, also where there is no dump.json.
        judges: whether it judges a record of this name. Where there is one, or one of `files`, `diagnose` asks the
            suite as well; None where a dump alone is no reason to.
    """

    name: str
    question: str
    options: tuple[Option, ...]
    place: str
    files: tuple[str, ...] = ()
    judges: Callable[[str], bool] | None = None

    def load(self) -> type[Suite]:
        """The class of the suite.

        Raises:
            ImportError: it, or something that it needs, is not there, or it has another name.
        """
        module, _, attribute = self.place.partition(":")
        suite: type[Suite] | None = getattr(import_module(module), attribute, None)
        if suite is None or suite.name != self.name:
            raise ImportError(f"{self.place} is no suite that is called {self.name!r}")
        return suite
