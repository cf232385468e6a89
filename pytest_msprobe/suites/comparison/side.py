"""One of two dumps that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.operation import Operation

_COMPARABLE = ("tensor", "statistics")


class Side(Dump):
    """A dump whose records, those of Cells included, can be read as lists of values.

    Attributes:
        operations: its records in the order of the file, which is that of execution.
    """

    def __init__(self, path: Path, data_dirs: Sequence[Path] = ()) -> None:
        """Read the file; `data_dirs` as for `Dump`.

        Raises:
            DumpError: it cannot be read, or is not a dump of values.
        """
        super().__init__(path, data_dirs)
        if self.task not in _COMPARABLE:
            raise DumpError(
                f"a dump of task {self.task!r} holds no values to compare; dump with statistics or tensor",
                file=str(path),
                field="task",
            )
        self.operations = [Operation.of(name, index) for index, name in enumerate(self._records)]

    @cached_property
    def holds_md5(self) -> bool:
        """Whether tensors carry a checksum instead of statistics."""
        return any(b'"md5"' in memoryview(raw).tobytes() for raw in self._records.values())

    @cached_property
    def has_calls(self) -> bool:
        """Whether there are records of API calls, not of layers alone."""
        return any(not operation.is_cell for operation in self.operations)

    @cached_property
    def layers_of_calls(self) -> frozenset[str]:
        """Calls of Cells or Modules in which, forward or backward, an API was called that the dump holds."""
        found: set[str | None] = {None}
        for operation in self.operations:
            parent = None if operation.is_cell else self.parents.get(operation.record)
            while parent not in found:
                found.add(parent)
                parent = self.parents.get(parent) if parent is not None else None
        return frozenset(Operation.of(record, 0).call for record in found if record is not None)

    def leaves(self, record: str) -> list[Leaf]:
        """The values of `record`.

        Raises:
            DumpError: the record cannot be decoded.
        """
        return flatten(self.record(record))
