"""What a run with MindSpore is made of: models, optimizers, context, random state, batch; see `RunFacts`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import mindspore
import xxhash
from mindspore import Tensor, context, nn
from mindspore.amp import LossScaleManager, LossScaler
from mindspore.experimental import optim
from mindspore.experimental.optim.lr_scheduler import LRScheduler

from msprobe_collector.dump_format.writing.encoding import fingerprint_of
from msprobe_collector.dump_format.writing.parts import WhatIsTold, plain
from msprobe_collector.mindspore.device import on_host, sum_of_bits
from msprobe_collector.mindspore.mindspore_internals import errors_of_the_script
from msprobe_collector.mindspore.optimizers import group_parameters, group_settings, number_of
from msprobe_collector.mindspore.tensor_values import DeviceValues, mindspore_values
from msprobe_collector.recording.manifest import Fingerprints, ProcessObjects, RunFacts, told

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

    name, layer_class, forward = "mindspore", nn.Cell, "construct"
    number_of = staticmethod(number_of)
    group_settings, group_parameters = staticmethod(group_settings), staticmethod(group_parameters)

    def __init__(self) -> None:
        """Look at nothing yet."""
        kinds = {"optimizers": nn.Optimizer, "others": optim.Optimizer, "schedulers": LRScheduler}
        process = ProcessObjects({**kinds, **{kind.__name__: kind for kind in _SCALING}})
        super().__init__(mindspore_values().parts, process, Fingerprints(_content_of, _fetched))

    def device(self) -> Mapping[str, object]:
        """Target and number of the device."""
        facts: dict[str, object] = {"kind": str(context.get_context("device_target"))}
        with WhatIsTold():
            if facts["kind"] != "CPU":
                facts["name"] = str(mindspore.hal.get_device_name(context.get_context("device_id")))
        return facts

    def switches(self) -> Mapping[str, object]:
        """Of the context and of that of parallel training."""
        of_ascend = _CONTEXT_OF_ASCEND if context.get_context("device_target") == "Ascend" else ()
        asks = {name: partial(context.get_context, name) for name in (*_CONTEXT, *of_ascend)}
        asks |= {name: partial(context.get_auto_parallel_context, name) for name in _PARALLEL}
        switches = told(asks, number_of)
        if "mode" in switches:
            switches["mode"] = "GRAPH_MODE" if switches["mode"] == context.GRAPH_MODE else "PYNATIVE_MODE"
        return switches

    def parameters(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `RunFacts`; parameters have their own names."""
        return ((item.name, item) for item in model.get_parameters())

    def buffers(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `RunFacts`."""
        return (buffer for buffer in model.named_buffers() if isinstance(buffer[1], Tensor))

    def layers(self, model: Any) -> Iterable[tuple[str, Any]]:
        """See `RunFacts`."""
        return model.cells_and_names()  # type: ignore[no-any-return]

    def settings(self, layer: Any) -> dict[str, object]:
        """See `RunFacts`; with the precision that `to_float` and amp have given a Cell."""
        settings = super().settings(layer)
        for flag, dtype in _TO_FLOAT.items():
            settings.pop(flag, None)
            if vars(layer).get(flag) is True:
                settings["to_float"] = dtype
        if isinstance(level := getattr(layer, "_amp_level", ""), str) and level:
            settings["amp_level"] = level
        return settings

    def state(self, optimizer: Any) -> dict[str, object]:
        """See `RunFacts`."""
        updated = set(map(id, optimizer.parameters))
        state = {}
        for item in getattr(optimizer, "_params", {}).values():
            if id(item) not in updated and item.name != "momentum" and not item.name.startswith("learning_rate"):
                state[item.name] = self.tensor(item.name, item).get("fingerprint")
        return state

    def generators(self) -> tuple[dict[str, object], dict[str, object]]:
        """Of MindSpore's operators and of mint."""
        seeds: dict[str, object] = {"mindspore": mindspore.get_seed()}
        states: dict[str, object] = {}
        with WhatIsTold():
            states["mint"] = xxhash.xxh3_64_hexdigest(mindspore.get_rng_state().asnumpy().tobytes())
            seeds["mint"] = int(mindspore.initial_seed())
        return seeds, states

    def scale_of(self, scaler: Any) -> dict[str, object] | None:
        """Of a scaler, a manager or a Cell that scales losses."""
        for name in ("scale_value", "_loss_scale", "loss_scale_value", "loss_scale"):
            value = plain(getattr(scaler, name, None), number_of)
            if isinstance(value, (int, float)):
                return {"scale": float(value), "class": type(scaler).__name__}
        return None

    def is_model(self, layer: Any) -> bool:
        """See `RunFacts`; an optimizer is a Cell, too."""
        return not isinstance(layer, (nn.Optimizer, optim.Optimizer)) and super().is_model(layer)

    def _look(self) -> dict[str, list[Any]]:
        objects = self._process.now()
        # MindSpore itself holds those of its levels of mixed precision.
        levels = getattr(sys.modules.get("mindspore.train.amp"), "_config_level", {})
        of_levels = {id(value) for level in levels.values() for value in level.values()}
        scalers = [scaler for kind in _SCALING for scaler in objects[kind.__name__] if id(scaler) not in of_levels]
        every = [item for item in objects["optimizers"] + objects["others"] if hasattr(item, "parameters")]
        # LARS and its like hold the optimizer that they scale.
        inner = {id(cell) for optimizer in every for cell in getattr(optimizer, "_cells", {}).values()}
        optimizers = [optimizer for optimizer in every if id(optimizer) not in inner]
        return {"optimizers": optimizers, "schedulers": objects["schedulers"], "scalers": scalers}

    def tensor(self, name: str, tensor: Any) -> dict[str, object]:
        """See `RunFacts`."""
        entry: dict[str, object] = {"name": name, "dtype": str(tensor.dtype).lower(), "shape": list(tensor.shape)}
        if isinstance(tensor, mindspore.Parameter):
            entry["requires_grad"] = bool(tensor.requires_grad)
            if getattr(tensor, "has_init", False):  # its values are made later
                return entry
        entry["fingerprint"] = self._fingerprints.of(tensor)
        return entry


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
