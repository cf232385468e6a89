"""Measures how near distances from sketches are to the true ones.

    python -m quality.sketches.distances [--differences 2000] [--seed 0]

Each difference is of a kind that faults have, in a tensor of one to four dimensions, and is estimated in two ways: from
the sketches of two whole tensors (64 numbers), and from those of a tensor and of its shards (32 of them add up).
Printed is by kind how many estimates are 0.75 to 1.33 times the true distance. Kinds in brackets are the hard ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from msprobe_collector.dump_format.sketches import Sketch, distance

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Generator = np.random.Generator

LEAST, MOST = 0.75, 1.33
_SHAPES = (
    (3,),
    (64,),
    (4096,),
    (5000,),
    (2, 2),
    (1, 4096),
    (96, 528),
    (256, 256),
    (768, 192),
    (3, 5, 7),
    (8, 64, 128),
    (6, 40, 24),
    (2, 6, 5, 8),
    (4, 8, 32, 32),
    (64, 3, 3, 3),
)


def _place(draw: Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(draw.integers(length)) for length in shape)


def _noise(draw: Generator, shape: tuple[int, ...]) -> Array:
    return draw.standard_normal(shape)


def _element(draw: Generator, shape: tuple[int, ...]) -> Array:
    found = np.zeros(shape)
    found[_place(draw, shape)] = draw.standard_normal()
    return found


def _row(draw: Generator, shape: tuple[int, ...]) -> Array:
    """A row along any dimension, of one value or of noise."""
    found = np.zeros(shape)
    at: list[int | slice] = list(_place(draw, shape))
    dimension = int(draw.integers(len(shape)))
    at[dimension] = slice(None)
    found[tuple(at)] = 1.0 if draw.integers(2) else draw.standard_normal(shape[dimension])
    return found


def _tile(draw: Generator, shape: tuple[int, ...]) -> Array:
    """A block, of one value or of noise."""
    starts = _place(draw, shape)
    at = tuple(slice(start, int(draw.integers(start + 1, length + 1))) for start, length in zip(starts, shape))
    found = np.zeros(shape)
    found[at] = 1.0 if draw.integers(2) else draw.standard_normal(found[at].shape)
    return found


def _constant(draw: Generator, shape: tuple[int, ...]) -> Array:
    return np.full(shape, draw.standard_normal())


def _along(shape: tuple[int, ...], dimension: int, values: Array) -> Array:
    return np.broadcast_to(values.reshape([-1 if at == dimension else 1 for at in range(len(shape))]), shape)


def _ramp(draw: Generator, shape: tuple[int, ...]) -> Array:
    """A ramp along one dimension, or over all elements."""
    if draw.integers(2):
        return np.linspace(0.0, 1.0, prod(shape)).reshape(shape)
    dimension = int(draw.integers(len(shape)))
    return _along(shape, dimension, np.linspace(draw.uniform(-1, 1), 1.0, shape[dimension]))


def _values(draw: Generator, shape: tuple[int, ...]) -> Array:
    """Noise about a mean, positive values, or a ramp with noise."""
    kind = draw.integers(3)
    noise = draw.standard_normal(shape)
    return noise + draw.standard_normal() if kind == 0 else np.abs(noise) if kind == 1 else noise + _ramp(draw, shape)


def _permutation(draw: Generator, shape: tuple[int, ...]) -> Array:
    """Rows permuted, or shifted by one."""
    values, dimension = _values(draw, shape), int(draw.integers(len(shape)))
    if draw.integers(2):
        return values - np.roll(values, 1, dimension)
    return values - np.take(values, draw.permutation(shape[dimension]), dimension)


def _scaling(draw: Generator, shape: tuple[int, ...]) -> Array:
    return _values(draw, shape) * draw.uniform(-1, 1)


def _diagonal(draw: Generator, shape: tuple[int, ...]) -> Array:
    """One value on a diagonal of the last two dimensions, as of a mask that is off by one."""
    return np.broadcast_to(np.eye(shape[-2], shape[-1], k=int(draw.integers(2))), shape)


def _triangle(draw: Generator, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(np.tri(shape[-2], shape[-1]), shape)


def _sine(draw: Generator, shape: tuple[int, ...]) -> Array:
    """A sine along the last dimension, as of position tables."""
    values = np.sin(np.arange(shape[-1]) * draw.uniform(0, 3) + draw.uniform(0, 6))
    return _along(shape, len(shape) - 1, values)


KINDS: dict[str, Callable[[Generator, tuple[int, ...]], Array]] = {
    "noise": _noise,
    "single element": _element,
    "row": _row,
    "tile": _tile,
    "constant": _constant,
    "ramp": _ramp,
    "permutation": _permutation,
    "scaling": _scaling,
}
HARD: dict[str, Callable[[Generator, tuple[int, ...]], Array]] = {
    "diagonal": _diagonal,
    "triangle": _triangle,
    "sine": _sine,
}


def ratios(count: int, seed: int, *, is_hard: bool = False) -> Iterator[tuple[str, float, float]]:
    """(kind, estimate over true distance of whole tensors, of a tensor and its shards) of `count` differences."""
    kinds = HARD if is_hard else KINDS
    names, made = list(kinds), 0
    while made < count:
        draw = np.random.default_rng((seed, made, is_hard))
        name, shape = names[made % len(names)], _SHAPES[int(draw.integers(len(_SHAPES)))]
        if is_hard and len(shape) < 2:
            shape = (256, 256)
        made += 1
        difference = kinds[name](draw, shape)
        left = draw.standard_normal(shape) if draw.integers(2) else np.zeros(shape)
        right = left + difference
        true = float(np.linalg.norm(right - left))
        if true == 0.0:  # rows of one length were shifted
            yield name, 1.0, 1.0
            continue
        sketches = Sketch.of(left), Sketch.of(right)
        shards = [replace(sketch, has_whole=False) for sketch in sketches]
        yield name, distance(*sketches).value / true, distance(*shards).value / true


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--differences", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for is_hard in (False, True):
        found = list(ratios(options.differences, options.seed, is_hard=is_hard))
        for name in [*(HARD if is_hard else KINDS), ""]:
            mine = np.array([row[1:] for row in found if name in ("", row[0])])
            inside = ((mine >= LEAST) & (mine <= MOST)).mean(axis=0) * 100
            low, high = np.quantile(mine, [0.01, 0.99], axis=0)
            label = (f"({name})" if is_hard else name) if name else ("hard kinds" if is_hard else "all")
            print(
                f"{label:16} {len(mine):5}  whole {inside[0]:5.1f} % ({low[0]:.2f} to {high[0]:.2f})"
                f"  shards {inside[1]:5.1f} % ({low[1]:.2f} to {high[1]:.2f})"
            )


if __name__ == "__main__":
    main()
