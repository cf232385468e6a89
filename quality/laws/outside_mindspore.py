"""MindSpore trainings written without the code of the laws: mistakes, each of them repaired too, and right ones."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore_parts import WORDS, Language, Mlp, rows, sentences, squared

from quality.laws.entries import clean, planted

_MLP = ("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias")


def _started(dropout: float = 0.0) -> Mlp:
    ms.set_seed(0)
    network = Mlp(dropout=dropout)
    network.set_train()
    return network


def _gradients(network: nn.Cell, optimizer: nn.Optimizer) -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    return ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)


@planted(
    "clipped gradients that nobody takes, MindSpore",
    laws="clip norm",
    at=("clip", *_MLP),
    wrong="clip_by_global_norm gives new gradients; the optimizer gets the old ones.",
)
def clipped_apart(right: bool = False) -> nn.Cell:
    """A regression."""
    network = _started()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = _gradients(network, optimizer)
    for x, y in rows():
        _, gradients = step(x, y)
        clipped = ops.clip_by_global_norm(gradients, 0.05)
        optimizer(clipped if right else gradients)
    return network


@planted(
    "never told to train, MindSpore",
    laws="frozen",
    at=("Mlp", "drop1", "drop2", "Dropout", "model", "train"),
    wrong="set_train() is never called: nothing is dropped.",
)
def never_training(right: bool = False) -> nn.Cell:
    """A regression with dropout."""
    ms.set_seed(0)
    network = Mlp(dropout=0.3)
    if right:
        network.set_train()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    step = _gradients(network, optimizer)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)
    return network


@planted(
    "an average with another decay than its own, MindSpore",
    laws="EMA",
    at=_MLP,
    wrong="The average declares a decay of 0.99, and takes 0.9.",
)
def other_decay(right: bool = False) -> list[Tensor]:
    """A regression with averaged weights."""

    class Average:
        """A moving average of parameters."""

        def __init__(self, network: nn.Cell, decay: float) -> None:
            self.decay = decay
            self.shadow = {value.name: value.value().copy() for value in network.trainable_params()}

        def update(self, network: nn.Cell) -> None:
            """Follow."""
            decay = self.decay if right else 0.9
            for value in network.trainable_params():
                self.shadow[value.name] = decay * self.shadow[value.name] + (1 - decay) * value.value()

    network = _started()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    average = Average(network, 0.99)
    step = _gradients(network, optimizer)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)
        average.update(network)
    return list(average.shadow.values())


@planted(
    "gradients of the last microbatch alone, MindSpore",
    laws=("stale gradient", "no update"),
    at=_MLP,
    wrong="The sum is overwritten by each microbatch: those of three in four reach no step.",
)
def overwritten(right: bool = False) -> nn.Cell:
    """A regression of four microbatches a step."""
    network = _started()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    step = _gradients(network, optimizer)
    total: tuple[Tensor, ...] = ()
    for number, (x, y) in enumerate(rows(40)):
        _, gradients = step(x, y)
        gradients = tuple(grad / 4 for grad in gradients)
        total = tuple(a + b for a, b in zip(total, gradients)) if total and right else gradients
        if number % 4 == 3:
            optimizer(total)
            total = ()
    return network


class Even(nn.Cell):
    """Three layers of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.second = nn.Dense(8, 8)
        self.third = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        """One number per row."""
        for layer in (self.first, self.second, self.third):
            x = x + ops.tanh(layer(x))
        return x.sum(1, keepdims=True)


@planted(
    "gradients in the order of other parameters, MindSpore",
    laws=("moments", "formula", "stale gradient"),
    at=("first", "third"),
    wrong="The optimizer has its parameters from last to first, gradients come from first to last.",
)
def other_order(right: bool = False) -> nn.Cell:
    """A regression with layers of the same shape."""
    ms.set_seed(0)
    network = Even()
    network.set_train()
    layers = [network.first, network.second, network.third]
    parameters = [value for layer in (layers if right else layers[::-1]) for value in layer.trainable_params()]
    optimizer = nn.Adam(parameters, 1e-2)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, ms.ParameterTuple(network.trainable_params()))
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)
    return network


@planted(
    "a learning rate of 0 in one group, MindSpore",
    laws="frozen",
    at=("encoder.weight", "encoder.bias"),
    wrong="The learning rate of the encoder is divided as whole numbers: it is 0.",
)
def rate_of_zero(right: bool = False) -> nn.Cell:
    """A regression with a smaller learning rate for the encoder."""
    network = _started()
    encoder = [value for value in network.trainable_params() if "encoder" in value.name]
    others = [value for value in network.trainable_params() if "encoder" not in value.name]
    part = 5 / 10 if right else 5 // 10
    optimizer = nn.Adam([{"params": encoder, "lr": 1e-2 * part}, {"params": others}], 1e-2)
    step = _gradients(network, optimizer)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)
    return network


@planted(
    "labels are moved the wrong way, MindSpore",
    laws="labels",
    at=("labels", "target", "cross_entropy"),
    wrong="Each place learns the token before.",
)
def moved_back(right: bool = False) -> nn.Cell:
    """A language model."""
    ms.set_seed(0)
    network = Language()
    network.set_train()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)

    def loss(tokens: Tensor) -> Tensor:
        logits, labels = network(tokens), tokens
        logits, labels = (logits[:, :-1], labels[:, 1:]) if right else (logits[:, 1:], labels[:, :-1])
        return ops.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    for tokens in sentences():
        _, gradients = step(tokens)
        optimizer(gradients)
    return network


class Lion(nn.Optimizer):
    """Lion (arXiv 2302.06675) of a script, with or without the sign."""

    def __init__(self, parameters: list[Parameter], lr: float, right: bool) -> None:
        super().__init__(lr, parameters)
        self.right = right
        self.moments = self.parameters.clone("moment", init="zeros")

    def construct(self, gradients: tuple[Tensor, ...]) -> bool:
        """One step."""
        rate = self.get_lr()
        for parameter, moment, grad in zip(self.parameters, self.moments, gradients):
            update = 0.9 * moment + 0.1 * grad
            ops.assign(parameter, parameter - rate * (ops.sign(update) if self.right else update))
            ops.assign(moment, 0.99 * moment + 0.01 * grad)
        return True


@planted(
    "own Lion without the sign, MindSpore",
    laws="formula",
    at=_MLP,
    wrong="The interpolation itself is subtracted, not its sign.",
)
def without_sign(right: bool = False) -> nn.Cell:
    """A regression."""
    network = _started()
    optimizer = Lion(network.trainable_params(), 1e-3, right)
    step = _gradients(network, optimizer)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)
    return network


@clean("statistics of batch norm are frozen, MindSpore")
def frozen_norm() -> None:
    """Batch norm stays in evaluation mode on purpose, its weights are trained."""
    ms.set_seed(0)
    norm = nn.BatchNorm1d(16)
    network = nn.SequentialCell(nn.Dense(8, 16), norm, nn.ReLU(), nn.Dense(16, 1))
    network.set_train()
    norm.set_train(False)
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    step = _gradients(network, optimizer)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@clean("layers thaw one after the other, MindSpore")
def thawing() -> None:
    """Each phase has an optimizer of what is trained in it."""
    network = _started()
    network.encoder.weight.requires_grad = False
    network.encoder.bias.requires_grad = False
    for phase in range(2):
        optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
        step = _gradients(network, optimizer)
        for x, y in rows(5, seed=phase + 1):
            _, gradients = step(x, y)
            optimizer(gradients)
        network.encoder.weight.requires_grad = True
        network.encoder.bias.requires_grad = True


@clean("steps with Inf are left out, MindSpore")
def overflow() -> None:
    """A loss scale that is too large at first."""
    from mindspore.amp import DynamicLossScaler, all_finite

    network = _started()
    optimizer = nn.SGD(network.trainable_params(), 0.05)
    scaler = DynamicLossScaler(2.0**126, 8, 3)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return scaler.scale(squared(network, x, 100 * y))

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    for x, y in rows(14):
        _, gradients = step(x, y)
        is_finite = all_finite(gradients)
        if is_finite:
            optimizer(scaler.unscale(gradients))
        scaler.adjust(is_finite)


@clean("Lookahead, MindSpore")
def lookahead() -> None:
    """Slow weights every third step."""
    network = _started()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    slow = [value.value().copy() for value in network.trainable_params()]
    step = _gradients(network, optimizer)
    for number, (x, y) in enumerate(rows(12)):
        _, gradients = step(x, y)
        optimizer(gradients)
        if number % 3 == 2:
            slow = [old + 0.5 * (value.value() - old) for old, value in zip(slow, network.trainable_params())]
            for value, new in zip(network.trainable_params(), slow):
                ops.assign(value, new.copy())  # what set_data puts in place, nn.Adam changes no more


@clean("critic with clipped weights, MindSpore")
def clipped_weights() -> None:
    """A Wasserstein GAN: three steps of the critic for one of the generator."""
    ms.set_seed(0)
    generator = nn.SequentialCell(nn.Dense(4, 16), nn.Tanh(), nn.Dense(16, 8))
    critic = nn.SequentialCell(nn.Dense(8, 16), nn.LeakyReLU(), nn.Dense(16, 1))
    generator.update_parameters_name("generator.")
    critic.update_parameters_name("critic.")
    for_generator = nn.RMSProp(generator.trainable_params(), 1e-3)
    for_critic = nn.RMSProp(critic.trainable_params(), 1e-3)
    critic_step = ms.value_and_grad(
        lambda real, noise: ops.mean(critic(ops.stop_gradient(generator(noise)))) - ops.mean(critic(real)),
        None,
        for_critic.parameters,
    )
    generator_step = ms.value_and_grad(
        lambda noise: -ops.mean(critic(generator(noise))), None, for_generator.parameters
    )
    noise = np.random.default_rng(3)
    for number, (real, _) in enumerate(rows(12)):
        _, gradients = critic_step(real, Tensor(noise.standard_normal((8, 4)).astype(np.float32)))
        for_critic(gradients)
        for value in critic.trainable_params():
            ops.assign(value, ops.clamp(value.value(), -0.1, 0.1))
        if number % 3 == 2:
            _, gradients = generator_step(Tensor(noise.standard_normal((8, 4)).astype(np.float32)))
            for_generator(gradients)
