"""Monte Carlo arithmetic: PyTorch computes in float64, and each arithmetic result is moved by a rounding of float32.

What an operation loses by rounding its own intermediate results can be far more than rounding its inputs explains:
``0.5 x (1 + erf(x / sqrt 2))`` loses all digits for x = -5, ``dO * O`` summed is not exactly ``dP * P`` summed. Kernels
of PyTorch compute such formulas in one step, so that they are first decomposed into arithmetic, with PyTorch's own
decompositions (Parker, *Monte Carlo Arithmetic*, UCLA CSD-970002, 1997; here with a uniform error, as float64 is wide
enough for the virtual precision).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_msprobe.engines.torch_decompositions import decompositions

#: Elementary functions are polynomials on a device, and may lose a few roundings.
_ELEMENTARY_FACTOR = 4.0
#: Uniform errors of this width have the standard deviation 1.
_WIDTH = math.sqrt(3.0)
#: Standard deviation of the error of adding n terms one by one, over sqrt(n): in roundings of the norm of the terms
#: where they cancel, and of the result where they do not.
_SUMMATION, _GROWTH = 0.3, 0.24
#: Random factors that are drawn once and used again; a prime, so that no row of a tensor meets the same ones twice.
_POOL = 65_521
#: Decompositions may use what is decomposed itself.
_DEEPEST = 8

_ELEMENTARY = frozenset(
    """
    exp exp2 expm1 log log2 log10 log1p erf erfc erfinv tanh sigmoid sin cos tan asin acos atan sinh cosh asinh acosh
    atanh pow lgamma digamma atan2 logaddexp logaddexp2 polygamma special_entr xlogy
    """.split()
)
_ARITHMETIC = frozenset(
    """
    add sub rsub mul div reciprocal rsqrt sqrt square prod cumprod addcmul addcdiv lerp var var_mean std
    linalg_vector_norm norm logsumexp upsample_bilinear2d
    avg_pool2d _adaptive_avg_pool2d _cdist_forward native_batch_norm native_layer_norm native_group_norm
    """.split()
)
#: Sums, by the operand whose terms are added up: each term is rounded, and so is each partial sum.
_SUMS = {
    "sum": 0,
    "mean": 0,
    "cumsum": 0,
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addmv": 1,
    "convolution": 0,
    "convolution_backward": 0,
    "embedding_dense_backward": 0,
    "index_add": 3,
    "scatter_add": 3,
}
#: What changes each element of an n by n matrix up to n times on the way to its result.
_FACTORISATIONS = frozenset(
    """
    linalg_inv_ex linalg_cholesky_ex cholesky cholesky_inverse _cholesky_solve_helper _linalg_solve_ex linalg_lu
    linalg_lu_factor_ex linalg_lu_solve linalg_solve_triangular triangular_solve linalg_ldl_factor_ex linalg_ldl_solve
    _linalg_det _linalg_slogdet _linalg_svd _linalg_eigh _linalg_eigvals linalg_eig linalg_qr linalg_lstsq
    linalg_matrix_exp linalg_householder_product geqrf ormqr
    """.split()
)

#: Sums of rows that meet in one place, by the operand that says where each goes.
_INDEXED = {"embedding_dense_backward": 1, "index_add": 2}


class RoundedArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own __init_subclass__
    """Mode in which float64 results of arithmetic are off by `roundoff` (one standard deviation), by a fixed seed.

    It may be entered again for the gradients, which PyTorch computes in the thread that asks for them.
    """

    def __init__(self, roundoff: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._roundoff = roundoff
        self._generator = torch.Generator().manual_seed(seed)
        self._depth = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or PyTorch would import its compiler, 800 modules, to keep it from what is never compiled here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation of ATen, decomposed where that shows more of its arithmetic."""
        kwargs = kwargs or {}
        decomposed = self._decomposed(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        name = func._schema.name.partition("::")[2]
        kind = name.rstrip("_")
        if kind in _SUMS:
            return self._sum(func, _SUMS[kind], args, kwargs)
        if kind in _FACTORISATIONS:
            args = tuple(self._changed(operand) for operand in args)
        returned = func(*args, **kwargs)
        if kind in _ELEMENTARY and not (kind == "pow" and _is_whole(args[1])):
            return self._moved(returned, _ELEMENTARY_FACTOR * self._roundoff)
        is_moved = kind in _ARITHMETIC | _ELEMENTARY | _FACTORISATIONS
        return self._moved(returned, self._roundoff) if is_moved else returned

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule = decompositions().get(func)
        if rule is None or self._depth >= _DEEPEST:
            return NotImplemented
        self._depth += 1
        try:
            with self:
                return rule(*args, **kwargs)
        except (NotImplementedError, RuntimeError, TypeError, AssertionError):
            # Not for these arguments: the kernel itself says what is wrong with them, if anything is.
            return NotImplemented
        finally:
            self._depth -= 1

    def _sum(self, func: Any, position: int, args: Any, kwargs: Any) -> Any:
        """A sum whose terms are off by as much as adding them one by one leaves."""
        operand = args[position]
        if not _is_float64(operand):
            return self._moved(func(*args, **kwargs), self._roundoff)
        length = math.sqrt(_terms(func, args, operand))
        terms = self._moved(operand.clone(), self._roundoff * max(1.0, _SUMMATION * length))
        args = (*args[:position], terms, *args[position + 1 :])
        return self._moved(func(*args, **kwargs), self._roundoff * max(1.0, _GROWTH * length))

    def _changed(self, operand: Any) -> Any:
        """A matrix that is off by as much as rounding it once for each of its rows leaves."""
        if not _is_float64(operand) or operand.dim() < 2:
            return operand
        return self._moved(operand.clone(), self._roundoff * math.sqrt(operand.shape[-1]))

    def _moved(self, returned: Any, spread: float) -> Any:
        """`returned` with every float64 tensor in it moved in place: nobody else holds a fresh result yet."""
        if isinstance(returned, (tuple, list)):
            return type(returned)(self._moved(item, spread) for item in returned)
        if _is_float64(returned) and returned.numel():
            _multiply(returned, 1 + spread * _WIDTH * self._pool(returned.numel()))
        return returned

    def _pool(self, count: int) -> Tensor:
        """Numbers between -1 and 1: at most `_POOL` different ones, never the same in two operations."""
        drawn = torch.rand(min(count, _POOL), generator=self._generator, dtype=torch.float64)
        return drawn.mul_(2).sub_(1)


def _multiply(tensor: Tensor, factors: Tensor) -> None:
    """Multiply in place by `factors`, repeated to the size of `tensor`."""
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        repeated = factors.repeat(-(-tensor.numel() // factors.numel()))[: tensor.numel()]
        tensor.mul_(repeated.view(tensor.shape))
        return
    flat = tensor.as_strided((tensor.numel(),), (1,), 0)  # in the order of memory, whatever the layout
    whole = flat.numel() // factors.numel() * factors.numel()
    flat[:whole].view(-1, factors.numel()).mul_(factors)
    flat[whole:].mul_(factors[: flat.numel() - whole])


def _terms(func: Any, args: Any, operand: Tensor) -> int:
    """How many terms one element of a sum has."""
    kind = func._schema.name.partition("::")[2]
    if kind.startswith("convolution"):
        # A gradient of the weight adds up positions, one of the input what the weight connects it to.
        shape = args[1].shape if kind == "convolution" else operand.shape
        return math.prod(shape) // max(1, shape[0 if kind == "convolution" else 1])
    if kind in ("sum", "mean"):
        given = args[1] if len(args) > 1 and args[1] is not None else ()
        axes = given if isinstance(given, (tuple, list)) else (given,)
        return math.prod(operand.shape[axis] for axis in axes) if axes and operand.dim() else operand.numel()
    if kind in _INDEXED:
        indices = args[_INDEXED[kind]].reshape(-1)
        return int(torch.bincount(indices).max()) if indices.numel() else 1
    if kind == "scatter_add":
        return 1  # few elements meet in one place, and which is not worth counting
    if kind == "cumsum":
        return operand.shape[args[1]] if operand.dim() else 1
    return operand.shape[-1] if operand.dim() else 1


def _is_whole(exponent: Any) -> bool:
    """Whether a power is a product: PyTorch's square is one of exponent 2."""
    return isinstance(exponent, (int, float)) and float(exponent).is_integer()


def _is_float64(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64
