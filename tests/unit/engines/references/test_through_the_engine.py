"""References run by the torch engine: float64 as benchmark, the dump's dtypes as device."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis.fact_table import reason_not_judged
from pytest_msprobe.engines.protocol import Argument, Call, Unsupported
from pytest_msprobe.engines.torch_engine import TorchEngine

RANDOM = np.random.default_rng(5)
QUERY, KEY, VALUE, INCOMING = (RANDOM.standard_normal((1, 6, 8)).astype(ml_dtypes.bfloat16) for _ in range(4))
X, GAMMA = RANDOM.standard_normal((3, 5, 8)).astype(np.float16), RANDOM.standard_normal(8).astype(np.float16)


def call(name: str, *arguments: Argument, **keywords: Argument) -> Call:
    api_type, _, api = name.partition(".")
    return Call(ApiName(api_type, api, 0), "mindspore", arguments, keywords)


ATTENTION = call("Functional.flash_attention_score", QUERY, KEY, VALUE, 1, scalar_value=0.5, sparse_mode=2)


def causal_weights() -> np.ndarray:
    scores = 0.5 * QUERY[0].astype(np.float64) @ KEY[0].astype(np.float64).T
    weights = np.where(np.tri(6), np.exp(scores), 0.0)
    return weights / weights.sum(-1, keepdims=True)


def test_attention_and_its_closed_form_gradients_in_float64() -> None:
    differentiate = tuple(("input", i) for i in range(3))
    execution = TorchEngine(is_raised=True).forward(ATTENTION, differentiate=differentiate)
    weights, value, incoming = causal_weights(), VALUE[0].astype(np.float64), INCOMING[0].astype(np.float64)
    (output,) = execution.outputs
    assert isinstance(output.value, np.ndarray)
    assert output.value.dtype == np.float64
    np.testing.assert_allclose(output.value[0], weights @ value, rtol=1e-13)
    d_weights = incoming @ value.T
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True))
    expected = (
        0.5 * d_scores @ KEY[0].astype(np.float64),
        0.5 * d_scores.T @ QUERY[0].astype(np.float64),
        weights.T @ incoming,
    )
    for found, wanted in zip(execution.gradients((INCOMING,)), expected, strict=True):
        assert found is not None
        np.testing.assert_allclose(found[0], wanted, rtol=1e-12, atol=1e-15)


def test_as_a_device_it_computes_in_the_dumps_dtype_and_rounds_once() -> None:
    (output,) = TorchEngine(is_raised=False).forward(ATTENTION, differentiate=()).outputs
    assert isinstance(output.value, np.ndarray)
    assert output.value.dtype == ml_dtypes.bfloat16
    expected = causal_weights() @ VALUE[0].astype(np.float64)
    # Half a unit in the last place of bfloat16, which has 8 significant bits, and float32 inside.
    np.testing.assert_allclose(output.value[0].astype(np.float64), expected, rtol=2.0**-8 * 1.001, atol=1e-6)


def test_rms_norm_returns_both_outputs_and_the_gradient_of_gamma_over_all_rows() -> None:
    execution = TorchEngine(is_raised=True).forward(
        call("Functional.rms_norm", X, GAMMA, 1e-5), differentiate=(("input", 0), ("input", 1))
    )
    wide, gamma = X.astype(np.float64), GAMMA.astype(np.float64)
    rstd = (np.mean(wide**2, -1, keepdims=True) + 1e-5) ** -0.5
    for output, expected in zip(execution.outputs, (wide * rstd * gamma, rstd), strict=True):
        np.testing.assert_allclose(output.value, expected, rtol=1e-14)
    incoming = RANDOM.standard_normal(X.shape).astype(np.float16)
    _, d_gamma = execution.gradients((incoming, None))
    np.testing.assert_allclose(d_gamma, (incoming * wide * rstd).sum((0, 1)), rtol=1e-13)


def test_an_api_that_works_in_place_leaves_the_array_alone() -> None:
    x, total = np.ones((2, 3), np.float16), np.zeros((3, 3), np.float32)
    engine = TorchEngine(is_raised=True)
    execution = engine.forward(call("Functional.matmul_add_", x, x, total), differentiate=(("input", 0),))
    np.testing.assert_array_equal(execution.outputs[0].value, np.full((3, 3), 2.0))
    assert not total.any()
    np.testing.assert_array_equal(execution.gradients((np.ones((3, 3), np.float32),))[0], np.full((2, 3), 3.0))


def test_a_list_of_tensors_is_differentiated() -> None:
    x, weight = RANDOM.standard_normal((4, 2)), RANDOM.standard_normal((2, 2, 3))
    execution = TorchEngine(is_raised=True).forward(
        call("Functional.gmm", (x,), (weight,), None, (1, 4)), differentiate=(("input", 1, 0),)
    )
    assert [output.path for output in execution.outputs] == [(0,)]
    (gradient,) = execution.gradients((np.ones((4, 3)),))
    np.testing.assert_allclose(gradient, [np.outer(x[0], np.ones(3)), np.outer(x[1:].sum(0), np.ones(3))])


def test_what_a_reference_refuses_is_unsupported_with_its_reason() -> None:
    engine = TorchEngine(is_raised=True)
    with pytest.raises(Unsupported, match=r"keep_prob 0\.9 without drop_mask: dropout is random"):
        engine.forward(call("Functional.flash_attention_score", QUERY, KEY, VALUE, 1, keep_prob=0.9), differentiate=())
    reason = reason_not_judged(ApiName("Functional", "all_gather_matmul", 0))
    assert reason is not None
    assert "it gathers the other ranks' matrices" in reason
    assert engine.refusal(ApiName("Functional", "all_gather_matmul", 0), "mindspore") is not None


def test_arguments_that_do_not_fit_are_unsupported_and_named() -> None:
    with pytest.raises(Unsupported, match="gamma"):
        TorchEngine(is_raised=True).forward(call("Functional.rms_norm", X), differentiate=())
