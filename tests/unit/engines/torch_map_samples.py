"""Arguments with which the MindSpore CPU and the bound PyTorch call are compared. Arrays become tensors on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_RANDOM = np.random.Generator(np.random.PCG64(7))


@dataclass(frozen=True)
class Dtype:
    """A dtype by its name."""

    name: str


@dataclass(frozen=True)
class Sample:
    """One call of one API."""

    api_type: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def f(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def u(*shape: int) -> np.ndarray:
    return _RANDOM.uniform(0.1, 0.9, shape).astype(np.float32)


def i(high: int, *shape: int) -> np.ndarray:
    return _RANDOM.integers(0, high, shape).astype(np.int32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def distinct(*shape: int) -> np.ndarray:
    return _RANDOM.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)


X, Y, P, BOOL = f(3, 4), f(3, 4), u(3, 4), f(3, 4) > 0
INT, INT2 = i(9, 3, 4) + 1, i(5, 3, 4) + 1
CUBE, D, SQUARE = f(2, 3, 4), distinct(3, 4), f(4, 4) + 3 * np.eye(4, dtype=np.float32)
SPD = (SQUARE @ SQUARE.T).astype(np.float32)
LABELS, LOGP = i(4, 3), np.log(u(3, 4) / 4).astype(np.float32)
IMAGE, LINE, VOLUME = f(2, 3, 6, 6), f(2, 3, 8), f(1, 2, 5, 5, 5)
HALF = Dtype("float16")

_UNARY = {
    "acos": P, "acosh": P + 1, "arccos": P, "arccosh": P + 1, "arcsin": P, "asin": P, "atanh": P, "arctanh": P,
    "erfinv": P, "log": P, "log10": P, "log1p": P, "log2": P, "rsqrt": P, "sqrt": P, "lgamma": P, "digamma": P,
    "logit": P, "bessel_k0": P, "bessel_k0e": P, "bessel_k1": P, "bessel_k1e": P, "bessel_y0": P, "bessel_y1": P,
    "invert": INT, "bitwise_not": INT, "logical_not": BOOL, "__invert__": INT, "logdet": SPD, "slogdet": SPD,
    "det": SQUARE, "inverse": SQUARE, "cholesky": SPD, "matrix_exp": SQUARE / 4, "trace": SQUARE, "t": X, "qr": SQUARE,
    "adjoint": X, "matrix_determinant": SQUARE, "log_matrix_determinant": SPD, "mvlgamma": None, "cholesky_inverse": None,
    "unique": INT, "diag": f(3), "glu": f(3, 4), "swiglu": f(3, 4), "diagflat": f(3), "bincount": i(5, 6), "vander": f(3),
    "cov": f(3, 4), "median": D, "nanmedian": D, "unique_consecutive": INT, "argwhere": BOOL, "nonzero": BOOL,
    "cartesian_prod": None, "block_diag": None, "is_nonzero": f(1), "channel_shuffle": None, "geqrf": None,
    "normalize": X, "one_hot": LABELS, "combinations": f(4), "numel": X, "rank": X, "pdist": X, "real": None, "imag": None,
    "view_as_real": None, "renorm": None, "item": f(1), "atleast_1d": X, "squeeze": f(1, 3, 1), "__bool__": f(1) > 9,
    "bartlett_window": ints(6)[0], "blackman_window": ints(6)[0], "hamming_window": ints(6)[0], "hann_window": ints(6)[0],
    "kaiser_window": None, "tril_indices": None, "histc": None, "msort": D, "sort": D, "argsort": D, "argmax": D, "argmin": D,
    "max": D, "min": D, "aminmax": D, "eye": 3, "arange": 5, "is_complex": X, "is_floating_point": X, "signbit": X,
    "cond": SQUARE, "fft": None, "fft2": None, "fftn": None, "type": None, "to_": None, "numpy": None, "asnumpy": None,
    "affine_grid": None, "accumulate_n": [X, Y], "addn": [X, Y], "hstack": [X, Y], "vstack": [X, Y], "dstack": [X, Y],
    "column_stack": [X, Y], "row_stack": [X, Y], "cat": [X, Y], "concat": [X, Y], "stack": [X, Y], "scalar_to_tensor": 3.5,
    "zeros": (2, 3), "ones": (2, 3), "sequence_mask": i(5, 3) + 1, "einsum": None, "meshgrid": None, "is_tensor": None,
    "isreal": X, "tolist": None, "stride": None, "dim": X, "contiguous": X, "storage_offset": None, "deepcopy": X,
}  # fmt: skip
_BINARY = {
    "bitwise_and": (INT, INT2), "bitwise_or": (INT, INT2), "bitwise_xor": (INT, INT2), "__and__": (INT, INT2),
    "__or__": (INT, INT2), "__xor__": (INT, INT2), "bitwise_left_shift": (INT, INT2), "bitwise_right_shift": (INT, INT2),
    "gcd": (INT, INT2), "lcm": (INT, INT2), "logical_and": (BOOL, ~BOOL), "logical_or": (BOOL, ~BOOL),
    "logical_xor": (BOOL, ~BOOL), "pow": (P, Y), "__pow__": (P, Y), "float_power": (P, Y), "xlogy": (X, P), "xdivy": (X, P),
    "igamma": (P, P + 1), "igammac": (P, P + 1), "zeta": (P + 2, P + 1), "polar": (P, Y), "matmul": (X, f(4, 2)),
    "__matmul__": (X, f(4, 2)), "mm": (X, f(4, 2)), "bmm": (CUBE, f(2, 4, 2)), "mv": (X, f(4)), "dot": (f(4), f(4)),
    "outer": (f(3), f(4)), "ger": (f(3), f(4)), "inner": (X, Y), "kron": (f(2, 2), f(2, 3)), "vdot": (f(4), f(4)),
    "cholesky_solve": (f(4, 2), np.linalg.cholesky(SPD).astype(np.float32)), "expand_as": (f(1, 4), Y), "tile": (X, (2, 1)),
    "heaviside": (X, Y), "ldexp": (X, INT2), "reshape": (X, (2, 6)), "broadcast_to": (f(1, 4), (3, 4)), "view": (X, (2, 6)),
    "expand": (f(1, 4), (3, 4)), "permute": (CUBE, (2, 0, 1)), "flip": (X, (0,)), "reverse": (X, (0,)), "prelu": (X, u(4)),
    "unsqueeze": (X, 1), "expand_dims": (X, 1), "chunk": (X, 2), "split": (X, 2), "tensor_split": (X, 2), "roll": (X, 2),
    "hsplit": (X, 2), "vsplit": (X[:2], 2), "dsplit": (CUBE, 2), "topk": (D, 2), "top_k": (D, 2), "cummax": (D, 0),
    "cummin": (D, 0), "cumsum": (X, 0), "cumprod": (X, 0), "logcumsumexp": (X, 0), "logsumexp": (X, 0), "softmax": (X, -1),
    "log_softmax": (X, -1), "softmin": (X, -1), "masked_select": (X, BOOL), "repeat_interleave": (X, 2), "cast": (X, HALF),
    "repeat_elements": (X, 2), "full": ((2, 3), 1.5), "full_like": (X, 1.5), "fill": None, "fills": (X, 2.5), "cdist": (X, Y),
    "dist": (X, Y), "cosine_similarity": (X, Y), "l1_loss": (X, Y), "mse_loss": (X, Y), "smooth_l1_loss": (X, Y),
    "huber_loss": (X, Y), "binary_cross_entropy": (P, u(3, 4)), "binary_cross_entropy_with_logits": (X, P), "kl_div": (LOGP, P),
    "cross_entropy": (X, LABELS), "nll_loss": (LOGP, LABELS), "soft_margin_loss": (X, np.sign(Y)), "bias_add": (CUBE, f(3)),
    "hinge_embedding_loss": (X, np.sign(Y)), "multi_margin_loss": (X, LABELS), "multilabel_soft_margin_loss": (X, (Y > 0) * 1.0),
    "dense": (X, f(5, 4)), "linear": (X, f(5, 4)), "embedding": (LABELS, f(9, 4)), "layer_norm": (X, (4,)),
    "rms_norm": (X, f(4)), "gather_nd": (X, ints([0, 1], [2, 3])), "take": (X, LABELS), "pixel_shuffle": (f(1, 4, 2, 2), 2),
    "pixel_unshuffle": (f(1, 1, 4, 4), 2), "adaptive_avg_pool1d": (LINE, 4), "adaptive_avg_pool2d": (IMAGE, 3),
    "adaptive_avg_pool3d": (VOLUME, 3), "adaptive_max_pool1d": (LINE, 4), "adaptive_max_pool2d": (IMAGE, 3),
    "max_pool2d": (IMAGE, 2), "max_pool3d": (VOLUME, 2), "avg_pool1d": (LINE, 2), "avg_pool2d": (IMAGE, 2),
    "avg_pool3d": (VOLUME, 2), "conv1d": (LINE, f(4, 3, 3)), "conv2d": (IMAGE, f(4, 3, 3, 3)), "conv3d": (VOLUME, f(4, 2, 3, 3, 3)),
    "conv_transpose2d": (IMAGE, f(3, 4, 3, 3)), "group_norm": (f(2, 4, 3), 2), "unfold": (IMAGE, 2), "pad": (X, (1, 2)),
    "searchsorted": (np.sort(f(6)), f(4)), "bucketize": (X, [0.0, 0.5]), "einsum": ("ij,jk->ik", X, f(4, 2)), "cross": None,
    "gumbel_softmax": None, "histc": (X, 5), "where": None, "moveaxis": (CUBE, 0, 2), "movedim": (CUBE, 0, 2),
    "grid_sample": (IMAGE, np.clip(f(2, 4, 4, 2), -0.9, 0.9)), "multiply": (X, Y), "type_as": (X, INT), "view_as": (X, f(2, 6)),
    "reshape_as": (X, f(2, 6)), "to": (X, HALF), "astype": (X, HALF), "lp_pool1d": None, "nextafter": (X, Y), "repeat": (X, 2, 1),
    "matrix_power": (SQUARE, 2), "polygamma": (ints(1)[0], P), "renorm": (X, 2, 0, 1.0), "addr": (f(3, 4), f(3), f(4)),
    "slice": (X, (1, 0), (2, -1)), "vecdot": (X, Y), "quantile": (X, 0.5), "nanquantile": (X, 0.5), "diff": (X, 1),
    "rot90": (X, 1, (0, 1)), "range": (1, 7, 2), "linspace": (0, 1, 5), "logspace": None, "tensor_dot": (X, f(4, 2), 1),
    "norm": (X, 2), "vector_norm": (X, 2), "matrix_norm": (X,), "matrix_solve": (SQUARE, f(4, 2)), "xlogy_": None, "arange": (2, 9, 3),
    "tril": (X, 1), "triu": (X, 1), "eye": (3, 4), "divide": (X, P), "div": (X, P), "__truediv__": (X, P), "fold": None, "t": None,
    "dropout": None, "dropout2d": None, "normal": None, "bernoulli": None, "max_unpool2d": None, "prod": (X, 1), "mean": (X, 1),
    "sum": (X, 1), "any": (BOOL, 1), "all": (BOOL, 1), "std": (X, 1), "var": (X, 1), "std_mean": (X, 1), "var_mean": (X, 1),
    "amax": (X, 1), "amin": (X, 1), "max": (D, 1), "min": (D, 1), "argmax": (D, 1), "argmin": (D, 1), "median": (D, 1), "sort": (D, 0),
    "argsort": (D, 0), "count_nonzero": (INT, 1), "nansum": (X, 1), "nanmean": (X, 1), "unbind": (X, 0), "unstack": (X, 0),
    "squeeze": (f(1, 3), 0), "flatten": (CUBE,), "swapaxes": (CUBE, 0, 2), "swapdims": (CUBE, 0, 2), "transpose": None, "round": (X,),
    "set_": None, "copy_": (f(3, 4), Y), "adaptive_max_pool3d": (VOLUME, 3), "glu": (f(3, 4), 0), "kthvalue": (D, 2), "sum_to_size": (X, 1, 4),
    "zeros": None, "ones": None, "ravel": (X,), "index": None, "new_zeros": (X, (2,)), "new_ones": (X, (2,)), "cholesky": None,
    "ptp": (X, 0), "argmax_with_value": (D, 1), "argmin_with_value": (D, 1), "fill_diagonal": (X, 2.0), "cond": None, "cov": None,
    "tensor_muls": (X, 3), "gather": None, "nan_to_num": (X, 0.0), "log_": None, "real": None, "imag": None,
}  # fmt: skip
# Names that are random, uninitialised, or return what is no value.
_LEFT_OUT = frozenset(
    """bernoulli multinomial rand randn randint rand_like randn_like randint_like randperm normal dropout dropout2d empty
    empty_like new_empty is_contiguous storage data_ptr get_bytes register_hook set_ to_dlpack shape size dyn_shape""".split()
)


def samples(names_of: dict[str, list[str]]) -> Iterator[Sample]:
    """Samples of the given names, by API type."""
    for api_type, names in names_of.items():
        for name in names:
            if name not in _LEFT_OUT:
                yield from _generic(api_type, name)
    yield from _EXPLICIT


def _generic(api_type: str, name: str) -> Iterator[Sample]:
    short = name.rpartition(".")[2]
    for table in (_UNARY, _BINARY):
        value = table.get(short, X if table is _UNARY else (X, Y))
        if value is None:
            continue
        args = value if table is _BINARY else (value,)
        if api_type == "Tensor" and not isinstance(args[0], np.ndarray):
            continue
        yield Sample(api_type, name, args)


def _of(api_type: str, *calls: tuple[Any, ...]) -> list[Sample]:
    return [
        Sample(api_type, call[0], call[1:-1], call[-1]) if isinstance(call[-1], dict) else Sample(api_type, call[0], call[1:])
        for call in calls
    ]


ROWS = ints(2, 0)
_EXPLICIT = [
    *_of("Mint",
        ("npu_gelu", X, {"approximate": "tanh"}), ("arange", 5), ("arange", 1.0, 4.0, 0.5), ("arange", 1, {"end": 4}),
        ("argsort", D, 0, True), ("cumsum", X, 0, Dtype("float32")), ("eye", 3), ("eye", 3, 2), ("full", 3, 2.0),
        ("gather", X, 1, i(4, 3, 2)), ("index_select", X, 0, ROWS), ("median", D), ("median", D, 1, True), ("prod", X),
        ("prod", X, 1, True), ("repeat_interleave", X, ints(1, 2, 3), 0), ("repeat_interleave", X, 2, {"dim": 1}),
        ("scatter", X, 1, i(4, 3, 2), f(3, 2)), ("scatter", X, 1, i(4, 3, 2), 2.0), ("scatter_add", X, 1, i(4, 3, 4), Y),
        ("sort", D, {"dim": 0, "descending": True}), ("squeeze", f(1, 3)), ("squeeze", f(1, 3), {"dim": 0}), ("max", D, 1),
        ("max", X, Y), ("min", D, 1, True), ("min", X, Y), ("max", D), ("linalg.inv", SQUARE), ("linalg.norm", X),
        ("linalg.norm", X, 1), ("linalg.vector_norm", X, 2, 1), ("linalg.matrix_norm", X), ("linalg.qr", SQUARE),
        ("special.log_softmax", X, 1), ("special.erfc", X), ("special.round", X), ("addmm", f(3, 2), X, f(4, 2), {"beta": 0.5}),
        ("baddbmm", f(2, 3, 2), CUBE, f(2, 4, 2), {"alpha": 2.0}), ("addbmm", f(3, 2), CUBE, f(2, 4, 2)), ("clamp", X, -0.5, 0.5),
        ("addcdiv", X, Y, P, {"value": 2.0}), ("lerp", X, Y, 0.3), ("where", BOOL, X, Y), ("transpose", CUBE, 0, 2),
        ("split", X, (1, 2)), ("split", X, (1, 3), 1), ("tile", X, (2, 2)), ("narrow", X, 1, 1, 2), ("select", X, 0, 1),
        ("masked_select", X, BOOL), ("add", X, Y, {"alpha": 2}), ("sub", X, 2.0), ("add", 2.0, X), ("sub", 2.0, X), ("div", 2.0, P),
        ("div", X, P, {"rounding_mode": "floor"}), ("amax", X), ("amax", X, (0, 1)), ("std", X, {"dim": 1, "correction": 0}),
        ("var", X), ("mean", X), ("sum", X, (0, 1), True), ("norm", X), ("norm", X, 2, 1), ("logsumexp", X, (0, 1)), ("any", BOOL),
        ("all", BOOL, 1), ("topk", D, 2, 0, False), ("meshgrid", f(2), f(3)), ("einsum", "bij,bjk->bik", CUBE, f(2, 4, 5)),
        ("nonzero", BOOL, {"as_tuple": True}), ("index_add", X, 0, ROWS, f(2, 4)), ("greater_equal", 0.5, X), ("cross", f(2, 3), f(2, 3)),
        ("batch_norm_elemt", IMAGE, f(3), f(3), f(3), u(3)), ("batch_norm_stats", IMAGE, 1e-5), ("nan_to_num", X, 0.0), ("take", X, ROWS),
        ("dot", f(3), {"other": f(3)}), ("isnan", X), ("conv_tbc", f(5, 2, 3), f(3, 3, 4), f(4)), ("pow", 2.0, X), ("addmv", f(3), X, f(4)),
    ),
    *_of("MintFunctional",
        ("flatten", CUBE, 1), ("sigmoid_", f(3, 4)), ("cross_entropy", X, LABELS, f(4) ** 2), ("cross_entropy", X, LABELS, None, 1, "sum", 0.1),
        ("nll_loss", LOGP, LABELS, None, -100, "none"), ("mse_loss", X, Y, "sum"), ("kl_div", LOGP, P, "batchmean"), ("softmax", X),
        ("softmax", X, 1, Dtype("float32")), ("log_softmax", X), ("binary_cross_entropy", P, u(3, 4), None, "none"), ("l1_loss", X, Y, "sum"),
        ("binary_cross_entropy_with_logits", X, P, None, "sum", u(4)), ("layer_norm", X, (4,), f(4), f(4)), ("gelu", X, {"approximate": "tanh"}),
        ("batch_norm", IMAGE, f(3), u(3), f(3), f(3)), ("group_norm", f(2, 4, 3), 2, f(4), f(4)), ("linear", X, f(5, 4), f(5)),
        ("embedding", LABELS, f(9, 4)), ("conv2d", IMAGE, f(4, 3, 3, 3), f(4), 2, 1), ("max_pool2d", IMAGE, 3, 2, 1), ("avg_pool2d", IMAGE, 3, 2),
        ("interpolate", IMAGE, {"size": (3, 3)}), ("interpolate", IMAGE, {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True}),
        ("pad", X, (1, 1), "constant", 2.0), ("pad", LINE, (1, 1), "reflect"), ("one_hot", LABELS, 5), ("threshold", X, 0.1, 2.0), ("unfold", IMAGE, 2),
        ("fold", f(1, 12, 9), (4, 4), (2, 2)), ("leaky_relu", X, 0.2), ("hardtanh", X), ("elu", X, 0.5), ("normalize", X), ("prelu", X, u(1)),
        ("cosine_embedding_loss", X, Y, np.sign(f(3)), 0.1, "sum"), ("smooth_l1_loss", X, Y), ("grid_sample", IMAGE, np.clip(f(2, 4, 4, 2), -0.9, 0.9)),
        ("upsample", IMAGE, {"scale_factor": 2}), ("adaptive_avg_pool2d", IMAGE, (2, 3)), ("silu", X), ("relu6", X), ("logsigmoid", X), ("glu", f(3, 4)),
    ),
    *_of("Functional",
        ("addcdiv", X, Y, P, 2.0), ("addcmul", X, Y, P, 2.0), ("approximate_equal", X, Y, 0.5), ("clamp", X, -0.5, 0.5), ("clip", X, None, 0.5),
        ("clamp", X, np.float32(-0.5) * np.ones(4, np.float32), 0.5), ("clip_by_value", X, -0.5, 0.5), ("clip_by_norm", X, 1.0),
        ("clip_by_norm", [X, Y], 1.0), ("clip_by_global_norm", (X, Y), 1.0), ("lerp", X, Y, 0.3), ("where", BOOL, X, Y), ("where", BOOL, X, 2.0),
        ("select", BOOL, X, Y), ("isclose", X, X), ("subtract", X, Y, {"alpha": 2}), ("div", X, P, {"rounding_mode": "trunc"}), ("logit", P, 1e-3),
        ("all", BOOL), ("all", BOOL, (), True), ("amax", X), ("amax", X, (0, 1), True), ("amin", X, 1, {"initial": 0.0, "where": BOOL}),
        ("aminmax", X, {"axis": 1}), ("argmin", D, 1, True), ("count_nonzero", INT - 3), ("count_nonzero", INT - 3, 1, True), ("cumprod", X, 1),
        ("max", D, 1, True), ("min", D), ("max", D, 0, {"initial": 5.0, "where": BOOL}), ("mean", X), ("mean", X, (0, 1), True), ("median", D, 0, True),
        ("norm", X), ("norm", X, 2, 1), ("norm", X, {"dim": (0, 1)}), ("prod", X), ("prod", X, 1, True), ("std", X), ("std", X, 1, 1, True),
        ("std", X, {"ddof": True}), ("std_mean", X, 1), ("var", X, (0, 1)), ("var_mean", X, 1, 1), ("sum", X), ("sum", X, (0, 1), True),
        ("trapz", X), ("trapz", X, np.sort(f(3, 4))), ("trapz", X, {"dx": 0.5, "dim": 0}), ("logsumexp", X, (0, 1), True), ("nansum", X, 1),
        ("argsort", D, -1, True), ("sort", D, -1, True), ("topk", D, 2), ("topk", D, 2, 0), ("topk", D, 2, -1, False), ("unique", ints(3, 1, 3, 2, 1)),
        ("unique_consecutive", ints(1, 1, 2, 2, 3), True, True), ("searchsorted", np.sort(f(6)), f(4), {"right": True}),
        ("celu", X, 0.5), ("elu", X), ("gelu", X, "tanh"), ("glu", f(3, 4), 0), ("hardtanh", X, -0.5, 0.5), ("leaky_relu", X), ("softmax", X, 0),
        ("softmax", X, {"dtype": Dtype("float64")}), ("threshold", X, 0.1, 2.0), ("softplus", X), ("softplus", X, 2, 1), ("swiglu", f(3, 4), 0),
        ("batch_norm", IMAGE, f(3), u(3), f(3), f(3)), ("batch_norm", IMAGE, f(3), u(3), f(3), f(3), True), ("bias_add", X, f(4)),
        ("bidense", X, f(3, 5), f(2, 4, 5)), ("conv1d", LINE, f(4, 3, 3), f(4), 1, "same"), ("conv1d", LINE, f(4, 3, 3), None, 2, "pad", 2),
        ("conv2d", IMAGE, f(4, 3, 3, 3), f(4), 2, "same"), ("conv2d", IMAGE, f(4, 3, 2, 2), None, 1, "same"), ("conv2d", IMAGE, f(4, 3, 3, 3), None, 2, "pad", (1, 2)),
        ("conv2d", IMAGE, f(3, 1, 3, 3), None, 1, "valid", 0, 2, 3), ("conv3d", VOLUME, f(4, 2, 3, 3, 3), None, 1, "pad", 1), ("dense", X, f(5, 4), f(5)),
        ("fold", f(1, 3, 4, 9), ints(4, 4), (2, 2)), ("group_norm", f(2, 4, 3), 2, f(4), f(4)), ("interpolate", IMAGE, {"size": (3, 3)}),
        ("interpolate", IMAGE, {"size": (4, 8), "mode": "bilinear"}), ("interpolate", LINE, {"size": 5, "mode": "linear", "align_corners": True}),
        ("interpolate", IMAGE, {"size": (4, 8), "mode": "bicubic"}), ("interpolate", IMAGE, {"size": (2, 3), "mode": "area"}),
        ("layer_norm", X, (4,), f(4), f(4)), ("lrn", IMAGE, 1), ("lrn", IMAGE), ("pad", X, [1, 2, 0, 1], "constant", 2.0), ("pad", LINE, (1, 1), "reflect"),
        ("pad", IMAGE, (1, 1, 2, 0), "replicate"), ("lp_pool1d", np.abs(LINE), 2, 2), ("lp_pool2d", np.abs(IMAGE), 2, 2), ("channel_shuffle", f(1, 4, 2, 2), 2),
        ("upsample", IMAGE, (12, 12)), ("affine_grid", f(2, 2, 3), (2, 3, 4, 4)), ("avg_pool2d", IMAGE, 3, 2, 1, False, False), ("avg_pool2d", IMAGE, 2, 2, 0, False, True, 3),
        ("avg_pool1d", LINE, 3, 2, 1), ("max_pool2d", IMAGE, 3, 2, 1), ("max_pool2d", IMAGE, 2, {"return_indices": True}), ("max_pool3d", VOLUME, 3, 2, 1),
        ("cosine_embedding_loss", X, Y, np.sign(f(3))), ("cross_entropy", X, LABELS, f(4) ** 2), ("cross_entropy", X, u(3, 4)), ("cross_entropy", X, LABELS, None, 1, "sum"),
        ("binary_cross_entropy_with_logits", X, P, u(3, 4), u(3, 4), "sum"), ("gaussian_nll_loss", X, Y, P), ("kl_div", LOGP, P, "batchmean"),
        ("l1_loss", X, Y, "sum"), ("margin_ranking_loss", X, Y, np.sign(f(3, 4)), 0.1), ("nll_loss", LOGP, LABELS, u(4), -100, "sum"),
        ("multilabel_margin_loss", X, ints([1, 2, -1, 0], [0, -1, 1, 2], [3, 2, 1, -1])), ("smooth_l1_loss", X, Y, 0.5, "mean"), ("triplet_margin_loss", X, Y, P),
        ("huber_loss", X, Y, "sum", 0.5), ("mse_loss", X, Y, "none"), ("addbmm", f(3, 2), CUBE, f(2, 4, 2), {"beta": 0.5}), ("addmm", f(3, 2), X, f(4, 2), {"alpha": 2}),
        ("addmv", f(3), X, f(4)), ("baddbmm", f(2, 3, 2), CUBE, f(2, 4, 2)), ("bmm", f(2, 2, 3, 4), f(2, 2, 4, 5)), ("dot", CUBE, f(2, 4, 5)), ("dot", X, f(4, 2)),
        ("cross", f(2, 3), f(2, 3)), ("einsum", "bij,bjk->bik", CUBE, f(2, 4, 5)), ("matmul", CUBE, f(4)), ("matrix_band_part", CUBE, 1, 0), ("pinv", X),
        ("orgqr", f(4, 3), f(3)), ("qr", f(4, 3), "complete"), ("tensor_dot", CUBE, f(4, 3, 2), ((1, 2), (1, 0))), ("cov", X, {"correction": 0}),
        ("block_diag", X, Y), ("cartesian_prod", f(2), f(3)), ("cat", [X, Y], 1), ("chunk", X, 3, 1), ("diag", f(3)), ("diag", f(2, 2)), ("diag_embed", X, 1),
        ("diagonal", CUBE, 1, 1, 2), ("diagonal_scatter", SQUARE, f(4)), ("flatten", CUBE), ("flatten", CUBE, "F"), ("flatten", CUBE, {"start_dim": 0}),
        ("flatten", f(3)), ("meshgrid", f(2), f(3)), ("meshgrid", f(2), f(3), {"indexing": "ij"}), ("narrow", X, 1, 1, 2), ("nonzero", BOOL, {"as_tuple": True}),
        ("repeat_interleave", X, ints(1, 2, 3), 0), ("repeat_interleave", X, 2), ("reverse_sequence", X, ints(2, 4, 1), 1), ("reverse_sequence", X, ints(2, 3, 1, 2), 0, 1),
        ("roll", X, (1, 2), (0, 1)), ("shape", X), ("size", X), ("slice_scatter", X, f(3, 2), 1, 1, 3), ("split", X, (1, 3), 1), ("squeeze", f(1, 3, 1)),
        ("squeeze", f(1, 3, 1), 2), ("squeeze", f(1, 3, 1), (0, 2)), ("stack", [X, Y], 1), ("strided_slice", CUBE, (0, 2, 1), (2, 0, 4), (1, -1, 2)),
        ("strided_slice", CUBE, (0, 1, 0), (2, 2, 3), (1, 1, 1), {"begin_mask": 4, "end_mask": 1, "shrink_axis_mask": 2}),
        ("strided_slice", CUBE, (0, 0, 1), (1, 1, 3), (1, 1, 1), {"ellipsis_mask": 2, "shrink_axis_mask": 1}),
        ("strided_slice", CUBE, (0, 0, 1), (1, 1, 3), (1, 1, 1), {"new_axis_mask": 2}), ("transpose", CUBE, (2, 0, 1)), ("unstack", X, 1), ("tensor_split", X, (1, 2), 1),
        ("arange", 5), ("arange", 1.0, 4.0, 0.5), ("eye", 3), ("fill", Dtype("float32"), (2, 3), 1.5), ("full", 3, 2.0), ("one_hot", LABELS, 5), ("ones", 3),
        ("one_hot", LABELS, 3, np.float32(2.0).reshape(()), np.float32(-1.0).reshape(()), 0), ("zeros", (2,), Dtype("float16")), ("tril_indices", 3, 4, 1),
        ("gather", X, ROWS, 0), ("gather", X, ints([0, 1], [3, 2]), 1), ("gather", CUBE, i(3, 2, 2), 1, 1), ("gather_d", X, 1, i(4, 3, 2)),
        ("gather_elements", X, 1, i(4, 3, 2)), ("gather_nd", CUBE, ints([[0, 1]], [[1, 2]])), ("index_add", f(3, 4), ROWS, f(2, 4), 0), ("index_fill", X, 0, ROWS, 9.0),
        ("index_select", X, 1, ROWS), ("inplace_add", f(3, 4), f(2, 4), (0, 2)), ("inplace_sub", f(3, 4), f(2, 4), (0, 2)), ("inplace_update", f(3, 4), f(2, 4), (0, 2)),
        ("masked_fill", X, BOOL, 5.0), ("masked_fill", f(1, 4), BOOL, 5.0), ("scatter", X, 1, i(4, 3, 4), Y), ("scatter", X, 1, distinct(3, 4).astype(np.int32) % 4, 2.0),
        ("scatter_nd", ints([1], [3]), f(2, 4), (5, 4)), ("scatter_nd", ints([0, 1], [2, 3], [0, 1]), f(3), (3, 4)), ("select_scatter", X, f(4), 0, 1),
        ("tensor_scatter_elements", X, ints([1], [0], [3]), f(3, 1), 1), ("tensor_scatter_elements", X, ints([1], [0], [3]), f(3, 1), 1, "add"),
        *((f"tensor_scatter_{how}", X, ints([0, 1], [2, 3], [0, 1]), u(3)) for how in ("add", "sub", "mul", "div", "max", "min")),
        *((f"unsorted_segment_{how}", X, ints(1, 0, 1), 3) for how in ("sum", "max", "min", "prod")), ("unsorted_segment_sum", X, i(3, 3, 4), 3),
        ("fft", X), ("rfft", X), ("fftshift", X), ("renorm", X, 2, 0, 1.0), ("histc", X, 5, -1.0, 1.0), ("bincount", i(5, 6), u(6)), ("sequence_mask", ROWS, 4),
        ("ormqr", SQUARE, f(4), f(4, 2)), ("lu_solve", f(4, 2), SQUARE, ints(1, 2, 3, 4)), ("cdist", X, Y, 1.0), ("dist", X, Y, 1), ("mvlgamma", P + 3, 2),
    ),
    *_of("Tensor",
        ("__add__", X, 2), ("__radd__", X, 2), ("__rsub__", X, Y), ("__rmul__", X, 2), ("__rpow__", P, 2), ("__rmod__", P, 2), ("__rtruediv__", P, 2),
        ("__getitem__", X, 1), ("__getitem__", X, (slice(0, 2), slice(None, None, 2))), ("__getitem__", X, (Ellipsis, 0)), ("__getitem__", X, (None, 1)),
        ("__getitem__", X, BOOL), ("__getitem__", X, ROWS), ("__getitem__", X, (ROWS, ROWS)), ("__neg__", X), ("__floordiv__", X, P), ("__mod__", X, P),
        ("__rfloordiv__", P, 2), ("__eq__", INT, INT2), ("__lt__", X, 0.1), ("all", BOOL, {"axis": 1, "keep_dims": True}), ("all", BOOL, {"dim": 1}),
        ("any", BOOL), ("any", BOOL, {"axis": (0, 1)}), ("amax", X, (0, 1), True), ("argmax", D, {"axis": 1, "keepdims": True}), ("argmax", D, {"dim": 1}),
        ("argmin", D, {"axis": 1}), ("argsort", D, {"axis": 0, "descending": True}), ("argsort", D, 0, True), ("chunk", X, {"chunks": 2, "axis": 1}),
        ("clamp", X, -0.5, 0.5), ("clip", X, {"max": 0.5}), ("count_nonzero", INT, {"axis": 1, "keep_dims": True}), ("cumsum", X, {"axis": 1}), ("cumsum", X),
        ("cumsum", X, {"dim": 1}), ("diag", f(3)), ("diagonal", CUBE, 1, 1, 2), ("diff", X, 1, 0), ("flatten", CUBE), ("flatten", CUBE, 1), ("flatten", CUBE, "F"),
        ("flatten", CUBE, {"start_dim": 1, "end_dim": 2}), ("gather", X, 1, i(4, 3, 2)), ("gather", X, ROWS, 1), ("gather", CUBE, i(3, 2, 2), 1, 1),
        ("index_add", X, ROWS, f(2, 4), 0), ("index_add", X, 0, ROWS, f(2, 4)), ("index_select", X, {"axis": 1, "index": ROWS}), ("index_select", X, 0, ROWS),
        ("index_fill", X, 0, ROWS, 9.0), ("index_put", X, (ROWS, ROWS), f(2)), ("isclose", X, {"x2": Y}), ("logical_and", BOOL, {"other": ~BOOL}),
        ("logsumexp", X, 1, True), ("masked_fill", X, BOOL, 5.0), ("masked_scatter", X, BOOL, f(12)), ("max", D), ("max", D, 1), ("max", D, {"axis": 1}), ("max", D, {"dim": 1}),
        ("max", D, {"axis": 1, "keepdims": True, "return_indices": True}), ("min", D, 0), ("min", D, {"axis": (0, 1)}), ("max", D, {"axis": 1, "initial": 5.0, "where": BOOL}),
        ("mean", X), ("mean", X, 1, True), ("mean", X, {"axis": 1, "keep_dims": True}), ("mean", X, {"dim": 1, "keepdim": True}), ("mean", X, (0, 1)),
        ("median", D), ("median", D, 1), ("median", D, {"axis": 1}), ("narrow", X, {"axis": 1, "start": 1, "length": 2}), ("norm", X), ("norm", X, 2, 1), ("prod", X), ("prod", X, 1, True),
        ("permute", CUBE, 2, 0, 1), ("permute", CUBE, {"axis": (2, 0, 1)}), ("ptp", X), ("ptp", X, 1, True), ("repeat", X, 2, 3), ("repeat", X, (2, 3)),
        ("repeat_interleave", X, 2, 1), ("repeat_interleave", X, ints(1, 2, 3), 0), ("reshape", X, 2, 6), ("reshape", X, -1), ("round", X, {"decimals": 1}),
        ("scatter", X, 1, i(4, 3, 4), Y), ("scatter", X, {"axis": 1, "index": ints([1], [0], [3]), "src": f(3, 1)}), ("scatter_add", X, 1, i(4, 3, 4), Y),
        ("scatter_add", X, ints([0, 1], [2, 3]), f(2)), *((f"scatter_{how}", X, ints([0, 1], [2, 3]), u(2)) for how in ("sub", "mul", "div", "max", "min")),
        ("searchsorted", np.sort(f(6)), f(4), "right"), ("select", X, 0, 1), ("select", X, BOOL, Y), ("softmax", X, 1), ("sort", D, 0, True), ("sort", D, {"axis": 0, "descending": True}),
        ("split", X, (1, 2)), ("split", X, 2, 1), ("split", X, {"split_size_or_sections": 2, "axis": 1}), ("squeeze", f(1, 3, 1)), ("squeeze", f(1, 3, 1), 2), ("squeeze", f(1, 3, 1), {"axis": (0, 2)}),
        ("std", X), ("std", X, 1), ("std", X, 1, 1), ("std", X, {"axis": 1, "ddof": 1}), ("std", X, {"dim": 1, "correction": 0}), ("std", X, {"axis": 1, "keepdims": True}), ("var", X), ("var", X, 1),
        ("var", X, {"axis": 1, "ddof": 1, "keepdims": True}), ("var", X, {"dim": 1}), ("sub", X, {"y": Y}), ("sum", X), ("sum", X, 1), ("sum", X, 1, True), ("sum", X, {"axis": 1, "keepdims": True}),
        ("sum", X, {"axis": 1, "initial": 2.0}), ("sum", X, {"dim": (0, 1), "keepdim": True}), ("swapaxes", CUBE, 0, 2), ("take", X, ROWS), ("take", X, ROWS, 1), ("take", X, {"indices": ROWS, "axis": 0}),
        ("tile", X, (2, 1)), ("tile", X, {"reps": (2, 1)}), ("to", X, HALF), ("topk", D, 2, 0), ("topk", D, 2, {"largest": False}), ("trace", CUBE), ("trace", SQUARE, 1),
        ("transpose", SQUARE, 0, 1), ("transpose", CUBE, 0, 2), ("transpose", CUBE, 2, 0, 1), ("transpose", CUBE, (2, 0, 1)), ("transpose", CUBE), ("transpose", CUBE, {"axes": (2, 0, 1)}),
        ("type", X, HALF), ("unsqueeze", X, {"dim": 1}), ("unfold", IMAGE, 2), ("view", X, 2, 6), ("where", X, BOOL, Y), ("where", X, {"condition": BOOL, "other": Y}), ("gather_elements", X, 1, i(4, 3, 2)),
        ("gather_nd", X, ints([0, 1], [2, 3])), ("inplace_update", f(3, 4), f(2, 4), (0, 2)), ("moveaxis", CUBE, 0, 2), ("select_scatter", X, f(4), 0, 1), ("slice_scatter", X, f(3, 2), 1, 1, 3),
        ("addcdiv", X, Y, P), ("addcmul", X, Y, P, 2.0), ("addmm", f(3, 2), X, f(4, 2)), ("addbmm", f(3, 2), CUBE, f(2, 4, 2)), ("baddbmm", f(2, 3, 2), CUBE, f(2, 4, 2)), ("addmv", f(3), X, f(4)),
        ("unsorted_segment_max", X, ints(1, 0, 1), 3), ("unsorted_segment_prod", X, ints(1, 0, 1), 3), ("lerp", X, Y, 0.3), ("qr", SQUARE), ("fill", X, 2.0), ("nansum", X, {"axis": 1}), ("new_full", X, (2,), 3.0),
        ("reverse_sequence", X, ints(2, 4, 1), 1), ("cross", f(2, 3), f(2, 3)), ("matmul", CUBE, {"tensor2": f(4)}), ("remainder", X, {"divisor": P}), ("renorm", X, 2, 0, 1.0), ("expand", f(1, 4), 3, 4),
    ),
    *_of("Primitive",
        ("Dense", X, f(5, 4), f(5)), ("TopK", D, 2), ("GatherD", X, 1, i(4, 3, 2)), ("GatherNd", X, ints([0, 1], [2, 3])), ("Cast", X, HALF), ("Transpose", CUBE, (2, 0, 1)), ("Reshape", X, (2, 6)),
        ("ExpandDims", X, 1), ("Tile", X, (2, 1)), ("Select", BOOL, X, Y), ("AddN", (X, Y)), ("MaskedFill", X, BOOL, np.float32(5.0).reshape(())), ("Lerp", X, Y, u(3, 4)), ("Flatten", CUBE), ("GeLU", X), ("ReLU", X), ("SiLU", X),
        ("Slice", X, (1, 0), (2, 3)), ("ScatterNd", ints([1], [3]), f(2, 4), (5, 4)), ("UnsortedSegmentSum", X, ints(1, 0, 1), 3), ("Addcdiv", X, Y, P, u(1)), ("Addcmul", X, Y, P, u(1)), ("Unique", ints(3, 1, 3, 2, 1)),
        ("SoftmaxCrossEntropyWithLogits", X, np.eye(4, dtype=np.float32)[:3]), ("SigmoidCrossEntropyWithLogits", X, P), ("MaskedSelect", X, BOOL), ("L2Loss", X), ("PReLU", X, u(4)), ("ReLU6", X), ("Diag", f(2, 2)),
        ("TensorScatterAdd", X, ints([0, 1], [2, 3]), f(2)), ("TensorScatterUpdate", X, ints([0, 1], [2, 3]), f(2)), ("Ger", f(3), f(4)), ("MatrixDeterminant", SQUARE), ("LinSpace", np.float32(0).reshape(()), np.float32(1).reshape(()), 5),
        ("Fill", Dtype("float32"), (2, 3), 1.5), ("FillV2", (2, 3), np.float32(1.5).reshape(())), ("Mm", X, f(4, 2)), ("MatMulExt", X, f(4, 2)), ("BatchMatMulExt", CUBE, f(2, 4, 2)), ("SumExt", X, 1), ("MeanExt", X, 1), ("MulNoNan", X, Y),
        ("DivNoNan", X, P), ("SquaredDifference", X, Y), ("Embedding", LABELS, f(9, 4)), ("Eye", 3, 4, Dtype("float32")), ("StopGradient", X), ("Depend", X, Y), ("Rank", X), ("Shape", X), ("Size", X), ("NonZero", BOOL), ("Lgamma", P),
        ("Digamma", P), ("Sqrt", P), ("Rsqrt", P), ("Log", P), ("Log1p", P), ("Erfinv", P), ("Pow", P, Y), ("LogicalAnd", BOOL, ~BOOL), ("LogicalOr", BOOL, ~BOOL), ("LogicalNot", BOOL), ("BitwiseAnd", INT, INT2), ("Invert", INT), ("Lcm", INT, INT2),
        ("Gcd", INT, INT2), ("Xdivy", X, P), ("Xlogy", X, P), ("RealDiv", X, P), ("FloorDiv", X, P), ("FloorMod", X, P), ("Div", X, P), ("Mod", X, P), ("TruncateDiv", X, P), ("TruncateMod", X, P), ("Zeta", P + 2, P + 1), ("Igamma", P, P + 1),
        *((name, X) for name in ("Abs", "Neg", "Exp", "Tanh", "Sigmoid", "Sin", "Cos", "Tan", "Erf", "Erfc", "Floor", "Ceil", "Round", "Rint", "Square", "Sign", "Softplus", "Softsign", "SeLU", "Mish", "HSigmoid", "HSwish", "Reciprocal", "Inv",
                                 "IsNan", "IsFinite", "IsInf", "OnesLike", "ZerosLike", "LogSigmoid", "Expm1", "Cosh", "Sinh", "Atan", "Asinh", "Trunc", "BesselJ0", "BesselI0", "BesselI1e", "Identity", "FastGeLU", "Acosh", "GeluExt", "Sinc")),
        *((name, X, Y) for name in ("Add", "Sub", "Mul", "Maximum", "Minimum", "Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "Atan2", "TensorAdd", "Hypot", "Heaviside", "Fmax", "Fmin", "AddExt", "SubExt", "LogAddExp")),
    ),
]  # fmt: skip
