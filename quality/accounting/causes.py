"""The catalogue: causes planted in the target of a pair of dumps, and pairs in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from planted_networks import Plan, Training

from quality.accounting.torch_recorder import record_step

Change = Callable[[str, Any, Any, Any], Any]


@dataclass(frozen=True)
class Cause:
    """A planted cause.

    Attributes:
        name: of the row.
        kind: formula, kernel, data or dtype.
        network: `gpt` or `cnn`.
        expected: calls of which exactly one must be named, or `parameter NAME`, `batch`.
        target: makes the training of the target.
        change: of what calls compute in the target.
        golden: makes that of the golden run, where it is not the plain one.
    """

    name: str
    kind: str
    network: str
    expected: tuple[str, ...]
    target: Callable[[], Training]
    change: Change | None = None
    golden: Callable[[], Training] | None = None

    def write(self, folder: Path) -> tuple[Path, Path]:
        """(target, golden) dumps."""
        golden = self.golden() if self.golden is not None else Training.of(self.network)
        target = self.target()
        for training in (golden, target):
            training.warm_up()
        return (
            record_step(folder / "target", target.step, target.net, change=self.change),
            record_step(folder / "golden", golden.step, golden.net),
        )


def on(call: str, compute: Callable[..., torch.Tensor]) -> Change:
    """What changes one call."""

    def change(name: str, function: Any, args: Any, kwargs: Any) -> Any:
        return compute(lambda: function(*args, **kwargs), *args) if name == call else None

    return change


def _scaled(factor: float) -> Callable[..., torch.Tensor]:
    return lambda run, *args: run() * factor


def _tail_block(run: Callable[[], torch.Tensor], *args: Any) -> torch.Tensor:
    """The last elements of the last row are left zero."""
    out = run()
    keep = torch.ones_like(out)
    keep.reshape(-1)[-5:] = 0
    return out * keep


def _stale(run: Callable[[], torch.Tensor], *args: Any) -> torch.Tensor:
    """The second sample holds the first one's result."""
    out = run()
    return torch.cat([out[:1], out[:1]])


def _one_tile(run: Callable[[], torch.Tensor], *args: Any) -> torch.Tensor:
    """A tile of 4 x 4 is 3 % off."""
    out = run()
    factor = torch.ones_like(out)
    factor[..., 2:6, 4:8] = 1.03
    return out * factor


def _low_precision(run: Callable[[], torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    """Products of bfloat16 operands, as a matrix unit in a low-precision mode makes them."""
    out = args[0].bfloat16().float() @ args[1].bfloat16().float().transpose(-1, -2)
    return out + args[2] if len(args) > 2 and args[2] is not None else out


def _transposed(run: Callable[[], torch.Tensor], *args: Any) -> torch.Tensor:
    """Square parts are written transposed."""
    return run().transpose(-1, -2)


class _WrongGradient(torch.autograd.Function):
    """Identity whose gradient is 2 % too large."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 1.02


def _wrong_gradient(run: Callable[[], torch.Tensor], *args: Any) -> torch.Tensor:
    return _WrongGradient.apply(run())


def _gpt(plans: dict[int, Plan] | None = None, **options: Any) -> Callable[[], Training]:
    return lambda: Training.of("gpt", plans=plans, **options)


def _cnn(**options: Any) -> Callable[[], Training]:
    return lambda: Training.of("cnn", **options)


def _with(network: str, edit: Callable[[Any], None]) -> Callable[[], Training]:
    def make() -> Training:
        training = Training.of(network)
        with torch.no_grad():
            edit(training.net)
        return training

    return make


def _one_weight(net: Any) -> None:
    net.blocks[1].up.weight[3, 5] += 0.5


def _one_filter(net: Any) -> None:
    net.second.weight[2].mul_(1.2)


def _frozen(net: Any) -> None:
    net.blocks[2].down.weight.requires_grad_(False)


CAUSES = (
    Cause("gelu by tanh", "formula", "gpt", ("Functional.gelu.2",), _gpt({2: Plan(gelu="tanh")})),
    Cause("eps 1e-4 for 1e-5", "formula", "gpt", ("Tensor.__add__.25",), _gpt({4: Plan(eps=1e-4)})),
    Cause("unbiased variance", "formula", "gpt", ("Torch.var.8",), _gpt({4: Plan(is_unbiased=True)})),
    Cause("scale left out", "formula", "gpt", ("Tensor.__truediv__.1",), _gpt({1: Plan(is_scaled=False)})),
    # Nothing in the dump says what the mask is: of unknown origin, where it is used first.
    Cause("mask shifted by one", "formula", "gpt", ("batch", "Tensor.masked_fill.0"), _gpt(mask_shift=1)),
    Cause("label smoothing left on", "formula", "gpt", ("Functional.cross_entropy.0",), _gpt(smoothing=0.1)),
    Cause("pool window 3 for 2", "formula", "cnn", ("Functional.max_pool2d.0",), _cnn(pool=3)),
    Cause("momentum eps of batch norm", "formula", "cnn", ("Functional.batch_norm.0",), _cnn(eps=1e-2)),
    Cause("1 % in one gelu", "kernel", "gpt", ("Functional.gelu.1",), _gpt(), on("Functional.gelu.1", _scaled(1.01))),
    Cause(
        "tail block not written",
        "kernel",
        "gpt",
        ("Functional.linear.9",),
        _gpt(),
        on("Functional.linear.9", _tail_block),
    ),
    Cause("stale buffer", "kernel", "gpt", ("Torch.matmul.3",), _gpt(), on("Torch.matmul.3", _stale)),
    Cause("one tile off", "kernel", "gpt", ("Torch.matmul.4",), _gpt(), on("Torch.matmul.4", _one_tile)),
    Cause(
        "low-precision accumulation",
        "kernel",
        "gpt",
        ("Functional.linear.5",),
        _gpt(),
        on("Functional.linear.5", _low_precision),
    ),
    Cause("transposed write", "kernel", "gpt", ("Torch.matmul.2",), _gpt(), on("Torch.matmul.2", _transposed)),
    Cause(
        "softmax 2 % off", "kernel", "gpt", ("Functional.softmax.1",), _gpt(), on("Functional.softmax.1", _scaled(1.02))
    ),
    Cause(
        "gradient of a linear 2 % off",
        "kernel",
        "gpt",
        ("Functional.linear.11",),
        _gpt(),
        on("Functional.linear.11", _wrong_gradient),
    ),
    Cause(
        "tile of a convolution", "kernel", "cnn", ("Functional.conv2d.1",), _cnn(), on("Functional.conv2d.1", _one_tile)
    ),
    Cause(
        "tail of a pool",
        "kernel",
        "cnn",
        ("Functional.max_pool2d.1",),
        _cnn(),
        on("Functional.max_pool2d.1", _tail_block),
    ),
    Cause("one weight", "data", "gpt", ("parameter blocks.1.up.weight",), _with("gpt", _one_weight)),
    Cause("one filter", "data", "cnn", ("parameter second.weight",), _with("cnn", _one_filter)),
    Cause("one word of the batch", "data", "gpt", ("batch",), _gpt(wrong_value=True)),
    Cause("one pixel of the batch", "data", "cnn", ("batch",), _cnn(wrong_value=True)),
    Cause("frozen parameter", "data", "gpt", ("parameter blocks.2.down.weight",), _with("gpt", _frozen)),
    Cause("dropout left on", "data", "gpt", ("Functional.dropout.1",), _gpt({1: Plan(dropout=0.1)})),
    Cause("optimizer step skipped", "data", "cnn", ("parameter",), _cnn(), golden=_cnn(steps=1)),
    Cause("gradient counted twice", "data", "gpt", ("gradient Tensor.__add__.12",), _gpt({2: Plan(doubles=True)})),
    Cause("clip left out", "data", "gpt", ("Tensor.__truediv__.4",), _gpt(is_clipped=False)),
    Cause("block in float16", "dtype", "gpt", ("Tensor.half.0",), _gpt({1: Plan(half=True)})),
    Cause("loss in bfloat16", "dtype", "gpt", ("Tensor.bfloat16.0",), _gpt(loss_dtype=torch.bfloat16)),
)
