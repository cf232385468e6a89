"""MindSpore trainings that were written after the laws: two violations and two right ones."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore_parts import Mlp, rows, squared

from quality.laws.entries import clean, violation


class Distant(nn.Adam):
    """Adam that is told the learning rate in other units."""

    def construct(self, gradients: tuple[Tensor, ...]) -> object:
        """The step, of gradients that were divided once more."""
        return super().construct(tuple(grad * 2 for grad in gradients))


@violation(
    "gradients doubled inside the optimizer",
    laws=("moments", "formula"),
    at=("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias"),
    wrong="A wrapper undoes an average over two ranks that there are not: moments are those of twice the gradient.",
)
def doubled() -> None:
    """A regression."""
    ms.set_seed(0)
    network = Mlp()
    optimizer = Distant(network.trainable_params(), 1e-3)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(gradients)


@violation(
    "network stays in evaluation mode",
    laws="frozen",
    at=("Mlp", "model"),
    wrong="After the first evaluation set_train() is not called again.",
    source="torchtune #1049",
    link="https://github.com/meta-pytorch/torchtune/pull/1049",
)
def stays_in_evaluation() -> None:
    """A regression, evaluated in the middle."""
    ms.set_seed(0)
    network = Mlp(dropout=0.2)
    network.set_train()
    optimizer = nn.Adam(network.trainable_params(), 1e-3)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for number, (x, y) in enumerate(rows()):
        _, gradients = step(x, y)
        optimizer(gradients)
        if number == 4:
            network.set_train(False)
            network(x)


@clean("two networks in turn")
def adversarial() -> None:
    """A generator and a discriminator with optimizers of their own."""
    ms.set_seed(0)
    generator = nn.SequentialCell(nn.Dense(4, 16), nn.Tanh(), nn.Dense(16, 8))
    critic = nn.SequentialCell(nn.Dense(8, 16), nn.LeakyReLU(), nn.Dense(16, 1))
    generator.update_parameters_name("generator.")
    critic.update_parameters_name("critic.")
    g_optimizer = nn.Adam(generator.trainable_params(), 1e-3, beta1=0.5)
    c_optimizer = nn.Adam(critic.trainable_params(), 1e-3, beta1=0.5)

    def critic_loss(real: Tensor, noise: Tensor) -> Tensor:
        return ops.mean(ops.softplus(-critic(real))) + ops.mean(
            ops.softplus(critic(ops.stop_gradient(generator(noise))))
        )

    c_step = ms.value_and_grad(critic_loss, None, c_optimizer.parameters)
    g_step = ms.value_and_grad(
        lambda noise: ops.mean(ops.softplus(-critic(generator(noise)))), None, g_optimizer.parameters
    )
    for real, _ in rows():
        _, gradients = c_step(real, ops.standard_normal((8, 4)))
        c_optimizer(gradients)
        _, gradients = g_step(ops.standard_normal((8, 4)))
        g_optimizer(gradients)


@clean("schedule, decay filter and clipping by value")
def scheduled() -> None:
    """A learning rate that decays with the steps."""
    ms.set_seed(0)
    network = nn.SequentialCell(nn.Dense(8, 16), nn.LayerNorm((16,)), nn.ReLU(), nn.Dropout(p=0.1), nn.Dense(16, 1))
    network.set_train()
    rate = nn.CosineDecayLR(1e-4, 1e-2, 10)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), rate, weight_decay=0.05)
    step = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows():
        _, gradients = step(x, y)
        optimizer(tuple(ops.clip_by_value(grad, -0.1, 0.1) for grad in gradients))
