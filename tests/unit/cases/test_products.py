"""Which products of matrices outputs and gradients are found to be, and what is known of their elements."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_msprobe.cases.products import gradient_as_product, product_of_tensors

ml_dtypes = pytest.importorskip("ml_dtypes")


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def wide(array):
    return array.astype(np.float64)


def sizes(left, right):
    """Norms of the terms of a product, in float64."""
    return np.sqrt(np.square(wide(left)) @ np.square(wide(right)))


X, W, B = normal(3, 20, 24), normal(16, 24), normal(16)
G = normal(3, 20, 16)
Q, K = normal(2, 4, 12, 8), normal(2, 4, 12, 8, seed=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_norms_are_those_of_the_terms_in_every_dtype(dtype):
    x, w = X.astype(dtype), W.astype(dtype)
    product = product_of_tensors([x, w], wide(x) @ wide(w).T)
    np.testing.assert_allclose(product.norms().reshape(3, 20, 16), sizes(x, w.T), rtol=1e-5)


def test_norms_do_not_overflow():
    x, w = X * np.float32(1e25), W * np.float32(1e-25)
    product = product_of_tensors([x, w], wide(x) @ wide(w).T)
    np.testing.assert_allclose(product.norms().reshape(3, 20, 16), sizes(x, w.T), rtol=1e-5)


FOUND = {
    "linear": lambda: ([X, W, B], wide(X) @ wide(W).T + wide(B)),
    "bias first": lambda: ([B, X[0], W.T], wide(X[0]) @ wide(W).T + wide(B)),
    "scores": lambda: ([Q, K], wide(Q) @ wide(K).swapaxes(-1, -2)),
    "left transposed": lambda: ([X[0], G[0]], wide(X[0]).T @ wide(G[0])),
    "broadcast batch": lambda: ([Q[:, :1], K], wide(Q[:, :1]) @ wide(K).swapaxes(-1, -2)),
}


@pytest.mark.parametrize("given", FOUND.values(), ids=FOUND)
def test_every_element_is_the_sum_of_its_terms(given):
    tensors, reference = given()
    product = product_of_tensors(tensors, reference)
    sums = [product.terms(at).sum() for at in range(reference.size)]
    np.testing.assert_allclose(np.reshape(sums, reference.shape), reference, rtol=1e-9, atol=1e-12)


GRADIENTS = {
    "of x": lambda: ([W, B], wide(G) @ wide(W)),
    "of w": lambda: ([X, B], wide(G).reshape(-1, 16).T @ wide(X).reshape(-1, 24)),
    "of w, other layout": lambda: ([X], wide(X).reshape(-1, 24).T @ wide(G).reshape(-1, 16)),
    "of the bias": lambda: ([X, W], wide(G).sum((0, 1))),
}


@pytest.mark.parametrize("given", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_are_products_with_the_incoming_one(given):
    others, reference = given()
    product = gradient_as_product(others, G, reference)
    sums = [product.terms(at).sum() for at in range(reference.size)]
    np.testing.assert_allclose(np.reshape(sums, reference.shape), reference, rtol=1e-9, atol=1e-12)


NOT = {
    "scaled": lambda: ([X, W], 1.001 * (wide(X) @ wide(W).T)),
    "something added": lambda: ([X, W], wide(X) @ wide(W).T + wide(B)),
    "other shape": lambda: ([X, W], (wide(X) @ wide(W).T)[:, :5]),
    "one tensor": lambda: ([X], wide(X)),
    "empty": lambda: ([X[:0], W], wide(X[:0]) @ wide(W).T),
}


@pytest.mark.parametrize("given", NOT.values(), ids=NOT)
def test_what_is_not_the_product_is_not_taken_for_it(given):
    assert product_of_tensors(*given()) is None
