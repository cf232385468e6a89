"""Kernels as they are written for devices: tensors of one dtype in and out, float32 inside, in realistic sizes.

They compute by another algorithm than the benchmark, and correctly: an alarm on them is false. What a forward keeps for
its gradients is rounded to the dtype of the tensors, as a device stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from quality.verdict_quality.kernel import F32, Kernel, narrow_inside
from quality.verdict_quality.kernels import KERNELS
from quality.verdict_quality.recordings import Recording, Results, record
from quality.verdict_quality.samples import Sample, seed_of

#: Numbers of these calls begin here, clear of all others.
FIRST_NUMBER = 5000


def narrow_recordings(
    dtype: np.dtype[Any], is_wanted: Callable[[str], bool], *, seeds: tuple[int, ...] = (0,), material: int = 0
) -> Iterator[tuple[Recording, Results]]:
    """Each call with what the same kernels return when their intermediate results are rounded to `dtype`."""
    pairs = honest_recordings(dtype, is_wanted, seeds=seeds, material=material)
    while True:
        with narrow_inside(dtype):
            found = next(pairs, None)
        if found is None:
            return
        yield found


def honest_recordings(
    dtype: np.dtype[Any], is_wanted: Callable[[str], bool], *, seeds: tuple[int, ...] = (0,), material: int = 0
) -> Iterator[tuple[Recording, Results]]:
    """Each call with what an honest kernel returns for it, in `dtype`."""
    number = FIRST_NUMBER
    for kernel in KERNELS:
        for scale in kernel.scales:
            for seed in seeds:
                name = f"{kernel.api}.{number + seed}"
                if is_wanted(kernel.api) or is_wanted(name):
                    drawn_from = seed_of(name, scale, seed, material=material)
                    found = _recorded(kernel, name, scale, dtype, np.random.default_rng(drawn_from))
                    if found is not None:
                        yield found
            number += 10


def _recorded(
    kernel: Kernel, name: str, scale: float, dtype: np.dtype[Any], rng: np.random.Generator
) -> tuple[Recording, Results] | None:
    arguments, keywords = kernel.draw(rng, scale)
    recording = record(Sample(name, arguments, keywords, has_gradient=kernel.backward is not None), dtype)
    if recording is None:
        return None
    with np.errstate(all="ignore"):
        wide = [_wide(value) for value in recording.call.arguments]
        outputs = _outputs(kernel, wide, recording, dtype)
        kept = recording.ideal.outputs
        values = [*outputs, *(output.value for output in kept[len(outputs) :])]
        results = Results(tuple(replace(o, value=v) for o, v in zip(kept, values)), ())
        if kernel.backward is not None and recording.wanted:
            incoming = [_wide(value) for value in recording.incoming]
            # From what a right forward has stored: each direction answers for its own precision.
            with narrow_inside(None):
                stored = _outputs(kernel, wide, recording, dtype)
            gradients = kernel.backward(wide, [_wide(value) for value in stored], incoming)
            results = replace(results, gradients=tuple(_stored(g, dtype) for g in gradients))
    return recording, results


def _outputs(kernel: Kernel, wide: list[Any], recording: Recording, dtype: np.dtype[Any]) -> list[Any]:
    returned = kernel.forward(*wide, **recording.call.keywords)
    return [_stored(value, dtype) for value in (returned if isinstance(returned, tuple) else (returned,))]


def _wide(value: Any) -> Any:
    return value.astype(F32) if isinstance(value, np.ndarray) and value.dtype.kind not in "iub" else value


def _stored(value: Any, dtype: np.dtype[Any]) -> Any:
    return np.asarray(value, F32).astype(dtype)
