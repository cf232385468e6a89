"""Which product of matrices an output or a gradient is, found by shapes and a few elements, and its partial sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.expected import Relative, Share
from pytest_msprobe.numerics.measurement import Floats

#: So many elements of the benchmark's result are computed again, ...
_CHECKED = 16
#: So many elements, of so many matrices of a batch, stand for all.
_SAMPLED, _SAMPLED_MATRICES = 1 << 14, 16


@dataclass(frozen=True, slots=True)
class Product:
    """`first @ second + bias`, as NumPy multiplies and broadcasts, reshaped to `shape`.

    Attributes:
        first, second: in their own dtypes, two-dimensional or a batch of such matrices, (..., m, k) and (..., k, n).
        bias: of a shape that broadcasts to the product; None without one.
        shape: of the output.
    """

    first: Array
    second: Array
    bias: Array | None
    shape: tuple[int, ...]

    def terms(self, at: int) -> Floats:
        """What the element at a flat position is the sum of, float64, shape (k,), or (k + 1,) with a bias."""
        *batch, row, column = map(int, np.unravel_index(at, self._product_shape))
        first, second = (_matrix(side, self._product_shape, batch) for side in (self.first, self.second))
        terms: Floats = first[row].astype(np.float64) * second[:, column].astype(np.float64)
        if self.bias is None:
            return terms
        bias = np.broadcast_to(self.bias, self.shape)[np.unravel_index(at, self.shape)]
        return np.append(terms, bias.astype(np.float64))

    def norms(self, every: int = 1) -> Floats:
        """The 2-norm of the terms of each element, shape (size of the output,), float32; not finite where out of reach.

        One product of squares in float32: the terms are those products, and their sizes need a few digits. With `every`
        only each of so many terms counts, so that they are less.
        """
        with np.errstate(all="ignore"):
            sides = self.first[..., ::every], self.second[..., ::every, :]
            (first, first_size), (second, second_size) = map(_squares, sides)
            norms = np.matmul(first, second)
            np.sqrt(norms, out=norms)
            norms *= np.float32(first_size * second_size)
        if self.bias is not None:
            norms = np.hypot(norms.reshape(self.shape), self.bias.astype(np.float32))
        flat: Floats = norms.reshape(-1)
        return flat

    def sample(self) -> tuple[Array, Floats]:
        """(flat positions, norms as `norms_at` has them) of some rows and columns of some of the matrices."""
        random = np.random.default_rng(0)
        *batches, rows, columns = self._product_shape
        some = random.permutation(math.prod(batches))[:_SAMPLED_MATRICES]
        share = max(1, math.isqrt(_SAMPLED // some.size))
        down, across = (
            np.sort(random.permutation(size)[: max(share, _SAMPLED // some.size // other)])
            for size, other in ((rows, columns), (columns, rows))
        )
        norms = []
        for number in some:
            batch = np.unravel_index(number, batches)
            first, second = (_matrix(side, self._product_shape, batch) for side in (self.first, self.second))
            norms.append(Product(first[down], second[:, across], None, (down.size, across.size)).norms())
        places = some[:, None, None] * (rows * columns) + down[:, None] * columns + across
        return places.reshape(-1), self._with_bias(np.concatenate(norms), places.reshape(-1))

    def norms_at(self, places: Array) -> Floats:
        """The 2-norm of the terms of the elements at flat positions, shape (m,), float32."""
        norms: Floats = np.empty(len(places), np.float32)
        step = max(1, (1 << 20) // self.first.shape[-1])
        batches = self._product_shape[:-2]
        first = np.broadcast_to(self.first, batches + self.first.shape[-2:])
        second = np.broadcast_to(self.second, batches + self.second.shape[-2:]).swapaxes(-1, -2)
        for start in range(0, len(places), step):
            part = slice(start, start + step)
            place = np.unravel_index(places[part], self._product_shape)
            terms = first[place[:-1]].astype(np.float64)
            terms *= second[place[:-2] + place[-1:]]
            norms[part] = np.linalg.norm(terms, axis=-1)
        return self._with_bias(norms, places)

    def _with_bias(self, norms: Floats, places: Array) -> Floats:
        if self.bias is None:
            return norms
        bias = np.broadcast_to(self.bias, self.shape)[np.unravel_index(places, self.shape)]
        return np.hypot(norms, bias.astype(np.float32), out=norms)

    def is_sum_of_terms(self, reference: Array) -> bool:
        """Whether the terms of a few elements add up to what `reference`, of this shape, has there."""
        places = np.random.default_rng(0).integers(0, reference.size, _CHECKED)
        with np.errstate(all="ignore"):
            pairs = ((self.terms(int(at)), reference.item(int(at))) for at in places)
            return all(
                abs(terms.sum() - value) <= Relative.FLOAT64_RESULTS * np.abs(terms).sum() for terms, value in pairs
            )

    @property
    def _product_shape(self) -> tuple[int, ...]:
        batch = np.broadcast_shapes(self.first.shape[:-2], self.second.shape[:-2])
        return (*batch, self.first.shape[-2], self.second.shape[-1])


def product_of_tensors(tensors: Sequence[Array], reference: Array) -> Product | None:
    """`reference` as the product of two of two or three `tensors`, the third one added to it; None where it is not.

    Args:
        tensors: of floats, in any order.
        reference: raw result of the benchmark.
    """
    if not (2 <= len(tensors) <= 3 and reference.size):
        return None
    for first, second, *others in permutations(tensors):
        bias = next(iter(others), None)
        if bias is not None and not _broadcasts(bias.shape, reference.shape):
            continue
        product = _product(first, second, bias, reference)
        if product is not None:
            return product
    return None


def gradient_as_product(others: Sequence[Array], incoming: Array, reference: Array) -> Product | None:
    """The gradient `reference` as product of the `incoming` one and one of the `others`, or as its sum over rows.

    Args:
        others: float arguments of the call but the one that the gradient is of.
        incoming: gradient of the output.
        reference: raw result of the benchmark; None is returned where it is no such product.
    """
    if not reference.size or not incoming.ndim:
        return None
    if reference.ndim == 1 and incoming.shape[-1] == reference.size:
        rows = incoming.reshape(-1, incoming.shape[-1])
        total = Product(np.ones((1, len(rows)), np.float32), rows, None, reference.shape)
        return total if total.is_sum_of_terms(reference) else None
    pairs = (pair for other in others for pair in ((incoming, other), (other, incoming)))
    return next((product for pair in pairs if (product := _product(*pair, None, reference)) is not None), None)


def _product(first: Array, second: Array, bias: Array | None, reference: Array) -> Product | None:
    """The product of the two, one or both transposed, that `reference` is."""
    if min(first.ndim, second.ndim, reference.ndim) < 2:
        return None
    for rows, columns in _views(first, second):
        if rows.shape[-1] != columns.shape[-2] or not _fits(rows, columns, reference.shape):
            continue
        product = Product(rows, columns, bias, reference.shape)
        if product.is_sum_of_terms(reference):
            return product
    return None


def _views(first: Array, second: Array) -> Iterator[tuple[Array, Array]]:
    """Both as they are and transposed, and what sums over all leading axes: the gradient of a weight."""
    for rows in (first, first.swapaxes(-1, -2)):
        yield from ((rows, columns) for columns in (second, second.swapaxes(-1, -2)))
    if first.ndim > 2 and second.ndim > 2:
        yield first.reshape(-1, first.shape[-1]).T, second.reshape(-1, second.shape[-1])


def _fits(rows: Array, columns: Array, shape: tuple[int, ...]) -> bool:
    try:
        batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    except ValueError:
        return False
    return (*batch, rows.shape[-2], columns.shape[-1]) == shape


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _matrix(side: Array, shape: tuple[int, ...], batch: Sequence[int]) -> Array:
    """The matrix of `side` that makes the one at `batch` of a product of that shape."""
    matrix: Array = np.broadcast_to(side, (*shape[:-2], *side.shape[-2:]))[tuple(batch)]
    return matrix


def _squares(side: Array) -> tuple[Array, float]:
    """(squares of the elements over the largest one's size, that size), float32, so that none leaves the range."""
    wide = side.astype(np.float32)
    size = float(np.abs(wide).max())
    if not 0 < size < math.inf:
        return np.square(wide, out=wide), 1.0
    wide /= np.float32(size)
    return np.square(wide, out=wide), size


def norms_of_partial_sums(gradient: Callable[[Array], Array | None], incoming: Array, channels: int) -> Array | None:
    """The 2-norm of the partial sums of each element, one term for each position of the incoming gradient.

    A gradient is linear in the incoming one: that of its first positions, all others being 0, is a partial sum. Between
    those that are computed, sums are taken to go straight. What they do beside that is chance, which others allow for.

    Args:
        gradient: of an incoming gradient, float64; None where the benchmark refuses.
        incoming: the incoming gradient.
        channels: its axis whose elements belong to one position; positions are added up in their order in memory.

    Returns:
        In the shape of the gradient, float64; None where that is no sum over positions.
    """
    moved = np.moveaxis(incoming, channels, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    total: Array = np.zeros(())
    squares: Array = np.zeros(())
    reached = []
    # Of the partial sums of each element 32 are computed.
    for first, last in pairwise(np.unique(np.linspace(0, len(rows), 33).astype(int)).tolist()):
        part = np.zeros_like(rows)
        part[first:last] = rows[first:last]
        added = gradient(np.ascontiguousarray(np.moveaxis(part.reshape(moved.shape), -1, channels)))
        if added is None:
            return None
        following = total + added
        squares = squares + (last - first) / 3 * (total * total + total * following + following * following)
        reached.append(np.count_nonzero(added) / max(1, added.size))
        total = following
    return np.sqrt(squares) if reached and float(np.mean(reached)) >= Share.REACHED else None
