"""Rotations against complex multiplication, and against loops over elements."""

from __future__ import annotations

import pytest
import torch

from pytest_msprobe.engines.protocol import Unsupported
from pytest_msprobe.engines.references.small import apply_rotary_pos_emb_, rotary_position_embedding


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


#: For each mode and D = 8: (source of output d, the element that sine multiplies, its sign).
PLACES = {
    0: [(d, (d + 4) % 8, -1 if d < 4 else 1) for d in range(8)],
    1: [(d, d + 1 if d % 2 == 0 else d - 1, -1 if d % 2 == 0 else 1) for d in range(8)],
    2: [(d, d + 2 if d % 4 < 2 else d - 2, -1 if d % 4 < 2 else 1) for d in range(8)],
    3: [(2 * d, 2 * d + 1, -1) if d < 4 else (2 * d - 7, 2 * d - 8, 1) for d in range(8)],
}


@pytest.mark.parametrize("mode", PLACES)
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (1, 1, 5, 8)])
def test_every_mode_element_by_element(mode: int, shape: tuple[int, ...]) -> None:
    x, cos, sin = drawn(2, 3, 5, 8), drawn(*shape, seed=1), drawn(*shape, seed=2)
    found = rotary_position_embedding(x, cos, sin, mode)
    c, s = cos.expand_as(x), sin.expand_as(x)
    for d, (source, other, sign) in enumerate(PLACES[mode]):
        torch.testing.assert_close(found[..., d], x[..., source] * c[..., d] + sign * x[..., other] * s[..., d])


@pytest.mark.parametrize("mode", [0, 1])
def test_pairs_turn_as_complex_numbers(mode: int) -> None:
    x, angle = drawn(2, 1, 4, 6), drawn(1, 1, 4, 3, seed=1)
    pairs = x.unflatten(-1, (2, 3)).mT if mode == 0 else x.unflatten(-1, (3, 2))
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    angles = torch.cat([angle, angle], -1) if mode == 0 else angle.repeat_interleave(2, -1)
    expected = turned.mT.flatten(-2) if mode == 0 else turned.flatten(-2)
    torch.testing.assert_close(rotary_position_embedding(x, angles.cos(), angles.sin(), mode), expected)


@pytest.mark.parametrize("mode", PLACES)
def test_gradients_of_broadcast_factors_are_summed(mode: int) -> None:
    x, cos, sin = (drawn(*shape).requires_grad_() for shape in ((2, 1, 2, 4), (1, 1, 2, 4), (1, 1, 2, 4)))
    assert torch.autograd.gradcheck(lambda *args: rotary_position_embedding(*args, mode), (x, cos, sin))


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Unsupported, match="mode 4"):
        rotary_position_embedding(*[torch.ones(1, 1, 1, 4)] * 3, 4)


@pytest.mark.parametrize("cos_format", [0, 1, 2, 3])
@pytest.mark.parametrize("positions", [[3, 0, 4], [3, 0, 4, 1, 1, 2]], ids=["of S", "of B S"])
def test_heads_of_queries_and_keys_turn_by_their_position(cos_format: int, positions: list[int]) -> None:
    batch, length, size = 2, 3, 4
    query, key = drawn(batch, length, 2 * size), drawn(batch, length, size, seed=1)
    table = drawn(5, 2, size, seed=2)
    given = table if cos_format < 2 else table[(positions * 2)[:6]]
    found = apply_rotary_pos_emb_(query, key, given[:, 0], given[:, 1], torch.tensor(positions), cos_format)
    for x, turned in zip((query, key), found, strict=True):
        heads, results = x.unflatten(-1, (-1, size)), turned.unflatten(-1, (-1, size))
        for b in range(batch):
            for s in range(length):
                cos, sin = table[(positions * 2)[b * length + s]]
                for n in range(heads.shape[2]):
                    expected = rotary_position_embedding(heads[b, s, n], cos, sin, cos_format % 2)
                    torch.testing.assert_close(results[b, s, n], expected)


def test_four_axes_and_tokens_alone_are_taken() -> None:
    query, key, table = drawn(2, 3, 2, 4), drawn(2, 3, 1, 4, seed=1), drawn(2, 5, 4, seed=2)
    positions = torch.arange(3)
    whole = apply_rotary_pos_emb_(query, key, *table, positions)
    tokens = apply_rotary_pos_emb_(query[0].flatten(1), key[0].flatten(1), *table, positions)
    torch.testing.assert_close(whole[0][0].flatten(1), tokens[0])
    torch.testing.assert_close(whole[1][0].flatten(1), tokens[1])


def test_rows_that_do_not_fit_the_tokens_are_refused() -> None:
    with pytest.raises(Unsupported, match="2 rows of cos for 3 tokens"):
        apply_rotary_pos_emb_(drawn(1, 3, 4), drawn(1, 3, 4), drawn(2, 4), drawn(2, 4), torch.zeros(1), 2)
    with pytest.raises(Unsupported, match="cos_format 4"):
        apply_rotary_pos_emb_(*[torch.ones(1, 1, 4)] * 4, torch.zeros(1), 4)
