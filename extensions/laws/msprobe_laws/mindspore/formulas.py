"""Which formula an optimizer of MindSpore is held to, and its states under PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from mindspore import Parameter
from mindspore.experimental import optim

from msprobe_collector.mindspore.optimizers import steps_done
from msprobe_laws.formulas import FORMULAS
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF

#: Unit roundoff of what hyper-parameters are combined in: they are float32 tensors.
PRECISION = FLOAT32_ROUNDOFF
#: Names in PyTorch of states, by the attribute that holds one for each parameter; "" for what is no moment.
_STATES = {
    "moment1": "exp_avg",
    "moment2": "exp_avg_sq",
    "moments1": "exp_avg",
    "moments2": "exp_avg_sq",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "vhat": "max_exp_avg_sq",
    "max_exp_avg_sq": "max_exp_avg_sq",
    "moments": "momentum_buffer",
    "momentum_buf": "momentum_buffer",
    "accum": "momentum_buffer",
    "ms": "square_avg",
    "mg": "grad_avg",
    "moment": "momentum_buffer",
    "stat": "",
    "mean_square": "square_avg",
    "mean_grad": "grad_avg",
    "accum_update": "acc_delta",
}
#: Those that another class means by the name.
_OF_CLASS = {("Adagrad", "accum"): "sum", ("Adadelta", "accum"): "square_avg", ("AdaMax", "moment2"): "exp_inf"}
#: Attributes of nn.Optimizer with one Parameter for each that is updated which are hyper-parameters, and one for many.
_NO_STATES = frozenset(("learning_rate", "group_lr", "weight_decay", "group_weight_decay", "parameters", "_parameters"))


def formula_of(optimizer: Any) -> tuple[str, str, bool]:
    """Return (name of the formula or "", why there is none, whether the class is the user's own)."""
    kind = type(optimizer)
    for base in kind.__mro__:
        # Adam of experimental.optim runs the kernel of nn.Adam, whose eps is not corrected with the second moment.
        is_of_nn = base.__module__.startswith("mindspore.nn.") or base is optim.Adam
        prefix = "nn." if is_of_nn else ""
        name = f"{prefix}{base.__name__}"
        if base.__module__.startswith("mindspore.") and name in FORMULAS:
            is_own = base is not kind
            if is_own and _more_states(optimizer, FORMULAS[name].states):
                return "", f"{kind.__name__} is derived from {base.__name__} and keeps states of its own", True
            return name, "", is_own
    return "", f"no formula of {kind.__name__} is known", not kind.__module__.startswith("mindspore.")


def states_held(optimizer: Any, count: int) -> Iterator[tuple[str, Sequence[Any]]]:
    """Return (attribute, one Parameter for each that the optimizer updates), without these parameters themselves."""
    ids = {id(item) for item in optimizer.parameters}
    for key, value in vars(optimizer).items():
        is_of_each = key not in _NO_STATES and isinstance(value, (tuple, list)) and len(value) == count
        if is_of_each and all(isinstance(item, Parameter) and id(item) not in ids for item in value):
            yield key, value


def _more_states(optimizer: Any, states: Sequence[str]) -> bool:
    """Return whether it keeps something for each parameter that is no state of its formula."""
    held = (name_of_state(optimizer, key) for key, _ in states_held(optimizer, len(optimizer.parameters)))
    return any(name and name not in states and name not in _STATES.values() for name in held)


def name_of_state(optimizer: Any, key: str) -> str:
    """Return its name in PyTorch; "" for what is no moment."""
    names = (_OF_CLASS.get((base.__name__, key)) for base in type(optimizer).__mro__)
    return next(filter(None, names), _STATES.get(key, key))


def declared(optimizer: Any, frame: FrameType | None) -> dict[str, object]:
    """Return what the records of an optimizer say of its formula: see `formulas.py` of this package."""
    formula, unknown, is_own = formula_of(optimizer)
    scale = getattr(optimizer, "loss_scale", 1.0)
    if isinstance(scale, (int, float)) and scale != 1:
        formula, unknown = "", f"its gradients hold the loss scale {scale:g}"
    held = dict(states_held(optimizer, len(optimizer.parameters)))
    # The first step takes the gradient itself, as PyTorch's does where there is no buffer yet.
    is_first = steps_done(optimizer) == 0 and ("stat" in held or "momentum_buf" in held)
    states = {key: "" if is_first else name_of_state(optimizer, key) for key in held}
    return {
        "formula": formula,
        "unknown": unknown,
        "is_own": is_own,
        "precision": PRECISION,
        "states": {key: name for key, name in states.items() if key != name},
    }
