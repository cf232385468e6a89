"""The table of random APIs: complete, readable, and held to the signatures of the installed MindSpore."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName, find_dtype
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import random_api, random_apis, reason_not_judged
from pytest_msprobe.suites.precheck.random_calls import FORMS, LAWS

LINES = [(framework, name) for framework in ("mindspore", "pytorch") for name in random_apis(framework)]


def name_of(text: str) -> ApiName:
    api_type, _, api = text.partition(".")
    return ApiName(api_type, f"held.{api}" if api_type == "Primitive" else api, 0)


@pytest.mark.parametrize(("framework", "name"), LINES)
def test_every_line_names_a_law_and_a_form_that_exist(framework: str, name: str) -> None:
    entry = random_api(name_of(name), framework)
    assert entry is not None
    if entry.law is None:
        assert reason_not_judged(name_of(name), framework) == entry.reason
        assert entry.reason.startswith("random by nature: ")
        return
    assert reason_not_judged(name_of(name), framework) is None
    parameters = {parameter: object() for parameter in entry.signature.parameters}
    inspect.signature(LAWS[entry.law.name]).bind(*entry.law.values(parameters))
    if entry.form is not None:
        inspect.signature(FORMS[entry.form.name]).bind(*entry.form.values(parameters))


@pytest.mark.parametrize("framework", ["mindspore", "pytorch"])
def test_a_law_needs_a_signature(framework: str) -> None:
    listed = facts("random").typed(framework).values()
    assert [fact.name for fact in listed if bool(fact.reason) == bool(fact.parameters)] == []


ROOTS = {"Mint": "mint", "MintFunctional": "mint.nn.functional", "Functional": "ops", "Tensor": "Tensor"}


@pytest.mark.needs("mindspore")
@pytest.mark.parametrize("name", [name for name in random_apis() if not name.startswith("Primitive.")])
def test_the_tables_parameters_are_mindspores_in_its_order(name: str) -> None:
    import mindspore

    root: Any = mindspore
    for step in f"{ROOTS[name.partition('.')[0]]}.{name.partition('.')[2]}".split("."):
        root = getattr(root, step, None)
    if root is None:
        pytest.skip(f"this MindSpore has no {name}")
    try:
        real = inspect.signature(root)
    except ValueError:
        pytest.skip("a compiled function that shows no signature")
    entry = random_api(name_of(name), "mindspore")
    assert entry is not None
    if entry.law is None or "args" in real.parameters:
        return
    wild = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    listed = [item.name for item in entry.signature.parameters.values() if item.kind not in wild]
    actual = list(real.parameters)
    offset = int(actual[0] == "self")
    for parameter in listed[offset:]:
        assert parameter in actual
        listed_default, default = entry.signature.parameters[parameter].default, real.parameters[parameter].default
        if isinstance(listed_default, (int, float, type(None))):
            assert listed_default == pytest.approx(default) if listed_default is not None else default is None


@pytest.mark.parametrize(
    ("api_type", "api", "reason"),
    [
        ("NPU", "npu_dropout", "table of laws has no NPU.npu_dropout"),
        ("Distributed", "all_reduce", "communication"),
        ("Jit", "step", "not in the dump"),
        ("Aten", "empty_like", "uninitialised"),
        ("Functional", "gamma", "the gamma law"),
    ],
)
def test_what_has_no_line_has_a_reason(api_type: str, api: str, reason: str) -> None:
    assert reason in (reason_not_judged(ApiName(api_type, api, 0)) or "")


def test_other_apis_are_not_in_the_table() -> None:
    assert random_api(ApiName("Mint", "matmul", 0), "mindspore") is None
    assert reason_not_judged(ApiName("Mint", "matmul", 0)) is None
    assert random_apis()["Mint.rand"] == "uniform"
    assert random_apis()["Functional.gamma"] == ""


def law_text(framework: str, name: str, *arguments: Any, **keywords: Any) -> str:
    entry = random_api(name_of(name), framework)
    assert entry is not None
    assert entry.law is not None
    return LAWS[entry.law.name](*entry.law.values(entry.bind(arguments, keywords))).text


X = np.zeros((2, 3), np.float16)
I = np.zeros(3, np.int32)  # noqa: E741


@pytest.mark.parametrize(
    ("text", "framework", "name", "arguments", "keywords"),
    [
        ("integers(0, 9)", "mindspore", "Mint.randint", (9, (2, 3)), {}),
        ("integers(2, 9)", "mindspore", "Mint.randint", (2, 9, (2, 3)), {}),
        ("integers(2, 9)", "mindspore", "Mint.randint", (), {"low": 2, "high": 9, "size": (2,)}),
        ("integers(0, 9)", "mindspore", "Mint.randint_like", (X, 9), {}),
        ("integers(-1, 9)", "mindspore", "Mint.randint_like", (X, -1, 9), {}),
        ("integers(0, 9)", "mindspore", "Functional.randint", (0, 9, (2,)), {}),
        ("integers(5, 2147483648)", "mindspore", "Tensor.random_", (I, 5), {}),
        ("integers(0, 5)", "pytorch", "Tensor.random_", (I, 5), {}),
        ("integers(0, 2049)", "pytorch", "Tensor.random_", (X,), {}),
        (
            "integers(1, 7)",
            "mindspore",
            "Functional.uniform",
            ((2,), I[0] + 1, I[0] + 7),
            {"dtype": find_dtype("Int32")},
        ),
        ("uniform(1, 7)", "mindspore", "Functional.uniform", ((2,), I[0] + 1, I[0] + 7), {}),
        ("normal(0, 2)", "mindspore", "Mint.normal", (0.0, 2.0, (3,)), {}),
        ("normal(0, one per element)", "mindspore", "Mint.normal", (0.0, np.ones(3)), {}),
        ("Bernoulli(0.5)", "mindspore", "Tensor.bernoulli_", (X,), {}),
        ("Bernoulli(0.2)", "pytorch", "Torch.bernoulli", (X, 0.2), {}),
        ("dropout(0.5)", "mindspore", "MintFunctional.dropout", (X,), {}),
        ("dropout(0)", "mindspore", "MintFunctional.dropout", (X, 0.3), {"training": False}),
        ("rrelu with slopes uniform(0.25, 0.25)", "pytorch", "Functional.rrelu", (X, 0.125, 0.375), {}),
        ("categories without replacement", "mindspore", "Mint.multinomial", (X + 1, 2), {}),
        ("categories with replacement", "mindspore", "Tensor.multinomial", (X + 1, 2), {}),
    ],
)
def test_laws_of_calls(text: str, framework: str, name: str, arguments: Any, keywords: Any) -> None:
    assert law_text(framework, name, *arguments, **keywords) == text


@pytest.mark.parametrize(
    ("framework", "name", "arguments", "keywords", "dtype", "shape"),
    [
        ("mindspore", "Mint.empty", (2, 3), {}, "Float32", (2, 3)),
        ("mindspore", "Mint.empty", ((2, 3),), {"dtype": find_dtype("Int8")}, "Int8", (2, 3)),
        ("mindspore", "Mint.empty_like", (X,), {}, "Float16", (2, 3)),
        ("mindspore", "Tensor.new_empty", (X, (4,)), {}, "Float16", (4,)),
        ("mindspore", "Mint.rand", (), {}, "Float32", ()),
        ("mindspore", "Mint.randint", (0, 9, (4, 5)), {}, "Int64", (4, 5)),
        ("mindspore", "Mint.randperm", (7,), {}, "Int64", (7,)),
        ("pytorch", "Tensor.new_empty", (X, 4, 5), {}, "Float16", (4, 5)),
    ],
)
def test_forms_of_calls(framework: str, name: str, arguments: Any, keywords: Any, dtype: str, shape: Any) -> None:
    entry = random_api(name_of(name), framework)
    assert entry is not None
    assert entry.form is not None
    form = FORMS[entry.form.name](*entry.form.values(entry.bind(arguments, keywords)))
    assert form.dtype is find_dtype(dtype)
    assert form.shape == shape
