"""What an operation is called on both sides: operations of equal names may be the same one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from msprobe_collector.dump_format.operation import GRADIENTS, Operation
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.spelling import plain_name

Name = Callable[[Operation], str]


@dataclass(frozen=True, slots=True)
class Naming:
    """How operations are named for matching.

    Attributes:
        target, golden: name of an operation of that side; equal names mean the same.
        is_translated: whether names cross frameworks, so that parameters do too.
    """

    target: Name
    golden: Name
    is_translated: bool = False


def own_name(operation: Operation) -> str:
    """The name in the dump, without call number."""
    return f"{operation.name}:{GRADIENTS}" if operation.phase == GRADIENTS else operation.name


def bare_name(operation: Operation) -> str:
    """The callable's own name in the one spelling for both frameworks; for a Cell, its path without its class."""
    if operation.is_cell:
        path = operation.name.partition(".")[2].rpartition(".")[0]
        return f"Cell.{path}:{GRADIENTS}" if operation.phase == GRADIENTS else f"Cell.{path}"
    return canonical_operation(operation.bare, operation.name.partition(".")[0])


SAME_NAMES = Naming(own_name, own_name)
ACROSS_FRAMEWORKS = Naming(bare_name, bare_name, is_translated=True)


@cache
def canonical_operation(bare: str, api_type: str = "") -> str:
    """`linear` for `Dense`, `dense` and `linear`: one word for an API in both frameworks.

    `api_type` is that of its record names, where the word depends on it.
    """
    known = facts("operation_names").find(api_type, bare)
    return known.text if known else plain_name(bare)


@cache
def tensor_order(name: str, framework: str) -> tuple[int, ...]:
    """Where PyTorch has the tensors among the arguments of the operation `name` (`Functional.gather`), in its order.

    () where the order is PyTorch's, as far as is known.
    """
    known = facts("tensor_order").find(name.partition(".")[0], name.rpartition(".")[2], framework)
    return tuple(int(place) for place in known.text.split()) if known else ()


@cache
def canonical_parameter(name: str) -> str:
    """`weight` for `gamma`: one word for a parameter in both frameworks."""
    known = facts("parameter_names").word(name)
    return known.text if known else plain_name(name)
