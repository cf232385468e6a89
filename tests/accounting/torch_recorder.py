"""Records a PyTorch step as a tensor dump: forward and backward of every named call, with call stacks."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dump_builder import DumpBuilder
from torch.overrides import TorchFunctionMode

#: Recorded functions by the type that a dump gives them.
_FUNCTIONAL = """
linear gelu silu relu softmax log_softmax layer_norm rms_norm embedding dropout cross_entropy nll_loss conv2d batch_norm
max_pool2d avg_pool2d scaled_dot_product_attention group_norm mse_loss
""".split()
_TORCH = """
matmul mul add sub div exp log tanh sigmoid rsqrt sqrt mean var sum transpose reshape permute where cat softmax
flatten clone relu square outer
""".split()
_TENSOR = """
__add__ __mul__ __matmul__ __truediv__ __sub__ __rsub__ __neg__ __radd__ __rmul__ masked_fill matmul transpose reshape
view permute mean var sum pow float half bfloat16 to contiguous exp sqrt rsqrt add_ mul_ sub_ div_
""".split()
#: Operators of Python arrive as the methods that they call.
_OPERATORS = {"add": "__add__", "mul": "__mul__", "div": "__truediv__", "sub": "__sub__"}


def _names() -> dict[Any, str]:
    found: dict[Any, str] = {}
    for kind, holder, names in (
        ("Tensor", torch.Tensor, _TENSOR),
        ("Torch", torch, _TORCH),
        ("Functional", torch.nn.functional, _FUNCTIONAL),
    ):
        for name in names:
            function = getattr(holder, name, None)
            if function is not None:
                found.setdefault(function, f"{kind}.{name}")
    found |= {getattr(torch.Tensor, name): f"Tensor.{operator}" for name, operator in _OPERATORS.items()}
    return found


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A copy in the tensor's own dtype."""
    value = tensor.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        import ml_dtypes

        return value.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return value.numpy().copy()


class _Recorder(TorchFunctionMode):
    """Sees every call; `change` may replace what a call does, as a planted fault."""

    def __init__(self, change: Callable[[str, Any, Any, Any], Any] | None) -> None:
        super().__init__()
        self.names = _names()
        self.counts: dict[str, int] = {}
        self.forwards: list[dict[str, Any]] = []
        self.backwards: list[dict[str, Any]] = []
        self.change = change

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = self.names.get(function)
        if name is None:
            return function(*args, **kwargs)
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        call = f"{name}.{number}"
        record: dict[str, Any] = {"name": call, "incoming": {}, "gradients": {}}
        args = self._watched(args, record)
        record["args"] = [_copied(value) for value in args]
        record["kwargs"] = {key: _copied(value) for key, value in kwargs.items()}
        record["stack"] = _stack()
        returned = None if self.change is None else self.change(call, function, args, kwargs)
        if returned is None:
            returned = function(*args, **kwargs)
        outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        record["outputs"] = [_copied(value) for value in outputs]
        self.forwards.append(record)
        for place, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self._incoming(record, place))
        return returned

    def _watched(self, args: Any, record: dict[str, Any]) -> list[Any]:
        """The arguments; each that needs a gradient as an alias of its own, whose gradient is that of this use."""
        watched, place = [], 0
        for value in args:
            if isinstance(value, torch.Tensor):
                if value.requires_grad and torch.is_grad_enabled() and not record["name"].split(".")[1].endswith("_"):
                    value = value.view_as(value)
                    value.register_hook(self._gradient(record, place))
                place += 1
            watched.append(value)
        record["tensors"] = place
        return watched

    def _incoming(self, record: dict[str, Any], place: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            if not record["incoming"]:
                self.backwards.append(record)
            record["incoming"][place] = to_numpy(gradient)

        return hook

    def _gradient(self, record: dict[str, Any], place: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            record["gradients"][place] = to_numpy(gradient)

        return hook


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_numpy(value)
    if isinstance(value, torch.dtype):
        return {"type": "torch.dtype", "value": str(value)}
    if isinstance(value, (tuple, list)):
        return [_copied(item) for item in value]
    return value


def _stack() -> list[str]:
    frames = [frame for frame in traceback.extract_stack()[:-2] if "/accounting/" in frame.filename]
    frames = [frame for frame in frames if not frame.filename.endswith("torch_recorder.py")]
    return [
        f"File /home/train/{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}, \n {frame.line}"
        for frame in reversed(frames)
    ]


def record_step(
    folder: Path, step: Callable[[], Any], *, change: Callable[[str, Any, Any, Any], Any] | None = None
) -> Path:
    """The dump.json of one training step, below `folder`."""
    with _Recorder(change) as recorder:
        step()
    builder = DumpBuilder(folder, framework="pytorch")
    for record in recorder.forwards:
        name = record["name"]
        builder.call(name, record["args"], record["outputs"], keywords=record["kwargs"])
        builder.stacks[f"{name}.forward"] = record["stack"]
    for record in recorder.backwards:
        name = f"{record['name']}.backward"
        incoming = [record["incoming"].get(place) for place in range(len(record["outputs"]))]
        gradients = [record["gradients"].get(place) for place in range(record["tensors"])]
        builder.records[name] = {
            "input": [builder.value(item, f"{name}.input.{i}") for i, item in enumerate(incoming)],
            "output": [builder.value(item, f"{name}.output.{i}") for i, item in enumerate(gradients)],
        }
    return builder.write()
