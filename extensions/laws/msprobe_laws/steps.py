"""A step of an optimizer, as laws of all frameworks see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msprobe_laws.law import Violation


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
