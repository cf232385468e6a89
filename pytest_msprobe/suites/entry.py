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
        compares_steps: whether it holds a step of the training to the one before. What it leaves open where no two
            steps follow one another does not keep `diagnose` from saying that nothing is wrong.
    """

    name: str
    question: str
    options: tuple[Option, ...]
    place: str
    files: tuple[str, ...] = ()
    judges: Callable[[str], bool] | None = None
    compares_steps: bool = False

    def load(self) -> type[Suite]:
        """The class of the suite.

        Raises:
            ImportError: it, or something that it needs, is not there.
        """
        module, _, name = self.place.partition(":")
        try:
            found: type[Suite] = getattr(import_module(module), name)
        except AttributeError as error:
            raise ImportError(str(error)) from error
        return found
