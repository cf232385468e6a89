"""The fused loss against PyTorch's, and against the example of MindSpore."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.small import cross_entropy_loss


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS, TARGET = drawn(5, 4), torch.tensor([0, 3, 1, 3, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [3, -100])
@pytest.mark.parametrize("weight", [None, drawn(4, seed=1).abs()])
def test_as_pytorch_has_it(reduction: str, ignored: int, weight: torch.Tensor | None) -> None:
    loss, log_probabilities, *unused = cross_entropy_loss(LOGITS, TARGET, weight, reduction, ignored)
    expected = functional.cross_entropy(LOGITS, TARGET, weight, ignore_index=ignored, reduction=reduction)
    torch.testing.assert_close(loss, expected.reshape(-1))
    assert loss.shape == ((5,) if reduction == "none" else (1,))
    torch.testing.assert_close(log_probabilities, LOGITS.log_softmax(-1))
    assert [item.shape for item in unused] == [(0,), (0,)]


def test_a_negative_ignore_index_ignores_what_equals_it() -> None:
    target = torch.tensor([0, -100, 1, -100, 2])
    found = cross_entropy_loss(LOGITS, target)[0]
    torch.testing.assert_close(found, functional.cross_entropy(LOGITS, target).reshape(1))


def test_the_example_of_mindspore() -> None:
    logits = torch.tensor([[0.2, 0.7, 0.1], [0.2, 0.7, 0.1]])
    loss, log_probabilities, *_ = cross_entropy_loss(logits, torch.tensor([0, 1]), torch.tensor([1, 0.5, 0.5]))
    torch.testing.assert_close(loss, torch.tensor([1.10128295]))
    torch.testing.assert_close(log_probabilities[0], torch.tensor([-1.26794958, -0.767949641, -1.36794960]))


def test_gradients() -> None:
    logits = LOGITS.clone().requires_grad_()
    weight = drawn(4, seed=1).abs()
    assert torch.autograd.gradcheck(lambda x: cross_entropy_loss(x, TARGET, weight, "mean", 3)[:2], logits)


@pytest.mark.parametrize("keywords", [{"label_smoothing": 0.1}, {"return_zloss": True}])
def test_what_mindspore_does_not_take_is_refused(keywords: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match="takes none yet"):
        cross_entropy_loss(LOGITS, TARGET, **keywords)
