"""A float64 benchmark on an accelerator, which is trusted as far as the CPU has agreed with it.

The first call of each API is computed on both, and so is each that is far larger than those before it, while the budget
lasts. What the two do not agree on, and what is too large to be compared before anything else of its API was, runs on
the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.engines.protocol import Array, Call, Engine, Execution, LeafPath, Output, Unsupported, leaves
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.numerics.pair import relative

#: Elements that all compared calls may have together, in this process: some seconds of a CPU.
BUDGET = 1 << 28

_Result = TypeVar("_Result")


class AcceleratedBench:
    """The benchmark on an accelerator; what it refuses is for the next one, which is the CPU.

    Attributes:
        name, label: those of the engine on the accelerator.
        refused: why an API runs on the CPU, by its name without the number of the call.
    """

    def __init__(self, accelerator: Engine, cpu: Engine) -> None:
        """`accelerator` and `cpu` compute in float64."""
        self.name, self.label = accelerator.name, accelerator.label
        self.refused: dict[str, str] = {}
        self._accelerator = accelerator
        self._cpu = cpu
        self._compared: dict[str, int] = {}
        self._left = BUDGET

    def refusal(self, api: ApiName, framework: str) -> str | None:
        """Why the benchmark cannot run `api`."""
        return self.refused.get(_key(api)) or self._accelerator.refusal(api, framework)

    def forward(self, call: Call, *, differentiate: tuple[LeafPath, ...]) -> Execution:
        """See `Engine.forward`.

        Raises:
            Unsupported: it is for the CPU.
        """
        key = _key(call.api)
        if call.saved_roundoff or call.arithmetic_roundoff:  # moved inside, which is written for the CPU
            return self._cpu.forward(call, differentiate=differentiate)
        size = sum(getattr(value, "size", 0) for _, value in leaves(call))
        largest = self._compared.get(key)
        # A call that is much larger than the largest one that was compared is compared, too.
        is_compared = (largest is None or size > 8 * largest) and size <= self._left
        if largest is None and not is_compared:
            raise Unsupported("no smaller call of the API was compared with the CPU")
        tested = self._tried(key, lambda: self._accelerator.forward(call, differentiate=differentiate))
        if not is_compared:
            return _Accelerated(self, key, tested, None)
        reference = self._cpu.forward(call, differentiate=differentiate)
        self._left -= size
        self._agree(key, _values(tested.outputs), _values(reference.outputs))
        self._compared[key] = max(size, 1)
        return _Accelerated(self, key, tested, reference)

    def close(self) -> None:
        """Close both."""
        self._accelerator.close()
        self._cpu.close()

    def _tried(self, key: str, compute: Callable[[], _Result]) -> _Result:
        try:
            return compute()
        except RuntimeError as error:  # such as no memory there
            raise Unsupported(f"{self.label}: {str(error).partition(chr(10))[0][:200]}") from None

    def _agree(self, key: str, tested: tuple[object, ...], reference: tuple[object, ...]) -> None:
        """Go on where both have the same values.

        Raises:
            Unsupported: they have not; all calls of the API are for the CPU from now on.
        """
        apart = max((_apart(*pair) for pair in zip(tested, reference)), default=0.0)
        if len(tested) == len(reference) and apart <= Relative.FLOAT64_RESULTS:
            return
        self.refused[key] = f"{self.label} and the CPU differ by {apart:.2g} of the largest element"
        raise Unsupported(self.refused[key])


class _Accelerated:
    """A forward on the accelerator, with that of the CPU where it is compared."""

    def __init__(self, bench: AcceleratedBench, key: str, tested: Execution, reference: Execution | None) -> None:
        self._bench, self._key, self._tested, self._reference = bench, key, tested, reference
        self.outputs: tuple[Output, ...] = tested.outputs

    def gradients(self, incoming: tuple[Array | None, ...]) -> tuple[Array | None, ...]:
        """See `Execution.gradients`."""
        gradients = self._bench._tried(self._key, lambda: self._tested.gradients(incoming))
        if self._reference is not None:
            self._bench._agree(self._key, gradients, self._reference.gradients(incoming))
        return gradients


def _key(api: ApiName) -> str:
    return f"{api.type}.{api.api}"


def _values(outputs: tuple[Output, ...]) -> tuple[object, ...]:
    return tuple(output.value for output in outputs)


def _apart(tested: object, reference: object) -> float:
    """The largest difference, relative to the largest finite element; inf where the two are of another kind."""
    if not (isinstance(tested, np.ndarray) and isinstance(reference, np.ndarray)):
        return 0.0 if type(tested) is type(reference) else np.inf
    if tested.shape != reference.shape or tested.dtype != reference.dtype:
        return np.inf
    if tested.dtype.kind not in "fc":
        return 0.0 if np.array_equal(tested, reference) else np.inf
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(reference)
        if not np.array_equal(tested[~is_finite], reference[~is_finite], equal_nan=True):
            return np.inf
        difference = np.abs(tested[is_finite] - reference[is_finite])
        largest = np.abs(reference[is_finite]).max(initial=0.0)
    return relative(float(difference.max(initial=0.0)), float(largest))
