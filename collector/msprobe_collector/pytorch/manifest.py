"""What a run with PyTorch is made of: models, optimizers, switches, random state, batch; see `RunFacts`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from msprobe_collector.dump_format.writing.parts import WhatIsTold
from msprobe_collector.pytorch.optimizers import group_settings, grouped_parameters, has_hooks, held_by, number_of
from msprobe_collector.pytorch.parameter_names import inside_compiled, uncompiled
from msprobe_collector.pytorch.tensor_values import content_of, torch_values
from msprobe_collector.recording.manifest import Fingerprints, ProcessObjects, RunFacts, told

_C: Any = torch._C
_backends: Any = torch.backends
_deterministic: Any = torch.utils.deterministic
_cuda: Any = torch.cuda


def _of_core(name: str) -> Callable[[], Any]:
    """A getter of PyTorch's core, which not every version has."""

    def ask() -> Any:
        return getattr(_C, name)()

    return ask


#: Name: how it is asked for. One that a version does not have, or refuses to tell, is left out.
_SWITCHES: dict[str, Callable[[], Any]] = {
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic algorithms: warn only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill uninitialized memory": lambda: _deterministic.fill_uninitialized_memory,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    # Not through torch.backends, which warns, and refuses where a script has used its newer names.
    "TF32 in cuBLAS": _of_core("_get_cublas_allow_tf32"),
    "TF32 in cuDNN": _of_core("_get_cudnn_allow_tf32"),
    "float32 precision": lambda: _backends.fp32_precision,
    "float32 precision of convolutions in cuDNN": lambda: _backends.cudnn.conv.fp32_precision,
    "float32 precision of matmul in CUDA": lambda: _backends.cuda.matmul.fp32_precision,
    "float32 precision of matmul in oneDNN": lambda: _backends.mkldnn.matmul.fp32_precision,
    "reduced precision sums of float16 in cuBLAS": lambda: _backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "reduced precision sums of bfloat16 in cuBLAS": (
        lambda: _backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "sums in float16 in cuBLAS": lambda: _backends.cuda.matmul.allow_fp16_accumulation,
    "HF32 in products of the NPU": lambda: sys.modules["torch_npu"].npu.matmul.allow_hf32,
    "HF32 in convolutions of the NPU": lambda: sys.modules["torch_npu"].npu.conv.allow_hf32,
    "cuDNN": _of_core("_get_cudnn_enabled"),
    "cuDNN benchmark": _of_core("_get_cudnn_benchmark"),
    "cuDNN deterministic": _of_core("_get_cudnn_deterministic"),
    "oneDNN": _of_core("_get_mkldnn_enabled"),
    "flash attention": _of_core("_get_flash_sdp_enabled"),
    "memory efficient attention": _of_core("_get_mem_efficient_sdp_enabled"),
    "attention by products": _of_core("_get_math_sdp_enabled"),
    "cuDNN attention": _of_core("_get_cudnn_sdp_enabled"),
    "default dtype": torch.get_default_dtype,
    "default device": lambda: str(torch.get_default_device()),
    "threads": torch.get_num_threads,
    "threads between operators": torch.get_num_interop_threads,
    "autocast keeps casts": torch.is_autocast_cache_enabled,
}


#: Where a script has put a model into eval mode: file and line, as far as somebody has noted it.
eval_lines: WeakKeyDictionary[nn.Module, dict[str, object]] = WeakKeyDictionary()


class TorchFacts(RunFacts):
    """See `msprobe_collector.recording.manifest.RunFacts`."""

    name, layer_class, forward = "pytorch", nn.Module, "forward"
    number_of = staticmethod(number_of)
    group_settings, group_parameters = staticmethod(group_settings), staticmethod(grouped_parameters)

    def __init__(self) -> None:
        """Look at nothing yet."""
        kinds = {"optimizers": torch.optim.Optimizer, "schedulers": LRScheduler, "scalers": torch.amp.GradScaler}
        super().__init__(torch_values().parts, ProcessObjects(kinds), Fingerprints(content_of, _fetched))

    def versions(self) -> Mapping[str, object]:
        """Of CUDA and what belongs to it."""
        versions: dict[str, object] = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        with WhatIsTold():
            versions["cudnn"] = _backends.cudnn.version()
        if torch.version.cuda is not None and _cuda.is_initialized():
            with WhatIsTold():
                versions["nccl"] = ".".join(map(str, _cuda.nccl.version()))
        if isinstance(cann := getattr(getattr(sys.modules.get("torch_npu"), "version", None), "cann", None), str):
            versions["cann of torch_npu"] = cann
        return {key: value for key, value in versions.items() if value is not None}

    def device(self) -> Mapping[str, object]:
        """Name and number of the current device; the CPU's instructions."""
        facts: dict[str, object] = {"kind": "cpu"}
        with WhatIsTold():
            facts["cpu instructions"] = _backends.cpu.get_cpu_capability()
        for kind, module in _running("cuda", "npu", "xpu"):
            with WhatIsTold():
                facts["kind"], facts["name"] = kind, str(module.get_device_name())
                facts["count"] = int(module.device_count())
        return facts

    def switches(self) -> Mapping[str, object]:
        """Those of the table that this version has."""
        return told(_SWITCHES, number_of)

    def models(self, layers: Sequence[Any]) -> list[Any]:
        """See `RunFacts`; with the line that has put a model into eval mode."""
        layers = list(map(inside_compiled, layers))
        models = super().models(layers)
        for entry, model in zip(models, layers):
            entry["eval_at"] = eval_lines.get(model)
        return models

    def parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `RunFacts`."""
        try:
            return uncompiled(model.named_parameters(remove_duplicate=False))
        except TypeError:  # a model's own method, of a time before that argument
            return uncompiled(model.named_parameters())

    def buffers(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `RunFacts`."""
        return uncompiled(model.named_buffers(remove_duplicate=False))

    def layers(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `RunFacts`."""
        return (layer for layer in uncompiled(model.named_modules()) if inside_compiled(layer[1]) is layer[1])

    def optimizer_of(self, scheduler: Any) -> Any:
        """See `RunFacts`."""
        return held_by(scheduler)

    def watch_optimizers(self, changed: Callable[[], None]) -> Callable[[], None]:
        """By a hook on each optimizer itself."""

        def before(_: Any, __: Any, ___: Any) -> None:
            if not torch.compiler.is_compiling():
                changed()

        handles = [item.register_step_pre_hook(before) for item in self._objects.get("optimizers", ())]

        def end() -> None:
            while handles:
                handles.pop().remove()

        return end

    def generators(self) -> tuple[dict[str, object], dict[str, object]]:
        """Of PyTorch, and of CUDA where it runs."""
        states: dict[str, object] = {"torch": _digest(torch.get_rng_state())}
        for kind, module in _running("cuda", "npu"):
            with WhatIsTold():
                states[kind] = _digest(module.get_rng_state())
        return {"torch": torch.initial_seed()}, states

    def scale_of(self, scaler: Any) -> dict[str, object] | None:
        """Of a GradScaler that is on."""
        if not scaler.is_enabled():
            return None
        settings = {name: getattr(scaler, f"_{name}", None) for name in _OF_A_SCALER}
        return {"scale": float(scaler.get_scale()), **settings}

    def autocast(self) -> object:
        """Dtype by device of what is on; empty where nothing is."""
        dtypes = {}
        for kind in ("cpu", "cuda", "npu"):
            with WhatIsTold():
                if torch.is_autocast_enabled(kind):
                    dtypes[kind] = str(torch.get_autocast_dtype(kind))
        return dtypes

    def tensor(self, name: str, tensor: Any) -> dict[str, object]:
        """See `RunFacts`."""
        entry: dict[str, object] = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch.")}
        with WhatIsTold():  # a parameter that is made later has no shape
            entry["shape"] = list(tensor.shape)
            if isinstance(tensor, nn.Parameter):
                entry["requires_grad"] = tensor.requires_grad
            if (placements := getattr(tensor, "placements", None)) is not None:
                entry["placements"] = list(map(str, placements))
                tensor = tensor._local_tensor
            entry["fingerprint"] = self._fingerprints.of(tensor)
        return entry

    def state(self, optimizer: Any) -> dict[str, object]:
        """Of each key of the state for how many parameters it is there, its least and greatest number, or digest."""
        state: dict[str, Any] = {}
        for parameter in chain(*self.group_parameters(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                state.setdefault(str(key), []).append(self._state_value(value))
        return state

    def _look(self) -> dict[str, list[Any]]:
        """Optimizers are shown without their wrappers."""
        objects = self._process.now()
        inner = {id(item): item for item in map(held_by, objects["optimizers"]) if has_hooks(item)}
        return {**objects, "optimizers": list(inner.values())}

    def _state_value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.numel() == 1 and value.device.type == "cpu":
                return number_of(value)
            return self._fingerprints.of(getattr(value, "_local_tensor", value))
        return value if isinstance(value, (int, float)) else None


#: Attributes of a GradScaler without their underscore.
_OF_A_SCALER = ("growth_factor", "backoff_factor", "growth_interval")


def _running(*kinds: str) -> Iterator[tuple[str, Any]]:
    """Yield kind and module of each of these devices that is in use."""
    for kind in kinds:
        with WhatIsTold():
            if (module := getattr(torch, kind)).is_initialized():
                yield kind, module


def _digest(state: Any) -> str:
    return xxhash.xxh3_64_hexdigest(bytes(state.cpu().numpy()))


def _fetched(numbers: Sequence[Any]) -> list[str]:
    """The contents of tensors on devices, one transfer for each device."""
    texts = [""] * len(numbers)
    places: dict[Any, list[int]] = {}
    for at, number in enumerate(numbers):
        places.setdefault(number.device, []).append(at)
    for rows in places.values():
        for at, value in zip(rows, torch.stack([numbers[at] for at in rows]).tolist()):
            texts[at] = f"sum {value & (1 << 64) - 1:016x}"
    return texts
