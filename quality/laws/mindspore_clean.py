"""Right MindSpore trainings, 10 steps each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim
from mindspore_parts import WORDS, Language, Mlp, next_token_loss, rows, sentences, squared

from quality.laws.entries import clean


def regression(optimizer_of: Any, dropout: float = 0.0) -> None:
    """Trains a small network with this optimizer."""
    ms.set_seed(0)
    network = Mlp(dropout=dropout)
    network.set_train()
    optimizer = optimizer_of(network)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@clean("nn.SGD")
def sgd() -> None:
    """With momentum, dampening and decay."""
    regression(lambda network: nn.SGD(network.trainable_params(), 0.05, 0.9, 0.1, 1e-2))


@clean("nn.Momentum")
def momentum() -> None:
    """With a learning rate for each step."""
    rates = [0.05 / (1 + i) for i in range(20)]
    regression(lambda network: nn.Momentum(network.trainable_params(), rates, 0.9))


@clean("nn.Adam")
def adam() -> None:
    """With coupled decay."""
    regression(lambda network: nn.Adam(network.trainable_params(), 1e-3, weight_decay=1e-2))


@clean("nn.AdamWeightDecay in groups")
def adam_weight_decay() -> None:
    """Biases have no decay and another learning rate."""

    def grouped(network: nn.Cell) -> nn.Optimizer:
        decayed = [param for param in network.trainable_params() if "bias" not in param.name]
        others = [param for param in network.trainable_params() if "bias" in param.name]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 2e-3}]
        return nn.AdamWeightDecay([*groups, {"order_params": network.trainable_params()}], 1e-3)

    regression(grouped)


@clean("nn.RMSProp")
def rmsprop() -> None:
    """An optimizer of which the laws may know nothing."""
    regression(lambda network: nn.RMSProp(network.trainable_params(), 1e-3))


@clean("experimental AdamW")
def experimental_adamw() -> None:
    """With amsgrad."""
    regression(lambda network: optim.AdamW(network.trainable_params(), lr=1e-3, amsgrad=True))


@clean("experimental Adam with a schedule")
def experimental() -> None:
    """The learning rate halves."""
    ms.set_seed(0)
    network = Mlp(dropout=0.1)
    network.set_train()
    optimizer = optim.Adam(network.trainable_params(), lr=1e-2, weight_decay=1e-2)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)
        schedule.step()


@clean("loss scale")
def loss_scale() -> None:
    """Unscaled, then clipped by the global norm."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Adam(network.trainable_params(), 1e-3)
    scaler = ms.amp.DynamicLossScaler(1024.0, 2, 4)
    step = ms.value_and_grad(lambda x, y: scaler.scale(squared(network, x, y)), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        gradients = scaler.unscale(gradients)
        if ms.amp.all_finite(gradients):
            optimizer(ops.clip_by_global_norm(gradients, 0.5))
        scaler.adjust(ms.amp.all_finite(gradients))


@clean("accumulation in MindSpore")
def accumulation() -> None:
    """Two batches a step."""
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
            for total in sums:
                ops.assign(total, ops.zeros_like(total))


@clean("tied language model with evaluation")
def language_model() -> None:
    """Labels are given by the data."""
    ms.set_seed(0)
    network = Language(is_tied=True)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 1e-3)

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(network(inputs).reshape(-1, WORDS), labels.reshape(-1))

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    for number, tokens in enumerate(sentences()):
        network.set_train()
        _, gradients = step(tokens[:, :-1], tokens[:, 1:])
        optimizer(gradients)
        if number == 5:
            network.set_train(False)
            network(tokens)


@clean("language model that moves the labels")
def moved_inside() -> None:
    """Logits and labels are cut in the loss."""
    ms.set_seed(0)
    network = Language()
    optimizer = optim.AdamW(network.trainable_params(), lr=1e-3)
    step = ms.value_and_grad(lambda ids: next_token_loss(network(ids), ids), None, optimizer.parameters)
    for tokens in sentences():
        _, gradients = step(tokens)
        optimizer(gradients)


@clean("frozen encoder")
def frozen() -> None:
    """What is frozen is in no optimizer."""
    ms.set_seed(0)
    network = Mlp()
    for param in network.encoder.get_parameters():
        param.requires_grad = False
    optimizer = nn.Adam(network.trainable_params(), 1e-3)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@clean("TrainOneStepCell")
def one_step_cell() -> None:
    """MindSpore's own training Cell, with a dataset."""
    ms.set_seed(0)
    generator = np.random.default_rng(1)
    x = generator.standard_normal((80, 8)).astype(np.float32)
    data = ms.dataset.NumpySlicesDataset((x, np.sin(x[:, :1])), ["x", "y"], shuffle=False).batch(8)
    network = Mlp(dropout=0.1)
    cell = nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.05, 0.9)
    )
    cell.set_train()
    for x, y in data.create_tuple_iterator():
        cell(x, y)


@clean("resumed run of MindSpore", runs=2)
def resumed() -> None:
    """Network and optimizer are saved."""
    path = Path("both.ckpt")
    ms.set_seed(0)
    network = Mlp()
    optimizer = nn.Adam(network.trainable_params(), 1e-2)
    both = nn.CellList([network, optimizer])
    is_resumed, first = path.exists(), 0
    if is_resumed:
        ms.load_param_into_net(both, ms.load_checkpoint(str(path)))
        first = 5
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for number, (x, y) in enumerate(rows()):
        if number < first:
            continue
        _, gradients = step(x, y)
        optimizer(gradients)
        if number == 4 and not is_resumed:
            ms.save_checkpoint(both, str(path))
        if number == 6 and not is_resumed:
            return
