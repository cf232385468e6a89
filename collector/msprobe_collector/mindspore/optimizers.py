"""What optimizers of MindSpore get and leave, seen at the `__call__` of their base classes, and their hyper-parameters.

Nothing is seen of an optimizer that runs inside a graph.

Hyper-parameters of optimizers, per parameter group: those of nn, and of mint and experimental.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

from mindspore import Parameter, Tensor, context, nn

from msprobe_collector.dump_format.writing.parts import OMITTED, plain_fields, shortest
from msprobe_collector.mindspore.discovery import own_parameters
from msprobe_collector.recording.other_records import Named, OptimizerRecords, ParameterNames, named
from msprobe_collector.recording.session import Session
from msprobe_collector.recording.swaps import MethodSwaps

#: What the base class nn.Optimizer gives each optimizer: its work, no hyper-parameter.
_OF_THE_BASE = frozenset(
    "training requires_grad is_top_cell arguments_key has_bprop optim_filter dynamic_weight_decay dynamic_lr is_group "
    "is_group_lr is_group_params_ordered decay_flags dynamic_decay_flags exec_weight_decay grad_centralization_flags "
    "reciprocal_scale need_scale global_step_increase_tensor param_length use_parallel enable_tuple_broaden "
    "skip_auto_parallel_compile grad_ops_label group_lr group_weight_decay group_grad_centralization group_params "
    "parameters params init_params init_learning_rate init_args weight_decay learning_rate lr global_step param_rank "
    "grad_centralization bprop_debug pynative cell_type mixed_precision_type cls_name param_names dev_num state".split()
)
#: Parameters of one element that are hyper-parameters all the same; others count steps.
_SETTINGS_IN_PARAMETERS = ("momentum",)
#: Names in PyTorch of hyper-parameters.
_NAMES_OF_PYTORCH = {"use_nesterov": "nesterov", "use_amsgrad": "amsgrad", "decay": "alpha", "epsilon": "eps"}


def group_settings(optimizer: Any) -> list[dict[str, object]]:
    """The hyper-parameters of each parameter group of an optimizer, in the order of `group_parameters`.

    Args:
        optimizer: a mindspore.nn.Optimizer, or a mindspore.experimental.optim.Optimizer (mint.optim has these).

    Returns:
        One dict per group: None, bool, int, float, str, lists and dicts of these, under the names of the optimizer's
        arguments (`beta1`, `eps`, `momentum`, `use_nesterov`, `loss_scale`, ...). The learning rate is `lr` everywhere:
        that of the optimizer's next step. Where it is dynamic, `lr_schedule` has the class of its schedule and that
        one's settings, and `lr` is missing where only a graph could compute it. `weight_decay` is as it was given:
        without the loss scale that nn.Optimizer multiplies it by. Numbers that MindSpore keeps in float32 are given as
        they were typed.
    """
    if isinstance(groups := getattr(optimizer, "param_groups", None), list):
        return [_of_param_group(group) for group in groups]
    common = _common_settings(optimizer)
    return [{**common, **_of_group(optimizer, places[0])} for places in _places_of_groups(optimizer)]


def group_parameters(optimizer: Any) -> list[list[Any]]:
    """Return the parameters of each group, as lists of mindspore.Parameter.

    Groups of nn.Optimizer that have equal settings are one: the optimizer does not keep them apart.
    """
    if isinstance(groups := getattr(optimizer, "param_groups", None), list):
        return [list(group["params"]) for group in groups]
    parameters = list(optimizer.parameters)
    return [[parameters[at] for at in places] for places in _places_of_groups(optimizer)]


def steps_done(optimizer: Any) -> int | None:
    """Return how many steps the optimizer says that it has done."""
    for key in ("state_step", "step_t", "global_step"):
        value = getattr(optimizer, key, None)
        if isinstance(value, Tensor) and value.size == 1:
            return int(value.asnumpy().reshape(()))
    return None


def update_groups(optimizer: Any, parameters: Sequence[Any]) -> tuple[list[dict[str, Any]], list[int]]:
    """Return (settings of each group, under PyTorch's names; number of the group of each parameter).

    Parameters that a filter keeps from decay have a group of their own.
    """
    numbers = {id(item): at for at, group in enumerate(group_parameters(optimizer)) for item in group}
    groups = [_with_names_of_pytorch(group) for group in group_settings(optimizer)]
    flags = getattr(optimizer, "decay_flags", None)
    distinct: list[dict[str, Any]] = []
    places: dict[tuple[int, bool], int] = {}
    chosen = []
    for at, item in enumerate(parameters):
        number = numbers.get(id(item), 0)
        is_decayed = not isinstance(flags, (tuple, list)) or at >= len(flags) or bool(flags[at])
        key = (number, is_decayed)
        if key not in places:
            distinct.append(dict(*groups[number : number + 1]))
            if not is_decayed:
                distinct[-1]["weight_decay"] = 0.0
            places[key] = len(distinct) - 1
        chosen.append(places[key])
    return distinct, chosen


def _with_names_of_pytorch(group: Mapping[str, Any]) -> dict[str, Any]:
    settings = {_NAMES_OF_PYTORCH.get(name, name): value for name, value in group.items()}
    if "betas" not in settings and "beta1" in settings and "beta2" in settings:
        settings["betas"] = (settings["beta1"], settings["beta2"])
    return settings


def step_settings(optimizer: Any) -> list[dict[str, Any]]:
    """Return the settings of each group of neighbours, with the number of its parameters and of the step.

    They are the leaf `settings` of an optimizer's record.
    """
    settings, numbers = update_groups(optimizer, list(optimizer.parameters))
    count = steps_done(optimizer)
    step = {} if count is None else {"step": count + 1}
    return [{**settings[number], **step, "parameters": len(list(same))} for number, same in groupby(numbers)]


def number_of(value: Any) -> Any:
    """The number of a tensor with one element; OMITTED for other tensors, None for what is no tensor."""
    if not isinstance(value, Tensor):
        return None
    if value.size != 1:
        return OMITTED
    return shortest(value.asnumpy().reshape(()).item(), str(value.dtype).lower())


def _of_param_group(group: dict[str, Any]) -> dict[str, object]:
    return plain_fields((field for field in group.items() if field[0] != "params"), number_of)


def _common_settings(optimizer: Any) -> dict[str, object]:
    """What all groups have: the constructor's arguments where the optimizer kept them, and its own attributes."""
    fields = dict(filter(_is_setting, vars(optimizer).items()))
    if isinstance(arguments := getattr(optimizer, "init_args", None), dict):
        fields.update(filter(_is_setting, arguments.items()))
    held = getattr(optimizer, "_params", {})
    fields.update((key, held[key]) for key in _SETTINGS_IN_PARAMETERS if key in held)
    fields["loss_scale"] = getattr(optimizer, "loss_scale", 1.0)
    return plain_fields(fields.items(), number_of)


def _is_setting(field: tuple[str, Any]) -> bool:
    key, value = field
    if key.startswith("_") or key in _OF_THE_BASE or isinstance(value, (Parameter, nn.Cell)):
        return False
    if isinstance(value, Tensor):
        return int(value.size) == 1
    if isinstance(value, (tuple, list)):
        return all(isinstance(item, (bool, int, float, str)) for item in value)
    return isinstance(value, (bool, int, float, str, type(None)))


def _places_of_groups(optimizer: Any) -> list[list[int]]:
    """Numbers of the parameters that have the same settings, in the order of their first."""
    count = len(optimizer.parameters)
    if not getattr(optimizer, "is_group", False):
        return [list(range(count))]
    keys: dict[tuple[object, ...], list[int]] = {}
    rates, decays = getattr(optimizer, "group_lr", ()), getattr(optimizer, "group_weight_decay", ())
    centred = getattr(optimizer, "group_grad_centralization", ())
    for at, rate, decay in zip_longest(range(count), rates, decays):
        decay_key = id(decay) if isinstance(decay, nn.Cell) else decay
        keys.setdefault((id(rate), decay_key, *centred[at : at + 1]), []).append(at)
    return list(keys.values())


def _of_group(optimizer: Any, at: int) -> dict[str, object]:
    """Return what a group may have of its own; `at` is the number of its first parameter."""
    is_group = bool(getattr(optimizer, "is_group", False))
    rate: Any = getattr(optimizer, "learning_rate", None)
    if is_group and getattr(optimizer, "is_group_lr", False):
        rate = optimizer.group_lr[at]
    decay: Any = getattr(optimizer, "weight_decay", None)
    if isinstance(decay, (tuple, list)):
        decay = decay[at] if at < len(decay) else None
    step = number_of(getattr(optimizer, "global_step", None))
    settings = {**_moving("lr", rate, step), **_moving("weight_decay", _inner(decay), step)}
    # nn.Optimizer holds the decay times the loss scale, since gradients have it, too.
    scale = getattr(optimizer, "loss_scale", 1.0)
    number = settings.get("weight_decay")
    if not isinstance(decay, nn.Cell) and isinstance(number, float) and isinstance(scale, float) and scale != 1.0:
        settings["weight_decay"] = shortest(number / scale, "float32")
    if is_group:
        settings["grad_centralization"] = bool(optimizer.group_grad_centralization[at])
    return settings


def _inner(decay: Any) -> Any:
    """Return the schedule of a decay, without the Cell that multiplies it by the loss scale."""
    if isinstance(decay, nn.Cell) and isinstance(inner := getattr(decay, "weight_decay", None), nn.Cell):
        return inner
    return decay


def _moving(name: str, value: Any, step: Any) -> dict[str, object]:
    """Return a setting that may be a number or a Cell that computes it from the step."""
    if not isinstance(value, nn.Cell):
        return plain_fields([(name, value)], number_of)
    settings: dict[str, object] = {f"{name}_schedule": {"class": type(value).__name__, **_own_settings(value)}}
    number = _now(value, step)
    if number is not OMITTED:
        settings[name] = number
    return settings


def _own_settings(cell: Any) -> dict[str, object]:
    """Numbers and lists of numbers that a schedule was made with."""
    table = getattr(cell, "learning_rate", None)
    if isinstance(table, Tensor) and table.size != 1:
        return {"length": int(table.size)}
    return plain_fields(filter(_is_setting, vars(cell).items()), number_of)


def _now(schedule: Any, step: Any) -> Any:
    """Return what `schedule` gives at `step`; OMITTED where that cannot be computed here."""
    table = getattr(schedule, "learning_rate", None)
    if isinstance(table, Tensor):  # a list of rates, or one, which MindSpore made a Cell of
        numbers: Sequence[float] = table.asnumpy().reshape(-1).tolist()
        if not isinstance(step, int) or not numbers:
            return OMITTED
        return shortest(numbers[min(step, len(numbers) - 1)], "float32")
    if not isinstance(step, int) or context.get_context("mode") != context.PYNATIVE_MODE:
        return OMITTED
    return number_of(schedule(Tensor([step])).reshape(()))


class OptimizerCalls(OptimizerRecords):
    """Records every call of an optimizer."""

    framework = "mindspore"

    def __init__(self, session: Session) -> None:
        """See nothing yet."""
        super().__init__(session, ParameterNames(own_parameters, _names_of))
        self._swaps = MethodSwaps()

    def install(self) -> None:
        """See calls from now on."""
        if self._is_wanted and not self._swaps.are_in:
            from mindspore import nn
            from mindspore.experimental import optim

            for owner in (nn.Optimizer, optim.Optimizer):
                self._swaps.put(owner, "__call__", self._seen)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._swaps.uninstall()

    def _seen(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorder.is_collecting or self._activity.is_inside:
                return original(optimizer, *args, **kwargs)
            gradients = args[0] if args else kwargs.get("gradients", ())
            of_parameters = functools.partial(_gradients_of, gradients)
            self._guard.enter("an optimizer's call", self._begin, optimizer, of_parameters)
            result = original(optimizer, *args, **kwargs)
            self._guard.enter("an optimizer's call", self._end, optimizer)
            return result

        return call

    def _groups(self, optimizer: Any) -> list[list[Any]]:
        return [list(optimizer.parameters)]

    def _settings(self, optimizer: Any) -> list[dict[str, Any]]:
        return step_settings(optimizer)

    def _state(self, optimizer: Any, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Parameters of the optimizer's own: as many as it updates, one for each of them, then single ones."""
        from mindspore import Parameter

        taken = set(map(id, parameters.values()))
        held = {**vars(optimizer), **optimizer._params}
        for key, value in held.items():
            is_of_each = isinstance(value, (tuple, list)) and len(value) == len(parameters)
            if is_of_each and all(isinstance(item, Parameter) and id(item) not in taken for item in value):
                taken.update(map(id, value))
                yield from ((f"state.{name}.{key}", item) for name, item in zip(parameters, value))
        for key, value in held.items():
            if isinstance(value, Parameter) and id(value) not in taken:
                taken.add(id(value))
                yield f"state.{key}", value


def _names_of(parameters: Sequence[Any]) -> dict[int, str]:
    return {id(parameter): parameter.name for parameter in parameters}


def _gradients_of(gradients: Sequence[Any], parameters: Mapping[str, Any]) -> Named:
    return named("gradients", zip(parameters, gradients))
