"""Which strings a record may pass, and that the list of those knows the frameworks' own parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pytest_msprobe.apis import facts
from pytest_msprobe.apis.operators import _words, operator_names, refused_argument


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("mse_loss", "mean"),
        ("div", "floor"),
        ("einsum", "bij,bjk->bik"),
        ("einsum", "...i, ij"),
        ("astype", "float32"),
        ("to", "torch.bfloat16"),
        ("pad", "reflect"),
        ("GeluExt", "tanh"),
    ],
)
def test_what_an_operator_takes_is_passed(operator: str, value: str) -> None:
    assert refused_argument(operator, value) is None


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        ("exp", "mean"),
        ("exp", ""),
        ("mse_loss", "floor"),
        ("mse_loss", "/etc/passwd"),
        ("mse_loss", "<equation>"),
        ("einsum", "ij;import os"),
        ("einsum", "i" * 1000),
        ("astype", "os.float32"),
        ("astype", "os.system"),
        ("to", "cuda:0"),
        ("", "mean"),
    ],
)
def test_any_other_string_is_refused_with_what_is_allowed(operator: str, value: str) -> None:
    reason = refused_argument(operator, value)
    assert reason is not None
    assert ("takes no string" in reason) == (operator not in _words())


def test_the_reason_is_one_line_of_ascii() -> None:
    reason = refused_argument("exp", "\x1b[31m\n\u202e" * 100)
    assert reason is not None
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) < 200 + 80 * 5


def test_every_entry_is_an_operator() -> None:
    short = {name.rpartition(".")[2] for framework in ("mindspore", "torch") for _, name in operator_names(framework)}
    # In no public module, but judged by a reference of ours.
    of_npu = {name.partition(".")[2] for name in facts("torch_calls/npu").typed()}
    assert set(_words()) - short - of_npu == {"dequant_swiglu_quant"}


@pytest.mark.parametrize("path", ["mint", "mint.nn.functional", "mint.linalg", "ops"])
def test_defaults_of_mindspore_are_allowed(path: str) -> None:
    import importlib

    pytest.importorskip("mindspore")
    module = importlib.import_module(f"mindspore.{path}")
    api_type = {"mint.nn.functional": "MintFunctional", "ops": "Functional"}.get(path, "Mint")
    prefix = "linalg." if path == "mint.linalg" else ""
    names = [name.removeprefix(prefix) for kind, name in operator_names("mindspore") if kind == api_type]
    refused = [
        f"{name}({parameter}='{default}')"
        for name in names
        if "." not in name
        for parameter, default in string_defaults(getattr(module, name, None))
        if refused_argument(name, default) is not None
    ]
    assert refused == []


def test_defaults_of_torch_are_allowed() -> None:
    torch: Any = pytest.importorskip("torch")
    known = set(operator_names("torch"))
    refused = [
        f"{schema.name}({argument.name}='{argument.default_value}')"
        for schema in torch._C._jit_get_all_schemas()
        if ("Aten", name := schema.name.removeprefix("aten::")) in known
        for argument in schema.arguments
        if isinstance(argument.default_value, str) and refused_argument(name, argument.default_value) is not None
    ]
    refused += [
        f"{name}({parameter}='{default}')"
        for kind, name in operator_names("torch")
        if kind == "Functional"
        for parameter, default in string_defaults(getattr(torch.nn.functional, name, None))
        if refused_argument(name, default) is not None
    ]
    assert refused == []


def string_defaults(function: Any) -> list[tuple[str, str]]:
    """(parameter, default) of each parameter whose default is a string."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [(parameter.name, parameter.default) for parameter in parameters if isinstance(parameter.default, str)]
