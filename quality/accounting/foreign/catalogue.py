"""All pairs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from quality.accounting.foreign import (
    cell_pairs,
    fourth_cell_pairs,
    fourth_torch,
    late_cell_pairs,
    late_torch,
    precisions,
    torch_pairs,
)
from quality.accounting.foreign.pairs import Pair


@functools.cache
def all_pairs() -> tuple[Pair, ...]:
    """Those of both frameworks; imports both."""
    known = (*torch_pairs.PAIRS, *precisions.PAIRS, *cell_pairs.pairs())
    return (*known, *late_torch.PAIRS, *late_cell_pairs.pairs(), *fourth_torch.PAIRS, *fourth_cell_pairs.pairs())


def chosen(names: Sequence[str] = (), half: str | None = None) -> list[Pair]:
    """Pairs in whose name one of `names` is, of one part or of all; all where no name is given."""
    return [
        pair
        for pair in all_pairs()
        if (not names or any(name in pair.name for name in names)) and half in (None, pair.half)
    ]
