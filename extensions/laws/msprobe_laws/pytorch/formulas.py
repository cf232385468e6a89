"""Which formula the step of an optimizer of PyTorch is held to: that of the class that it is, or says it is."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from msprobe_laws.formulas import FORMULAS
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF, unit_roundoff


def formula_of(optimizer: Any, frame: FrameType) -> tuple[str, str, bool]:
    """Return (name of the formula or "", why there is none, whether the class is the user's own) of a step's frame."""
    kind = type(optimizer)
    step = frame.f_locals.get("func")
    module = getattr(step, "__module__", "") or ""
    base_name = next(
        (base.__name__ for base in kind.__mro__ if _is_torchs(base.__module__) and base.__name__ in FORMULAS), ""
    )
    if _is_torchs(kind.__module__) or (_is_torchs(module) and base_name):
        name = base_name if base_name else kind.__name__
        if name not in FORMULAS:
            return "", f"no formula of {kind.__name__} is known", False
        return name, "", False
    named = next((name for name in FORMULAS if name.lower() == kind.__name__.lower()), "")
    if named:
        return named, "", True
    if base_name and _adds_nothing(optimizer, kind):
        return base_name, "", True
    if base_name:
        return "", f"{kind.__name__} is derived from {base_name} and has a step of its own", True
    return "", f"no formula of {kind.__name__} is known", True


#: Names that own classes give to a state, by its name in PyTorch.
_OTHER_NAMES = {
    "exp_avg": ("m", "m_t", "mom", "momentum", "moment1", "first_moment", "mean"),
    "exp_avg_sq": ("v", "v_t", "var", "variance", "moment2", "second_moment"),
    "momentum_buffer": ("v", "velocity", "momentum", "buf", "buffer", "m", "exp_avg"),
    "square_avg": ("v", "sq", "ms", "exp_avg_sq"),
    "sum": ("v", "accumulator", "G", "sum_sq"),
    "exp_inf": ("u", "v", "norm"),
    "step": ("t", "steps", "count", "num_steps", "iteration"),
}


def names_of_states(optimizer: Any, formula: str, *, is_own: bool) -> dict[str, str]:
    """Return the names in PyTorch of the states of an own class with a known formula, by their own if they differ."""
    if not is_own or not formula:
        return {}
    held = {key for state in optimizer.state.values() if isinstance(state, dict) for key in state}
    names: dict[str, str] = {}
    for name in (*FORMULAS[formula].states, "step"):
        others = [key for key in _OTHER_NAMES.get(name, ()) if key in held and key not in names]
        if name not in held and others:
            names[others[0]] = name
    return names


def _is_torchs(module: str) -> bool:
    """Return whether a class is one of torch.optim, which says of some that it is their module itself."""
    return f"{module}.".startswith("torch.optim.")


def _adds_nothing(optimizer: Any, kind: type) -> bool:
    """Return whether a class derived from a known one has the hyper-parameters and states of that one, and no more."""
    base = next(base for base in kind.__mro__ if _is_torchs(base.__module__))
    try:
        defaults = base([torch.nn.Parameter(torch.zeros(2, 2))]).defaults
    except Exception:
        return False
    formula = FORMULAS.get(base.__name__)
    states = {key for state in optimizer.state.values() if isinstance(state, dict) for key in state}
    return formula is not None and set(optimizer.defaults) <= set(defaults) and states <= {*formula.states, "step"}


def precision_of(optimizer: Any) -> float:
    """Return the unit roundoff in which hyper-parameters are combined: float32's for tensors and in kernels."""
    for group in optimizer.param_groups:
        betas = group.get("betas", ())
        values = (group.get("lr"), *(betas if isinstance(betas, (tuple, list)) else ()))
        if group.get("fused") or group.get("capturable") or any(isinstance(value, torch.Tensor) for value in values):
            return FLOAT32_ROUNDOFF
    return unit_roundoff("float64") if _is_torchs(type(optimizer).__module__) else FLOAT32_ROUNDOFF


def declared(optimizer: Any, frame: FrameType) -> dict[str, object]:
    """Return the formula, as records of optimizers have it: what `formula_of` and `precision_of` give."""
    formula, unknown, is_own = formula_of(optimizer, frame)
    return {"formula": formula, "unknown": unknown, "is_own": is_own, "precision": precision_of(optimizer)}
