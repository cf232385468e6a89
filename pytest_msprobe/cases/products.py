"""Which product of matrices an output or a gradient is, found by its shapes and by a few of its elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from pytest_msprobe.engines.protocol import Array
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.numerics.measurement import Floats

#: So many elements of the benchmark's result are computed again, ...
_CHECKED = 16
#: So many elements, of so many matrices of a batch, stand for all.
_SAMPLED, _SAMPLED_MATRICES = 1 << 14, 16


@dataclass(frozen=True, slots=True)
class Product:
    """`left @ right + bias`, as NumPy multiplies and broadcasts, reshaped to `shape`.

    Attributes:
        left, right: in their own dtypes, two-dimensional or a batch of such matrices, (..., m, k) and (..., k, n).
        bias: of a shape that broadcasts to the product; None without one.
        shape: of the output.
    """

    left: Array
    right: Array
    bias: Array | None
    shape: tuple[int, ...]

    def terms(self, at: int) -> Floats:
        """What the element at a flat position is the sum of, float64, shape (k,), or (k + 1,) with a bias."""
        *batch, row, column = (int(place) for place in np.unravel_index(at, self._product_shape))
        left, right = (_matrix(side, self._product_shape, batch) for side in (self.left, self.right))
        found: Floats = left[row].astype(np.float64) * right[:, column].astype(np.float64)
        if self.bias is None:
            return found
        bias = np.broadcast_to(self.bias, self.shape)[np.unravel_index(at, self.shape)]
        return np.append(found, bias.astype(np.float64))

    def norms(self, every: int = 1) -> Floats:
        """The 2-norm of the terms of each element, shape (size of the output,), float32; not finite where out of reach.

        One product of squares in float32: the terms are those products, and their sizes need a few digits. With `every`
        only each of so many terms counts, so that they are less.
        """
        with np.errstate(all="ignore"):
            sides = self.left[..., ::every], self.right[..., ::every, :]
            (left, left_size), (right, right_size) = map(_squares, sides)
            norms = np.matmul(left, right)
            np.sqrt(norms, out=norms)
            norms *= np.float32(left_size * right_size)
        if self.bias is not None:
            norms = np.hypot(norms.reshape(self.shape), self.bias.astype(np.float32))
        found: Floats = norms.reshape(-1)
        return found

    def sample(self) -> tuple[Array, Floats]:
        """(flat positions, norms as `norms_at` has them) of some rows and columns of some of the matrices."""
        random = np.random.default_rng(0)
        *batches, rows, columns = self._product_shape
        some = random.permutation(math.prod(batches))[:_SAMPLED_MATRICES]
        each = max(1, math.isqrt(_SAMPLED // some.size))
        down, across = (
            np.sort(random.permutation(size)[: max(each, _SAMPLED // some.size // other)])
            for size, other in ((rows, columns), (columns, rows))
        )
        found = []
        for one in some:
            batch = np.unravel_index(one, batches)
            left, right = (_matrix(side, self._product_shape, batch) for side in (self.left, self.right))
            found.append(Product(left[down], right[:, across], None, (down.size, across.size)).norms())
        places = some[:, None, None] * (rows * columns) + down[:, None] * columns + across
        return places.reshape(-1), self._with_bias(np.concatenate(found), places.reshape(-1))

    def norms_at(self, places: Array) -> Floats:
        """The 2-norm of the terms of the elements at flat positions, shape (m,), float32."""
        found: Floats = np.empty(len(places), np.float32)
        # Of the terms a million are taken at once.
        step = max(1, (1 << 20) // self.left.shape[-1])
        batches = self._product_shape[:-2]
        left = np.broadcast_to(self.left, batches + self.left.shape[-2:])
        right = np.broadcast_to(self.right, batches + self.right.shape[-2:]).swapaxes(-1, -2)
        for start in range(0, len(places), step):
            part = slice(start, start + step)
            place = np.unravel_index(places[part], self._product_shape)
            terms = left[place[:-1]].astype(np.float64)
            terms *= right[place[:-2] + place[-1:]]
            found[part] = np.linalg.norm(terms, axis=-1)
        return self._with_bias(found, places)

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
        batch = np.broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return (*batch, self.left.shape[-2], self.right.shape[-1])


def product_of_tensors(tensors: Sequence[Array], reference: Array) -> Product | None:
    """`reference` as the product of two of two or three `tensors`, the third one added to it; None where it is not.

    Args:
        tensors: of floats, in any order.
        reference: raw result of the benchmark.
    """
    if not (2 <= len(tensors) <= 3 and reference.size):
        return None
    for left, right, *others in permutations(tensors):
        bias = others[0] if others else None
        if bias is not None and not _broadcasts(bias.shape, reference.shape):
            continue
        found = _product(left, right, bias, reference)
        if found is not None:
            return found
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
    return next((found for pair in pairs if (found := _product(*pair, None, reference)) is not None), None)


def _product(left: Array, right: Array, bias: Array | None, reference: Array) -> Product | None:
    """The product of the two, one or both transposed, that `reference` is."""
    if min(left.ndim, right.ndim, reference.ndim) < 2:
        return None
    for rows, columns in _views(left, right):
        if rows.shape[-1] != columns.shape[-2] or not _fits(rows, columns, reference.shape):
            continue
        found = Product(rows, columns, bias, reference.shape)
        if found.is_sum_of_terms(reference):
            return found
    return None


def _views(left: Array, right: Array) -> Iterator[tuple[Array, Array]]:
    """Both as they are and transposed, and what sums over all leading axes: the gradient of a weight."""
    for rows in (left, left.swapaxes(-1, -2)):
        yield from ((rows, columns) for columns in (right, right.swapaxes(-1, -2)))
    if left.ndim > 2 and right.ndim > 2:
        yield left.reshape(-1, left.shape[-1]).T, right.reshape(-1, right.shape[-1])


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
    found: Array = np.broadcast_to(side, (*shape[:-2], *side.shape[-2:]))[tuple(batch)]
    return found


def _squares(side: Array) -> tuple[Array, float]:
    """(squares of the elements over the largest one's size, that size), float32, so that none leaves the range."""
    wide = side.astype(np.float32)
    size = float(np.abs(wide).max())
    if not 0 < size < math.inf:
        return np.square(wide, out=wide), 1.0
    wide /= np.float32(size)
    return np.square(wide, out=wide), size
