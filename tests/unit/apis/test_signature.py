"""Signatures and terms as fact files write them."""

from __future__ import annotations

import ast
import inspect

import pytest

from pytest_msprobe.apis.fact_table import read_signature, read_terms


def test_a_signature_is_that_of_the_same_function() -> None:
    def api(a, b=1, *c, d=(2, 3), **e): ...  # type: ignore[no-untyped-def]

    parameters = inspect.signature(api).parameters.values()
    without_kinds = [parameter.replace(annotation=()) for parameter in parameters]
    assert list(read_signature("(a, b=1, *c, d=(2, 3), **e)").parameters.values()) == without_kinds


def test_kinds_and_defaults_as_expressions() -> None:
    parameter = read_signature("(axis: int | None = -1)", lambda default: default).parameters["axis"]
    assert parameter.annotation == ("int", "None")
    assert isinstance(parameter.default, ast.UnaryOp)


def test_terms_take_parameters_and_constants() -> None:
    law, form = read_terms('uniform(0, high); size(size, None, "Float32", axis=-1)')
    assert (law.name, law.values({"high": 7})) == ("uniform", [0, 7])
    assert form.values({"size": (2, 3)}) == [(2, 3), None, "Float32"]
    assert form.keywords == {"axis": -1}


@pytest.mark.parametrize("text", ["uniform", "a.b(1)", "x + 1"])
def test_a_term_is_a_name_with_arguments(text: str) -> None:
    with pytest.raises(ValueError, match="not name"):
        read_terms(text)
