"""The one way in which a configuration says that it cannot be used."""

from __future__ import annotations


class ConfigurationError(Exception):
    """One line on a mistake in a configuration: where, the value found, and what is allowed.

    Attributes:
        place: the file, or `PrecisionDebugger` for a constructor argument.
        field: key inside it (`statistics.scope`) or the argument's name; "" when the whole file is meant.
    """

    def __init__(self, problem: str, *, place: str, field: str = "") -> None:
        self.place = place
        self.field = field
        super().__init__(": ".join(part for part in (place, field, problem) if part))
