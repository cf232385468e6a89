"""Monte Carlo arithmetic: PyTorch computes in float64, and each arithmetic result is moved by a rounding of float32.

What an operation loses by rounding its own intermediate results can be far more than rounding its inputs explains:
``0.5 x (1 + erf(x / sqrt 2))`` loses all digits for x = -5, ``dO * O`` summed is not exactly ``dP * P`` summed. Kernels
of PyTorch compute such formulas in one step, so that they are first decomposed into arithmetic, with PyTorch's own
decompositions (Parker, *Monte Carlo Arithmetic*, UCLA CSD-970002, 1997; here with a uniform error, as float64 is wide
enough for the virtual precision).

Most formulas are PyTorch's own decompositions, without the wrappers that promote dtypes: what is decomposed here is
float64 already, and promotion imports SymPy and PyTorch's compiler, 800 modules. The few that import these themselves
are written below.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_msprobe.apis import facts
from pytest_msprobe.numerics.expected import Roundoffs

Axes = list[int] | int | None


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The decomposition of each overload that has one; it may raise for arguments that it cannot take."""
    from torch._decomp import decomposition_table

    table = {}
    for name, ways in _KERNELS.items():
        if "decomposed" in ways and (packet := getattr(torch.ops.aten, name, None)) is not None:
            for overload in packet.overloads():
                function = getattr(packet, overload)
                if function in decomposition_table:
                    table[function] = inspect.unwrap(decomposition_table[function])
    aten = torch.ops.aten
    return table | {
        aten._softmax.default: _softmax,
        aten._log_softmax.default: _log_softmax,
        aten.native_layer_norm.default: _layer_norm,
        aten.native_layer_norm_backward.default: _layer_norm_backward,
        aten.native_group_norm.default: _group_norm,
        aten.native_group_norm_backward.default: _group_norm_backward,
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
        aten.nll_loss_forward.default: _nll_loss,
        aten.upsample_bilinear2d.default: _upsample_bilinear,
        aten.linspace.default: _linspace,
        aten.linspace.Tensor_Tensor: _linspace,
        aten.linspace.Tensor_Scalar: _linspace,
        aten.linspace.Scalar_Tensor: _linspace,
        aten.linalg_vector_norm.default: _vector_norm,
        aten._weight_norm_interface.default: _weight_norm,
        aten._weight_norm_interface_backward.default: _weight_norm_backward,
        aten.var.correction: _var,
        aten.std.correction: lambda x, *axes, **options: _var(x, *axes, **options).sqrt(),
        aten.var_mean.correction: _var_mean,
    }


def _softmax(x: Tensor, axis: int, _to_float: bool) -> Tensor:
    powers = (x - x.amax(axis, keepdim=True)).exp()
    return powers / powers.sum(axis, keepdim=True)


def _log_softmax(x: Tensor, axis: int, _to_float: bool) -> Tensor:
    shifted = x - x.amax(axis, keepdim=True)
    return shifted - shifted.exp().sum(axis, keepdim=True).log()


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    if list(shape) != list(x.shape[x.dim() - len(shape) :]):
        raise NotImplementedError("the kernel says what is wrong with the shape")
    result, mean, factor = _normalized(x, list(range(x.dim() - len(shape), x.dim())), epsilon)
    return _scaled(result, weight, bias), mean, factor


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    _samples: int,
    channels: int,
    _area: int,
    groups: int,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = x.reshape(x.shape[0], groups, -1)
    _, mean, factor = _normalized(grouped, [2], epsilon)
    # As kernels do it, in one multiplication and addition for each element: a large mean cancels late.
    result = grouped * factor - mean * factor
    # The channels are the last axis while the parameters are applied.
    scaled = _scaled(result.reshape(x.shape).movedim(1, -1), weight, bias).movedim(-1, 1)
    return scaled, mean.squeeze(2), factor.squeeze(2)


def _normalized(x: Tensor, axes: list[int], epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    variance, mean = _var_mean(x, axes, correction=0, keepdim=True)
    factor = (variance + epsilon).rsqrt()
    return (x - mean) * factor, mean, factor


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


def _layer_norm_backward(
    incoming: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    factor: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    samples = list(range(x.dim() - len(shape)))
    normalized = (x - mean) * factor
    inner = _scaled(incoming, weight)
    gradients = (
        _through_normalization(inner, normalized, factor, list(range(len(samples), x.dim()))),
        _summed(incoming * normalized, samples),
        _summed(incoming, samples),
    )
    return _only(gradients, wanted)


def _group_norm_backward(
    incoming: Tensor,
    x: Tensor,
    mean: Tensor,
    factor: Tensor,
    weight: Tensor | None,
    samples: int,
    channels: int,
    _area: int,
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    grouped, per_channel = (samples, groups, -1), (samples, channels, -1)
    factor = factor.reshape(samples, groups, 1)
    normalized = (x.reshape(grouped) - mean.reshape(samples, groups, 1)) * factor
    incoming = incoming.reshape(per_channel)
    inner = _scaled(incoming.movedim(1, -1), weight).movedim(-1, 1)
    gradients = (
        _through_normalization(inner.reshape(grouped), normalized, factor, [2]).reshape(x.shape),
        (incoming * normalized.reshape(per_channel)).sum([0, 2]),
        incoming.sum([0, 2]),
    )
    return _only(gradients, wanted)


def _through_normalization(inner: Tensor, normalized: Tensor, factor: Tensor, axes: list[int]) -> Tensor:
    """The gradient of what was normalised along `axes`, from the one of the result."""
    count = max(1, math.prod(inner.shape[axis] for axis in axes))
    along = normalized * (inner * normalized).sum(axes, keepdim=True)
    return (inner * count - inner.sum(axes, keepdim=True) - along) * (factor / count)


def _only(gradients: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor | None, ...]:
    chosen: list[Tensor | None] = list(gradients)
    for place, is_wanted in enumerate(wanted):
        if not is_wanted:
            chosen[place] = None
    return tuple(chosen)


def _summed(x: Tensor, axes: list[int]) -> Tensor:
    return x.sum(axes) if axes else x.clone()  # sum over no axis means all


def _var(x: Tensor, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, axes, correction=correction, keepdim=keepdim)[0]


def _var_mean(
    x: Tensor, axes: Axes = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    if axes is None or (not isinstance(axes, int) and not axes):
        axes = list(range(x.dim()))
    mean = x.mean(axes, keepdim=True)
    terms = math.prod(x.shape) // max(1, mean.numel()) - (1 if correction is None else correction)
    variance = (x - mean).square().sum(axes, keepdim=keepdim) / max(0, terms)
    return variance, mean if keepdim else mean.reshape(variance.shape)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, dropout, is_causal, attn_mask, scale)
    largest = scores.amax(-1, keepdim=True)
    powers = (scores - largest).exp()
    total = powers.sum(-1, keepdim=True)
    return (powers / total) @ value, (largest + total.log()).squeeze(-1)


def _attention_backward(
    incoming: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logarithm: Tensor,
    dropout: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, as flash attention computes them (Dao et al., 2022, algorithm 4)."""
    weights = (_scores(query, key, dropout, is_causal, attn_mask, scale) - logarithm.unsqueeze(-1)).exp()
    products = (incoming * output).sum(-1, keepdim=True)
    inner = weights * (incoming @ value.transpose(-2, -1) - products) * _factor(query, scale)
    return inner @ key, inner.transpose(-2, -1) @ query, weights.transpose(-2, -1) @ incoming


def _scores(
    query: Tensor, key: Tensor, dropout: float, is_causal: bool, mask: Tensor | None, scale: float | None
) -> Tensor:
    if dropout or query.shape[:-2] != key.shape[:-2]:
        raise NotImplementedError("dropout, and heads that share keys")
    scores = query @ key.transpose(-2, -1) * _factor(query, scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return scores if mask is None else scores + mask


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _nll_loss(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> tuple[Tensor, Tensor]:
    is_counted = target != ignored
    chosen = torch.where(is_counted, target, 0)
    weights = torch.ones_like(chosen, dtype=x.dtype) if weight is None else weight[chosen]
    weights = torch.where(is_counted, weights, 0.0)
    terms = -x.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) * weights
    terms = torch.where(is_counted, terms, 0.0)
    if reduction == 0:
        return terms, x.new_zeros(())
    total = weights.sum()
    return (terms.sum() / total if reduction == 1 else terms.sum()), total


def _linspace(start: float | Tensor, end: float | Tensor, steps: int, **options: Any) -> Tensor:
    """Counted from the nearer end, as kernels do: in between, where the numbers are small, both terms cancel."""
    first, last = float(start), float(end)
    step = (last - first) / max(1, steps - 1)
    places = torch.arange(steps, **options)
    return torch.where(2 * places < steps, first + step * places, last - step * (steps - 1 - places))


def _upsample_bilinear(
    x: Tensor,
    size: Sequence[int],
    is_aligned: bool,
    scale_of_rows: float | None = None,
    scale_of_columns: float | None = None,
) -> Tensor:
    """Weights come from positions that are rounded themselves, the more the further they are from the first."""
    for axis, length, scale in ((-2, size[0], scale_of_rows), (-1, size[1], scale_of_columns)):
        places = torch.arange(length, dtype=torch.float64)
        last = x.shape[axis] - 1
        if is_aligned:
            at = places * (last / max(1, length - 1))
        else:
            at = ((places + 0.5) * (1 / scale if scale else x.shape[axis] / length) - 0.5).clamp(min=0)
        below = at.floor().long().clamp(max=last)
        weight = (at - below).reshape(-1, *[1] * (-1 - axis))
        parts = (x.index_select(axis, place) for place in (below, (below + 1).clamp(max=last)))
        x = next(parts) * (1 - weight) + next(parts) * weight
    return x


def _vector_norm(x: Tensor, order: float = 2, axes: Axes = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if order != 2 or dtype is not None or x.is_complex():
        raise NotImplementedError(f"the norm of order {order}")
    return x.square().sum(axes, keepdim=keepdim).sqrt()


def _weight_norm(v: Tensor, g: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    norms = _vector_norm(v, axes=_all_but(axis, v), keepdim=True)
    return v * (g / norms), norms


def _weight_norm_backward(incoming: Tensor, v: Tensor, g: Tensor, norms: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    along = (incoming * v).sum(_all_but(axis, v), keepdim=True) / norms
    factor = g / norms
    return factor * incoming - (factor * along / norms) * v, along


def _all_but(axis: int, x: Tensor) -> list[int]:
    return [other for other in range(x.dim()) if other != axis % x.dim()]


#: Uniform errors of this width have the standard deviation 1.
_WIDTH = math.sqrt(3.0)


def _by_name(topic: str) -> dict[str, list[str]]:
    """The words of the facts on kernels, by their names."""
    return {name.removeprefix("Aten."): fact.text.split() for name, fact in facts(topic).typed("pytorch").items()}


_KERNELS = _by_name("torch_kernels")
_SUMS = _by_name("torch_sums")


class RoundedArithmetic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch's own __init_subclass__
    """Mode in which float64 results of arithmetic are off by `roundoff` (one standard deviation), by a fixed seed.

    It may be entered again for the gradients, which PyTorch computes in the thread that asks for them.
    """

    def __init__(self, roundoff: float, seed: int, *, totals: float = 0.0) -> None:
        """A mode that moves results by `roundoff`, and the totals of log_softmax by `totals` where that is not 0."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._roundoff = roundoff
        self._totals = totals
        self._of_total = roundoff
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
            return self._sum(func, int(_SUMS[kind][0]), args, kwargs)
        ways = _KERNELS.get(kind, [])
        if "factorisation" in ways:
            args = tuple(self._changed(operand) for operand in args)
        returned = func(*args, **kwargs)
        # PyTorch's square is a power with a whole exponent, which is a product.
        is_product = kind == "pow" and isinstance(args[1], (int, float)) and float(args[1]).is_integer()
        if "elementary" in ways and not is_product:
            return self._moved(returned, Roundoffs.ELEMENTARY * self._roundoff)
        return self._moved(returned, self._roundoff) if ways and ways != ["decomposed"] else returned

    def _decomposed(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule = decompositions().get(func)
        # Decompositions may use what is decomposed itself.
        if rule is None or self._depth >= 8:
            return NotImplemented
        self._depth += 1
        self._of_total = max(self._totals, self._roundoff) if rule is _log_softmax else self._roundoff
        try:
            with self:
                return rule(*args, **kwargs)
        except (NotImplementedError, RuntimeError, TypeError, AssertionError):
            # Not for these arguments: the kernel itself says what is wrong with them, if anything is.
            return NotImplemented
        finally:
            self._depth -= 1
            self._of_total = self._roundoff

    def _sum(self, func: Any, position: int, args: Any, kwargs: Any) -> Any:
        """A sum whose terms are off by as much as adding them one by one leaves."""
        operand = args[position]
        if not _is_float64(operand):
            return self._moved(func(*args, **kwargs), self._roundoff)
        if func._schema.name in ("aten::sum", "aten::mean") and operand.dim():
            return self._sum_of_partial_sums(func, operand, args, kwargs)
        length = math.sqrt(_terms(func, args, operand))
        terms = self._moved(operand.clone(), self._roundoff * max(1.0, Roundoffs.SUM_THAT_CANCELS * length))
        args = (*args[:position], terms, *args[position + 1 :])
        return self._moved(func(*args, **kwargs), self._roundoff * max(1.0, Roundoffs.SUM * length))

    def _sum_of_partial_sums(self, func: Any, operand: Tensor, args: Any, kwargs: Any) -> Any:
        """A sum or mean that is off by the rounding of its own partial sums, which may leave and return.

        Rounding to nearest has a standard deviation of 0.29 in units of the last place, 0.41 unit roundoffs.
        """
        returned = func(*args, **kwargs)
        axes = _axes(args, operand)
        rows = operand.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
        size = torch.linalg.vector_norm(rows.cumsum(-1), dim=-1).mul_(Roundoffs.ROOT_MEAN_SQUARE * self._roundoff)
        if func._schema.name == "aten::mean":
            size /= max(1, rows.shape[-1])
        drawn = torch.rand(size.shape, generator=self._generator, dtype=torch.float64).mul_(2).sub_(1)
        off = (_WIDTH * size * drawn.to(size.device)).reshape(returned.shape)
        return self._moved(returned + off.to(returned.dtype), self._of_total)

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
            # Random factors that are drawn once and used again; a prime, so that no row of a
            # tensor meets the same ones twice.
            drawn = torch.rand(min(returned.numel(), 65_521), generator=self._generator, dtype=torch.float64)
            _multiply(returned, (1 + spread * _WIDTH * drawn.mul_(2).sub_(1)).to(returned.device))
        return returned


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
    if kind in ("convolution", "convolution_backward"):
        # A gradient of the weight adds up positions, one of the input what the weight connects it to.
        shape = args[1].shape if kind == "convolution" else operand.shape
        return math.prod(shape) // max(1, shape[0 if kind == "convolution" else 1])
    _, *where = _SUMS.get(kind, [""])
    if where:
        indices = args[int(where[0])].reshape(-1)
        return int(torch.bincount(indices).max()) if indices.numel() else 1
    if kind == "scatter_add":
        return 1  # few elements meet in one place, and which is not worth counting
    if kind == "cumsum":
        return operand.shape[args[1]] if operand.dim() else 1
    return operand.shape[-1] if operand.dim() else 1


def _axes(args: Any, operand: Tensor) -> tuple[int, ...]:
    """The axes that a sum adds up."""
    summed = args[1] if len(args) > 1 and args[1] is not None else ()
    axes = tuple(summed) if isinstance(summed, (tuple, list)) else (summed,)
    return axes or tuple(range(operand.dim()))


def _is_float64(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64
