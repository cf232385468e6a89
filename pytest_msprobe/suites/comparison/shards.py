"""Whether one dump of a comparison is a rank of a sharded run whose whole model the other one is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_msprobe.suites.comparison.sides import ComparedDump


def why_sharded(target: ComparedDump, golden: ComparedDump) -> str:
    """What to do where parameters of one dump are whole parts of those of the other, on one line; "" where not."""
    ratios = Counter(_ratios(target, golden))
    # Parameters whose shapes say so; fewer may be a coincidence.
    if sum(ratios.values()) < 3 or len(ratios) > 1 or min(ratios) < 2:
        return ""
    ((ratio, count),) = ratios.items()
    return (
        f"{target.path}: {count} parameters are 1/{ratio} of those of the golden dump, so it is one rank of a sharded "
        f"run: judge all its ranks with --msprobe-logical={golden.path} in place of --msprobe-golden"
    )


def _ratios(target: ComparedDump, golden: ComparedDump) -> Iterator[int]:
    """Of each parameter of another shape how many times it is longer in the golden dump; 0 where that is not all."""
    for operation in target.operations:
        record = operation.record
        is_layer = operation.is_cell and operation.phase == "forward"
        if is_layer and record in golden and target.shapes(record) != golden.shapes(record):
            leaves = golden.readable_leaves(record)
            shapes = {leaf.path: leaf.shape for leaf in leaves if leaf.path.startswith("parameters.")}
            for leaf in target.readable_leaves(record):
                if shapes.get(leaf.path, leaf.shape) != leaf.shape:
                    yield _ratio(leaf.shape, shapes[leaf.path])


def _ratio(part: tuple[int, ...], whole: tuple[int, ...]) -> int:
    if len(part) != len(whole) or 0 in part:
        return 0
    longer = [(small, large) for small, large in zip(part, whole) if small != large]
    return longer[0][1] // longer[0][0] if len(longer) == 1 and longer[0][1] % longer[0][0] == 0 else 0
