"""What a run with PyTorch is made of: models, optimizers, switches, random state, batch; see `RunFacts`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import xxhash
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from msprobe_collector.pytorch.hyperparameters import group_settings, has_hooks, held_by, number_of
from msprobe_collector.pytorch.parameter_names import inside_compiled, without_compiler
from msprobe_collector.pytorch.tensor_values import content_of, torch_values
from msprobe_collector.recording.manifest import (
    Fingerprints,
    ProcessObjects,
    RunFacts,
    class_of,
    layer_settings,
    python_state,
    reads_mode,
)
from msprobe_collector.recording.plain_values import OMITTED, WhatIsTold, plain

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

    name = "pytorch"

    def __init__(self) -> None:
        """Look at nothing yet."""
        self._fingerprints = Fingerprints(content_of, _fetched)
        kinds = {"optimizers": torch.optim.Optimizer, "schedulers": LRScheduler, "scalers": torch.amp.GradScaler}
        super().__init__(torch_values().parts, ProcessObjects(kinds))

    def versions(self) -> Mapping[str, object]:
        """Of CUDA and what belongs to it."""
        found: dict[str, object] = {"cuda": torch.version.cuda, "hip": torch.version.hip}
        with WhatIsTold():
            found["cudnn"] = _backends.cudnn.version()
        if torch.version.cuda is not None and _cuda.is_initialized():
            with WhatIsTold():
                found["nccl"] = ".".join(map(str, _cuda.nccl.version()))
        if isinstance(cann := getattr(getattr(sys.modules.get("torch_npu"), "version", None), "cann", None), str):
            found["cann of torch_npu"] = cann
        return {key: value for key, value in found.items() if value is not None}

    def device(self) -> Mapping[str, object]:
        """Name and number of the current device; the CPU's instructions."""
        found: dict[str, object] = {}
        with WhatIsTold():
            found["cpu instructions"] = _backends.cpu.get_cpu_capability()
        for kind in ("cuda", "npu", "xpu"):
            with WhatIsTold():
                module = getattr(torch, kind, None)
                if module is not None and module.is_initialized():
                    found["kind"], found["name"] = kind, str(module.get_device_name())
                    found["count"] = int(module.device_count())
        return {"kind": "cpu", **found}

    def switches(self) -> Mapping[str, object]:
        """Those of the table that this version has."""
        found: dict[str, object] = {}
        for name, ask in _SWITCHES.items():
            with WhatIsTold():
                found[name] = plain(ask(), number_of)
        return found

    def models(self, layers: Sequence[Any]) -> list[Any]:
        """See `RunFacts`; parameters and buffers have the names of their models, after the model's number of many."""
        found = []
        for index, model in enumerate(map(inside_compiled, layers)):
            front = f"{index}." if len(layers) > 1 else ""
            entry = {
                "class": class_of(model),
                "eval_at": eval_lines.get(model),
                "parameters": self._tensors(_named(model.named_parameters(remove_duplicate=False), front)),
                "buffers": self._tensors(_named(model.named_buffers(remove_duplicate=False), front)),
                "modules": [
                    {
                        "path": f"{front}{without_compiler(path)}",
                        "class": type(module).__name__,
                        "training": module.training,
                        "reads_mode": reads_mode(module, nn.Module, "forward"),
                        "settings": layer_settings(module, number_of),
                    }
                    for path, module in model.named_modules()
                    if inside_compiled(module) is module
                ],
            }
            found.append(entry)
        return self._fingerprints.settled(found)  # type: ignore[no-any-return]

    def optimizers(self, layers: Sequence[Any], *, with_state: bool = True) -> list[Any]:
        """See `RunFacts`; those that have nothing of the models are left out where others have."""
        names = _names_of(layers)
        if not self._objects.get("optimizers"):
            self._look()
        chosen = self._chosen(names)
        found = []
        for optimizer in chosen:
            schedulers = [one for one in self._objects["schedulers"] if held_by(one) is optimizer]
            entry: dict[str, object] = {
                "class": class_of(optimizer),
                "groups": [
                    {"settings": settings, "parameters": list(_names_in(number, group, names))}
                    for number, (settings, group) in enumerate(zip(group_settings(optimizer), optimizer.param_groups))
                ],
                "schedulers": [{"class": class_of(one), "settings": _scheduler_settings(one)} for one in schedulers],
            }
            if with_state:
                entry["state"] = self._state_of(optimizer)
            found.append(entry)
        return self._fingerprints.settled(found)  # type: ignore[no-any-return]

    def watch_optimizers(self, changed: Callable[[], None]) -> Callable[[], None]:
        """By a hook on each optimizer itself."""

        def before(_: Any, __: Any, ___: Any) -> None:
            if not torch.compiler.is_compiling():
                changed()

        handles = [one.register_step_pre_hook(before) for one in self._objects.get("optimizers", ())]

        def end() -> None:
            while handles:
                handles.pop().remove()

        return end

    def randomness(self) -> Mapping[str, object]:
        """Of PyTorch, of CUDA where it runs, of Python, of NumPy where it is loaded."""
        states = {"torch": _digest(torch.get_rng_state()), "python": python_state(random.getstate())}
        for kind in ("cuda", "npu"):
            with WhatIsTold():
                module = getattr(torch, kind, None)
                if module is not None and module.is_initialized():
                    states[kind] = _digest(module.get_rng_state())
        if (numpy := sys.modules.get("numpy")) is not None:
            states["numpy"] = python_state(numpy.random.get_state())
        return {"seeds": {"torch": torch.initial_seed()}, "states": states}

    def loss_scale(self) -> object:
        """Of the GradScaler of the process, the first that is on."""
        if not self._objects:
            self._look()
        for scaler in self._objects["scalers"]:
            if scaler.is_enabled():
                settings = {name: getattr(scaler, f"_{name}", None) for name in _OF_A_SCALER}
                return {"scale": float(scaler.get_scale()), **settings}
        return None

    def autocast(self) -> object:
        """Dtype by device of what is on; empty where nothing is."""
        kinds = ("cpu", "cuda", "npu")
        found = {}
        for kind in kinds:
            with WhatIsTold():
                if torch.is_autocast_enabled(kind):
                    found[kind] = str(torch.get_autocast_dtype(kind))
        return found

    def is_model(self, layer: Any) -> bool:
        """Whether it has parameters."""
        return next(iter(layer.parameters()), None) is not None

    def settled(self, values: Any) -> Any:
        """See `RunFacts`."""
        return self._fingerprints.settled(values)

    def _tensors(self, named: Iterator[tuple[str, Any]]) -> list[Any]:
        """Of each tensor; one that stands under a second name is said to be tied to the first."""
        first: dict[int, str] = {}
        found: list[dict[str, object]] = []
        for name, tensor in named:
            if id(tensor) in first:
                found.append({"name": name, "tied": first[id(tensor)]})
            else:
                first[id(tensor)] = name
                found.append(self.tensor(name, tensor))
        return found

    def tensor(self, name: str, tensor: Any) -> dict[str, object]:
        """See `RunFacts`."""
        entry: dict[str, object] = {"name": name, "dtype": str(tensor.dtype).removeprefix("torch.")}
        with WhatIsTold():  # a parameter that is made later has no shape
            entry["shape"] = list(tensor.shape)
            if isinstance(tensor, nn.Parameter):
                entry["requires_grad"] = tensor.requires_grad
            if (placements := getattr(tensor, "placements", None)) is not None:
                entry["placements"] = [str(placement) for placement in placements]
                tensor = tensor._local_tensor
            entry["fingerprint"] = self._fingerprints.of(tensor)
        return entry

    def _look(self) -> None:
        """Take what the process holds, optimizers without their wrappers."""
        self._objects = self._process.now()
        inner = {id(one): one for one in map(held_by, self._objects["optimizers"]) if has_hooks(one)}
        self._objects["optimizers"] = list(inner.values())

    def _chosen(self, names: Mapping[int, str]) -> list[Any]:
        """The optimizers of these parameters; all, where none has one of them."""
        every = self._objects["optimizers"]
        has = [any(id(item) in names for group in one.param_groups for item in group["params"]) for one in every]
        return [one for one, is_of_these in zip(every, has) if is_of_these or not any(has)]

    def _state_of(self, optimizer: Any) -> dict[str, object]:
        """Of each key of the state for how many parameters it is there, its least and greatest number, or digest."""
        held: dict[str, list[Any]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for key, value in optimizer.state.get(parameter, {}).items():
                    held.setdefault(str(key), []).append(self._state_value(value))
        return dict(held)

    def _state_value(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.numel() == 1 and value.device.type == "cpu":
                return number_of(value)
            return self._fingerprints.of(getattr(value, "_local_tensor", value))
        return value if isinstance(value, (int, float)) else None


#: Attributes of a GradScaler without their underscore.
_OF_A_SCALER = ("growth_factor", "backoff_factor", "growth_interval")


def _named(values: Iterator[tuple[str, Any]], front: str) -> Iterator[tuple[str, Any]]:
    return ((f"{front}{without_compiler(name)}", value) for name, value in values)


def _names_of(layers: Sequence[Any]) -> dict[int, str]:
    """Name of each parameter of the models by its id, and of the copy in higher precision that Megatron updates."""
    found: dict[int, str] = {}
    for index, model in enumerate(layers):
        for name, parameter in _named(model.named_parameters(), f"{index}." if len(layers) > 1 else ""):
            found.setdefault(id(parameter), name)
            if (copy := getattr(parameter, "main_param", None)) is not None:
                found.setdefault(id(copy), name)
    return found


def _names_in(number: int, group: Mapping[str, Any], names: Mapping[int, str]) -> Iterator[str]:
    for index, parameter in enumerate(group["params"]):
        yield names.get(id(parameter), f"param_groups.{number}.params.{index}")


def _scheduler_settings(scheduler: Any) -> dict[str, object]:
    """Numbers, texts and lists that a scheduler keeps."""
    found = {key: plain(value, number_of) for key, value in vars(scheduler).items() if not key.startswith("_")}
    return {key: value for key, value in found.items() if value is not OMITTED and key not in ("optimizer", "verbose")}


def _digest(state: Any) -> str:
    return xxhash.xxh3_64_hexdigest(bytes(state.cpu().numpy()))


def _fetched(numbers: Sequence[Any]) -> list[str]:
    """The contents of tensors on devices, one transfer for each device."""
    found = [""] * len(numbers)
    places: dict[Any, list[int]] = {}
    for at, number in enumerate(numbers):
        places.setdefault(number.device, []).append(at)
    for rows in places.values():
        for at, value in zip(rows, torch.stack([numbers[at] for at in rows]).tolist()):
            found[at] = f"sum {value & (1 << 64) - 1:016x}"
    return found
