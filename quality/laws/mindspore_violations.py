"""MindSpore scripts that break a law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim
from mindspore_parts import WORDS, Language, Mlp, next_token_loss, rows, sentences, squared

from quality.laws.entries import violation

_EVERY = ("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias")


class CoupledAdamWeightDecay(nn.AdamWeightDecay):
    """AdamWeightDecay whose decay goes through the gradient."""

    def construct(self, gradients: tuple[Tensor, ...]) -> Any:
        """Decay in the gradient, then the step."""
        decay = 0.1
        gradients = tuple(grad + decay * param for grad, param in zip(gradients, self.parameters))
        return super().construct(gradients)


@violation(
    "decay through the gradient",
    laws=("decay", "formula", "moments"),
    at=_EVERY,
    wrong="An optimizer with decoupled decay adds the decay to the gradient.",
    source="nntrainer #3565",
    link="https://github.com/nntrainer/nntrainer/pull/3565",
)
def coupled() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = CoupledAdamWeightDecay(network.trainable_params(), learning_rate=1e-2)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


class HalfMomentum(nn.Momentum):
    """Momentum that updates half of what its name says when it is told to use Nesterov momentum."""

    def construct(self, gradients: tuple[Tensor, ...]) -> Any:
        """The step, written by hand."""
        lr = self.get_lr()
        for param, moment, grad in zip(self.params, self.moments, gradients):
            ops.assign(moment, self.momentum * moment + grad)
            ops.assign(param, param - lr * moment)
        self.assignadd(self.global_step, self.global_step_increase_tensor)
        return True


@violation(
    "Nesterov momentum is ignored",
    laws="formula",
    at=_EVERY,
    wrong="The optimizer takes use_nesterov=True and does the step of plain momentum.",
    source="bitsandbytes #2085",
    link="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/2085",
)
def ignored_nesterov() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = HalfMomentum(network.trainable_params(), 0.05, 0.9, use_nesterov=True)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@violation(
    "Momentum of MindSpore 2.10 on the CPU",
    laws="formula",
    at=_EVERY,
    wrong="The CPU kernel gives the same bits with and without use_nesterov; found by a training thought right.",
)
def ignored_by_the_kernel() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9, use_nesterov=True)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@violation(
    "mint.optim.SGD of MindSpore 2.10 on the CPU",
    laws=("formula", "lost updates", "step"),
    at=_EVERY,
    wrong="On the CPU, which mint.optim does not support, in-place additions change nothing: no parameter is updated.",
)
def updates_nothing() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = mint.optim.SGD(network.trainable_params(), lr=0.02, momentum=0.9)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@violation(
    "head exchanged after the optimizer was made",
    laws="no optimizer",
    at=("head.weight", "head.bias"),
    wrong="The optimizer has the parameters of the old head.",
    source="transformers #3532",
    link="https://github.com/huggingface/transformers/pull/3532",
)
def exchanged_head() -> None:
    """A network that gets a new head."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    network.head = nn.Dense(16, 1)
    trainable = network.trainable_params()
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, trainable)
    for x, y in rows():
        _, gradients = step(x, y)
        by_name = {param.name: grad for param, grad in zip(trainable, gradients)}
        optimizer(tuple(by_name[param.name] for param in optimizer.parameters))


@violation(
    "head in two optimizers",
    laws="two optimizers",
    at=("head.weight", "head.bias"),
    wrong="The head has an optimizer of its own, and the main optimizer has it too.",
)
def two_optimizers() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    main = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    head = nn.SGD(network.head.trainable_params(), learning_rate=0.1)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, network.trainable_params())
    for x, y in rows():
        _, gradients = step(x, y)
        main(gradients)
        head(gradients[-2:])


@violation(
    "encoder stays frozen",
    laws="frozen",
    at=("encoder.weight", "encoder.bias"),
    wrong="The encoder is frozen for a warm-up, and the optimizer made of the trainable parameters keeps it out.",
)
def frozen() -> None:
    """A network whose encoder is frozen for some steps."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = optim.AdamW(network.get_parameters(), lr=1e-3)
    for param in network.encoder.get_parameters():
        param.requires_grad = False
    trainable = [param for param in network.get_parameters() if param.requires_grad]
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, trainable)
    for x, y in rows():
        _, gradients = step(x, y)
        zeros = [ops.zeros_like(param) for param in network.encoder.get_parameters()]
        optimizer((*zeros, *gradients))


@violation(
    "accumulated gradients are never set to zero",
    laws="stale gradient",
    at=_EVERY,
    wrong="Gradients are added up in parameters that are not set to zero after the step.",
    source="tt-blacksmith #711",
    link="https://github.com/tenstorrent/tt-blacksmith/pull/711",
)
def never_zeroed() -> None:
    """A regression with accumulation over two batches."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Momentum(network.trainable_params(), 0.02, 0.9)
    sums = optimizer.parameters.clone(prefix="accumulated", init="zeros")
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for number, (x, y) in enumerate(rows(20)):
        _, gradients = step(x, y)
        for total, grad in zip(sums, gradients):
            ops.assign_add(total, grad)
        if number % 2:
            optimizer(tuple(total.value() / 2 for total in sums))


@violation(
    "clipped before unscaling",
    laws=("unscaled", "clip norm"),
    at=_EVERY,
    wrong="Gradients are clipped by their global norm while they are scaled.",
    source="Lightning #9694",
    link="https://github.com/Lightning-AI/pytorch-lightning/issues/9694",
)
def clipped_scaled() -> None:
    """A regression with a loss scale."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.SGD(network.trainable_params(), learning_rate=0.1)
    scaler = ms.amp.StaticLossScaler(1024.0)
    step = ms.value_and_grad(lambda x, y: scaler.scale(squared(network, x, y)), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        gradients = ops.clip_by_global_norm(gradients, 1.0)
        optimizer(scaler.unscale(gradients))


@violation(
    "scaled gradients are applied",
    laws="unscaled",
    at=_EVERY,
    wrong="The loss is scaled and the gradients are never unscaled.",
)
def never_unscaled() -> None:
    """A regression with a loss scale; Adam hides it."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    scaler = ms.amp.DynamicLossScaler(1024.0, 2, 4)
    step = ms.value_and_grad(lambda x, y: scaler.scale(squared(network, x, y)), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


class AlwaysDropped(nn.Cell):
    """A network whose dropout is a function that is told to train."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(8, 16)
        self.last = nn.Dense(16, 1)

    def construct(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.last(ops.dropout(ops.tanh(self.first(x)), p=0.3, training=True))


@violation(
    "functional dropout in evaluation",
    laws="dropout in eval",
    at=("dropout", "AlwaysDropped"),
    wrong="ops.dropout is told to train whatever the mode of the Cell is.",
    source="timm #1978",
    link="https://github.com/huggingface/pytorch-image-models/pull/1978",
)
def dropped_in_evaluation() -> None:
    """A regression, evaluated in the middle."""
    ms.set_seed(0)
    network = AlwaysDropped()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    held_x, held_y = next(rows(seed=7))
    for number, (x, y) in enumerate(rows()):
        network.set_train()
        _, gradients = step(x, y)
        optimizer(gradients)
        if number == 5:
            network.set_train(False)
            squared(network, held_x, held_y)


class SeededDropout(nn.Dropout):
    """Dropout that sets the seed when it is made, so that runs can be repeated."""

    def __init__(self, p: float) -> None:
        ms.set_seed(7)
        super().__init__(p=p)


@violation(
    "one mask in all layers",
    laws="dropout layers",
    at=("drop1", "drop2"),
    wrong="Each dropout layer sets the same seed when it is made: all layers of one shape drop the same places.",
    source="flash-attention #2088",
    link="https://github.com/Dao-AILab/flash-attention/issues/2088",
)
def one_mask() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    network.drop1, network.drop2 = SeededDropout(0.3), SeededDropout(0.3)
    network.set_train()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@violation(
    "always the first batch",
    laws="same batch",
    at=("batch", "x"),
    wrong="A new iterator is made in each step.",
    source="wandb/examples #444",
    link="https://github.com/wandb/examples/issues/444",
)
def first_batch() -> None:
    """A regression."""
    ms.set_seed(0)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((80, 8)).astype(np.float32)
    data = ms.dataset.NumpySlicesDataset((x, np.sin(x[:, :1])), ["x", "y"], shuffle=False).batch(8)
    network = Mlp()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for _ in range(10):
        x, y = next(data.create_tuple_iterator())
        _, gradients = step(x, y)
        optimizer(gradients)


def _language_model(loss: Any, *, is_tied: bool = False) -> None:
    ms.set_seed(0)
    network = Language(is_tied=is_tied)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), learning_rate=1e-3)
    step = ms.value_and_grad(lambda tokens: loss(network, tokens), None, optimizer.parameters)
    for tokens in sentences():
        _, gradients = step(tokens)
        optimizer(gradients)


@violation(
    "labels are moved twice",
    laws="labels",
    at=("labels", "cross_entropy"),
    wrong="The script moves the labels by one place, and the loss does so again.",
    source="transformers #47394",
    link="https://github.com/huggingface/transformers/issues/47394",
)
def moved_twice() -> None:
    """A language model."""

    def loss(network: nn.Cell, tokens: Tensor) -> Tensor:
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        return next_token_loss(network(inputs), labels)

    _language_model(loss)


@violation(
    "labels are not moved",
    laws="labels",
    at=("labels", "cross_entropy"),
    wrong="The loss takes the inputs as labels.",
    source="transformers #27517",
    link="https://github.com/huggingface/transformers/issues/27517",
)
def not_moved() -> None:
    """A language model."""
    _language_model(lambda network, tokens: ops.cross_entropy(network(tokens).reshape(-1, WORDS), tokens.reshape(-1)))


@violation(
    "head and embedding part",
    laws="tied",
    at=("embedding", "head"),
    wrong="The head gets a parameter of its own in the middle of the training.",
    source="PyTorch #188346",
    link="https://github.com/pytorch/pytorch/issues/188346",
)
def untied() -> None:
    """A language model."""
    ms.set_seed(0)
    network = Language(is_tied=True)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), learning_rate=1e-3)
    for number, tokens in enumerate(sentences()):
        if number == 5:
            network.head = Parameter(network.embedding.value().copy(), name="head")
            optimizer = nn.AdamWeightDecay(network.trainable_params(), learning_rate=1e-3)
        step = ms.value_and_grad(lambda ids: next_token_loss(network(ids), ids), None, optimizer.parameters)
        _, gradients = step(tokens)
        optimizer(gradients)


@violation(
    "float16 weights without master weights",
    laws="lost updates",
    at=("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias"),
    wrong="At a learning rate of 1e-5 most updates of float16 weights are below half of their last bit.",
    source="AReaL #1369, mindone #843",
    link="https://github.com/areal-project/AReaL/pull/1369",
)
def float16() -> None:
    """A regression in float16."""
    ms.set_seed(0)
    network = Mlp()
    for param in network.get_parameters():
        value = param.asnumpy() + np.where(param.asnumpy() < 0, -0.2, 0.2)
        param.set_dtype(ms.float16)
        param.set_data(Tensor(value.astype(np.float16)))
    optimizer = optim.SGD(network.trainable_params(), lr=1e-5)
    half = ms.float16
    step = ms.value_and_grad(lambda x, y: squared(network, x.astype(half), y.astype(half)), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@violation(
    "evaluation leaves a layer in float16",
    laws="dtype",
    at=("head.weight", "head.bias"),
    wrong="The head is cast for the evaluation and not cast back.",
    source="transformers #30709",
    link="https://github.com/huggingface/transformers/issues/30709",
)
def cast() -> None:
    """A regression, evaluated in the middle."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.SGD(network.trainable_params(), learning_rate=0.05)
    for number, (x, y) in enumerate(rows()):
        if number == 5:
            for param in network.head.get_parameters():
                param.set_dtype(ms.float16)
            optimizer = nn.SGD(network.trainable_params(), learning_rate=0.05)
        step = ms.value_and_grad(
            lambda x, y: ops.mean((network(x).astype(ms.float32) - y) ** 2), None, optimizer.parameters
        )
        _, gradients = step(x, y)
        optimizer(tuple(grad.astype(param.dtype) for grad, param in zip(gradients, optimizer.parameters)))


CHECKPOINT = Path("network.ckpt")


@violation(
    "only the network is saved",
    laws="resume",
    at=("moment", "optimizer"),
    wrong="The checkpoint holds the network: moments begin at zero.",
    source="KempnerForge #115",
    link="https://github.com/KempnerInstitute/KempnerForge/pull/115",
    runs=2,
)
def forgets_moments() -> None:
    """A regression that is stopped once."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-2)
    is_resumed, first = CHECKPOINT.exists(), 0
    if is_resumed:
        ms.load_param_into_net(network, ms.load_checkpoint(str(CHECKPOINT)))
        first = 5
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for number, (x, y) in enumerate(rows()):
        if number < first:
            continue
        _, gradients = step(x, y)
        optimizer(gradients)
        if number == 4 and not is_resumed:
            ms.save_checkpoint(network, str(CHECKPOINT))
        if number == 6 and not is_resumed:
            return
