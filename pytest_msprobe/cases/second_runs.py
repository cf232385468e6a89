"""Further results for one direction of an API call, computed when a standard asks for them and once.

Matrix units that round float32 operands before they multiply: HF32 on Ascend, TF32 on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal

import numpy as np

from msprobe_collector.dump_format import tensors_in
from pytest_msprobe.apis import facts
from pytest_msprobe.cases.call_run import (
    OUTPUTS,
    CallRun,
    CapturedError,
    Incoming,
    arrays_of,
    attempt,
    in_one_order,
    result_or_none,
)
from pytest_msprobe.cases.perturbation import (
    RoundingPerturbation,
    accumulated_terms,
    float_elements,
    float_tensors,
    has_jumped,
    label_tensors,
)
from pytest_msprobe.cases.products import Product, gradient_as_product, norms_of_partial_sums, product_of_tensors
from pytest_msprobe.cases.restricted_call import Restriction
from pytest_msprobe.cases.row_answers import ROW_FUNCTIONS, WITH_EPSILON, row_call, row_deviations
from pytest_msprobe.engines.protocol import (
    Array,
    Call,
    Engine,
    Execution,
    LeafPath,
    Output,
    Unsupported,
    arrays_in,
    is_differentiable,
    leaves,
    with_leaves,
)
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF, kind_of, unit_roundoff
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.numerics.judgement import (
    MOST_PROBED,
    Deviations,
    KnownDeviations,
    Moved,
    OutputPair,
    Perturbed,
    Sensitivity,
)
from pytest_msprobe.numerics.measurement import Metrics, measure

#: Explicit bits of a significand, by the name of the mode of the device.
FORMATS = {"HF32": 11, "TF32": 10}
_MATCHES = {name: f"matches operands rounded to {bits} bits ({name})" for name, bits in FORMATS.items()}
#: Of outputs that match what an operation with such operands gives, by the words of their pattern.
BITS_OF_LOOKALIKES = {_MATCHES[name]: bits for name, bits in FORMATS.items()}

#: What is multiplied under each mode, by the kinds of products.txt.
_FAMILIES = {"conv": ("conv", "transposed"), "matmul": ("matmul",), "all": ("conv", "transposed", "matmul")}


@cache
def has_rounded_operands(api: str, mode: str) -> bool:
    """Whether the API of this short name multiplies with rounded operands under a mode of --msprobe-hf32."""
    product = facts("products").word(api)
    return product is not None and product.text in _FAMILIES.get(mode, ())


def operand_roundoff(format_name: str) -> float:
    """The largest relative error of rounding an operand: 2**-12 for HF32, 2**-11 for TF32."""
    return 2.0 ** -(FORMATS[format_name] + 1)


def with_rounded_operands(call: Call, format_name: str) -> Call:
    """`call` with its float32 tensors rounded to the bits of that format."""
    return with_leaves(call, lambda path, value: rounded(value, format_name))


def rounded_incoming(incoming: Sequence[Array | None], format_name: str) -> tuple[Array | None, ...]:
    """The same for incoming gradients, which are operands of the products that make gradients."""
    return tuple(rounded(array, format_name) for array in incoming)


def rounded(value: Any, format_name: str) -> Any:
    """`value`, a float32 array as float64 with the bits of that format."""
    if getattr(value, "dtype", None) != np.float32:
        return value
    with np.errstate(all="ignore"):
        significand, exponent = np.frexp(value.astype(np.float64))
        bits = FORMATS[format_name] + 1
        return np.ldexp(np.rint(np.ldexp(significand, bits)), exponent - bits)


#: For an error that these forgive and rounding of the output alone does not: up to 16 more runs say how far
#: rounding takes each element, in calls of up to `MOST_PROBED` elements.
_PROBES = tuple(range(3, 19))


#: Of so many terms each such one says for a part of the work how far an element moves at least.
_MANY_TERMS, _SOME_TERMS = 64, 3

#: A perturbation and the results under it.
_MovedRun = tuple[RoundingPerturbation, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Bench:
    """Engines that may be asked, and the arithmetic of the device.

    Attributes:
        engine: the benchmark that was used.
        second: an engine that runs the call in the tested dtype; None when there is none.
        operand_roundoff: relative error of float32 operands on a device that rounds them before it multiplies; None for
            one that does not.
        narrow_sums: how many partial sums of a product may be added up in its half dtype, by the name of that.
    """

    engine: Engine
    second: Engine | None
    operand_roundoff: float | None = None
    narrow_sums: Mapping[str, float] = field(default_factory=dict)


class ExtraRuns:
    """Results for one direction of a call: of perturbed inputs, of moved arithmetic, and of a second engine.

    Attributes:
        run: the call and what engines have made of it.
        bench: engines that may be asked.
        incoming: gradients of the outputs, with their shapes, None where there is no gradient; () for a forward.
        is_composite: every result inside is taken to be rounded to the dtype of the tensors, whatever the operation.
        is_part: the call is one of a few elements of a larger one.
        call, wanted: that of `run`, and the places of the arguments whose gradients are wanted.
    """

    def __init__(
        self,
        run: CallRun,
        bench: Bench,
        incoming: Incoming = (),
        *,
        is_composite: bool = False,
        is_part: bool = False,
    ) -> None:
        """Further results of `bench` for `run`: outputs, or, with `incoming`, the gradients of a backward."""
        self.run, self.bench, self.incoming = run, bench, incoming
        self.call, self.wanted = run.case.call, run.case.wanted
        self.is_composite, self.is_part = is_composite, is_part
        self._made: dict[tuple[Moved, int], _MovedRun | None] = {}

    def pair(self, position: int, tested: Array, reference: Array, metrics: Metrics) -> OutputPair:
        """Everything that a standard gets for the output at `position`.

        Args:
            position: among the outputs that are compared, or among the gradients.
            tested: output of the device, in its own shape and dtype.
            reference: raw result of the benchmark, of the same shape, float64 or complex128 for floats.
            metrics: of the two.
        """
        sizes, is_elementwise = [reference.size, *self.recorded_sizes], self.is_known_as("elementwise")
        accumulated = accumulated_terms(self.call, self.incoming, sizes, is_elementwise=is_elementwise)
        accumulated = max(accumulated, self._convolved // max(1, reference.size))
        return OutputPair(
            tested,
            reference,
            metrics,
            OutputSensitivity(self, position, reference, accumulated),
            accumulated=accumulated,
            kernel_error=Relative.ELEMENTARY if self.is_known_as("elementary") else 0.0,
            operand_roundoff=self.bench.operand_roundoff,
            narrow_sums=self._narrow_sums(tested.dtype.name, accumulated),
            has_kinks=bool(self.incoming) and is_elementwise and not self._selects(reference.size),
        )

    def _narrow_sums(self, dtype: str, accumulated: int) -> int:
        """How many partial sums of `accumulated` terms are added up in `dtype`: those of blocks, or all where inf."""
        most = self.bench.narrow_sums.get(dtype, 1)
        return max(1, accumulated) if math.isinf(most) else max(1, int(min(most, accumulated // 64)))

    def moved(self, kind: Moved, numbers: Sequence[int]) -> list[_MovedRun]:
        """Runs under the perturbations of these numbers, each made once; without those that the benchmark refuses."""
        for number in numbers:
            if (kind, number) not in self._made:
                self._made[kind, number] = (
                    self._with_moved_inputs(number) if kind == "inputs" else self._with_moved_arithmetic(kind, number)
                )
        return list(filter(None, (self._made[kind, number] for number in numbers)))

    def _with_moved_inputs(self, number: int) -> _MovedRun | None:
        # Some APIs refuse what lies beyond their inputs' range, such as a probability above 1.
        for is_clipped in (False, True):
            operands = self.bench.operand_roundoff
            moving = RoundingPerturbation(number, is_clipped=is_clipped, held=self._held, operands=operands)
            call, incoming = moving.call(self.call), moving.incoming(self.call, self.incoming)
            results = self._results(self.bench.engine, call, incoming, str(moving))
            if results is not None:
                return moving, results
        return None

    def _with_moved_arithmetic(self, kind: Moved, number: int) -> _MovedRun | None:
        moving = RoundingPerturbation(number)
        saves_exactly = kind == "arithmetic"
        call = moving.inside(self.call, saves_exactly=saves_exactly, is_composite=self._rounds_each_result)
        variant = f"{kind} {number}{', each result' * self._rounds_each_result}"
        results = self._results(self.bench.engine, call, self.incoming, variant)
        if self.incoming and kind == "inside" and _have_nan(results):
            # Gradients of amax go to the elements that equal it: to none of them, 0 / 0, where it was saved moved.
            exactly = self.moved("arithmetic", (number,))
            return exactly[0] if exactly and not _have_nan(exactly[0][1]) else (moving, results or ())
        return None if results is None else (moving, results)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Labels in floats, such as the 1 and -1 of cosine_embedding_loss: the least move of one changes everything."""
        return frozenset(number for number in label_tensors(self.call) if self._jumps_with(number))

    def _jumps_with(self, number: int) -> bool:
        others = frozenset(range(float_tensors(self.call))) - {number}
        moved = RoundingPerturbation(2, held=others).call(self.call)
        engine = self.bench.engine
        exact = _float_outputs(self.run.ask(engine, OUTPUTS, call=self.call))
        changed = _float_outputs(self.run.ask(engine, OUTPUTS, call=moved, variant=f"label {number}"))
        return len(exact) == len(changed) and any(map(has_jumped, exact, changed))

    @cached_property
    def second(self) -> Sequence[Any] | None:
        """Results of the second engine in the tested dtype; None without one."""
        second = self.bench.second
        return None if second is None else self._results(second, self.call, self.incoming, "second")

    @cached_property
    def squares(self) -> Sequence[Any] | None:
        """Outputs, or gradients, of the call whose tensors are squared."""
        return self._of_changed_tensors(partial(np.square, dtype=np.float32), "squares")

    @cached_property
    def magnitudes(self) -> Sequence[Any] | None:
        """Those of the call whose tensors have no signs: of sums of products the sums of the terms' magnitudes."""
        return self._of_changed_tensors(np.abs, "magnitudes") if self.has_terms_of_products else None

    def _of_changed_tensors(self, change: Callable[[Array], Array], variant: str) -> Sequence[Any] | None:
        def changed(value: Any) -> Any:
            is_inexact = hasattr(value, "__array_interface__") and is_differentiable(value)
            with np.errstate(over="ignore"):  # the square of a large number is beyond the range of float32
                return change(value) if is_inexact else value

        call = with_leaves(self.call, lambda path, value: changed(value))
        return self._results(self.bench.engine, call, tuple(map(changed, self.incoming)), variant)

    def _results(self, engine: Engine, call: Call, incoming: Incoming, variant: str) -> Sequence[Any] | None:
        """The forward outputs that are compared, in the order in which they are, or all gradients; None if it fails."""
        compared = partial(_compared, self.call, incoming)
        return result_or_none(self.run.ask(engine, compared, call=call, variant=variant))

    @cached_property
    def has_terms_of_products(self) -> bool:
        """Whether all elements are sums of products that float32 can tell the sizes of."""
        arrays = [*self.tensors.values(), *self.incoming_arrays]
        is_wide = any(unit_roundoff(array.dtype) < FLOAT32_ROUNDOFF for array in arrays)
        is_real = all(kind_of(array.dtype) == "float" for array in arrays)
        return bool(arrays) and is_real and not (is_wide or self.factors) and self.is_known_as("multilinear")

    @cached_property
    def tensors(self) -> dict[LeafPath, Array]:
        """The tensors of floats among the arguments, by their places."""
        return {path: array for path, array in arrays_in(self.call).items() if is_differentiable(array)}

    @property
    def factors(self) -> list[float]:
        """The Python floats among the arguments."""
        return [value for _, value in leaves(self.call) if isinstance(value, float)]

    @property
    def incoming_arrays(self) -> list[Array]:
        """The incoming gradients that there are."""
        return [array for array in self.incoming if array is not None]

    @property
    def _rounds_each_result(self) -> bool:
        """Whether what the operation computes inside is in its own dtype; of most forwards moved inputs do as much."""
        fact = facts("composite").of(self.call.api, self.call.framework)
        is_known = fact is not None and (bool(self.incoming) or fact.text == "both")
        return self.is_composite or is_known

    def _selects(self, size: int) -> bool:
        """Whether the call selects elements, as the largest of all, and gradients of `size` are of all of them."""
        largest = max((array.size for array in self.incoming_arrays), default=0)
        return size > largest and facts("index_outputs").of(self.call.api, self.call.framework) is not None

    def is_known_as(self, topic: Literal["elementary", "elementwise", "multilinear"]) -> bool:
        """Whether the API is in this table of facts."""
        return facts(topic).of(self.call.api, self.call.framework) is not None

    def lookalikes(self, position: int) -> dict[str, Array]:
        """Arrays that the output at `position` may be by mistake, by the phrase that says so; float64, of any shape.

        An argument, an incoming gradient, or the result for operands that were rounded before they were multiplied.
        """
        values: dict[str, Any] = {}
        for path, value in leaves(self.call):
            values["equals input " + ".".join(map(str, path[1:]))] = value
        for place, array in enumerate(self.incoming):
            values[f"equals incoming gradient {place}"] = array
        for name, results in self._rounded_operands.items():
            values[_MATCHES[name]] = _at(results, position)
        arrays = {}
        for name, value in values.items():
            if hasattr(value, "__array_interface__") and kind_of(value.dtype) in ("float", "int", "bool"):
                arrays[name] = value.astype(np.float64)
        return arrays

    @cached_property
    def _rounded_operands(self) -> Mapping[str, Sequence[Any] | None]:
        """Results for rounded operands, by the format; gradients can be asked for once."""
        if not has_rounded_operands(self.call.api.short, "all"):
            return {}
        results = {}
        for name in FORMATS:
            call, incoming = with_rounded_operands(self.call, name), rounded_incoming(self.incoming, name)
            results[name] = self._results(self.bench.engine, call, incoming, name)
        return results

    @cached_property
    def _convolved(self) -> int:
        """How many products a convolution or its gradients add up in all elements together; 0 of any other call."""
        product = facts("products").word(self.call.api.short)
        images, kernels = [*self.tensors.values(), None, None][:2]
        if product is None or product.text not in _FAMILIES["conv"] or images is None or kernels is None:
            return 0
        swept = images.size if product.text == "transposed" else max(self.recorded_sizes, default=0)
        return swept * (kernels.size // len(kernels)) if kernels.size else 0

    @cached_property
    def recorded_sizes(self) -> list[int]:
        """Sizes of the forward's outputs, which gradients use again."""
        return [tensor.size for tensor in tensors_in(self.run.case.forward.outputs or ()) if tensor.size]

    @cached_property
    def elements(self) -> int:
        """Those of the tensors of the call, or of its largest output."""
        return max(float_elements(self.call), *self.recorded_sizes, 0)


class OutputSensitivity(Sensitivity):
    """What further runs, and the terms of its elements, say of one output or gradient."""

    def __init__(self, runs: ExtraRuns, position: int, reference: Array, accumulated: int) -> None:
        """Of the output, or gradient, at `position`, for which the benchmark has given `reference`.

        Each of its elements sums up so many terms as are `accumulated`.
        """
        self._runs, self._position, self._reference = runs, position, reference
        self._accumulated = accumulated
        self._call, self._bench, self._incoming = runs.call, runs.bench, runs.incoming

    def runs(self, moved: Moved) -> tuple[Perturbed, ...]:
        """See `Sensitivity`."""
        perturbed = []
        for moving, results in self._runs.moved(moved, (1, 2)):
            if (array := self._of_this(results)) is not None:
                perturbed.append(Perturbed(array, moving.relative_size))
        return tuple(perturbed)

    def probes(self, moved: Moved, count: int) -> tuple[Array, ...]:
        """See `Sensitivity`; of a forward nothing that is saved matters."""
        numbers = () if self._runs.elements > MOST_PROBED else _PROBES[:count]
        kind = "inside" if moved == "arithmetic" and not self._incoming else moved
        arrays = [self._of_this(results) for _, results in self._runs.moved(kind, numbers)]
        return tuple(array for array in arrays if array is not None)

    def second_opinion(self) -> Array | None:
        """See `Sensitivity`."""
        return self._of_this(self._runs.second)

    def sums_of_magnitudes(self) -> Array | None:
        """See `Sensitivity`."""
        return self._of_this(self._runs.magnitudes)

    def _of_this(self, results: Sequence[Any] | None) -> Array | None:
        """Those of all `results` that are for this output; None where they have another shape."""
        value = _at(results, self._position)
        return value if getattr(value, "shape", None) == self._reference.shape else None

    def restricted(self, tested: Array, places: Sequence[int] | Array) -> OutputPair | None:
        """See `Sensitivity`."""
        if self._restriction is None or (part := self._restriction.part(places)) is None:
            return None
        run, tested_part = self._runs.run.with_call(part.call), tested.reshape(-1)[part.places]
        runs = ExtraRuns(run, self._bench, part.incoming, is_composite=self._runs.is_composite, is_part=True)
        metrics = measure(tested_part, part.result, off_bound=math.inf)
        pair = runs.pair(self._position, tested_part, part.result, metrics)
        return replace(pair, accumulated=self._accumulated, chosen=part.chosen, drawn_from=tested.size)

    @cached_property
    def _restriction(self) -> Restriction | None:
        """This output in small calls; None where the call is not large."""
        if self._runs.is_part or self._runs.elements <= 1 << 17:
            return None
        # Not a method of this object: it would be in a cycle, and large arrays stay until garbage is collected.
        wanted = self._runs.wanted if self._incoming else ()
        alone = partial(_alone, self._bench.engine, wanted, self._position)
        return Restriction(self._call, self._incoming, self._reference, alone)

    @property
    def _others(self) -> list[Array]:
        """The tensors of the call that an output is made of, or a gradient but for its incoming one."""
        differentiated = self._runs.wanted[self._position] if self._incoming else None
        return [array for path, array in self._runs.tensors.items() if path != differentiated]

    def deviations(self) -> Deviations | None:
        """See `Sensitivity`. The squares of the terms are what the operation makes of squared tensors."""
        if self._reference.dtype.kind != "f":
            return None
        rows = self._deviations_of_rows()
        if rows is not None:
            return KnownDeviations(rows, have_terms=False)
        if not self._runs.has_terms_of_products:
            return None
        if self._product is not None:
            return _ProductDeviations(self._product, self._size_of_moves)
        squares = self._of_this(self._runs.squares)
        if squares is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            norms = np.sqrt(squares.astype(np.float32).reshape(-1))
        return KnownDeviations(self._size_of_moves * norms, have_terms=False)

    @property
    def _size_of_moves(self) -> np.float32:
        """How far rounding moves a product of what this output is made of, relative to it."""
        moving = RoundingPerturbation(1, operands=self._bench.operand_roundoff)
        sizes = sorted(moving.size(array.dtype) for array in (*self._others, *self._runs.incoming_arrays))
        return np.float32(math.hypot(*sizes[-2:]))

    def _deviations_of_rows(self) -> Array | None:
        """Deviations of softmax and norms: of their output and of the gradient of their input."""
        name = self._call.api.short.strip("_").lower()
        tensors, incoming = self._runs.tensors, self._runs.incoming_arrays
        is_input = not incoming or self._runs.wanted[self._position] == next(iter(tensors), None)
        if name not in ROW_FUNCTIONS or not (is_input and 1 <= len(tensors) <= 3 and len(incoming) <= 1):
            return None
        moving = RoundingPerturbation(1, operands=self._bench.operand_roundoff)
        gradient = next(iter(incoming), None)
        for epsilon in (*self._runs.factors, 1e-5, 1e-6) if name in WITH_EPSILON else (0.0,):
            call = row_call(list(tensors.values()), gradient, moving.size, epsilon=epsilon)
            if call is not None and (deviations := row_deviations(name, call, self._reference)) is not None:
                return _if_finite(deviations)
        return None

    @cached_property
    def _product(self) -> Product | None:
        """The product of matrices that this output or gradient is."""
        if not self._runs.has_terms_of_products:
            return None
        if not self._incoming:
            return product_of_tensors(list(self._runs.tensors.values()), self._reference)
        arrays = self._runs.incoming_arrays
        return gradient_as_product(self._others, arrays[0], self._reference) if len(arrays) == 1 else None

    def terms(self, at: int) -> tuple[Array, ...]:
        """See `Sensitivity`. Terms that do not add up to the benchmark's result are those of no sum."""
        if self._product is not None:
            return (self._product.terms(at),)
        orders = self._terms_of_gradient(at) if self._incoming else self._terms_of_output(at)
        expected = self._reference.item(at)
        with np.errstate(invalid="ignore"):  # infinite inputs
            most = [Relative.FLOAT64_RESULTS * np.abs(terms).sum() for terms in orders]
            is_sum = all(abs(terms.sum() - expected) <= limit for terms, limit in zip(orders, most))
        return orders if is_sum else ()

    def _terms_of_output(self, at: int) -> tuple[Array, ...]:
        """The elements of the tensor that makes the most terms, each times its gradient of that output; and a bias."""
        tensors = self._runs.tensors
        alone = np.zeros(self._reference.shape)
        alone.flat[at] = 1

        def gradients() -> Incoming:
            return self._bench.engine.forward(self._call, differentiate=tuple(tensors)).gradients((alone,))

        pairs = zip(tensors.values(), result_or_none(attempt(gradients)) or ())
        terms = [_in_orders(array * gradient) for array, gradient in pairs if gradient is not None]
        longest = max(terms, key=lambda orders: orders[0].size, default=())
        biases = [orders[0] for orders in terms if orders[0].size == 1 < longest[0].size]
        return tuple(np.concatenate([order, *biases]) for order in longest)

    def _terms_of_gradient(self, at: int) -> tuple[Array, ...]:
        """The incoming gradients, each times what that element of the argument, being 1, adds to its output."""
        path = self._runs.wanted[self._position]
        with_one, with_none = self._outputs_of(path, at, 1), self._outputs_of(path, at, 0)
        if not len(self._incoming) <= len(with_one) == len(with_none):
            return ()
        terms = [
            _in_orders(gradient * (at_one - at_none))
            for gradient, at_one, at_none in zip(self._incoming, with_one, with_none)
            if gradient is not None
        ]
        return tuple(np.concatenate(parts) for parts in zip(*terms))

    def _outputs_of(self, path: LeafPath, at: int, value: float) -> list[Array]:
        """The float outputs where the tensor at `path` is 0 but for `value` at `at`; [] where the benchmark refuses."""

        def alone(place: LeafPath, array: Any) -> Any:
            if place != path:
                return array
            changed = np.zeros_like(array)
            changed.flat[at] = value
            return changed

        call = with_leaves(self._call, alone)
        return _float_outputs(attempt(lambda: self._bench.engine.forward(call, differentiate=()).outputs))

    def partial_sums(self) -> Array | None:
        """See `Sensitivity`."""
        name = self._call.api.short
        incoming = self._incoming[0] if len(self._incoming) == 1 else None
        if incoming is None or not has_rounded_operands(name, "all") or not incoming.ndim:
            return None

        def gradient(part: Array) -> Array | None:
            execution = self._bench.engine.forward(self._call, differentiate=self._runs.wanted)
            return execution.gradients((part,))[self._position]

        channels = 1 if has_rounded_operands(name, "conv") and incoming.ndim > 1 else -1
        return result_or_none(attempt(partial(norms_of_partial_sums, gradient, incoming, channels)))


def _alone(engine: Engine, wanted: tuple[LeafPath, ...], position: int, call: Call, incoming: Incoming) -> Any:
    """The output or gradient at `position` of another call; None where the benchmark fails."""
    outcome = attempt(lambda: _compared(call, incoming, engine.forward(call, differentiate=wanted)))
    return _at(result_or_none(outcome), position)


def _at(results: Sequence[Any] | None, position: int) -> Any:
    """The result at `position`; None where there is none."""
    return results[position] if results is not None and position < len(results) else None


def _if_finite(deviations: Array) -> Array | None:
    return deviations if bool(np.isfinite(deviations).all()) else None


def _compared(call: Call, incoming: Incoming, execution: Execution) -> Sequence[Any]:
    """All gradients where there are `incoming` ones, else the outputs, in the order in which they are compared."""
    if incoming:
        return execution.gradients(incoming)
    (outputs,) = in_one_order(call, execution.outputs)
    return [output.value for output in outputs]


def _have_nan(results: Sequence[Any] | None) -> bool:
    return any(is_differentiable(array) and np.isnan(array).any() for array in results or () if array is not None)


def _in_orders(products: Array) -> tuple[Array, ...]:
    """Those that are not 0, float64, shape (n,): by rows, by columns, and by rows with channels last."""
    orders = (products, products.T, np.moveaxis(products, 1, -1) if products.ndim > 2 else products)
    return tuple(order[order != 0].astype(np.float64) for order in orders)


def _float_outputs(outputs: Sequence[Output] | Unsupported | CapturedError) -> list[Array]:
    return [array for array in arrays_of(result_or_none(outputs) or ()) if array.dtype.kind == "f"]


@dataclass(frozen=True, slots=True)
class _ProductDeviations:
    """Those of the elements of a product each of whose terms is moved by the share `size` of it."""

    product: Product
    size: np.float32
    have_terms: bool = True

    def values(self) -> Array | None:
        return self._norms(1)

    def least(self) -> Array | None:
        return self._norms(_SOME_TERMS if self.product.first.shape[-1] >= _MANY_TERMS else 1)

    def of(self, places: Array) -> Array:
        return self.size * self.product.norms_at(places)

    def sample(self) -> tuple[Array, Array]:
        places, norms = self.product.sample()
        return places, self.size * norms

    def _norms(self, every: int) -> Array | None:
        deviations = self.product.norms(every)
        deviations *= self.size
        return _if_finite(deviations)
