"""Short trainings, each with something that a collector can break.

Each function trains for some steps and yields what must not depend on a collector: losses, gradients, parameters. It is
given `collect`, a context manager for one step: `with collect(model): ...`.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Collect = Callable[[Any], AbstractContextManager[Any]]
Training = Callable[[Collect], Iterator[Any]]

TRAININGS: dict[str, Training] = {}


def training(function: Training) -> Training:
    TRAININGS[function.__name__] = function
    return function


def mlp(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))


def steps(
    model: nn.Module, collect: Collect, loss_of: Callable[[torch.Tensor], torch.Tensor], *, count: int = 2
) -> Iterator[Any]:
    """Train `model` with `loss_of(batch)`; yields losses, gradients and parameters."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(count):
        batch = torch.randn(4, 8)
        with collect(model):
            loss = loss_of(batch)
            loss.backward()
        yield loss.detach().clone()
        yield from (None if p.grad is None else p.grad.clone() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    yield from (p.detach().clone() for p in model.parameters())


@training
def in_place(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        hidden = model[0](batch) * 1
        hidden.add_(1).mul_(2)
        hidden += hidden.detach()
        hidden = F.relu(hidden, inplace=True) * 1
        hidden[0] = hidden[1] * 2
        hidden[:, 2:4].mul_(3)
        return model[2](hidden).square().mean()

    yield from steps(model, collect, loss_of)


@training
def views_changed_through_each_other(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        base = model(batch) * 1
        one, other = base[:2], base[1:]
        row = base.view(-1)[3:9]
        one.mul_(other[:1].detach() + 1)
        row += 0.5
        other.t().sin_()
        buffer = torch.zeros(6, 8)
        buffer[:4] = base
        buffer.narrow(0, 3, 2).add_(one)
        first, second = buffer.unbind(0)[:2]
        return (base * base).sum() + (one * other[:2]).sum() + row.sum() + buffer.cos().sum() + (first * second).sum()

    yield from steps(model, collect, loss_of)


@training
def shared_weights_and_tensors(collect: Collect) -> Iterator[Any]:
    model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8), "c": nn.Linear(8, 8)})
    model["b"].weight = model["a"].weight

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        hidden = model["a"](batch)
        # Six contributions to one gradient: their order shows in the last bit.
        parts = [model["b"](hidden), model["c"](hidden), hidden.sin(), hidden * 1e3, hidden / 7, torch.exp(hidden)]
        return sum((part.square().mean() for part in parts), torch.zeros(()))

    yield from steps(model, collect, loss_of)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(value)
        ctx.scale = scale
        return value**3 * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (value,) = ctx.saved_tensors
        return gradient * 3 * value.square() * ctx.scale, None


@training
def autograd_function(collect: Collect) -> Iterator[Any]:
    model = mlp()
    yield from steps(model, collect, lambda batch: Cube.apply(model(Cube.apply(batch, 0.5)), 0.1).mean())


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(3))
        self.inner = nn.Linear(8, 8)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value.requires_grad_()
        for part in self.parts:
            value = value + checkpoint(self.nested, part, value, use_reentrant=self.reentrant)
        return checkpoint_sequential(list(self.parts), 2, value, use_reentrant=self.reentrant)

    def nested(self, part: nn.Module, value: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mask = (value > 0).float().add(0.5)
        return checkpoint(self.inner, part(value), use_reentrant=self.reentrant) * mask


@training
def checkpointing_reentrant(collect: Collect) -> Iterator[Any]:
    model = Checkpointed(reentrant=True)
    yield from steps(model, collect, lambda batch: model(batch).square().mean())


@training
def checkpointing(collect: Collect) -> Iterator[Any]:
    model = Checkpointed(reentrant=False)
    yield from steps(model, collect, lambda batch: model(batch).square().mean())


@training
def compiled_function(collect: Collect) -> Iterator[Any]:
    torch._dynamo.reset()
    model = mlp()
    inner = torch.compile(lambda value: torch.sin(model[0](value)) * 2, backend="aot_eager")
    yield from steps(model, collect, lambda batch: model[2](F.gelu(inner(batch))).square().mean(), count=3)


@training
def compiled_module(collect: Collect) -> Iterator[Any]:
    torch._dynamo.reset()
    model = mlp()
    compiled = torch.compile(model, backend="aot_eager")
    yield from steps(compiled, collect, lambda batch: compiled(batch).square().mean(), count=3)


@training
def compiled_in_place_with_break(collect: Collect) -> Iterator[Any]:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    class Broken(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            value = value.sin()
            torch._dynamo.graph_break()
            return value.cos()

    model.append(Broken())
    model.compile(backend="aot_eager")
    yield from steps(model, collect, lambda batch: model(batch).square().mean(), count=3)


@training
def autocast_and_scaler(collect: Collect) -> Iterator[Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)
    for _ in range(2):
        batch = torch.randn(4, 8)
        with collect(model):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(batch).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        yield loss.detach(), *(p.grad.clone() for p in model.parameters())
        optimizer.zero_grad()
    yield tuple(p.detach() for p in model.parameters())


@training
def accumulated_gradients(collect: Collect) -> Iterator[Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        with collect(model):
            for _ in range(3):
                loss = model(torch.randn(4, 8)).square().mean() / 3
                loss.backward()
            optimizer.step()
        yield loss.detach(), *(p.grad.clone() for p in model.parameters())
        optimizer.zero_grad(set_to_none=False)


@training
def several_losses(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        out = model(batch)
        out.abs().sum().backward(retain_graph=True)
        (first,) = torch.autograd.grad(out.sin().sum(), [model[0].weight], retain_graph=True, create_graph=True)
        return out.square().mean() + first.square().sum()

    yield from steps(model, collect, loss_of)


@training
def without_gradients(collect: Collect) -> Iterator[Any]:
    model = mlp()
    with collect(model), torch.no_grad():
        yield model(torch.randn(4, 8)).clone()
    with collect(model), torch.inference_mode():
        yield model(torch.randn(4, 8)).clone()
    yield from steps(model, collect, lambda batch: model(batch).detach().requires_grad_().sum())


@training
def encoder_layer_in_evaluation(collect: Collect) -> Iterator[Any]:
    """Its fast path asks whether anything overrides functions."""
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    both = nn.ModuleList([model, attention])
    value = torch.randn(2, 5, 8)
    for _ in range(2):
        with collect(both), torch.no_grad():
            yield model(value), attention(value, value, value)[0]


@training
def function_transforms(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        parameters = dict(model.named_parameters())

        def of_one(values: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, values, (row,)).square().sum()

        each = torch.vmap(of_one, in_dims=(None, 0))(parameters, batch)
        gradients = torch.func.grad(of_one)(parameters, batch[0])
        jacobian = torch.func.jacrev(lambda row: row.sin() * row)(batch[0])
        return each.mean() + sum(value.square().sum() for value in gradients.values()) + jacobian.sum()

    yield from steps(model, collect, loss_of)


@training
def exceptions(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        messages = []
        for fails in (
            lambda: torch.cat([batch, batch[0]]),
            lambda: model(batch[:, :3]),
            lambda: batch.view(7, 7),
            lambda: F.relu("text"),
            lambda: batch + "text",
        ):
            try:
                fails()
            except (RuntimeError, TypeError) as error:
                messages.append((type(error).__name__, str(error)))
        assert len(messages) == 5, messages
        return model(batch).square().mean()

    yield from steps(model, collect, loss_of)


@training
def modules_called_many_times(collect: Collect) -> Iterator[Any]:
    model = nn.ModuleDict({"cell": nn.GRUCell(8, 8), "out": nn.Linear(8, 8)})

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(4, 8)
        total = torch.zeros(())
        for _ in range(4):
            state = model["cell"](batch, state)
            total = total + model["out"](state).square().mean()
        return total

    yield from steps(model, collect, loss_of)


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None
    name: str = "pair"


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, values: dict[str, Any], *, pair: Pair, nothing: None = None) -> Any:
        left = self.one(values["x"][0])
        return {"out": (left, self.other(pair.left)), "pair": Pair(left, None), "none": None, "text": "x"}


@training
def structured_values(collect: Collect) -> Iterator[Any]:
    model = nn.Sequential()
    model.add_module("inner", Structured())

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        result = model.inner({"x": [batch, 3], "y": None}, pair=Pair(batch * 2, None), nothing=None)
        stacked = torch.stack([*result["out"], result["pair"].left])
        return torch.cat(tensors=stacked.unbind(), dim=0).square().mean()

    yield from steps(model, collect, loss_of)


@training
def hooks_of_the_user(collect: Collect) -> Iterator[Any]:
    model = mlp()
    seen: list[Any] = []
    model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model[0].register_forward_hook(lambda module, args, result: result + 1)
    model[2].register_full_backward_hook(lambda module, gi, go: (gi[0] * 0.5,))
    model[2].weight.register_hook(lambda gradient: gradient * 3)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        out = model(batch)
        out.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        out.retain_grad()
        return out.square().mean()

    yield from steps(model, collect, loss_of)
    yield tuple(seen)


@training
def threads(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        parts: dict[int, torch.Tensor] = {}

        def work(index: int) -> None:
            parts[index] = model(batch * index)

        for index in range(3):
            thread = threading.Thread(target=work, args=(index,))
            thread.start()
            thread.join()
        return torch.stack([parts[index] for index in range(3)]).square().mean()

    yield from steps(model, collect, loss_of)


@training
def threads_at_once(collect: Collect) -> Iterator[Any]:
    """Parts of one forward in a pool; where several threads run, without gradients, whose order would be by chance."""
    model = mlp()

    def part(factor: int, batch: torch.Tensor) -> torch.Tensor:
        return model(batch * factor).sin()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            parts = list(pool.map(part, range(3), [batch] * 3))
        with ThreadPoolExecutor(3) as pool:
            others = list(pool.map(torch.no_grad()(part), range(3), [batch] * 3))
        return torch.stack(parts).square().mean() + (torch.stack(parts) * torch.stack(others)).mean()

    yield from steps(model, collect, loss_of)


@training
def backward_with_a_graph_through_own_functions(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        batch = batch.requires_grad_()
        (gradient,) = torch.autograd.grad(Cube.apply(model(batch), 0.5).sum(), batch, create_graph=True)
        hidden = checkpoint(model, batch * gradient, use_reentrant=False)
        return gradient.square().mean() + hidden.square().mean()

    yield from steps(model, collect, loss_of)


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index)).square() / 10 + torch.rand(8)


@training
def data_loader_workers(collect: Collect) -> Iterator[Any]:
    model = mlp()
    generator = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(Squares(), 4, shuffle=True, num_workers=1, generator=generator)
    with collect(model):
        for batch in loader:
            loss = model(batch).square().mean()
            loss.backward()
            yield loss.detach()
    yield tuple(p.grad for p in model.parameters())


@training
def copies_and_pickles(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        out = model(batch)
        average = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        torch.save(model.state_dict(), io.BytesIO())
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        with torch.no_grad():
            other = average(batch) + loaded(batch)
        return (out - 0.5 * other).square().mean() + out.mean()

    yield from steps(model, collect, loss_of)


@training
def odd_tensors(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        out = model(batch)
        empty = torch.cat([out[:0], out[:0] * 2])
        z = torch.complex(out, out.sin())
        spectrum = torch.fft.fft(z).conj() * z
        low = (out.to(torch.bfloat16) * 2).float() + out.half().float()
        eighth = (out.detach().to(torch.float8_e4m3fn)).float() + out.detach().to(torch.float8_e5m2).float()
        sparse = torch.sparse.mm(torch.eye(4).to_sparse(), out) + torch.eye(4).to_sparse_csr() @ out.detach()
        meta = torch.ones(3, device="meta").sin() + 1
        quantised = torch.quantize_per_tensor(out.detach(), 0.1, 0, torch.qint8).dequantize()
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).sin()
        assert (meta.is_meta, nested.is_nested) == (True, True)
        unsigned = torch.tensor([1, 2], dtype=torch.uint16).float()
        parts = [empty.sum(), spectrum.abs().mean(), low.mean(), eighth.mean(), sparse.mean(), quantised.sum()]
        return sum(parts, unsigned.sum() * 0)

    yield from steps(model, collect, loss_of)


@training
def scalars_and_dropout(collect: Collect) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(inplace=True))

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        out = model(batch)
        noise = torch.randn_like(out) + torch.rand(4, 8) + torch.bernoulli(torch.full((4, 8), 0.5))
        return (
            (2 - out).pow(2).mean() + (1 / (out + 3)).mean() + (2**out).mean() + (out @ noise.T).mean() + (-out).max()
        )

    yield from steps(model, collect, loss_of)
    yield model[2].running_mean.clone(), model[2].running_var.clone()


@training
def recurrent_and_convolutional(collect: Collect) -> Iterator[Any]:
    model = nn.ModuleDict(
        {
            "conv": nn.Conv1d(1, 4, 3, padding=1),
            "pool": nn.MaxPool1d(2),
            "lstm": nn.LSTM(4, 8, batch_first=True),
            "attention": nn.MultiheadAttention(8, 2, batch_first=True),
        }
    )

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        hidden = model["pool"](model["conv"](batch[:, None])).transpose(1, 2)
        out, (state, _) = model["lstm"](hidden)
        mixed, weights = model["attention"](out, out, out)
        values, indices = mixed.max(dim=1)
        return values.square().mean() + state.mean() + weights.std() + indices.float().mean() * 0

    yield from steps(model, collect, loss_of)


@training
def double_backward(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        batch = batch.requires_grad_()
        out = Cube.apply(model(batch), 1.0).sum()
        (gradient,) = torch.autograd.grad(out, batch, create_graph=True)
        penalty = (gradient.norm(dim=1) - 1).square().mean()
        penalty.backward(retain_graph=True)
        return out * 1e-3

    yield from steps(model, collect, loss_of)


@training
def modes_of_the_user(collect: Collect) -> Iterator[Any]:
    model = mlp()

    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.sin else result

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with Doubling(), torch.device("cpu"):
            out = torch.sin(model(batch)) + torch.zeros(8)
        return out.square().mean()

    with Doubling():
        yield from steps(model, collect, loss_of)


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@training
def tensor_subclasses(collect: Collect) -> Iterator[Any]:
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        tagged = batch.as_subclass(Tagged)
        out = model(tagged) + tagged
        assert isinstance(out, Tagged)
        return out.square().mean().as_subclass(torch.Tensor)

    yield from steps(model, collect, loss_of)


@training
def data_of_parameters(collect: Collect) -> Iterator[Any]:
    """Values that change without the version counter."""
    model = mlp()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        first = model(batch).square().mean()
        model[0].weight.data.mul_(1.01)
        model[2].bias.data = model[2].bias.data + 0.1
        batch.numpy()[0] = 0
        return model(batch).square().mean() + first.detach()

    yield from steps(model, collect, loss_of)
