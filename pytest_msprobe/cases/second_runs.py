"""Further results for one direction of an API call, computed when a standard asks for them and once.

Matrix units that round float32 operands before they multiply: HF32 on Ascend, TF32 on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, cast

import numpy as np

from msprobe_collector.dump_format import tensors_in
from pytest_msprobe.apis import facts
from pytest_msprobe.cases.call_run import OUTPUTS, CallRun, CapturedError, Incoming, attempt
from pytest_msprobe.cases.outputs import in_one_order
from pytest_msprobe.cases.partial_sums import norms_of_partial_sums
from pytest_msprobe.cases.perturbation import (
    Perturbation,
    accumulated_terms,
    float_elements,
    float_tensors,
    has_jumped,
    label_tensors,
)
from pytest_msprobe.cases.products import Product, gradient_as_product, product_of_tensors
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
    is_differentiable,
    leaves,
    with_leaves,
)
from pytest_msprobe.numerics import Metrics, OutputPair, Perturbed, kind_of, measure, unit_roundoff
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF
from pytest_msprobe.numerics.expected import Relative
from pytest_msprobe.numerics.judgement import MOST_PROBED, Deviations

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

#: What is moved: the inputs; or all arithmetic, with what is saved for gradients as it is in the last one.
_Kind = Literal["inputs", "inside", "arithmetic"]
#: A perturbation and the results under it.
_Moved = tuple[Perturbation, Sequence[Any]]


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
    """Results for one direction of a call: of perturbed inputs, of moved arithmetic, and of a second engine."""

    def __init__(self, run: CallRun, bench: Bench, incoming: Incoming = (), *, is_composite: bool = False) -> None:
        """Further results of `bench`: outputs, or, given `incoming` gradients, the gradients of a backward.

        `incoming` have the shapes of their outputs, and None where there is no gradient. With `is_composite` every
        result inside is taken to be rounded to the dtype of the tensors, whatever the operation.
        """
        self._is_composite = is_composite
        self._run = run
        self._call = run.case.call
        self._bench = bench
        self._incoming = incoming
        self._made: dict[tuple[_Kind, int], _Moved | None] = {}
        self._restrictions: dict[int, Restriction] = {}
        self._products: dict[int, Product | None] = {}

    def pair(self, position: int, tested: Array, reference: Array, metrics: Metrics) -> OutputPair:
        """Everything that a standard gets for the output at `position`.

        Args:
            position: among the outputs that are compared, or among the gradients.
            tested: output of the device, in its own shape and dtype.
            reference: raw result of the benchmark, of the same shape, float64 or complex128 for floats.
            metrics: of the two.
        """

        def moved(kind: _Kind) -> tuple[Perturbed, ...]:
            # Each perturbation is a forward (and a backward) of the benchmark: at most three of
            # them with the unperturbed one.
            arrays = (
                (moving, self._fitting(results, position, reference)) for moving, results in self._moved(kind, (1, 2))
            )
            return tuple(Perturbed(array, moving.relative_size) for moving, array in arrays if array is not None)

        def probed(kind: _Kind, count: int) -> tuple[Array, ...]:
            arrays = (
                self._fitting(results, position, reference) for _, results in self._moved(kind, self._probes[:count])
            )
            return tuple(array for array in arrays if array is not None)

        sizes, is_elementwise = [reference.size, *self._recorded_sizes], self._is_known_as("elementwise")
        accumulated = accumulated_terms(self._call, self._incoming, sizes, is_elementwise=is_elementwise)
        accumulated = max(accumulated, self._convolved // max(1, reference.size))
        return OutputPair(
            tested,
            reference,
            metrics,
            accumulated,
            Relative.ELEMENTARY if self._is_known_as("elementary") else 0.0,
            partial(moved, "inputs"),
            partial(moved, "inside"),
            lambda: self._fitting(self._second, position, reference),
            self._bench.operand_roundoff,
            partial(probed, "inputs"),
            # Of a forward nothing that is saved matters.
            partial(probed, "arithmetic" if self._incoming else "inside"),
            partial(probed, "inside"),
            partial(self._terms, position, reference),
            partial(self._deviations, position, reference),
            partial(self._restricted, position, reference, accumulated),
            partial(self._partial_sums, position),
            has_kinks=bool(self._incoming) and is_elementwise and not self._selects(reference.size),
            sums_of_magnitudes=lambda: self._fitting(self._magnitudes, position, reference),
            narrow_sums=self._narrow_sums(tested.dtype.name, accumulated),
        )

    def _narrow_sums(self, dtype: str, accumulated: int) -> int:
        """How many partial sums of `accumulated` terms are added up in `dtype`: those of blocks, or all where inf."""
        most = self._bench.narrow_sums.get(dtype, 1)
        # Fewest terms of a block, where a device splits a sum.
        return max(1, accumulated) if math.isinf(most) else max(1, int(min(most, accumulated // 64)))

    @staticmethod
    def _fitting(found: Sequence[Any] | None, position: int, reference: Array) -> Array | None:
        value = found[position] if found is not None and position < len(found) else None
        return value if getattr(value, "shape", None) == reference.shape else None

    def _restricted(
        self, position: int, reference: Array, accumulated: int, tested: Array, places: Sequence[int] | Array
    ) -> OutputPair | None:
        """The output pair of a small call with the elements at `places` and a sample of others; see `OutputPair`."""
        # Calls of more elements are judged by small ones where they can be.
        if self._elements <= 1 << 17:
            return None
        if position not in self._restrictions:
            # Not a method of this object: it would be in a cycle, and large arrays stay until garbage is collected.
            wanted = self._run.case.wanted if self._incoming else ()
            alone = partial(_alone, self._bench.engine, wanted, position)
            self._restrictions[position] = Restriction(self._call, self._incoming, reference, alone)
        part = self._restrictions[position].part(places)
        if part is None:
            return None
        run, own = self._run.with_call(part.call), tested.reshape(-1)[part.places]
        small = ExtraRuns(run, self._bench, part.incoming, is_composite=self._is_composite)
        pair = small.pair(position, own, part.result, measure(own, part.result, off_bound=math.inf))
        return replace(
            pair,
            accumulated=accumulated,
            chosen=part.chosen,
            drawn_from=tested.size,
            restricted=lambda tested, places: None,
        )

    def _deviations(self, position: int, reference: Array) -> Deviations | None:
        """Standard deviation of each element under one rounding error of everything that its terms are products of.

        See `OutputPair`. The squares of the terms are what the operation makes of squared tensors.
        """
        if reference.dtype.kind == "f" and (rows := self._deviations_of_rows(position, reference)) is not None:
            return Deviations.known(rows, have_terms=False)
        if reference.dtype.kind != "f" or not self._has_terms_of_products:
            return None
        size = self._size_of_moves(position)
        if (product := self._product(position, reference)) is not None:
            return _of_product(product, size)
        squares = self._fitting(self._squares, position, reference)
        if squares is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            norms = np.sqrt(squares.astype(np.float32).reshape(-1))
        return Deviations.known(size * norms, have_terms=False)

    def _size_of_moves(self, position: int) -> np.float32:
        """How far rounding moves a product of what the output or gradient at `position` is made of, relative to it."""
        own = self._run.case.wanted[position] if self._incoming else None
        operands = [array for path, array in self._given.items() if path != own]
        operands += [array for array in self._incoming if array is not None]
        moving = Perturbation(1, operands=self._bench.operand_roundoff)
        return np.float32(math.hypot(*sorted(moving.size(array.dtype) for array in operands)[-2:]))

    def _deviations_of_rows(self, position: int, reference: Array) -> Array | None:
        """The same for softmax and norms, of their output and the gradient of their input."""
        name = self._call.api.short.strip("_").lower()
        tensors, incoming = list(self._given.values()), [array for array in self._incoming if array is not None]
        is_input = not incoming or self._run.case.wanted[position] == next(iter(self._given), None)
        if name not in ROW_FUNCTIONS or not (is_input and 1 <= len(tensors) <= 3 and len(incoming) <= 1):
            return None
        moving = Perturbation(1, operands=self._bench.operand_roundoff)
        floats = [value for _, value in leaves(self._call) if isinstance(value, float)]
        for epsilon in (*floats, 1e-5, 1e-6) if name in WITH_EPSILON else (0.0,):
            call = row_call(tensors, incoming[0] if incoming else None, moving.size, epsilon=epsilon)
            found = None if call is None else row_deviations(name, call, reference)
            if found is not None:
                return found if bool(np.isfinite(found).all()) else None
        return None

    @cached_property
    def _has_terms_of_products(self) -> bool:
        """Whether all elements are sums of products that float32 can tell the sizes of."""
        arrays = [*self._given.values(), *(array for array in self._incoming if array is not None)]
        is_wide = any(unit_roundoff(array.dtype) < FLOAT32_ROUNDOFF for array in arrays)
        factors = [value for _, value in leaves(self._call) if isinstance(value, float)]
        is_real = all(kind_of(array.dtype) == "float" for array in arrays)
        return bool(arrays) and is_real and not (is_wide or factors) and self._is_known_as("multilinear")

    @cached_property
    def _squares(self) -> Sequence[Any] | None:
        """Outputs, or gradients, of the call whose tensors are squared."""
        return self._of_changed_tensors(partial(np.square, dtype=np.float32), "squares")

    @cached_property
    def _magnitudes(self) -> Sequence[Any] | None:
        """Those of the call whose tensors have no signs: of sums of products the sums of the terms' magnitudes."""
        return self._of_changed_tensors(np.abs, "magnitudes") if self._has_terms_of_products else None

    def _of_changed_tensors(self, change: Callable[[Array], Array], variant: str) -> Sequence[Any] | None:
        def changed(value: Any) -> Any:
            is_inexact = hasattr(value, "__array_interface__") and is_differentiable(value)
            with np.errstate(over="ignore"):  # the square of a large number is beyond the range of float32
                return change(value) if is_inexact else value

        call = with_leaves(self._call, lambda path, value: changed(value))
        return self._results(self._bench.engine, call, tuple(map(changed, self._incoming)), variant)

    def _product(self, position: int, reference: Array) -> Product | None:
        """The product of matrices that the output or gradient at `position` is."""
        if position not in self._products:
            self._products[position] = self._found_product(position, reference)
        return self._products[position]

    def _found_product(self, position: int, reference: Array) -> Product | None:
        if not self._has_terms_of_products:
            return None
        if not self._incoming:
            return product_of_tensors(list(self._given.values()), reference)
        incoming = [array for array in self._incoming if array is not None]
        own = self._run.case.wanted[position]
        others = [array for path, array in self._given.items() if path != own]
        return gradient_as_product(others, incoming[0], reference) if len(incoming) == 1 else None

    def _terms(self, position: int, reference: Array, at: int) -> tuple[Array, ...]:
        """What the element at the flat position `at` of the output or gradient at `position` is the sum of.

        See `OutputPair`. Terms that do not add up to the benchmark's result are those of no sum.
        """
        if (product := self._product(position, reference)) is not None:
            return (product.terms(at),)
        orders = self._terms_of_gradient(position, at) if self._incoming else self._terms_of_output(reference.shape, at)
        with np.errstate(invalid="ignore"):  # infinite inputs
            is_sum = all(
                abs(terms.sum() - reference.item(at)) <= Relative.FLOAT64_RESULTS * np.abs(terms).sum()
                for terms in orders
            )
        return orders if is_sum else ()

    def _partial_sums(self, position: int) -> Array | None:
        """See `OutputPair`."""
        name = self._call.api.short
        (incoming,) = self._incoming if len(self._incoming) == 1 else (None,)
        if incoming is None or not has_rounded_operands(name, "all") or not incoming.ndim:
            return None

        def gradient(part: Array) -> Array | None:
            execution = self._bench.engine.forward(self._call, differentiate=self._run.case.wanted)
            return execution.gradients((part,))[position]

        channels = 1 if has_rounded_operands(name, "conv") and incoming.ndim > 1 else -1
        found = attempt(partial(norms_of_partial_sums, gradient, incoming, channels))
        return None if isinstance(found, (Unsupported, CapturedError)) else found

    def _terms_of_output(self, shape: tuple[int, ...], at: int) -> tuple[Array, ...]:
        """The elements of the tensor that makes the most terms, each times its gradient of that output; and a bias."""
        given = self._given
        alone = np.zeros(shape)
        alone.flat[at] = 1

        def gradients() -> Incoming:
            return self._bench.engine.forward(self._call, differentiate=tuple(given)).gradients((alone,))

        found = attempt(gradients)
        if isinstance(found, (Unsupported, CapturedError)):
            return ()
        pairs = zip(given.values(), found)
        terms = [_in_orders(array * gradient) for array, gradient in pairs if gradient is not None]
        longest = max(terms, key=lambda orders: orders[0].size, default=())
        biases = [orders[0] for orders in terms if orders[0].size == 1 < longest[0].size]
        return tuple(np.concatenate([order, *biases]) for order in longest)

    def _terms_of_gradient(self, position: int, at: int) -> tuple[Array, ...]:
        """The incoming gradients, each times what that element of the argument, being 1, adds to its output."""
        path = self._run.case.wanted[position]
        with_one, with_none = (self._outputs_of(path, at, value) for value in (1, 0))
        if not len(self._incoming) <= len(with_one) == len(with_none):
            return ()
        pairs = zip(self._incoming, with_one, with_none)
        terms = [_in_orders(gradient * (one - none)) for gradient, one, none in pairs if gradient is not None]
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
        execution = attempt(partial(self._bench.engine.forward, call, differentiate=()))
        return [] if isinstance(execution, (Unsupported, CapturedError)) else _float_outputs(execution.outputs)

    @cached_property
    def _given(self) -> dict[LeafPath, Array]:
        """The tensors of floats among the arguments, by their places."""
        arrays = ((path, value) for path, value in leaves(self._call) if hasattr(value, "__array_interface__"))
        return {path: array for path, array in arrays if is_differentiable(array)}

    @property
    def _rounds_each_result(self) -> bool:
        """Whether what the operation computes inside is in its own dtype; of most forwards moved inputs do as much."""
        found = facts("composite").of(self._call.api, self._call.framework)
        is_known = found is not None and (bool(self._incoming) or found.text == "both")
        return self._is_composite or is_known

    def _selects(self, size: int) -> bool:
        """Whether the call selects elements, as the largest of all, and gradients of `size` are of all of them."""
        largest = max((array.size for array in self._incoming if array is not None), default=0)
        return size > largest and facts("index_outputs").of(self._call.api, self._call.framework) is not None

    def _is_known_as(self, topic: Literal["elementary", "elementwise", "multilinear"]) -> bool:
        return facts(topic).of(self._call.api, self._call.framework) is not None

    def lookalikes(self, position: int) -> dict[str, Array]:
        """Arrays that the output at `position` may be by mistake, by the phrase that says so; float64, of any shape.

        An argument, an incoming gradient, or the result for operands that were rounded before they were multiplied.
        """
        found = {"equals input " + ".".join(map(str, path[1:])): value for path, value in leaves(self._call)}
        found |= {f"equals incoming gradient {place}": array for place, array in enumerate(self._incoming)}
        found |= {
            _MATCHES[name]: results[position]
            for name, results in self._rounded_operands.items()
            if results is not None and position < len(results)
        }
        return {
            name: array.astype(np.float64)
            for name, array in found.items()
            if hasattr(array, "__array_interface__") and kind_of(array.dtype) in ("float", "int", "bool")
        }

    @cached_property
    def _rounded_operands(self) -> Mapping[str, Sequence[Any] | None]:
        """Results for rounded operands, by the format; gradients can be asked for once."""
        if not has_rounded_operands(self._call.api.short, "all"):
            return {}
        return {
            name: self._results(
                self._bench.engine,
                with_rounded_operands(self._call, name),
                rounded_incoming(self._incoming, name),
                name,
            )
            for name in FORMATS
        }

    @cached_property
    def _convolved(self) -> int:
        """How many products a convolution or its gradients add up in all elements together; 0 of any other call."""
        product = facts("products").word(self._call.api.short)
        images, kernels = [*self._given.values(), None, None][:2]
        if product is None or product.text not in _FAMILIES["conv"] or images is None or kernels is None:
            return 0
        swept = images.size if product.text == "transposed" else max(self._recorded_sizes, default=0)
        return swept * (kernels.size // len(kernels)) if kernels.size else 0

    @cached_property
    def _recorded_sizes(self) -> list[int]:
        """Sizes of the forward's outputs, which gradients use again."""
        return [tensor.size for tensor in tensors_in(self._run.case.forward.outputs or ()) if tensor.size]

    @cached_property
    def _elements(self) -> int:
        """Those of the tensors of the call, or of its largest output."""
        return max(float_elements(self._call), *self._recorded_sizes, 0)

    @property
    def _probes(self) -> Sequence[int]:
        """Numbers of the perturbations that probe, none for a large call."""
        return () if self._elements > MOST_PROBED else _PROBES

    def _moved(self, kind: _Kind, numbers: Sequence[int]) -> list[_Moved]:
        """Runs under the perturbations of these numbers, each made once; without those that the benchmark refuses."""
        for number in numbers:
            if (kind, number) not in self._made:
                self._made[kind, number] = (
                    self._with_moved_inputs(number) if kind == "inputs" else self._with_moved_arithmetic(kind, number)
                )
        return [run for number in numbers if (run := self._made[kind, number]) is not None]

    def _with_moved_inputs(self, number: int) -> _Moved | None:
        # Some APIs refuse what lies beyond their inputs' range, such as a probability above 1.
        for is_clipped in (False, True):
            operands = self._bench.operand_roundoff
            moving = Perturbation(number, is_clipped=is_clipped, held=self._held, operands=operands)
            call, incoming = moving.call(self._call), moving.incoming(self._call, self._incoming)
            results = self._results(self._bench.engine, call, incoming, str(moving))
            if results is not None:
                return moving, results
        return None

    def _with_moved_arithmetic(self, kind: _Kind, number: int) -> _Moved | None:
        moving = Perturbation(number)
        saves_exactly = kind == "arithmetic"
        call = moving.inside(self._call, saves_exactly=saves_exactly, is_composite=self._rounds_each_result)
        variant = f"{kind} {number}{', each result' * self._rounds_each_result}"
        results = self._results(self._bench.engine, call, self._incoming, variant)
        if self._incoming and kind == "inside" and _have_nan(results):
            # Gradients of amax go to the elements that equal it: to none of them, 0 / 0, where it was saved moved.
            exactly = self._moved("arithmetic", (number,))
            return exactly[0] if exactly and not _have_nan(exactly[0][1]) else (moving, results or ())
        return None if results is None else (moving, results)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Labels in floats, such as the 1 and -1 of cosine_embedding_loss: the least move of one changes everything."""
        return frozenset(number for number in label_tensors(self._call) if self._jumps_with(number))

    def _jumps_with(self, number: int) -> bool:
        others = frozenset(range(float_tensors(self._call))) - {number}
        calls = {"": self._call, f"label {number}": Perturbation(2, held=others).call(self._call)}
        exact, moved = (
            _float_outputs(self._run.ask(self._bench.engine, OUTPUTS, call=call, variant=variant))
            for variant, call in calls.items()
        )
        return len(exact) == len(moved) and any(has_jumped(*pair) for pair in zip(exact, moved))

    @cached_property
    def _second(self) -> Sequence[Any] | None:
        second = self._bench.second
        return None if second is None else self._results(second, self._call, self._incoming, "second")

    def _results(self, engine: Engine, call: Call, incoming: Incoming, variant: str) -> Sequence[Any] | None:
        """The forward outputs that are compared, in the order in which they are, or all gradients; None if it fails."""
        found = self._run.ask(engine, partial(_compared, self._call, incoming), call=call, variant=variant)
        return None if isinstance(found, (Unsupported, CapturedError)) else found


def _alone(engine: Engine, wanted: tuple[LeafPath, ...], position: int, call: Call, incoming: Incoming) -> Any:
    """The output or gradient at `position` of another call; None where the benchmark fails."""
    found = attempt(lambda: _compared(call, incoming, engine.forward(call, differentiate=wanted)))
    return None if isinstance(found, (Unsupported, CapturedError)) or position >= len(found) else found[position]


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
    if isinstance(outputs, (Unsupported, CapturedError)):
        return []
    arrays = [cast("Array", output.value) for output in outputs if hasattr(output.value, "__array_interface__")]
    return [array for array in arrays if array.dtype.kind == "f"]


def _of_product(product: Product, size: np.float32) -> Deviations:
    """Those of the elements of a product each of whose terms is moved by the share `size` of it."""

    def norms(every: int) -> Array | None:
        found = product.norms(every)
        found *= size
        return found if bool(np.isfinite(found).all()) else None

    def sample() -> tuple[Array, Array]:
        places, found = product.sample()
        return places, size * found

    every = _SOME_TERMS if product.left.shape[-1] >= _MANY_TERMS else 1
    return Deviations(
        partial(norms, 1), partial(norms, every), lambda places: size * product.norms_at(places), sample, True
    )
