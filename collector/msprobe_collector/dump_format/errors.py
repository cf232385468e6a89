"""The one way in which a dump says that it cannot be used."""

from __future__ import annotations

from msprobe_collector.dump_format.text import shown


class DumpError(Exception):
    """One line on a fault of a dump: what is wrong, where, the value found, and what to do.

    Attributes:
        file: path of the file at fault, as text.
        record: full record name, or "" when the whole file is meant.
        field: place inside the record (`input_args[1].shape`), or "".
    """

    def __init__(self, problem: str, *, file: str, record: str = "", field: str = "") -> None:
        self.file = file
        self.record = record
        self.field = field
        self.problem = problem
        place = ": ".join(part for part in (file, record, field) if part)
        super().__init__(shown(f"{place}: {problem}"))
