"""Networks and steps of MindSpore: of mindcv, and written for this catalogue with mint and Cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

import mindspore as ms
import mindspore.mint.nn.functional as F
import numpy as np
from debugger_fixtures import collected
from mindspore import Parameter, Tensor, mint, nn, ops

from quality.accounting.foreign.training import SEED
from quality.accounting.foreign.watching import Watch, spot

#: A network, its batch, and what is minimised.
Built = tuple[Any, dict[str, Any], Any]

_WORDS, _WIDTH, _LENGTH = 40, 24, 8
KERNEL = "kernel"


@dataclass(frozen=True)
class CellWay:
    """How one run computes.

    Attributes:
        planted: place of a network that goes wrong, see `spot`.
        kernel: (full name of a function, or `Primitive NAME`; number of its call; one of `SPOILS`): a wrong one.
        edit: what else is wrong, of network and batch.
        is_reordered: products and means are summed in two halves.
        dtype: that Cells compute in.
        level: of the dump.
    """

    planted: str = ""
    kernel: tuple[str, int, str] | None = None
    edit: Callable[[Any, dict[str, Any]], None] | None = None
    is_reordered: bool = False
    dtype: str = "float32"
    level: str = "mix"


class Linear(nn.Cell):
    """A linear layer by the function of mint."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        drawn = np.random.standard_normal((outputs, inputs)) / inputs**0.5
        self.weight = Parameter(Tensor(drawn, ms.float32), name="weight")
        self.bias = Parameter(Tensor(0.1 * np.random.standard_normal(outputs), ms.float32), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Cell):
    """A root-mean-square norm of single operations."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(_WIDTH), ms.float32), name="weight")
        self.eps = eps

    def construct(self, x: Tensor) -> Tensor:
        size = mint.rsqrt(mint.add(mint.mean(mint.square(x), -1, True), self.eps))
        return mint.mul(mint.mul(x, size), self.weight)


class Block(nn.Cell):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.first, self.second, self.qkv = Norm(), Norm(), Linear(_WIDTH, 3 * _WIDTH)
        self.out, self.up, self.down = Linear(_WIDTH, _WIDTH), Linear(_WIDTH, 40), Linear(40, _WIDTH)
        self.at = at

    def attend(self, x: Tensor) -> Tensor:
        """Attention with a causal mask."""
        q, k, v = mint.chunk(self.qkv(x), 3, -1)
        with spot(f"q and k exchanged {self.at}") as wrong:
            scores = mint.matmul(k if wrong else q, mint.transpose(q if wrong else k, 1, 2))
        with spot(f"scale {self.at}") as wrong:
            scores = mint.mul(scores, _WIDTH**-0.5 * (1.05 if wrong else 1.0))
        mask = mint.triu(mint.ones((_LENGTH, _LENGTH)), 1).bool()
        weights = F.softmax(scores.masked_fill(mask, -1e9), -1)
        with spot(f"values of another part {self.at}") as wrong:
            return self.out(mint.matmul(weights, k if wrong else v))

    def construct(self, x: Tensor) -> Tensor:
        x = mint.add(x, self.attend(self.first(x)))
        y = self.second(x)
        with spot(f"step through float16 {self.at}") as wrong:
            y = y.astype(ms.float16).astype(ms.float32) if wrong else y
        y = self.up(y)
        with spot(f"other activation {self.at}") as wrong:
            y = F.silu(y) if wrong else ops.gelu(y)
        return mint.add(x, self.down(y))


class Decoder(nn.Cell):
    """A small language model; the head is the embedding's table."""

    def __init__(self) -> None:
        super().__init__()
        table = np.random.standard_normal((_WORDS, _WIDTH))
        self.words = Parameter(Tensor(table, ms.float32), name="words")
        self.blocks, self.norm = nn.CellList([Block(at) for at in range(3)]), Norm()

    def construct(self, ids: Tensor) -> Tensor:
        x = first = ops.gather(self.words, ids, 0)
        for block in self.blocks:
            x = block(x)
        with spot("skip left out") as wrong:
            x = x if wrong else mint.add(x, first)
        return F.linear(self.norm(x), self.words)


class Pictures(nn.Cell):
    """Cells with Primitives, two branches and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, pad_mode="pad", padding=1, has_bias=True), nn.BatchNorm2d(6)
        self.wide, self.narrow = nn.Conv2d(6, 4, 3, pad_mode="same"), nn.Conv2d(6, 4, 1, pad_mode="valid")
        self.groups, self.pool, self.head = nn.GroupNorm(2, 8), nn.MaxPool2d(2, 2), nn.Dense(8, 5)

    def construct(self, pixels: Tensor) -> Tensor:
        x = ops.hardswish(self.norm(self.stem(pixels)))
        with spot("order of a cat") as wrong:
            parts = [self.wide(x), self.narrow(x)]
            x = mint.cat(parts[::-1] if wrong else parts, 1)
        x = self.pool(ops.leaky_relu(self.groups(x), 0.1))
        with spot("max for mean") as wrong:
            x = mint.amax(x, (2, 3)) if wrong else mint.mean(x, (2, 3))
        return self.head(x)


class Recurrent(nn.Cell):
    """A gated recurrence in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.gates, self.candidate, self.head = Linear(48, 48), Linear(48, _WIDTH), Linear(_WIDTH, _WORDS)

    def construct(self, ids: Tensor) -> Tensor:
        x, found = self.words(ids), []
        state = mint.zeros((ids.shape[0], _WIDTH))
        for at in range(_LENGTH):
            now = x[:, at]
            gates = mint.sigmoid(self.gates(mint.cat([now, state], 1)))
            with spot(f"gates exchanged {at}") as wrong:
                update, reset = mint.split(gates, _WIDTH, 1)[:: -1 if wrong else 1]
                rest = mint.mul(reset, state)
                new = mint.tanh(self.candidate(mint.cat([now, rest], 1)))
                state = mint.add(mint.mul(update, state), mint.mul(mint.sub(1.0, update), new))
            found.append(state)
        with spot("steps in reverse") as wrong:
            y = ops.stack(found[::-1] if wrong else found, 1)
        return self.head(y)


def _text() -> dict[str, Any]:
    ids, labels = np.random.randint(0, _WORDS, (3, _LENGTH)), np.random.randint(0, _WORDS, 3 * _LENGTH)
    return {"ids": Tensor(ids, ms.int32), "labels": Tensor(labels, ms.int32)}


def _text_loss(net: Any, batch: Mapping[str, Any]) -> Any:
    logits = mint.reshape(net(batch["ids"]), (-1, _WORDS)).astype(ms.float32)
    with spot("label smoothing") as wrong:
        return ops.cross_entropy(logits, batch["labels"], label_smoothing=0.1 if wrong else 0.0)


def images(size: int) -> dict[str, Any]:
    pixels = np.random.standard_normal((3, 3, size, size)).astype(np.float32)
    return {"pixels": Tensor(pixels), "labels": Tensor([0, 3, 1], ms.int32)}


def image_loss(net: Any, batch: Mapping[str, Any]) -> Any:
    found = net(batch["pixels"])
    found = found[0] if isinstance(found, tuple) else found
    return ops.cross_entropy(found.astype(ms.float32), batch["labels"])


def _mindcv(make: Callable[[], Any], size: int) -> tuple[Any, dict[str, Any], Any]:
    return make(), images(size), image_loss


def _mixer() -> Any:
    from mindcv.models.mlpmixer import MLPMixer

    return MLPMixer(depth=2, patch_size=8, n_patches=16, n_channels=32, token_dim=24, channel_dim=40, num_classes=5)


def _of_mindcv(name: str) -> Any:
    import mindcv

    return mindcv.create_model(name, num_classes=5)


_NETWORKS: dict[str, Callable[[], Built]] = {
    "decoder": lambda: (Decoder(), _text(), _text_loss),
    "pictures": lambda: (Pictures(), images(8), image_loss),
    "gated": lambda: (Recurrent(), _text(), _text_loss),
    "mindcv mixer": partial(_mindcv, _mixer, 32),
    "mindcv mobilenet_v1": partial(_mindcv, partial(_of_mindcv, "mobilenet_v1_025"), 32),
    "mindcv repvgg": partial(_mindcv, partial(_of_mindcv, "repvgg_a0"), 32),
}


def collect(network: str, way: CellWay, folder: Path) -> tuple[Path, Watch]:
    """(dump.json, the watch) of one step.

    Raises:
        ValueError: what should be wrong did not happen.
    """
    from msprobe_collector.mindspore import PrecisionDebugger
    from quality.accounting.foreign.fourth_cells import FOURTH_NETWORKS
    from quality.accounting.foreign.late_cells import LATE_NETWORKS

    ms.runtime.launch_blocking()
    ms.set_seed(SEED)
    np.random.seed(SEED)
    net, batch, loss_of = {**_NETWORKS, **LATE_NETWORKS, **FOURTH_NETWORKS}[network.removeprefix("mindspore ")]()
    net.set_train(True)
    if way.dtype != "float32":
        net.to_float(getattr(ms, way.dtype))
    if way.edit is not None:
        way.edit(net, batch)
    step = ms.value_and_grad(lambda: loss_of(net, batch), None, net.trainable_params())
    watch = Watch(way.planted)
    with ExitStack() as stack:
        if way.is_reordered:
            stack.enter_context(_in_halves())
        done = stack.enter_context(_wrong_kernel(way.kernel, net, watch))
        debugger = stack.enter_context(collected(PrecisionDebugger, folder, level=way.level))
        stack.enter_context(watch.watching())
        ms.set_seed(SEED)
        debugger.start(net)
        _, gradients = step()
        if hasattr(net, "finish"):
            net.finish(gradients)
        debugger.stop()
        debugger.step()
    if way.kernel is not None and not done:
        raise ValueError(f"{way.kernel} did not happen")
    (path,) = folder.glob("step0/*/dump.json")
    return path, watch


class _WrongGradient(nn.Cell):
    """Identity whose gradient is 3 % too large."""

    def construct(self, x: Tensor) -> Tensor:
        return x * 1.0

    def bprop(self, x: Tensor, out: Tensor, gradient: Tensor) -> tuple[Tensor]:
        """The wrong gradient."""
        return (gradient * 1.03,)


def _spoilt(run: Callable[..., Any], how: str, args: Any, kwargs: Any) -> Any:
    if how == "gradient":
        return run(_WrongGradient()(args[0]), *args[1:], **kwargs)
    result = run(*args, **kwargs)
    out = result[0] if isinstance(result, tuple) else result
    factor = np.ones(out.shape, np.float32)
    if how == "tail":
        factor.reshape(-1)[-4:] = 0
    elif how == "tile":
        factor[..., : max(1, out.shape[-2] // 2), : max(1, out.shape[-1] // 2)] = 1.05
    elif how == "low":
        out = out.astype(ms.bfloat16).astype(out.dtype)
    else:
        factor *= 1.02
    out = out * Tensor(factor).astype(out.dtype)
    return (out, *result[1:]) if isinstance(result, tuple) else out


@contextmanager
def _wrong_kernel(kernel: tuple[str, int, str] | None, net: Any, watch: Watch) -> Iterator[list[str]]:
    """Replaces a function before the collector does, so that it stands below it; gives the record that it ran in."""
    done: list[str] = []
    if kernel is None:
        yield done
        return
    name, number, how = kernel
    calls = itertools.count()
    if name.startswith("Primitive "):
        owner: Any = _type_of_primitive(net, name.partition(" ")[2])
        attribute = "__call__"
    else:
        path, _, attribute = name.rpartition(".")
        owner = resolve_name(path)
    original = getattr(owner, attribute)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not watch.is_open or done or next(calls) != number:
            return original(*args, **kwargs)
        done.append(watch.current)
        watch.note(KERNEL, f"{watch.current.removesuffix('.forward')}.backward" if how == "gradient" else watch.current)
        if attribute == "__call__":
            return _spoilt(partial(original, args[0]), how, args[1:], kwargs)
        return _spoilt(original, how, args, kwargs)

    with mock.patch.object(owner, attribute, run):
        yield done


def _type_of_primitive(net: Any, name: str) -> type:
    for _, cell in net.cells_and_names():
        for value in vars(cell).values():
            if isinstance(value, ops.Primitive) and type(value).__name__ == name:
                return type(value)
    raise ValueError(f"no Cell has a Primitive {name}")


@contextmanager
def _in_halves() -> Iterator[None]:
    """Products and means are summed in two halves."""
    matmul, mean, total = mint.matmul, mint.mean, mint.sum

    def product(left: Tensor, right: Tensor) -> Tensor:
        half = left.shape[-1] // 2
        second = matmul(left[..., half:], right[..., half:, :])
        return second + matmul(left[..., :half], right[..., :half, :])

    def other_linear(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
        found = product(x, mint.transpose(weight, 0, 1))
        return found if bias is None else found + bias

    def other_mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        if dim is None:
            return mean(x)
        axis = dim if isinstance(dim, int) else dim[-1]
        half = x.shape[axis] // 2
        first, second = mint.split(x, [half, x.shape[axis] - half], axis)
        summed = total(second, dim, keepdim) + total(first, dim, keepdim)
        return summed / (x.numel() / summed.numel())

    with (
        mock.patch.object(F, "linear", other_linear),
        mock.patch.object(mint, "matmul", product),
        mock.patch.object(mint, "mean", other_mean),
    ):
        yield
