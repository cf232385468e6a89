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


def recorded_names() -> dict[Any, str]:
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
    with torch._C.DisableTorchFunction():
        value = tensor.detach().cpu().contiguous()
        if value.dtype == torch.bfloat16:
            import ml_dtypes

            return value.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
        return value.numpy().copy()


class _Recorder(TorchFunctionMode):
    """Sees every call; `change` may replace what a call does, as a planted fault."""

    def __init__(self, change: Callable[[str, Any, Any, Any], Any] | None) -> None:
        super().__init__()
        self.names = recorded_names()
        self.counts: dict[str, int] = {}
        #: (direction, record) in the order of execution.
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.change = change
        self.trains: dict[int, bool] = {}

    def copied(self, value: Any) -> Any:
        """What the dump gets of a value."""
        if isinstance(value, torch.Tensor):
            array = to_numpy(value)
            self.trains[id(array)] = value.requires_grad
            return array
        if isinstance(value, torch.dtype):
            return {"type": "torch.dtype", "value": str(value)}
        if isinstance(value, (tuple, list)):
            return [self.copied(item) for item in value]
        return value

    def watch(self, net: torch.nn.Module) -> None:
        """Record the forward of every layer that has parameters of its own."""
        for path, layer in net.named_modules():
            if list(layer.parameters(recurse=False)):
                layer.register_forward_hook(self._layer(f"{path}.{type(layer).__name__}"))

    def _layer(self, name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def hook(layer: torch.nn.Module, args: Any, output: Any) -> None:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                parameters = {key: self.copied(value) for key, value in layer.named_parameters(recurse=False)}
                record = {"name": f"Module.{name}.forward.0", "args": [self.copied(value) for value in args]}
                outputs = [self.copied(output)]
                self.records.append(("layer", {**record, "parameters": parameters, "outputs": outputs}))

        return hook

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
        record["args"] = [self.copied(value) for value in args]
        record["kwargs"] = {key: self.copied(value) for key, value in kwargs.items()}
        record["stack"] = _stack()
        returned = None if self.change is None else self.change(call, function, args, kwargs)
        if returned is None:
            returned = function(*args, **kwargs)
        outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        record["outputs"] = [self.copied(value) for value in outputs]
        self.records.append(("forward", record))
        for place, output in enumerate(outputs):
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(self._incoming(record, place))
        return returned

    def _watched(self, args: Any, record: dict[str, Any]) -> list[Any]:
        """The arguments; each that needs a gradient as an alias of its own, whose gradient is that of this use."""
        watched, place = [], 0
        method = record["name"].split(".")[1]
        is_in_place = method.endswith("_") and not method.endswith("__")
        for value in args:
            if isinstance(value, torch.Tensor):
                if value.requires_grad and torch.is_grad_enabled() and not is_in_place:
                    value = value.view_as(value)
                    value.register_hook(self._gradient(record, place))
                place += 1
            watched.append(value)
        record["tensors"] = place
        return watched

    def _incoming(self, record: dict[str, Any], place: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            if not record["incoming"]:
                self.records.append(("backward", record))
            record["incoming"][place] = to_numpy(gradient)

        return hook

    def _gradient(self, record: dict[str, Any], place: int) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            record["gradients"][place] = to_numpy(gradient)

        return hook


def _stack() -> list[str]:
    frames = [frame for frame in traceback.extract_stack()[:-2] if "/accounting/" in frame.filename]
    frames = [frame for frame in frames if not frame.filename.endswith("torch_recorder.py")]
    return [
        f"File /home/train/{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}, \n {frame.line}"
        for frame in reversed(frames)
    ]


class _Builder(DumpBuilder):
    """Writes what requires a gradient as well."""

    trains: dict[int, bool]

    def tensor(self, array: np.ndarray[Any, Any], data_name: str) -> dict[str, Any]:
        entry = super().tensor(array, data_name)
        return {**entry, "requires_grad": self.trains[id(array)]} if id(array) in self.trains else entry


def record_step(
    folder: Path,
    step: Callable[[], Any],
    net: torch.nn.Module,
    *,
    change: Callable[[str, Any, Any, Any], Any] | None = None,
) -> Path:
    """The dump.json of one training step of `net`, below `folder`, at level mix."""
    with _Recorder(change) as recorder:
        recorder.watch(net)
        step()
    builder = _Builder(folder, framework="pytorch")
    builder.header["level"] = "mix"
    builder.trains = recorder.trains
    for kind, record in recorder.records:
        _add(builder, kind, record)
    return builder.write()


def _add(builder: DumpBuilder, kind: str, record: dict[str, Any]) -> None:
    name = record["name"]
    if kind == "layer":
        fields = {"input_args": record["args"], "input_kwargs": {}, "parameters": record["parameters"]}
        builder.records[name] = _values(builder, name, {**fields, "output": record["outputs"]})
    elif kind == "forward":
        builder.call(name, record["args"], record["outputs"], keywords=record["kwargs"])
        builder.stacks[f"{name}.forward"] = record["stack"]
    else:
        incoming = [record["incoming"].get(place) for place in range(len(record["outputs"]))]
        gradients = [record["gradients"].get(place) for place in range(record["tensors"])]
        builder.records[f"{name}.backward"] = _values(
            builder, f"{name}.backward", {"input": incoming, "output": gradients}
        )


def _values(builder: DumpBuilder, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a record."""
    return {
        field: {key: builder.value(item, f"{name}.{field}.{key}") for key, item in value.items()}
        if isinstance(value, dict)
        else [builder.value(item, f"{name}.{field}.{i}") for i, item in enumerate(value)]
        for field, value in fields.items()
    }
