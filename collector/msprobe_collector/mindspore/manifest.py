"""What a run with MindSpore is made of: models, optimizers, context, random state, batch; see `RunFacts`."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import mindspore
import xxhash
from mindspore import Tensor, context, nn
from mindspore.amp import LossScaleManager, LossScaler
from mindspore.experimental import optim
from mindspore.experimental.optim.lr_scheduler import LRScheduler

from msprobe_collector.dump_format.writing.encoding import fingerprint_of
from msprobe_collector.mindspore.device import on_host, sum_of_bits
from msprobe_collector.mindspore.hyperparameters import group_parameters, group_settings, number_of
from msprobe_collector.mindspore.script_errors import errors_of_the_script
from msprobe_collector.mindspore.tensor_values import DeviceValues, mindspore_values
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

#: Of the context what changes numbers, by MindSpore's name. One that a version does not have is left out.
_CONTEXT = (
    *("mode", "deterministic", "jit_level", "jit_syntax_level", "jit_config", "enable_graph_kernel"),
    *("graph_kernel_flags", "pynative_synchronize", "runtime_num_threads"),
    *("inter_op_parallel_num", "memory_optimize_level", "exec_order"),
)
#: Elsewhere MindSpore warns when it is asked for these.
_CONTEXT_OF_ASCEND = ("ascend_config", "enable_reduce_precision")
_PARALLEL = (
    *("parallel_mode", "device_num", "gradients_mean", "gradient_fp32_sync", "enable_parallel_optimizer", "full_batch"),
    *("search_mode", "loss_repeated_mean"),
)
#: Classes of what scales losses.
_SCALING = (LossScaler, LossScaleManager, nn.FixedLossScaleUpdateCell, nn.DynamicLossScaleUpdateCell)


class MindSporeFacts(RunFacts):
    """See `msprobe_collector.recording.manifest.RunFacts`.

    There is no autocast: mixed precision is a property of Cells. No optimizer is watched: the rate of a schedule is
    told from its step counter.
    """

    name = "mindspore"

    def __init__(self) -> None:
        """Look at nothing yet."""
        kinds = {"optimizers": nn.Optimizer, "others": optim.Optimizer, "schedulers": LRScheduler}
        process = ProcessObjects({**kinds, **{kind.__name__: kind for kind in _SCALING}})
        super().__init__(mindspore_values().parts, process)
        self._fingerprints = Fingerprints(_content_of, _fetched)

    def device(self) -> Mapping[str, object]:
        """Target and number of the device."""
        facts: dict[str, object] = {"kind": str(context.get_context("device_target"))}
        with WhatIsTold():
            if facts["kind"] != "CPU":
                facts["name"] = str(mindspore.hal.get_device_name(context.get_context("device_id")))
        return facts

    def switches(self) -> Mapping[str, object]:
        """Of the context and of that of parallel training."""
        switches: dict[str, object] = {}
        of_ascend = _CONTEXT_OF_ASCEND if context.get_context("device_target") == "Ascend" else ()
        of_context = (*_CONTEXT, *of_ascend)
        for ask, names in ((context.get_context, of_context), (context.get_auto_parallel_context, _PARALLEL)):
            for name in names:
                with WhatIsTold():
                    switches[name] = plain(ask(name), number_of)
        if "mode" in switches:
            switches["mode"] = "GRAPH_MODE" if switches["mode"] == context.GRAPH_MODE else "PYNATIVE_MODE"
        return {name: value for name, value in switches.items() if value is not OMITTED}

    def models(self, layers: Sequence[Any]) -> list[Any]:
        """See `RunFacts`; parameters have their own names."""
        models = []
        for model in layers:
            buffers = [(name, item) for name, item in model.named_buffers() if isinstance(item, Tensor)]
            entry = {
                "class": class_of(model),
                "parameters": [self.tensor(item.name, item) for item in model.get_parameters()],
                "buffers": [self.tensor(name, item) for name, item in buffers],
                "modules": [_module(path, cell) for path, cell in model.cells_and_names()],
            }
            models.append(entry)
        return self.settled(models)  # type: ignore[no-any-return]

    def optimizers(self, layers: Sequence[Any], *, with_state: bool = True) -> list[Any]:
        """See `RunFacts`; those that have nothing of the models are left out where others have."""
        if not self._objects.get("optimizers"):
            self._objects = self._seen()
        parameters = {id(item) for model in layers for item in model.get_parameters()}
        every = self._objects["optimizers"]
        chosen = [item for item in every if not parameters.isdisjoint(map(id, getattr(item, "parameters", ())))]
        chosen = chosen or every
        # LARS and its like hold the optimizer that they scale.
        inner = {id(cell) for optimizer in chosen for cell in getattr(optimizer, "_cells", {}).values()}
        chosen = [optimizer for optimizer in chosen if id(optimizer) not in inner]
        return self.settled([self._optimizer(optimizer, with_state) for optimizer in chosen])  # type: ignore[no-any-return]

    def randomness(self) -> Mapping[str, object]:
        """Of MindSpore's operators and of mint, of Python and NumPy."""
        states: dict[str, object] = {"python": python_state(random.getstate())}
        seeds: dict[str, object] = {"mindspore": mindspore.get_seed()}
        with WhatIsTold():
            states["mint"] = xxhash.xxh3_64_hexdigest(mindspore.get_rng_state().asnumpy().tobytes())
            seeds["mint"] = int(mindspore.initial_seed())
        if (numpy := sys.modules.get("numpy")) is not None:
            states["numpy"] = python_state(numpy.random.get_state())
        return {"seeds": seeds, "states": states}

    def loss_scale(self) -> object:
        """Of the scaler, the manager or the Cell that scales losses."""
        if not self._objects:
            self._objects = self._seen()
        for scaler in self._objects["scalers"]:
            for name in ("scale_value", "_loss_scale", "loss_scale_value", "loss_scale"):
                value = plain(getattr(scaler, name, None), number_of)
                if isinstance(value, (int, float)):
                    return {"scale": float(value), "class": type(scaler).__name__}
        return None

    def is_model(self, layer: Any) -> bool:
        """Return whether it has parameters, and is no optimizer."""
        is_optimizer = isinstance(layer, (nn.Optimizer, optim.Optimizer))
        return not is_optimizer and next(iter(layer.get_parameters()), None) is not None

    def _seen(self) -> dict[str, list[Any]]:
        objects = self._process.now()
        # MindSpore itself holds those of its levels of mixed precision.
        levels = getattr(sys.modules.get("mindspore.train.amp"), "_config_level", {})
        of_levels = {id(value) for level in levels.values() for value in level.values()}
        scalers = [scaler for kind in _SCALING for scaler in objects[kind.__name__] if id(scaler) not in of_levels]
        optimizers = [*objects["optimizers"], *objects["others"]]
        return {"optimizers": optimizers, "schedulers": objects["schedulers"], "scalers": scalers}

    def _optimizer(self, optimizer: Any, with_state: bool) -> dict[str, object]:
        schedulers = [item for item in self._objects["schedulers"] if getattr(item, "optimizer", None) is optimizer]
        groups = zip(group_settings(optimizer), group_parameters(optimizer))
        entry: dict[str, object] = {
            "class": class_of(optimizer),
            "groups": [
                {"settings": settings, "parameters": [item.name for item in parameters]}
                for settings, parameters in groups
            ],
            "schedulers": [{"class": class_of(item), "settings": _scheduler_settings(item)} for item in schedulers],
        }
        if with_state:
            updated = {id(item) for item in optimizer.parameters}
            held = [item for item in getattr(optimizer, "_params", {}).values() if id(item) not in updated]
            state = [item for item in held if item.name != "momentum" and not item.name.startswith("learning_rate")]
            entry["state"] = {item.name: self.tensor(item.name, item).get("fingerprint") for item in state}
        return entry

    def tensor(self, name: str, tensor: Any) -> dict[str, object]:
        """See `RunFacts`."""
        entry: dict[str, object] = {"name": name, "dtype": str(tensor.dtype).lower(), "shape": list(tensor.shape)}
        if isinstance(tensor, mindspore.Parameter):
            entry["requires_grad"] = bool(tensor.requires_grad)
            if getattr(tensor, "has_init", False):  # its values are made later
                return entry
        entry["fingerprint"] = self._fingerprints.of(tensor)
        return entry

    def settled(self, values: Any) -> Any:
        """See `RunFacts`."""
        return self._fingerprints.settled(values)


def _content_of(tensor: Any) -> Any:
    """Return the fingerprint of a tensor; of one on a device a tensor of one integer, to be waited for."""
    with errors_of_the_script([tensor]):
        values = mindspore_values().read(tensor)
        if isinstance(values, DeviceValues) and values.held_bytes:
            return sum_of_bits(tensor)
        return fingerprint_of(values.array)


def _fetched(sums: Sequence[Any]) -> list[str]:
    """Return the fingerprints of tensors on a device, which come in one copy."""
    return [f"sum {int(numbers[0]) & (1 << 64) - 1:016x}" for numbers in on_host(sums)]


#: Flags that `Cell.to_float` sets.
_TO_FLOAT = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def _module(path: str, cell: Any) -> dict[str, object]:
    return {
        "path": path,
        "class": type(cell).__name__,
        "training": bool(cell.training),
        "reads_mode": reads_mode(cell, nn.Cell, "construct"),
        "settings": _settings_of(cell),
    }


def _settings_of(cell: Any) -> dict[str, object]:
    settings = {key: value for key, value in layer_settings(cell, number_of).items() if key not in _TO_FLOAT}
    return {**settings, **_precision_of(cell)}


def _precision_of(cell: Any) -> dict[str, object]:
    """Return the precision that `to_float` and amp have given a Cell."""
    precision: dict[str, object] = {}
    for flag, dtype in _TO_FLOAT.items():
        if vars(cell).get(flag) is True:
            precision["to_float"] = dtype
    if isinstance(level := getattr(cell, "_amp_level", ""), str) and level:
        precision["amp_level"] = level
    return precision


def _scheduler_settings(scheduler: Any) -> dict[str, object]:
    settings = {key: plain(value, number_of) for key, value in vars(scheduler).items() if not key.startswith("_")}
    return {key: value for key, value in settings.items() if value is not OMITTED and key != "optimizer"}
