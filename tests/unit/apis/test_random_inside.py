"""Calls that draw at random when their arguments say so; no API of the installed frameworks that draws is unknown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import random_api, random_inside, reason_uncomputable
from pytest_msprobe.apis.operators import find_operator

X = np.zeros((2, 3), np.float32)
ATTENTION = (X, X, X, 4, 2, X, X, None, None, False)
LSTM = (X, (X, X), (X, X), True)


@pytest.mark.parametrize(
    ("told", "name", "arguments", "keywords"),
    [
        ("dropout_p=0.2", "Functional.scaled_dot_product_attention", (X, X, X), {"dropout_p": 0.2}),
        ("dropout_p=0.2", "Functional.scaled_dot_product_attention", (X, X, X, None, 0.2, True), {}),
        ("dropout_p=0.2", "Aten.scaled_dot_product_attention", (X, X, X, None, 0.2), {}),
        ("", "Functional.scaled_dot_product_attention", (X, X, X), {"is_causal": True, "scale": 0.5}),
        ("dropout_p=0.1, training=True", "Functional.multi_head_attention_forward", (*ATTENTION, 0.1, X, X), {}),
        (
            "",
            "Functional.multi_head_attention_forward",
            (*ATTENTION, 0.1, X, X),
            {"training": False, "need_weights": True},
        ),
        ("", "Functional.multi_head_attention_forward", (*ATTENTION, 0.0, X, X), {"training": True}),
        ("dropout=0.5, train=True, num_layers=2", "VF.lstm", (*LSTM, 2, 0.5, True, False, False), {}),
        ("dropout=0.5, train=True, num_layers=3", "VF.gru", (X, X, X, (X, X), True, 3, 0.5, True, False), {}),
        ("", "VF.lstm", (*LSTM, 1, 0.5, True, False, False), {}),
        ("", "VF.rnn_tanh", (X, X, (X, X), True, 2, 0.5, False, False, False), {}),
        ("", "Torch.lstm", (*LSTM, 2, 0.0, True, False, False), {}),
        ("_random_samples=None", "Functional.fractional_max_pool2d", (X, 2), {"output_size": 3}),
        ("", "Functional.fractional_max_pool2d", (X, 2), {"output_size": 3, "_random_samples": X}),
        ("keep_prob=0.9, drop_mask=None", "Functional.flash_attention_score", (X, X, X, 2), {"keep_prob": 0.9}),
        ("", "Functional.flash_attention_score", (X, X, X, 2, None, X), {"keep_prob": 0.9}),
        ("keep_prob=0.9", "NPU.npu_fusion_attention", (X, X, X, 2, "BSH"), {"keep_prob": 0.9}),
        ("", "NPU.npu_fusion_attention", (X, X, X, 2, "BSH"), {}),
        ("", "Torch.matmul", (X, X), {}),
        ("", "Functional.scaled_dot_product_attention", (), {"no": "signature"}),
    ],
)
def test_what_a_call_says(told: str, name: str, arguments: Any, keywords: Any) -> None:
    api_type, _, api = name.partition(".")
    framework = "mindspore" if "flash" in name else "pytorch"
    found = random_inside(ApiName(api_type, api, 0), framework, arguments, keywords)
    assert found == (f"random by nature with {told}: what the call drew inside is not in the dump" if told else "")


@pytest.mark.parametrize(("dropout", "is_random"), [(0.3, True), (np.array([0.3]), True), (0.0, False)])
def test_attributes_of_a_primitive(dropout: Any, is_random: bool) -> None:
    attributes = {"input_size": 3, "num_layers": 2, "dropout": dropout}
    api = ApiName("Primitive", "held.LSTM", 0)
    assert bool(random_inside(api, "mindspore", (X, X, X, X), {}, attributes)) is is_random


#: Arguments by which a function says that it draws.
_WORDS = {"generator", "seed", "seed2", "dropout", "dropout_p", "keep_prob", "train", "training", "is_training"}
#: A function of Python that calls one of these draws.
_CALLS = re.compile(r"\b(?:rand\w*|bernoulli\w*|\w*dropout\w*|exponential_|rrelu\w*|multinomial|uniform_|normal_?)\(")
#: Where such a word means something else.
_DEFINITE = {
    # training chooses between the statistics of the batch and the running ones
    *("Torch.batch_norm", "VF.batch_norm", "Aten.batch_norm", "Functional.batch_norm", "MintFunctional.batch_norm"),
    *("Torch.native_batch_norm", "VF.native_batch_norm", "Aten.native_batch_norm", "Aten._native_batch_norm_legit"),
    *("Aten.native_batch_norm_backward", "Aten.rrelu_with_noise_backward"),
    *("Primitive.BatchNorm", "Primitive.BatchNormExt", "Primitive.BatchNormFold"),
    *(f"Primitive.Fake{name}{per}" for name in ("LearnedScaleQuant", "Quant") for per in ("PerChannel", "PerLayer")),
}


def _is_known(api: ApiName, framework: str) -> bool:
    drawn = random_api(api, framework) is not None or bool(facts("random_inside").forms(api, framework))
    return drawn or reason_uncomputable(api, framework) is not None


def _unknown(names: Iterator[tuple[str, str]], framework: str) -> list[str]:
    tree = "torch" if framework == "pytorch" else "mindspore"
    listed = [(kind, name) for kind, name in names if find_operator(tree, kind, name) is not None]
    assert len(listed) > 40
    prefix = "held." if tree == "mindspore" else ""
    return [
        f"{kind}.{name}"
        for kind, name in listed
        if f"{kind}.{name}" not in _DEFINITE
        and not _is_known(ApiName(kind, f"{prefix}{name}" if kind == "Primitive" else name, 0), framework)
    ]


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # compiled
        return set()


def _code(function: Any) -> str:
    try:
        return re.sub(r'""".*?"""', "", inspect.getsource(function), flags=re.DOTALL)
    except (OSError, TypeError):
        return ""


def _drawing(kind: str, root: Any) -> Iterator[tuple[str, str]]:
    """Functions of `root` that say so by a parameter, or whose code draws."""
    for name in dir(root):
        function = getattr(root, name, None)
        if callable(function) and not inspect.isclass(function) and not name.startswith("__"):
            _, _, code = _code(function).partition("(")  # behind its own name
            if _parameters(function) & _WORDS or _CALLS.search(code):
                yield kind, name


def _drawing_in_torch() -> Iterator[tuple[str, str]]:
    import torch

    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        operator = getattr(getattr(torch.ops.aten, name, None), schema.overload_name or "default", None)
        if space == "aten" and operator is not None:
            is_seeded = torch.Tag.nondeterministic_seeded in operator.tags
            if is_seeded or _WORDS & {argument.name for argument in schema.arguments}:
                yield from ((kind, name) for kind in ("Torch", "Tensor", "Functional", "VF", "Aten"))
    yield from _drawing("Torch", torch)
    yield from _drawing("Functional", torch.nn.functional)
    yield from _drawing("Tensor", torch.Tensor)


@pytest.mark.needs("torch")
def test_every_function_of_torch_that_draws_is_known() -> None:
    assert _unknown(_drawing_in_torch(), "pytorch") == []


def _drawing_in_mindspore() -> Iterator[tuple[str, str]]:
    import mindspore
    from mindspore import mint, ops

    yield from _drawing("Mint", mint)
    yield from _drawing("MintFunctional", mint.nn.functional)
    yield from _drawing("Functional", ops)
    yield from _drawing("Tensor", mindspore.Tensor)
    for module in (ops.operations, ops.auto_generate):
        for name, found in vars(module).items():
            if inspect.isclass(found) and (_parameters(found.__init__) | _parameters(found.__call__)) & _WORDS:
                yield "Primitive", name


@pytest.mark.needs("mindspore")
def test_every_function_of_mindspore_that_draws_is_known() -> None:
    assert _unknown(_drawing_in_mindspore(), "mindspore") == []


@pytest.mark.needs("torch")
def test_signatures_are_those_of_the_installed_torch() -> None:
    from torch.nn import functional

    for name in ("multi_head_attention_forward", "fractional_max_pool2d_with_indices"):
        (fact,) = facts("random_inside").forms(ApiName("Functional", name, 0), "pytorch")
        listed = [word.strip(" ()").partition("=")[0] for word in fact.parameters.split(",") if "*" not in word]
        assert list(inspect.signature(getattr(functional, name)).parameters)[: len(listed)] == listed
