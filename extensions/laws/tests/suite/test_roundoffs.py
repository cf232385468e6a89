"""How exact values of a dtype are, by its name in a framework."""

from __future__ import annotations

import pytest

from msprobe_laws.observation import coarsest_roundoff, smallest


def test_the_coarsest_dtype_counts_and_what_is_not_there_does_not() -> None:
    assert coarsest_roundoff(["float32", "", "float8_e5m2", "bfloat16"]) == 2.0**-3
    assert coarsest_roundoff([""]) == 2.0**-53


def test_an_unknown_dtype_is_no_float64() -> None:
    with pytest.raises(ValueError, match="'float24' is no dtype"):
        coarsest_roundoff(["float32", "float24"])


def test_float8_keeps_its_subnormals() -> None:
    assert smallest("float8_e4m3fn") == 2.0**-9
    assert smallest("float32") == 2.0**-126
