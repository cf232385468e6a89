"""The kernel of `one_pass`, which loads Triton."""

from __future__ import annotations

import triton
import triton.language as tl


# Triton reads the annotations too, and knows those of constants alone.
@triton.jit  # type: ignore[untyped-decorator]
def reduce(source, parts, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, N803
    """Write the numbers of one part of `source` to `found`: blocks whose numbers differ by that of the parts."""
    part = tl.program_id(0).to(tl.int64)
    least = tl.full((BLOCK,), float("inf"), tl.float64)
    greatest = tl.full((BLOCK,), float("-inf"), tl.float64)
    total = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    nan = tl.zeros((BLOCK,), tl.int64)
    not_finite = tl.zeros((BLOCK,), tl.int64)
    above = tl.zeros((BLOCK,), tl.int64)
    for start in range(part * BLOCK, count, tl.num_programs(0) * BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_there = place < count
        number = tl.load(source + place, mask=is_there, other=0).to(tl.float64)
        least = tl.where(is_there & (number < least), number, least)
        greatest = tl.where(is_there & (number > greatest), number, greatest)
        total += number
        squares += number * number
        nan += (number != number).to(tl.int64)
        not_finite += ((number - number) != 0.0).to(tl.int64)
        above += (number == float("inf")).to(tl.int64)
    row = parts + part * 7
    tl.store(row, tl.min(least, 0))
    tl.store(row + 1, tl.max(greatest, 0))
    tl.store(row + 2, tl.sum(total, 0))
    tl.store(row + 3, tl.sqrt(tl.sum(squares, 0)))
    tl.store(row + 4, tl.sum(nan, 0).to(tl.float64))
    tl.store(row + 5, tl.sum(not_finite, 0).to(tl.float64))
    tl.store(row + 6, tl.sum(above, 0).to(tl.float64))
