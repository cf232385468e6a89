"""What optimizers do to a parameter, each as its formula in float64 with a bound on rounding.

A formula gets the elements of a parameter, its gradient and its state before a step, and gives the parameter and the
states after it. Names of states are those of `torch.optim`; MindSpore's are mapped to them where they are read.
Sources: documentation and implementation of PyTorch 2.13 (`torch.optim`), of MindSpore 2.10 (`nn`, `mint.optim`,
`experimental.optim`), and the papers that are named beside each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msprobe_laws.observation import Array
from msprobe_laws.rounding import Rounded, joined
from pytest_msprobe.numerics.dtypes import unit_roundoff

PARAMETER = "parameter"


class Inputs:
    """What a formula gets.

    Attributes:
        parameter, gradient: elements before the step.
        step: number of the step of each element, from 1.
        shape: of the parameter, where `is_whole`.
        is_whole: whether all elements of one parameter are here, in its order.
    """

    def __init__(
        self,
        parameter: Rounded,
        gradient: Rounded,
        state: Mapping[str, Rounded],
        *,
        step: Array,
        settings: Mapping[str, Any],
        hyper_precision: float,
        is_first: bool,
        shape: tuple[int, ...] = (),
        is_whole: bool = False,
    ) -> None:
        self.parameter, self.gradient, self._state = parameter, gradient, state
        self.step, self._settings, self._precision = step, settings, hyper_precision
        self.is_first, self.shape, self.is_whole = is_first, shape, is_whole

    def flag(self, name: str, *, otherwise: bool = False) -> bool:
        """Return a setting that is true or false."""
        return bool(self._settings.get(name, otherwise))

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """Return a setting as it is."""
        return self._settings.get(name, otherwise)

    def number(self, name: str, otherwise: float = 0.0) -> Rounded:
        """Return a hyper-parameter."""
        value = self._settings.get(name)
        return self.constant(otherwise if value is None else float(value))

    def pair(self, name: str) -> tuple[Rounded, Rounded]:
        """Return two hyper-parameters, such as `betas`."""
        first, second = self._settings[name][:2]
        return self.constant(float(first)), self.constant(float(second))

    def constant(self, value: float) -> Rounded:
        """Return a number in the precision in which hyper-parameters are combined."""
        error = 0.0 if self._precision <= unit_roundoff("float64") else self._precision * abs(value)
        return Rounded(value, error, unit=self._precision)

    def state(self, name: str) -> Rounded:
        """Return a state before the step: zeros where the step makes it."""
        value = self._state.get(name)
        return self.zeros() if value is None else value

    def has(self, name: str) -> bool:
        """Return whether the state was there before."""
        return name in self._state

    def zeros(self) -> Rounded:
        """Return zeros of the parameter's kind."""
        like = self.parameter
        return Rounded(np.zeros_like(like.value), 0.0, unit=like.unit, tiny=like.tiny)

    def moment(self, name: str, share: Rounded, value: Rounded) -> Rounded:
        """Return a moving average: a share of the state before, and the rest of `value`."""
        return share * self.state(name) + (1 - share) * value

    def decayed(self, *, decoupled: bool = False) -> tuple[Rounded, Rounded]:
        """Return parameter and gradient with weight decay, which one of them takes."""
        p, g, decay = self.parameter, self.signed_gradient, self.number("weight_decay")
        if decay.value == 0:
            return p, g
        return (p * (1 - self.number("lr") * decay), g) if decoupled else (p, g + decay * p)

    @property
    def signed_gradient(self) -> Rounded:
        """The gradient, of the opposite sign with `maximize`."""
        return -self.gradient if self.flag("maximize") else self.gradient


Outputs = dict[str, Rounded]


@dataclass(frozen=True)
class Formula:
    """A known optimizer.

    Attributes:
        name: of its class, with the package where there are several.
        source: of the formula.
        compute: the formula.
        states: states that it changes, beside the counter of steps.
        needs: hyper-parameters without which it cannot be computed.
        variants: settings with which other implementations of the name do it.
        whole: whether it takes sums over the parameter, so that all elements are needed.
        counts: whether the number of the step is in it.
        by_projection: whether only the part of the change along the formula's is compared: its noise is as large.
    """

    name: str
    source: str
    compute: Callable[[Inputs], Outputs]
    states: tuple[str, ...]
    needs: tuple[str, ...] = ("lr",)
    variants: Sequence[Mapping[str, Any]] = field(default=({},))
    whole: bool = False
    counts: bool = False
    by_projection: bool = False


def _sgd(x: Inputs) -> Outputs:
    (p, g), lr, momentum = x.decayed(), x.number("lr"), x.number("momentum")
    if momentum.value == 0:
        return {PARAMETER: p - lr * g}
    if x.has("momentum_buffer") and not (x.is_first and x.flag("first_is_gradient")):
        buffer = momentum * x.state("momentum_buffer") + (1 - x.number("dampening")) * g
    elif x.flag("dampens_first"):
        buffer = (1 - x.number("dampening")) * g
    else:
        buffer = g
    g = g + momentum * buffer if x.flag("nesterov") else buffer
    return {PARAMETER: p - lr * g, "momentum_buffer": buffer}


def _adam(x: Inputs, *, decoupled: bool = False) -> Outputs:
    """Kingma and Ba, arXiv:1412.6980; decoupled decay: Loshchilov and Hutter, arXiv:1711.05101."""
    lr, decay, eps = x.number("lr"), x.number("weight_decay"), x.number("eps", 1e-8)
    decoupled = decoupled or x.flag("decoupled_weight_decay")
    is_later = decoupled and decay.value != 0 and x.flag("decays_afterwards")
    p, g = (x.parameter, x.signed_gradient) if is_later else x.decayed(decoupled=decoupled)
    beta1, beta2 = x.pair("betas")
    first, second = x.moment("exp_avg", beta1, g), x.moment("exp_avg_sq", beta2, g * g)
    states = {"exp_avg": first, "exp_avg_sq": second}
    largest = second
    if x.flag("amsgrad"):
        largest = states["max_exp_avg_sq"] = second.at_least(x.state("max_exp_avg_sq"))
    if x.flag("no_bias_correction"):
        move = first / (largest.sqrt() + eps)
    else:
        correction1, correction2 = 1 - beta1.power(x.step), 1 - beta2.power(x.step)
        if x.flag("eps_is_corrected_too"):
            move = (correction2.sqrt() / correction1) * (first / (largest.sqrt() + eps))
        else:
            move = (1 / correction1) * (first / (largest.sqrt() / correction2.sqrt() + eps))
    p = p - lr * move
    if is_later:
        p = p - (lr * decay) * p
    return {PARAMETER: p, **states}


def _adamw(x: Inputs) -> Outputs:
    return _adam(x, decoupled=True)


def _nadam(x: Inputs) -> Outputs:
    """Dozat, Incorporating Nesterov momentum into Adam."""
    p, g = x.decayed(decoupled=x.flag("decoupled_weight_decay"))
    (beta1, beta2), lr, eps = x.pair("betas"), x.number("lr"), x.number("eps", 1e-8)
    speed = float(x.setting("momentum_decay", 4e-3))
    now = beta1 * (1 - 0.5 * 0.96 ** (x.step * speed))
    then = beta1 * (1 - 0.5 * 0.96 ** ((x.step + 1) * speed))
    product = (x.state("mu_product") if x.has("mu_product") else x.zeros() + 1.0) * now
    first, second = x.moment("exp_avg", beta1, g), x.moment("exp_avg_sq", beta2, g * g)
    below = (second / (1 - beta2.power(x.step))).sqrt() + eps
    move = ((1 - now) / (1 - product)) * (g / below) + (then / (1 - product * then)) * (first / below)
    return {PARAMETER: p - lr * move, "exp_avg": first, "exp_avg_sq": second, "mu_product": product}


def _radam(x: Inputs) -> Outputs:
    """Liu et al., arXiv:1908.03265."""
    p, g = x.decayed(decoupled=x.flag("decoupled_weight_decay"))
    (beta1, beta2), lr, eps = x.pair("betas"), x.number("lr"), x.number("eps", 1e-8)
    first, second = x.moment("exp_avg", beta1, g), x.moment("exp_avg_sq", beta2, g * g)
    corrected = first / (1 - beta1.power(x.step))
    power = beta2.power(x.step)
    longest = 2 / (1 - beta2) - 1
    length = longest - (2.0 * x.step) * power / (1 - power)
    is_long = length.value > 5
    short = joined(is_long, length, length * 0.0 + 6.0)
    rectified = ((short - 4) * (short - 2) * longest / ((longest - 4) * (longest - 2) * short)).sqrt()
    adaptive = (1 - power).sqrt() / (second.sqrt() + eps)
    move = joined(is_long, corrected * adaptive * rectified, corrected)
    return {PARAMETER: p - lr * move, "exp_avg": first, "exp_avg_sq": second}


def _rmsprop(x: Inputs) -> Outputs:
    """Tieleman and Hinton, lecture 6.5; centred: Graves, arXiv:1308.0850."""
    (p, g), lr, eps = x.decayed(), x.number("lr"), x.number("eps", 1e-8)
    alpha = x.number("alpha", 0.99)
    spread = x.moment("square_avg", alpha, g * g)
    states = {"square_avg": spread}
    if x.flag("centered"):
        average = states["grad_avg"] = x.moment("grad_avg", alpha, g)
        spread = spread - average * average
    below = (spread + eps).sqrt() if x.flag("eps_inside") else spread.sqrt() + eps
    momentum = x.number("momentum")
    if momentum.value == 0 and not x.flag("has_buffer"):
        return {PARAMETER: p - lr * (g / below), **states}
    moved = lr * (g / below) if x.flag("momentum_of_update") else g / below
    buffer = momentum * x.state("momentum_buffer") + moved
    states["momentum_buffer"] = buffer
    return {PARAMETER: p - (buffer if x.flag("momentum_of_update") else lr * buffer), **states}


def _adagrad(x: Inputs) -> Outputs:
    """Duchi et al., JMLR 12 (2011)."""
    (p, g), eps = x.decayed(), x.number("eps", 1e-10)
    lr = x.number("lr") / (1 + (x.step - 1) * float(x.setting("lr_decay", 0.0)))
    total = x.state("sum") + g * g
    return {PARAMETER: p - lr * (g / (total.sqrt() + eps)), "sum": total}


def _adamax(x: Inputs) -> Outputs:
    """Kingma and Ba, arXiv:1412.6980, section 7.1."""
    (p, g), (beta1, beta2), eps = x.decayed(), x.pair("betas"), x.number("eps", 1e-8)
    first = x.moment("exp_avg", beta1, g)
    beside = x.flag("eps_beside")
    largest = (beta2 * x.state("exp_inf")).at_least(g.absolute() if beside else g.absolute() + eps)
    move = first / (largest + eps if beside else largest)
    after = p - x.number("lr") / (1 - beta1.power(x.step)) * move
    return {PARAMETER: after, "exp_avg": first, "exp_inf": largest}


def _adadelta(x: Inputs) -> Outputs:
    """Zeiler, arXiv:1212.5701."""
    (p, g), eps, rho = x.decayed(), x.number("eps", 1e-6), x.number("rho", 0.9)
    square = x.moment("square_avg", rho, g * g)
    move = (x.state("acc_delta") + eps).sqrt() / (square + eps).sqrt() * g
    moved = x.moment("acc_delta", rho, move * move)
    return {PARAMETER: p - x.number("lr") * move, "square_avg": square, "acc_delta": moved}


def _lion(x: Inputs) -> Outputs:
    """Chen et al., arXiv:2302.06675."""
    p, g, lr = x.parameter, x.signed_gradient, x.number("lr")
    beta1, beta2 = x.pair("betas")
    move = x.moment("exp_avg", beta1, g)
    # The sign of what rounding may have turned is open.
    sign = Rounded(np.sign(move.value), np.where(np.abs(move.value) > move.error, 0.0, 2.0), unit=p.unit)
    p = p * (1 - lr * x.number("weight_decay"))
    return {PARAMETER: p - lr * sign, "exp_avg": x.moment("exp_avg", beta2, g)}


def _muon(x: Inputs) -> Outputs:
    """Jordan et al., https://kellerjordan.github.io/posts/muon/; only the momentum is elementwise."""
    g, momentum = x.signed_gradient, x.number("momentum", 0.95)
    before = x.state("momentum_buffer")
    buffer = momentum * before + (g if x.flag("sums_gradients") else (1 - momentum) * g)
    return {"momentum_buffer": buffer, **(_muon_move(x, buffer) if x.is_whole and len(x.shape) == 2 else {})}


def _muon_move(x: Inputs, buffer: Rounded) -> Outputs:
    p, momentum, lr = x.parameter, float(x.number("momentum", 0.95).value), float(x.number("lr").value)
    g = x.signed_gradient.value
    nesterov = x.flag("nesterov", otherwise=True)
    share = 1.0 if x.flag("sums_gradients") else 1 - momentum
    move = share * g + momentum * buffer.value if nesterov else buffer.value
    matrix = move.reshape(x.shape)
    tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix.T if tall else matrix
    size = float(np.linalg.norm(matrix))
    matrix = matrix / max(size, float(x.setting("eps", 1e-7)))
    a, b, c = x.setting("ns_coefficients", (3.4445, -4.775, 2.0315))
    for _ in range(int(x.setting("ns_steps", 5))):
        gram = matrix @ matrix.T
        matrix = a * matrix + (b * gram + c * gram @ gram) @ matrix
    matrix = matrix.T if tall else matrix
    rows, columns = x.shape
    scales = {"match_rms_adamw": 0.2 * max(rows, columns) ** 0.5, "plain": 1.0, "spectral": (rows / columns) ** 0.5}
    adjusted = scales.get(x.setting("adjust_lr_fn") or "", max(1.0, rows / columns) ** 0.5)
    move_flat = np.ascontiguousarray(matrix).reshape(-1)
    # The iterations run in bfloat16. What rounding puts into directions in which the gradient has nothing grows with
    # them, by 3.44^5 = 480: it is as large as the elements, which cannot be compared one by one, and orthogonal.
    moved = Rounded(move_flat, 0.0, unit=p.unit, tiny=p.tiny)
    p = p * (1 - x.number("lr") * x.number("weight_decay"))
    return {PARAMETER: p - (lr * adjusted) * moved}


def _adafactor(x: Inputs) -> Outputs:
    """Shazeer and Stern, arXiv:1804.04235, as in torch.optim.Adafactor; sums over rows and columns."""
    if not x.is_whole:
        return {}
    p, g, shape = x.parameter, x.signed_gradient, x.shape
    lr = float(x.number("lr", 0.01).value)
    eps = x.setting("eps", (None, 1e-3))
    eps1 = 2 * p.unit if eps[0] is None else float(eps[0])
    step = float(x.step.reshape(-1)[0])
    share = step ** float(x.setting("beta2_decay", -0.8))
    scale = (p * p).mean().sqrt().at_least(float(eps[1])) * min(lr, step**-0.5)
    if float(x.setting("weight_decay", 0.0)) != 0:
        p = p * (1 - x.number("lr") * x.number("weight_decay"))
    states: Outputs = {}
    if len(shape) > 1:
        square = _shaped(g * g, shape)
        row = _shaped(x.state("row_var"), (*shape[:-1], 1)) * (1 - share) + square.mean(-1) * share
        column = _shaped(x.state("col_var"), (*shape[:-2], 1, shape[-1])) * (1 - share) + square.mean(-2) * share
        states = {"row_var": row, "col_var": column}
        estimate = row * column / row.mean(-2).at_least(eps1)
    else:
        estimate = x.state("variance") * (1 - share) + (g * g) * share
        states = {"variance": estimate}
    move = (1 / estimate.at_least(eps1 * eps1).sqrt()) * _shaped(g, shape)
    limit = (move * move).mean().sqrt() / float(x.setting("d", 1.0))
    return {PARAMETER: _shaped(p, shape) - scale * move / limit.at_least(1.0), **states}


def _shaped(number: Rounded, shape: tuple[int, ...]) -> Rounded:
    value = np.reshape(number.value, shape) if number.value.size == int(np.prod(shape)) else np.zeros(shape)
    error = np.reshape(number.error, shape) if np.size(number.error) == value.size else np.broadcast_to(0.0, shape)
    return Rounded(value, error, unit=number.unit, tiny=number.tiny)


def _lamb(x: Inputs) -> Outputs:
    """You et al., arXiv:1904.00962. The trust ratio is a quotient of norms, which need all elements."""
    p, g, lr, eps = x.parameter, x.signed_gradient, x.number("lr"), x.number("eps", 1e-6)
    (beta1, beta2), decay = x.pair("betas"), x.number("weight_decay")
    first, second = x.moment("exp_avg", beta1, g), x.moment("exp_avg_sq", beta2, g * g)
    states = {"exp_avg": first, "exp_avg_sq": second}
    if not x.is_whole:
        return states
    if x.flag("no_bias_correction"):
        move = first / (second.sqrt() + eps)
    else:
        correction1, correction2 = 1 - beta1.power(x.step), 1 - beta2.power(x.step)
        move = (first / correction1) / ((second / correction2).sqrt() + eps)
    move = move + decay * p
    size, moved = (p * p).mean().sqrt(), (move * move).mean().sqrt()
    if float(size.value) == 0 or float(moved.value) == 0 or x.flag("no_trust"):
        return {PARAMETER: p - lr * move, **states}
    if x.flag("clips_size"):
        count = float(np.sqrt(p.value.size))
        size = Rounded(min(float(size.value), 10.0 / count), size.error, unit=size.unit)
    return {PARAMETER: p - lr * (size / moved) * move, **states}


_EPS = {"eps_is_corrected_too": True}
_ADAM_VARIANTS: Sequence[Mapping[str, Any]] = ({}, _EPS, {"no_bias_correction": True})
_ADAMW_VARIANTS: Sequence[Mapping[str, Any]] = (
    {},
    _EPS,
    {"decays_afterwards": True},
    {**_EPS, "decays_afterwards": True},
    {"no_bias_correction": True},
)
_ADAMS = "exp_avg exp_avg_sq max_exp_avg_sq"
_TORCH = "torch.optim.{0}: algorithm box of its documentation, and its single-tensor implementation (PyTorch 2.13)"


def _torch(
    name: str, compute: Callable[[Inputs], Outputs], states: str, needs: str = "lr", **more: Any
) -> tuple[str, Formula]:
    return name, Formula(name, _TORCH.format(name), compute, tuple(states.split()), tuple(needs.split()), **more)


#: By name. `nn.` are MindSpore's of that package; those of mint.optim and experimental.optim are PyTorch's.
FORMULAS: dict[str, Formula] = dict(
    (
        _torch("SGD", _sgd, "momentum_buffer", variants=({}, {"dampens_first": True})),
        _torch("Adam", _adam, _ADAMS, "lr betas", variants=_ADAM_VARIANTS, counts=True),
        _torch("AdamW", _adamw, _ADAMS, "lr betas", variants=_ADAMW_VARIANTS, counts=True),
        _torch("NAdam", _nadam, "exp_avg exp_avg_sq mu_product", "lr betas", counts=True),
        _torch("RAdam", _radam, "exp_avg exp_avg_sq", "lr betas", counts=True),
        _torch("RMSprop", _rmsprop, "square_avg grad_avg momentum_buffer", "lr alpha"),
        _torch("Adamax", _adamax, "exp_avg exp_inf", "lr betas", counts=True),
        _torch("Adadelta", _adadelta, "square_avg acc_delta", "lr rho"),
        _torch("Adagrad", _adagrad, "sum", counts=True),
        _torch(
            "Muon",
            _muon,
            "momentum_buffer",
            "lr momentum",
            variants=tuple(
                {**sums, **({"adjust_lr_fn": scale} if scale else {})}
                for scale in ("", "match_rms_adamw", "plain", "spectral")
                for sums in ({}, {"sums_gradients": True})
            ),
            whole=True,
            by_projection=True,
        ),
        _torch("Adafactor", _adafactor, "row_var col_var variance", "lr", whole=True, counts=True),
    )
)
FORMULAS["Lion"] = Formula("Lion", "Chen et al., arXiv:2302.06675, algorithm 2", _lion, ("exp_avg",), ("lr", "betas"))
FORMULAS["Lamb"] = Formula(
    "Lamb",
    "You et al., arXiv:1904.00962, algorithm 2",
    _lamb,
    ("exp_avg", "exp_avg_sq"),
    ("lr", "betas"),
    ({}, {"no_bias_correction": True}, {"clips_size": True}, {"clips_size": True, "no_bias_correction": True}),
    whole=True,
    counts=True,
)

_MINDSPORE = "mindspore.nn.{0}: formula of its documentation (MindSpore 2.10)"


def _mindspore(
    name: str,
    compute: Callable[[Inputs], Outputs],
    states: str,
    needs: str = "lr",
    settings: Mapping[str, Any] | None = None,
    *,
    counts: bool = False,
) -> None:
    """List a formula of mindspore.nn, whose settings have the names of PyTorch's."""
    source, kept, asked = _MINDSPORE.format(name), tuple(states.split()), tuple(needs.split())
    FORMULAS[f"nn.{name}"] = Formula(f"nn.{name}", source, compute, kept, asked, (settings or {},), counts=counts)


# An accumulator that is there before the first step is zero; without one the first step takes the gradient itself.
_mindspore("SGD", _sgd, "momentum_buffer")
_mindspore("Momentum", _sgd, "momentum_buffer", "lr momentum")
_mindspore("Adam", _adam, _ADAMS, "lr betas", _EPS, counts=True)
_mindspore("AdamWeightDecay", _adamw, "exp_avg exp_avg_sq", "lr betas", {"no_bias_correction": True})
_mindspore("AdaMax", _adamax, "exp_avg exp_inf", "lr betas", {"eps_beside": True}, counts=True)
_mindspore(
    "RMSProp",
    _rmsprop,
    "square_avg grad_avg momentum_buffer",
    "lr alpha",
    {"eps_inside": True, "momentum_of_update": True, "has_buffer": True},
)
_mindspore("Adagrad", _adagrad, "sum", "lr", {"eps": 0.0})
FORMULAS["nn.Lamb"] = Formula(
    "nn.Lamb", _MINDSPORE.format("Lamb"), _lamb, ("exp_avg", "exp_avg_sq"), ("lr", "betas"), whole=True, counts=True
)
