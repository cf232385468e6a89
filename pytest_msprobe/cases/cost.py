"""How long an API call may take, guessed from its name and shapes, so that long ones start first."""

from __future__ import annotations

from math import prod

from msprobe_collector.dump_format import Dump

#: Calls that do much more than touch each element: every output element costs a row of the first input.
_PRODUCTS = ("mm", "matmul", "linear", "dense", "conv", "einsum", "attention", "inner", "outer", "dot")
#: A multiply-add in a product costs a core about this share of reading and writing an element.
_PRODUCT_SHARE = 1 / 16
#: What a call costs before it touches anything, in elements.
_FIXED = 20_000.0


def estimate_cost(dump: Dump, call: str) -> float:
    """Cost of checking the API call named `call` in both directions, in elements read or written."""
    cost = _FIXED
    shapes = dump.shapes(f"{call}.forward")
    cost += sum(map(prod, shapes))
    cost += sum(map(prod, dump.shapes(f"{call}.backward")))
    if len(shapes) > 1 and shapes[0] and any(word in call.lower() for word in _PRODUCTS):
        passes = 3 if f"{call}.backward" in dump else 1
        cost += passes * _PRODUCT_SHARE * prod(shapes[-1]) * shapes[0][-1]
    return cost
