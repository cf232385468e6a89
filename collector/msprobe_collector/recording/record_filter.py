"""Which records are kept: scope, list and data_mode, asked once per record, so that one is kept whole or not at all."""

from __future__ import annotations

from difflib import get_close_matches

from msprobe_collector.configuration import RecordSelection
from msprobe_collector.dump_format import Direction, is_cell_record


class RecordFilter:
    """Follows the records of a step as they begin and end.

    `scope` opens when its first record begins and closes when its last one ends. `list` keeps what it names; where it
    names a Cell and APIs are collected too, everything that runs before that Cell ends is kept.
    """

    def __init__(self, selection: RecordSelection, *, opens_windows: bool) -> None:
        """Filter by `selection`.

        Args:
            selection: what the configuration asks for.
            opens_windows: whether a listed Cell keeps what runs inside it (level mix).
        """
        self._selection = selection
        self._opens_windows = opens_windows
        self._windows: list[str] = []
        self._is_in_scope = selection.scope is None
        self._is_trivial = selection.scope is None and not selection.names
        #: Names that have been met, of those that the configuration spells out.
        self.met: set[str] = set()
        #: What ran, without numbers, to point to near names.
        self._seen: set[str] = set()

    def begin(self, record: str, direction: Direction) -> bool:
        """Whether the record that begins now is kept."""
        wanted = direction in self._selection.directions
        if self._is_trivial:
            return wanted
        scope = self._selection.scope
        if scope is not None and record == scope[0]:
            self._is_in_scope = True
            self.met.add(record)
        is_listed = self._selection.lists(record)
        if is_listed and self._opens_windows and is_cell_record(record):
            self._windows.append(record)
        if is_listed:
            self.met.update(self._selection.matches(record))
        self._seen.add(record.rsplit(".", 2)[0])
        return wanted and self._is_in_scope and (is_listed or bool(self._windows))

    def end(self, record: str) -> None:
        """The record has ended."""
        if self._is_trivial:
            return
        scope = self._selection.scope
        if scope is not None and record == scope[1]:
            self._is_in_scope = False
            self.met.add(record)
        if record in self._windows:
            self._windows.remove(record)

    def never_met(self) -> list[str]:
        """Names in `scope` and `list` that no record had."""
        named = (*(self._selection.scope or ()), *self._selection.names)
        return [name for name in named if name not in self.met]

    def near(self, name: str) -> list[str]:
        """Names of what ran that come near `name`, which nothing had."""
        lower = {last: seen for seen in sorted(self._seen) for last in (seen.lower(), seen.rpartition(".")[2].lower())}
        wanted = name.lower()
        inside = [seen for last, seen in lower.items() if last in wanted]
        close = [lower[last] for last in get_close_matches(wanted, lower, n=3, cutoff=0.6)]
        return list(dict.fromkeys(close + inside))[:3]
