"""What a law is, what checking one gives, and the step of an optimizer as laws see it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that does not hold.

    Attributes:
        law: its name.
        parameter: name of the parameter, or of what else it is about.
        message: one sentence on what was found and what the law asks for.
        size: how many times its tolerance the difference is; None where the law has none.
        others: further names that it holds for.
    """

    law: str
    parameter: str
    message: str
    size: float | None = None
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, law: str, names: Sequence[str], message: str) -> Violation:
        """Return the finding that holds for all of `names`."""
        return cls(law, names[0], message, None, tuple(names[1:]))


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Why a law could not be checked.

    Attributes:
        reason: one line.
        is_moot: whether there is nothing that it could hold for, so that nothing is left open.
        parameters: that it could not be checked for; empty for all.
    """

    reason: str
    is_moot: bool = False
    parameters: tuple[str, ...] = ()


Checked = list[Violation] | Unchecked
_Seen = TypeVar("_Seen", contravariant=True)


class Law(ABC, Generic[_Seen]):
    """One law. An object of it may keep what it has to remember between two checks of one training.

    Attributes:
        name: for options and node ids.
        sentence: what holds in every training.
        source: paper, documentation or implementation that says so.
        tolerance: how far rounding may be off, and why.
    """

    name: ClassVar[str]
    sentence: ClassVar[str]
    source: ClassVar[str]
    tolerance: ClassVar[str] = "none: it holds exactly"

    @abstractmethod
    def check(self, subject: _Seen) -> Checked:
        """Return the findings; an empty list where the law holds; or why it could not be checked."""

    def found(self, parameter: str, message: str, size: float | None = None, others: Any = ()) -> Violation:
        """Return a finding of this law."""
        return Violation(self.name, parameter, message, size, tuple(others))


def few_digits(number: float) -> str:
    """`number` for people."""
    return f"{number:.3g}" if math.isfinite(number) else str(number)


def listed(names: Any, most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = list(names)
    more = len(shown) - most
    return ", ".join(map(str, shown[:most])) + (f" and {more} more" if more > 0 else "")


@dataclass(slots=True)
class Step:
    """A step that begins.

    Attributes:
        optimizer: itself.
        name: of the optimizer in findings.
        order: its parameters; what it has twice stands here twice.
        names: of the parameters by id.
        number: of the step of this optimizer, from 0.
        source: line of the script that calls it.
        parameters: by id.
    """

    optimizer: Any
    name: str
    order: Sequence[Any]
    names: Mapping[int, str]
    number: int
    source: str
    parameters: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = {id(item): item for item in self.order}

    def findings(self, law: str, keys: Iterable[int], message: str) -> list[Violation]:
        """Return the finding that holds for the parameters with these ids; [] where there are none."""
        names = [self.names[key] for key in keys]
        return [Violation.of(law, names, message)] if names else []
