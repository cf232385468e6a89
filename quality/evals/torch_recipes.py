"""Recipes with PyTorch: each writes the dump of one run, wrong or right, as the evals of this name need it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from msprobe_collector.pytorch import PrecisionDebugger
from quality.evals.collecting import configuration
from quality.evals.planting import WrongKernel
from quality.evals.torch_networks import (
    CNN,
    GPT,
    Autoencoder,
    Block,
    CharLSTM,
    Discriminator,
    Generator,
    MoE,
    ResidualMLP,
    text_batches,
    text_loss,
)

aten = torch.ops.aten


def train(
    folder: Path,
    model: nn.Module,
    losses: list[Callable[[], Tensor]],
    optimizer: torch.optim.Optimizer,
    kernel: contextlib.AbstractContextManager[Any] | None = None,
    is_cleared: bool = True,
    has_optimizer: bool = False,
    **keys: Any,
) -> None:
    """Train a step per loss, collect into `folder`, with a `kernel` in the place of the right one.

    With `has_optimizer`, what the optimizer gets and leaves is collected, too.
    """
    debugger = PrecisionDebugger(configuration(folder, **keys))
    with kernel or contextlib.nullcontext():
        for loss_of in losses:
            debugger.start(model)
            loss_of().backward()
            if has_optimizer:
                optimizer.step()
            debugger.stop()
            if not has_optimizer:
                optimizer.step()
            if is_cleared:
                optimizer.zero_grad()
            debugger.step()


def train_text(folder: Path, model: nn.Module, steps: int = 1, seed: int = 0, **rest: Any) -> None:
    """Train a network of letters with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = [lambda batch=batch: text_loss(model, batch) for batch in text_batches(steps, seed)]
    train(folder, model, losses, optimizer, **rest)


# Precheck: one dump with tensors, no other run.


def gelu_wrong_in_one_call(folder: Path, is_wrong: bool) -> None:
    """The third gelu of a GPT uses the approximation with a mistyped coefficient (0.44715 for 0.044715)."""

    def mistyped(func: Any, x: Tensor, **_: Any) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x**3)))

    torch.manual_seed(1)
    train_text(folder, GPT(layers=4), kernel=WrongKernel(aten.gelu, mistyped, {2}))


def convolution_backward_loses_an_image(folder: Path, is_wrong: bool) -> None:
    """The weight gradient of the middle convolution of a CNN leaves the last image out."""

    def shortened(func: Any, gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
        of_input, _, of_bias = func(gradient, x, weight, *rest)
        return of_input, func(gradient[:-1], x[:-1], weight, *rest)[1], of_bias

    torch.manual_seed(2)
    model, images, labels = CNN(), torch.randn(6, 3, 12, 12), torch.randint(5, (6,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    kernel = WrongKernel(aten.convolution_backward, shortened, {1})
    train(folder, model, [lambda: functional.cross_entropy(model(images), labels)], optimizer, kernel)


def bfloat16_product_loses_a_tile(folder: Path, is_wrong: bool) -> None:
    """In bfloat16, a tile of 8 x 16 of one product lacks the last 64 of its 384 terms."""

    def without_tile(func: Any, bias: Tensor, x: Tensor, weight: Tensor, **rest: Any) -> Tensor:
        result = func(bias, x, weight, **rest)
        result[:8, 16:32] = func(bias[16:32], x[:8, :-64], weight[:-64, 16:32], **rest)
        return result

    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(24, 384), nn.SiLU(), nn.Linear(384, 96), nn.LayerNorm(96), nn.SiLU(), nn.Linear(96, 384), nn.SiLU(),
        nn.Linear(384, 4),
    ).bfloat16()  # fmt: skip
    inputs, targets = torch.randn(32, 24).bfloat16(), torch.randn(32, 4).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kernel = WrongKernel(aten.addmm, without_tile, {1})
    train(folder, model, [lambda: functional.mse_loss(model(inputs), targets)], optimizer, kernel)


# Comparison with tensors: another run is right.


def softmax_row_is_stale(folder: Path, is_wrong: bool) -> None:
    """The second softmax of a GPT gives its last row the values of the row before."""

    def stale(func: Any, x: Tensor, *rest: Any) -> Tensor:
        result = func(x, *rest)
        result[..., -1, :] = result[..., -2, :]
        return result

    torch.manual_seed(4)
    train_text(folder, GPT(), kernel=WrongKernel(aten._softmax, stale, {1}) if is_wrong else None)


def layer_norm_has_another_eps(folder: Path, is_wrong: bool) -> None:
    """The script gives one LayerNorm of a GPT eps=1e-3."""
    torch.manual_seed(5)
    model = GPT(width=32, heads=4)
    model.blocks[1].norm1.eps = 1e-3 if is_wrong else 1e-5
    train_text(folder, model)


def residual_is_rewired(folder: Path, is_wrong: bool) -> None:
    """The third layer of an MLP adds its normed input to its output, where the other run adds the input."""
    torch.manual_seed(6)
    model = ResidualMLP(rewired=2 if is_wrong else None)
    inputs, targets = torch.randn(16, 10), torch.randn(16, 1)
    optimizer = torch.optim.Adam(model.parameters())
    train(folder, model, [lambda: functional.mse_loss(model(inputs), targets)], optimizer)


def learning_rate_differs(folder: Path, is_wrong: bool) -> None:
    """An LSTM trains with lr=3e-3 in place of 1e-3; the dump is of the second step, the first to differ."""
    torch.manual_seed(7)
    model = CharLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 if is_wrong else 1e-3)
    losses = [lambda batch=batch: text_loss(model, batch) for batch in text_batches(2, length=7)]
    train(folder, model, losses, optimizer, step=[1])


def dropout_rate_differs(folder: Path, is_wrong: bool) -> None:
    """One Block of a network drops 0.2 in place of 0.1."""
    torch.manual_seed(8)
    rates = [0.1, 0.2 if is_wrong else 0.1, 0.1]
    model = nn.Sequential(nn.Embedding(23, 32), *(Block(32, 2, dropout=rate) for rate in rates), nn.Linear(32, 23))
    train_text(folder, model)


# Comparison without tensors.


def expert_product_from_sketches(folder: Path, is_wrong: bool) -> None:
    """In a mixture of experts, the second product of an expert of the first layer is 2 % too large; sketches only."""

    def scaled(func: Any, *arguments: Any, **rest: Any) -> Tensor:
        return func(*arguments, **rest) * 1.02

    torch.manual_seed(9)
    model, inputs, targets = MoE(), torch.randn(64, 8), torch.randn(64, 3)
    optimizer = torch.optim.Adam(model.parameters())
    kernel = WrongKernel(aten.addmm, scaled, {4}) if is_wrong else None  # entry, up, down, up, down of expert 1
    losses = [lambda: functional.mse_loss(model(inputs), targets)]
    train(folder, model, losses, optimizer, kernel, task="statistics", statistics={"summary_mode": "sketch"})


# Overflow.


def float16_attention_overflows(folder: Path, is_wrong: bool) -> None:
    """The scores of the second Block's attention, in float16, are scaled after the product, which overflows."""
    torch.manual_seed(10)
    model = GPT(width=32, heads=2, layers=3)
    with torch.no_grad():
        model.blocks[1].attention.qkv.weight *= 160
    model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = text_batches(1)[0]
    train(folder, model, [lambda: text_loss(model, batch)], optimizer)


def loss_explodes(folder: Path, is_wrong: bool) -> None:
    """The learning rate of an autoencoder is far too large: some steps later the square of its error is Inf."""
    torch.manual_seed(11)
    model, inputs = Autoencoder(), torch.randn(5, 12, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=300.0)
    train(folder, model, [lambda x=x: functional.mse_loss(model(x), x) for x in inputs], optimizer)


# Gradients of many steps.


def gradients_diverge_at_step_4(folder: Path, is_wrong: bool) -> None:
    """From step 4 on, the gradient of the sigmoids of an LSTM cell has the wrong sign in half of its units."""

    def flipped(func: Any, gradient: Tensor, y: Tensor) -> Tensor:
        result = func(gradient, y)
        result[:, : result.shape[1] // 2] *= -1
        return result

    torch.manual_seed(12)
    model = CharLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    probe = {"grad_level": "L1"}
    PrecisionDebugger(configuration(folder, task="grad_probe", grad_probe=probe)).monitor(optimizer)
    with WrongKernel(aten.sigmoid_backward, flipped, None) as kernel:
        for step, batch in enumerate(text_batches(7, length=7)):
            kernel.is_on = is_wrong and step >= 4
            text_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()


# Repeat: the same script, twice.


def embedding_gradient_loses_updates(folder: Path, is_wrong: bool) -> None:
    """The gradient of an embedding loses one of the additions to a row in one of two runs of a script: a race."""

    def racing(func: Any, gradient: Tensor, indices: Tensor, *rest: Any) -> Tensor:
        flat = indices.flatten()
        row = int(flat.mode().values)
        last = int((flat == row).nonzero()[-1])
        lost = gradient.flatten(0, -2).clone()
        lost[last] = 0
        return func(lost.reshape(gradient.shape), indices, *rest)

    torch.manual_seed(13)
    # Call 0 is that of the places: the backward begins at the end.
    letters = WrongKernel(aten.embedding_dense_backward, racing, None, picks=lambda gradient, *_: gradient.dim() == 3)
    train_text(folder, GPT(layers=2), kernel=letters if is_wrong else None)


# Laws: one dump with the records of the optimizer, no other run.


def head_is_in_no_optimizer(folder: Path, is_wrong: bool) -> None:
    """A new head replaces the old one after the optimizer was made, which still has the old one."""
    torch.manual_seed(14)
    model, images, labels = CNN(), torch.randn(6, 3, 12, 12), torch.randint(7, (6,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(16, 7)
    losses = [lambda: functional.cross_entropy(model(images), labels)] * 3
    train(folder, model, losses, optimizer, has_optimizer=True)


def gradients_are_never_cleared(folder: Path, is_wrong: bool) -> None:
    """A training of three steps lacks optimizer.zero_grad()."""
    torch.manual_seed(15)
    model = ResidualMLP(layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, targets = torch.randn(3, 16, 10), torch.randn(3, 16, 1)
    losses = [lambda n=n: functional.mse_loss(model(inputs[n]), targets[n]) for n in range(3)]
    train(folder, model, losses, optimizer, is_cleared=False, has_optimizer=True)


# Traps: nothing is wrong, or nothing can be judged.


def only_rounding_differs(folder: Path, is_wrong: bool) -> None:
    """A GAN on two machines: one adds its products in two halves."""

    def in_halves(func: Any, bias: Tensor, x: Tensor, weight: Tensor, **rest: Any) -> Tensor:
        half = x.shape[1] // 2
        return func(bias, x[:, half:], weight[half:], **rest) + x[:, :half] @ weight[:half]

    torch.manual_seed(16)
    generator, discriminator = Generator(), Discriminator()
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    noise, real = torch.randn(24, 6), torch.randn(24, 8)
    optimizer = torch.optim.Adam(both.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def loss_of() -> Tensor:
        fake = generator(noise)
        judged = torch.cat((discriminator(real), discriminator(fake)))
        return functional.binary_cross_entropy_with_logits(judged, torch.cat((torch.ones(24, 1), torch.zeros(24, 1))))

    train(folder, both, [loss_of], optimizer, WrongKernel(aten.addmm, in_halves, None) if is_wrong else None)


def nothing_to_judge(folder: Path, is_wrong: bool) -> None:
    """A dump of the task structure: names, no value."""
    torch.manual_seed(17)
    train_text(folder, GPT(layers=2), task="structure")
