"""What a device would have left in a dump for a sample: ideal outputs, and those of PyTorch on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.engines.protocol import Array, Call, Execution, LeafPath, Output
from pytest_msprobe.engines.torch_engine import TorchEngine
from pytest_msprobe.numerics.dtypes import round_once
from quality.verdict_quality.large import is_large
from quality.verdict_quality.samples import Sample, seed_of

BENCHMARK = TorchEngine(is_raised=True)
NATIVE = TorchEngine(is_raised=False)
#: Size of gradients in training: the mean over the tokens of a batch makes them small.
_TRAINING_GRADIENT = 1e-3


@dataclass(frozen=True, slots=True)
class Results:
    """Outputs of a call, and its gradients in the order of `Recording.wanted`."""

    outputs: tuple[Output, ...]
    gradients: tuple[Array | None, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A call with the values that a device may have returned.

    Attributes:
        call: name and values.
        wanted: arguments with a gradient, () for a call without backward.
        incoming: gradient of each top-level output tensor.
        ideal: float64 rounded once to the dtype that a device returns.
        native: PyTorch CPU in the dump's dtypes; None where it has no such kernel.
    """

    call: Call
    wanted: tuple[LeafPath, ...]
    incoming: tuple[Array | None, ...]
    ideal: Results
    native: Results | None

    @property
    def name(self) -> str:
        """Name of the API call."""
        return str(self.call.api)

    @property
    def has_empty_argument(self) -> bool:
        """Whether a tensor among the positional arguments has no element."""
        return any(isinstance(value, np.ndarray) and not value.size for value in self.call.arguments)


#: (outputs of a call, its name) -> gradient of each top-level output tensor.
Incoming = Callable[[tuple[Output, ...], str], "tuple[Array | None, ...]"]


def record(sample: Sample, dtype: np.dtype[Any], *, draw_incoming: Incoming | None = None) -> Recording | None:
    """The recording of `sample` in `dtype`; None when PyTorch cannot run it even in float64.

    Incoming gradients are normal numbers unless `draw_incoming` gives others.
    """
    sample = sample.in_dtype(dtype)
    call = Call(parse_api_name(sample.name), "mindspore", sample.arguments, sample.keywords)
    plain = attempt(lambda: BENCHMARK.forward(call, differentiate=()))
    if plain is None:
        return None
    native = attempt(lambda: NATIVE.forward(call, differentiate=()))
    outputs = _rounded_outputs(plain.outputs, native, dtype)
    incoming = (draw_incoming or _incoming)(outputs, sample.name)
    wanted = _differentiable(call, incoming) if sample.has_gradient else ()
    gradients = _gradients(BENCHMARK, call, wanted, incoming) or ()
    ideal = Results(outputs, tuple(round_once(g, leaf_of(call, path).dtype) for g, path in zip(gradients, wanted)))
    return Recording(call, wanted, incoming, ideal, _native_results(call, wanted, incoming, native, ideal))


def leaf_of(call: Call, path: LeafPath) -> Array:
    """The positional argument that `path` names."""
    array: Array = call.arguments[int(path[1])]  # type: ignore[assignment]
    return array


def attempt(action: Callable[[], Any]) -> Any:
    """The result of `action`, or None when the framework refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return action()
        except Exception:
            return None


def _rounded_outputs(outputs: tuple[Output, ...], native: Execution | None, dtype: np.dtype[Any]) -> tuple[Output, ...]:
    """`outputs` in the dtypes of a native run; without one, every float64 in `dtype`."""
    like: list[Any] = [None] * len(outputs)
    if native is not None and len(native.outputs) == len(outputs):
        like = [getattr(output.value, "dtype", None) for output in native.outputs]
    return tuple(
        replace(output, value=round_once(output.value, wanted or dtype))
        if isinstance(output.value, np.ndarray)
        else output
        for output, wanted in zip(outputs, like)
    )


def _incoming(outputs: tuple[Output, ...], name: str) -> tuple[Array | None, ...]:
    """A normal gradient for each top-level float output: of size 1 for half of the small calls, else as in training."""
    seed = seed_of(name, "incoming")
    scale = np.float32(_TRAINING_GRADIENT if is_large(name) or seed % 2 else 1)
    rng = np.random.default_rng(seed)
    top = [output.value for output in outputs if len(output.path) == 1 and isinstance(output.value, np.ndarray)]
    drawn = [np.asarray(scale * rng.standard_normal(value.shape, np.float32)) for value in top]
    return tuple(draw.astype(value.dtype) if is_float(value) else None for draw, value in zip(drawn, top))


def is_float(array: Array) -> bool:
    """Whether `array` holds floats of any width, those of ml_dtypes included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _differentiable(call: Call, incoming: tuple[Array | None, ...]) -> tuple[LeafPath, ...]:
    """Top-level float arguments that PyTorch can differentiate, all at once or, failing that, each alone."""
    paths: tuple[LeafPath, ...] = tuple(
        ("input", index)
        for index, value in enumerate(call.arguments)
        if isinstance(value, np.ndarray) and is_float(value)
    )
    if not paths or all(gradient is None for gradient in incoming):
        return ()
    if _gradients(BENCHMARK, call, paths, incoming) is not None:
        return paths
    paths = tuple(path for path in paths if _gradients(BENCHMARK, call, (path,), incoming) is not None)
    return paths if _gradients(BENCHMARK, call, paths, incoming) is not None else ()


def _gradients(
    engine: TorchEngine, call: Call, wanted: tuple[LeafPath, ...], incoming: tuple[Array | None, ...]
) -> tuple[Array, ...] | None:
    if not wanted:
        return None
    found: tuple[Array, ...] | None = attempt(lambda: engine.forward(call, differentiate=wanted).gradients(incoming))
    return found


def _native_results(
    call: Call,
    wanted: tuple[LeafPath, ...],
    incoming: tuple[Array | None, ...],
    native: Execution | None,
    ideal: Results,
) -> Results | None:
    if native is None or len(native.outputs) != len(ideal.outputs):
        return None
    gradients = _gradients(NATIVE, call, wanted, incoming)
    if wanted and gradients is None:
        return None
    return Results(native.outputs, gradients or ())
