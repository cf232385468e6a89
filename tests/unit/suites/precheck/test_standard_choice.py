"""Which standard is made for which API call."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.numerics.judgement import CosineMaxAbs, Standard
from pytest_msprobe.numerics.standards.elementwise import (
    ERROR_MULTIPLES,
    AgainstSecondOpinion,
    Binary,
    Thousandth,
    Ulp,
    UlpBounds,
)
from pytest_msprobe.suites.precheck.check import integer_tolerance
from pytest_msprobe.suites.precheck.options import BY_API, STANDARD_BOUNDS, NamedStandard, StandardChoice, matches
from pytest_msprobe.suites.precheck.standards import MAKERS, ByDtype, Standards

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)


def chosen(call: str, default: str = "cosine-maxabs", choice: StandardChoice | None = None) -> Standard:
    standards = Standards(NamedStandard(default), choice or StandardChoice(), cosine=0.9, max_abs=0.5)
    return standards.of_call(parse_api_name(call))


def test_every_standard_can_be_made_by_its_name_and_with_bounds() -> None:
    assert list(STANDARD_BOUNDS) == [*MAKERS]
    for name, bounds in STANDARD_BOUNDS.items():
        assert chosen("Mint.exp.0", name).name == name
        made = MAKERS[name](**dict.fromkeys(bounds, 0.5))
        held = next((value for value in _values(made) if is_dataclass(value)), made)
        named = {field.name: getattr(held, field.name) for field in fields(held)}  # type: ignore[arg-type]
        for other in ("strict", "narrow_sums"):  # an option of its own; what is known of a call: no bounds
            named.pop(other, None)
        assert tuple(named) == bounds
        assert set(named.values()) <= {0.5}


def _values(made: object) -> list[object]:
    return [getattr(made, field.name) for field in fields(made)]  # type: ignore[arg-type]


def test_the_options_bound_the_default_rule_wherever_it_is_chosen() -> None:
    assert chosen("Mint.exp.0") == CosineMaxAbs(0.9, 0.5)
    choice = StandardChoice(apis=(("Mint.exp", NamedStandard("cosine-maxabs")),))
    assert chosen("Mint.exp.0", "ulp", choice) == CosineMaxAbs(0.9, 0.5)


def test_patterns_go_before_dtypes_and_the_first_that_matches_counts() -> None:
    choice = StandardChoice(
        bounds={"ulp": (("ulps", 2.0), ("share", 0.5), ("mean", 0.0))},
        dtypes={"Float16": NamedStandard("thousandth")},
        apis=(
            ("Mint.exp.1", NamedStandard("binary")),
            ("Mint.e*", NamedStandard("ulp")),
            ("*", NamedStandard("thousandth", (("relative", 0.5), ("share", 0.25)))),
        ),
    )
    assert chosen("Mint.exp.1", choice=choice) == Binary()
    assert chosen("Mint.exp.10", choice=choice) == Ulp(UlpBounds(2.0, 0.5, 0.0))
    assert chosen("Tensor.exp.10", choice=choice) == Thousandth(0.5, 0.25)


def test_outputs_have_the_standard_of_their_dtype() -> None:
    found = chosen("Mint.exp.0", choice=StandardChoice(dtypes={"Float16": NamedStandard("thousandth")}))
    assert isinstance(found, ByDtype)
    assert found.of(HALF) == Thousandth()
    assert found.of(FLOAT) == found.of(np.dtype(ml_dtypes.bfloat16)) == CosineMaxAbs(0.9, 0.5)
    assert found.of_all([HALF, HALF]) == Thousandth()
    assert found.of_all([HALF, FLOAT]) is found.of_all([]) is found


@pytest.mark.parametrize(
    ("pattern", "call", "is_match"),
    [
        ("Mint.matmul", "Mint.matmul.3", True),
        ("Mint.matmul.3", "Mint.matmul.3", True),
        ("Mint.matmul.3", "Mint.matmul.30", False),
        ("Mint.mat*", "Mint.matmul.3", True),
        ("matmul", "Mint.matmul.3", False),
        ("*.matmul", "Mint.linalg.matmul.3", True),
        ("mint.matmul", "Mint.matmul.3", False),
    ],
)
def test_patterns(pattern: str, call: str, is_match: bool) -> None:
    assert matches(pattern, parse_api_name(call)) == is_match


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("Mint.add.0", "absolute-threshold"),
        ("Tensor.add_.0", "absolute-threshold"),
        ("Tensor.__rmul__.0", "absolute-threshold"),
        ("Primitive.relu.ReLU.0", "binary"),
        ("Mint.matmul.0", "ulp"),
        ("MintFunctional.conv2d.0", "thousandth"),
        ("MintFunctional.softmax.0", "benchmark"),
    ],
)
def test_msprobe_means_the_standard_of_each_api(call: str, name: str) -> None:
    assert chosen(call, BY_API).name == name


@pytest.mark.parametrize(
    ("call", "level"),
    [
        ("MintFunctional.softmax.0", 0),
        ("MintFunctional.embedding.0", 1),
        ("MintFunctional.gelu.0", 2),
        ("Primitive.norm.LayerNorm.0", 2),
    ],
)
def test_levels_of_benchmark_hang_on_the_api(call: str, level: int) -> None:
    assert chosen(call, "benchmark") == AgainstSecondOpinion(ERROR_MULTIPLES[level])
    bounds = tuple(dict.fromkeys(STANDARD_BOUNDS["benchmark"], 1.0).items())
    made = chosen(call, "benchmark", StandardChoice(bounds={"benchmark": bounds}))
    assert isinstance(made, AgainstSecondOpinion)
    assert made.levels.rmse == 1


def test_only_int8_results_of_quantising_may_be_off() -> None:
    quant, other = parse_api_name("Primitive.q.DynamicQuantExt.0"), parse_api_name("Mint.add.0")
    assert integer_tolerance(quant, np.dtype(np.int8)) == 1
    assert integer_tolerance(quant, np.dtype(np.int32)) == integer_tolerance(other, np.dtype(np.int8)) == 0
