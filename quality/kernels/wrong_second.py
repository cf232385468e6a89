"""Wrong kernels of other kinds that people report, written after `assert_rounding_only` by another author."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from quality.kernels import references as exact, right, wrong_formulas as formulas, wrong_places as places
from quality.kernels.entries import Draw, Inputs, Shape, WrongKernel

wide = right.in_float32
FLOAT32 = (torch.float32,)
FLOAT16 = (torch.float16,)
BFLOAT16 = (torch.bfloat16,)
HALVES = (*BFLOAT16, *FLOAT16)
Operation = Callable[..., Any]


def gradient_of(forward: Operation, other: Operation) -> Operation:
    """The right result of `forward`, with the gradients of `other`, both in float32."""

    class Mixed(torch.autograd.Function):
        """A forward and a backward that do not belong together."""

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            """Compute the right result."""
            ctx.inputs = inputs
            return wide(forward)(*inputs)

        @staticmethod
        def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
            """Compute the gradients of the other function."""
            inputs = [
                x.detach().float().requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x
                for x in ctx.inputs
            ]
            leaves = [x for x in inputs if torch.is_tensor(x) and x.requires_grad]
            with torch.enable_grad():
                output = other(*inputs)
            gradients = iter(torch.autograd.grad(output, leaves, incoming.float(), allow_unused=True))
            dtype = incoming.dtype
            result = [next(gradients) if any(x is leaf for leaf in leaves) else None for x in inputs]
            return tuple(None if gradient is None else gradient.to(dtype) for gradient in result)

    return Mixed.apply


# Inputs.


def drawn(*shapes: Any, grad: bool = True, scale: float = 1.0, shift: float = 0.0) -> Inputs:
    """Normal tensors of the given shapes; an integer tensor where one is given, 2-tuples (high, shape) drawn below."""

    def draw_all(draw: Draw, shape: Shape) -> tuple[Any, ...]:
        def value(spec: Any) -> Any:
            if torch.is_tensor(spec):
                return spec.clone()
            if isinstance(spec, str):
                size, _, high = spec.partition("<")
                return draw.integers(int(high), int(size))
            return draw.normal(*spec, grad=grad, scale=scale, shift=shift)

        return tuple(value(spec) for spec in shapes)

    return draw_all


def sliced(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows of a larger matrix from the third on."""
    return (draw.normal(shape[0] + 2, shape[1], grad=False)[2:],)


def with_expanded(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """A matrix and a column that is expanded to its shape."""
    return draw.normal(*shape, grad=False), draw.normal(shape[0], 1, grad=False).expand(shape)


def with_zero(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows in which one factor is 0."""
    x = draw.normal(*shape, grad=False)
    x[:, 1] = 0
    return (x.requires_grad_(),)


def packed_bits(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, and bytes of two numbers."""
    return draw.normal(shape[0], shape[1]), draw.integers(256, shape[1] // 2, shape[2]).to(torch.uint8)


def groups_of_int8(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, an int8 matrix and scales of its groups."""
    x, quantised, _ = right.of_int8(draw, shape)
    return x, quantised, draw.positive(shape[1] // 8, shape[2])


def integers_and_int8(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows of integers in a dtype of floats, an int8 matrix and scales."""
    x, quantised, scale = right.of_int8(draw, shape)
    return (x.detach() * 40).round(), quantised, scale


def statistics(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Rows, and running statistics."""
    return draw.normal(*shape, grad=False), draw.normal(shape[1], grad=False), draw.positive(shape[1])


def probabilities(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Large logits and targets of 0 or 1."""
    return draw.normal(*shape, scale=60.0), draw.integers(2, *shape).to(draw.dtype)


def masks(draw: Draw, shape: Shape) -> tuple[Any, ...]:
    """Values, and which of them are kept."""
    return draw.normal(*shape), draw.integers(2, *shape).to(draw.dtype)


def _of(
    name: str,
    reference: Operation,
    kernel: Operation,
    inputs: Inputs,
    shape: Shape = (),
    *,
    dtypes: tuple[torch.dtype, ...] = (*FLOAT32, *BFLOAT16, *FLOAT16),
    below: tuple[torch.dtype, ...] = (),
) -> list[WrongKernel]:
    """Entries of one kernel, whose error is below two roundings of the output in some dtypes."""
    above = tuple(dtype for dtype in dtypes if dtype not in below)
    kinds = ((above, True), (tuple(dtype for dtype in dtypes if dtype in below), False))
    return [
        WrongKernel(name, reference, kernel, inputs, shape, is_above, dtypes=kind) for kind, is_above in kinds if kind
    ]


def _with(function: Operation, **options: Any) -> Operation:
    """`function` in float32 with other options."""
    return wide(lambda *inputs: function(*inputs, **options))


HEADS = ((2, 2, 12, 8), (2, 2, 12, 8), (2, 2, 12, 8))
LENGTHS = torch.tensor([5, 9])
EMPTY = torch.tensor([0, 9])
ENDS = torch.tensor([7, 20, 24])
SIGNAL = ((2, 4, 30), (6, 4, 3))
E, R, A, B = exact, right, formulas, places
KERNELS = [
    *_of("slope of the next head", A.alibi, _with(A.alibi, first=2), drawn(*HEADS)),
    *_of("window one too wide", E.window_attention, wide(A.window_of_five), drawn(*HEADS)),
    *_of("cap before the scale", A.capped, _with(A.capped, late=True), drawn(*HEADS)),
    *_of("parts of keys merged by their mean", E.attention, wide(A.split_keys_mean), drawn(*HEADS)),
    *_of("a padded key counted", A.padded, _with(A.padded, more=1), drawn(*HEADS, LENGTHS)),
    *_of("NaN where all is masked", A.padded, wide(A.padded_nan), drawn(*HEADS, EMPTY)),
    *_of("mean where all is masked", A.padded, wide(A.padded_mean), drawn(*HEADS, EMPTY)),
    *_of(
        *("mask from the first key", E.causal_attention, wide(A.causal_top_left)),
        drawn((1, 2, 6, 8), (1, 2, 10, 8), (1, 2, 10, 8)),
    ),
    *_of("totals to base 2", A.with_totals, _with(A.with_totals, base=2.0), drawn(*HEADS)),
    *_of(
        *("last page of another sequence", A.paged, _with(A.paged, last=1)),
        drawn((3, 8), (12, 4, 8), torch.tensor([[3, 1, 7], [0, 5, 2], [8, 4, 9]])),
    ),
    *_of(
        *("gradient of shared keys from one head", E.attention, gradient_of(E.attention, A.shared_first_head)),
        *(R.of_attention, (1, 4, 2, 12, 8)),
    ),
    *_of(
        "softmax gradient without its sum",
        E.softmax,
        gradient_of(E.softmax, A.softmax_without_delta),
        R.one,
        (8, 40),
    ),
    *_of(
        *(
            "gradient of a bias from one sequence",
            A.biased,
            gradient_of(A.biased, A.bias_of_first),
        ),
        drawn(*HEADS, (2, 12, 12)),
    ),
    *_of(
        "channels grouped in turns",
        A.group_norm,
        wide(A.group_norm_in_turns),
        drawn((3, 8, 10), (8,), (8,), shift=0.5),
    ),
    *_of("running variance biased", A.batch_norm, A.batch_norm_written, statistics, (12, 20)),
    *_of(
        "weight gradient of whole tiles",
        E.rms_norm,
        gradient_of(E.rms_norm, A.rms_first_rows),
        R.of_rms,
        (70, 20),
    ),
    *_of("residual of before", E.residual_norm, wide(A.residual_returned), R.of_residual, (8, 20)),
    *_of("variances merged without means", E.variance, wide(A.chan_without_means), R.one, (8, 128)),
    *_of(
        "epsilon added to a length",
        A.normalised,
        _with(A.normalised, added=True),
        drawn((8, 30), scale=0.01),
    ),
    *_of(
        "softplus from 5 on",
        A.softplus,
        _with(A.softplus, threshold=5.0),
        drawn((20, 30), scale=4.0),
        below=BFLOAT16,
    ),
    *_of("log1p of a sum", torch.log1p, wide(lambda x: torch.log(1 + x)), drawn((20, 30), scale=1e-4)),
    *_of("expm1 of a difference", torch.expm1, wide(lambda x: torch.exp(x) - 1), drawn((20, 30), scale=1e-4)),
    *_of("short exponential", torch.sigmoid, wide(A.sigmoid_by_short_exp), drawn((20, 30))),
    *_of("inverse root of twelve bits", E.rms_norm, wide(A.rms_by_estimate), R.of_rms, (20, 30)),
    *_of("tanh overflows", torch.tanh, wide(A.tanh_by_exp), drawn((20, 30), scale=40.0)),
    *_of(
        *("gradient of SiLU without its sigmoid", F.silu),
        *(gradient_of(F.silu, lambda x: x * torch.sigmoid(x).detach()), R.one, (20, 30)),
    ),
    *_of("GELU by tanh for erf", E.gelu, wide(E.gelu_tanh), R.one, (20, 30)),
    *_of(
        *("gradient beyond a limit", lambda x: x.clamp(-1, 1)),
        *(gradient_of(lambda x: x.clamp(-1, 1), lambda x: x * 1), R.one, (20, 30)),
    ),
    *_of("limit forgotten", A.limited, _with(A.limited, limit=math.inf), drawn((20, 30), scale=2.0)),
    *_of(
        *("denormals flushed", lambda x: x * 0.5, A.flushed),
        drawn((20, 30), scale=1e-38, grad=False),
        dtypes=(*FLOAT32, *BFLOAT16),
    ),
    *_of(
        *("denormals flushed", lambda x: x * 0.5, A.flushed),
        drawn((20, 30), scale=1e-4, grad=False),
        dtypes=FLOAT16,
    ),
    *_of("cut in place of rounded", E.gelu, A.truncated, drawn((20, 30), grad=False), below=(*FLOAT32, *HALVES)),
    *_of("rounded twice", E.gelu, A.rounded_twice, drawn((20, 30), grad=False), dtypes=BFLOAT16, below=BFLOAT16),
    *_of("rounded to float16 on the way", E.gelu, A.rounded_twice, drawn((20, 30), grad=False), dtypes=FLOAT32),
    *_of("dropout without its factor", A.dropped_out, _with(A.dropped_out, factor=1.0), masks, (20, 30)),
    *_of(
        *("another mask in the gradient", A.dropped_out),
        *(gradient_of(A.dropped_out, lambda x, keep: x * keep.roll(1, 0) * 2), masks, (20, 30)),
    ),
    *_of("ignored rows counted", A.ignoring, wide(A.ignored_counted), drawn((30, 10), "30<10")),
    *_of(
        "gradient of ignored rows",
        A.ignoring,
        gradient_of(A.ignoring, E.cross_entropy),
        drawn((30, 10), "30<10"),
    ),
    *_of("smoothed over the others", A.smoothed, wide(A.smoothed_over_others), drawn((30, 10), "30<10")),
    *_of("padding of a vocabulary counted", E.cross_entropy, wide(A.padded_vocabulary), drawn((30, 50), "30<50")),
    *_of(
        "divergence of the other direction",
        A.divergence,
        wide(A.divergence_swapped),
        drawn((10, 30), (10, 30)),
    ),
    *_of("logarithm of a rounded sigmoid", A.binary, wide(A.binary_of_logarithms), probabilities, (20, 30)),
    *_of("loss divided by its limit", A.huber, wide(A.huber_scaled), drawn((20, 30), (20, 30), scale=2.0)),
    *_of(
        *("gradient of squared totals dropped", A.squared_logsumexp),
        *(gradient_of(A.squared_logsumexp, E.cross_entropy), drawn((30, 10), "30<10")),
    ),
    *_of("a block counted twice", B.row_sum, wide(B.stale_block), R.one, (8, 200)),
    *_of("memory not set to 0 between calls", B.row_sum, B.Workspace(), R.one, (8, 200)),
    *_of("a column misses a block", B.column_sum, wide(B.column_misses_a_block), R.one, (512, 12)),
    *_of(
        "cumulative gradient forwards",
        E.cumulative,
        gradient_of(E.cumulative, B.cumulative_backwards),
        R.one,
        (4, 20),
    ),
    *_of("cumulative sum without the element", E.cumulative, wide(B.cumulative_exclusive), R.one, (4, 20)),
    *_of("product divided by its factors", B.product, B.ProductByDivision.apply, with_zero, (6, 5)),
    *_of("maximum from 0", B.largest, wide(lambda x: x.amax(-1).clamp(min=0)), drawn((8, 30), shift=-6.0)),
    *_of(
        "mean over the longest",
        B.masked_mean,
        wide(lambda x, n: B.masked_mean(x, n) * n / n.amax()),
        drawn((2, 9), LENGTHS),
    ),
    *_of(
        "segments one row late",
        B.segments,
        wide(lambda x, ends: B.segments(x, ends + 1)),
        drawn((26, 8), ENDS),
    ),
    *_of("decay of the step before", E.scan, wide(B.scan_next_decay), R.of_scan, (2, 30, 4)),
    *_of("gradient of the state cut", E.scan, gradient_of(E.scan, B.scan_cut), R.of_scan, (2, 30, 4)),
    *_of(
        *("read before it is written", B.delta_rule, _with(B.delta_rule, late=True)),
        drawn((16, 4), (16, 4), (16, 4), (16,), scale=0.5),
    ),
    *_of("offsets wrap at 16 bits", E.embedding, B.table_of_short_offsets, R.of_embedding, (5000, 16, 40)),
    *_of(
        "one duplicate lost",
        E.embedding,
        gradient_of(E.embedding, B.one_duplicate_lost),
        R.of_embedding,
        (8, 16, 40),
    ),
    *_of(
        "gradient of a padding row",
        B.padding_row,
        gradient_of(B.padding_row, E.embedding),
        R.of_embedding,
        (8, 16, 40),
    ),
    *_of("pixels in another order", B.shuffled, wide(B.shuffled_other_way), R.one, (2, 8, 4, 4)),
    *_of("offset of a view ignored", E.gelu, B.from_beginning, sliced, (20, 30)),
    *_of("expanded input read as dense", E.add_bias, B.expanded_as_dense, with_expanded, (10, 20)),
    *_of("input left changed", E.softmax, B.scratch, drawn((20, 30), grad=False)),
    *_of(
        "rows read after they were written",
        B.shift_in_place,
        B.shift_while_reading,
        drawn((20, 30), grad=False),
    ),
    *_of("last column of out not written", R.silu_and_mul_into, B.silu_and_mul_short, R.of_silu_out, (8, 20)),
    *_of("an axis of length 1 lost", E.softmax, wide(B.squeezed), R.one, (1, 30)),
    *_of("incoming gradient read as dense", B.doubled_rows, B.IncomingAsDense.apply, R.one, (20, 30)),
    *_of("scale of the next group", B.in_groups, _with(B.in_groups, ahead=1), groups_of_int8, (6, 32, 10)),
    *_of("halves of bytes swapped", B.nibbles, _with(B.nibbles, swapped=True), packed_bits, (6, 32, 10)),
    *_of("zero point one off", B.nibbles, _with(B.nibbles, zero=7), packed_bits, (6, 32, 10)),
    *_of("fewer digits of float8", E.dequantised_matmul, wide(B.by_fewer_digits), R.of_float8, (6, 32, 10)),
    *_of("overflow of float8", B.to_float8, B.to_float8_overflow, drawn((20, 30), scale=200.0, grad=False)),
    *_of("integers cut", B.to_int8, B.to_int8_cut, drawn((20, 30), grad=False)),
    *_of("sums wrap at 16 bits", E.dequantised_matmul, wide(B.short_accumulator), integers_and_int8, (6, 64, 10)),
    *_of("bias added twice", E.linear, wide(B.split_with_bias), R.of_linear, (8, 30, 20)),
    *_of("matrix of the first in a batch", E.matmul, wide(B.batch_of_first), drawn((3, 8, 20), (3, 20, 6))),
    *_of("operands of TF32", E.matmul, wide(B.in_tf32), drawn((8, 64), (64, 6), grad=False), dtypes=FLOAT32),
    *_of(
        *("a cross product forgotten", E.matmul, wide(B.two_parts_without_cross)),
        drawn((8, 64), (64, 6), grad=False),
        dtypes=FLOAT32,
    ),
    *_of(
        *("product overflows before its scale", B.scaled_product, B.scaled_after_overflow),
        drawn((8, 64), (64, 6), grad=False, scale=100.0),
    ),
    *_of("last row of the next expert", B.experts, _with(B.experts, late=1), drawn((24, 8), (3, 8, 5), ENDS)),
    *_of("weights of two experts swapped", B.combined, _with(B.combined, swapped=True), drawn((10, 4), (4, 8))),
    *_of("rotated the other way", E.rope, wide(B.rope_back), R.of_rope, (2, 12, 2, 16)),
    *_of("gradient rotated the same way", E.rope, gradient_of(E.rope, B.rope_back), R.of_rope, (2, 12, 2, 16)),
    *_of("positions in bfloat16", E.rope, wide(B.rope_of_rounded_positions), R.of_rope, (1, 400, 1, 8)),
    *_of("all dimensions rotated", B.rope_partial, wide(E.rope), R.of_rope, (2, 12, 2, 16)),
    *_of(
        "corrected for the next step",
        B.adam,
        B.written_wide(lambda *s: B.adam(*s, step=11)),
        R.of_adamw,
        (500,),
        below=BFLOAT16,
    ),
    *_of(
        "decay through the moments",
        B.adam,
        B.written_wide(lambda *s: B.adam(*s, kind="coupled")),
        R.of_adamw,
        (500,),
    ),
    *_of(
        "epsilon inside the root",
        B.adam,
        B.written_wide(lambda *s: B.adam(*s, kind="inside")),
        R.of_adamw,
        (500,),
        below=HALVES,
    ),
    *_of(
        "momentum updated first",
        B.lion,
        B.written_wide(lambda *s: B.lion(*s, early=True)),
        R.of_sgd,
        (500,),
    ),
    *_of(
        "plain momentum for Nesterov's",
        B.nesterov,
        B.written_wide(lambda *s: B.nesterov(*s, plain=True)),
        R.of_sgd,
        (500,),
    ),
    *_of(
        "norms of gradients not shared",
        B.clipped,
        _with(B.clipped, together=False),
        drawn((20,), (30,), grad=False),
    ),
    *_of("padding on both sides", B.causal_conv, _with(B.causal_conv, left=1), drawn(*SIGNAL)),
    *_of("dilation of one", B.dilated, _with(B.dilated, dilation=1), drawn(*SIGNAL)),
    *_of("channels of the first group", B.grouped, _with(B.grouped, first=True), drawn((2, 4, 30), (6, 2, 3))),
    *_of("weight gradient flipped", E.conv1d, gradient_of(E.conv1d, B.conv_with_flipped_weight), drawn(*SIGNAL)),
    *_of(
        "result one place further",
        B.transposed_conv,
        wide(B.transposed_conv_shifted),
        drawn((2, 4, 15), (4, 6, 3)),
    ),
    *_of("padding counts in a mean", B.mean_pool, _with(B.mean_pool, padding_counts=True), R.one, (2, 3, 20)),
    *_of("corners aligned", B.upsampled, _with(B.upsampled, corners=True), R.one, (2, 3, 20)),
    *_of("pooling padded by 0", B.max_pool, _with(B.max_pool, pad=0.0), drawn((2, 3, 20), shift=-2.0)),
]
