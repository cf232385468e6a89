"""Laws of a MindSpore training: they change no bit, keep nothing alive, and say what they do not know."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.experimental import optim
from mindspore_parts import Mlp, rows, squared

from msprobe_laws.formulas import FORMULAS
from msprobe_laws.mindspore.watch import MindSporeWatch


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    watch = MindSporeWatch(folder, ())
    watch.install()
    try:
        yield
    finally:
        watch.close()


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    text = (folder / "rank0" / "laws.jsonl").read_text("utf-8")
    return [row for row in map(json.loads, text.splitlines()) if row["kind"] == kind]


def trained(optimizer_of: Callable[[nn.Cell], Any], *, is_jitted: bool = False) -> list[np.ndarray]:
    """The parameters that four steps leave."""
    ms.set_seed(0)
    network = Mlp(dropout=0.2)
    network.set_train()
    optimizer = optimizer_of(network)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return squared(network, x, y)

    gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss, gradients = gradients_of(x, y)
        optimizer(ops.clip_by_global_norm(gradients, 0.5))
        return loss

    run = ms.jit(step) if is_jitted else step
    for x, y in rows(4):
        run(x, y)
    return [item.asnumpy() for item in network.get_parameters()]


def adam(network: nn.Cell) -> nn.Optimizer:
    return nn.Adam(network.trainable_params(), 1e-2)


def adamw(network: nn.Cell) -> Any:
    return optim.AdamW(network.trainable_params(), lr=1e-2)


@pytest.mark.parametrize("optimizer_of", [adam, adamw], ids=["nn", "experimental"])
def test_laws_change_no_bit_of_a_training(optimizer_of: Callable[[nn.Cell], Any], tmp_path: Path) -> None:
    plain = trained(optimizer_of)
    with watched(tmp_path):
        seen = trained(optimizer_of)
    assert all(np.array_equal(one, other) for one, other in zip(plain, seen))
    assert lines(tmp_path, "finding") == []


#: Every optimizer of mindspore.nn and experimental.optim whose formula is known. Those of mint.optim, and nn.Lamb, have
#: no kernels on the CPU; their formulas are PyTorch's, of which test_pytorch_laws.py has a right and a wrong run.
KINDS: dict[str, Callable[[Any], Any]] = {
    "nn.SGD": lambda items: nn.SGD(items, 0.05, 0.9, 0.1, 1e-2),
    "nn.Momentum": lambda items: nn.Momentum(items, 0.05, 0.9),
    "nn.Adam": lambda items: nn.Adam(items, 1e-2, weight_decay=0.1),
    "nn.AdamWeightDecay": lambda items: nn.AdamWeightDecay(items, 1e-2, weight_decay=0.1),
    "nn.AdaMax": lambda items: nn.AdaMax(items, 1e-2),
    "nn.RMSProp": lambda items: nn.RMSProp(items, 1e-2, momentum=0.5, centered=True),
    "nn.Adagrad": lambda items: nn.Adagrad(items),
    "AdamW": lambda items: optim.AdamW(items, lr=1e-2),
    "Adam": lambda items: optim.Adam(items, lr=1e-2),
    "SGD": lambda items: optim.SGD(items, lr=1e-2, momentum=0.9),
    "Adadelta": lambda items: optim.Adadelta(items, lr=1e-2),
    "Adagrad": lambda items: optim.Adagrad(items, lr=1e-2),
    "Adamax": lambda items: optim.Adamax(items, lr=1e-2),
    "NAdam": lambda items: optim.NAdam(items, lr=1e-2),
    "RAdam": lambda items: optim.RAdam(items, lr=1e-2),
    "RMSprop": lambda items: optim.RMSprop(items, lr=1e-2),
}


@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_formula_of_the_table_is_checked(kind: str, is_wrong: bool, tmp_path: Path) -> None:
    with watched(tmp_path):
        network = Mlp()
        optimizer = KINDS[kind](network.trainable_params())
        if is_wrong:

            class Wrong(type(optimizer)):  # type: ignore[misc]
                def construct(self, gradients: Any) -> Any:
                    return super().construct(tuple(1.5 * item for item in gradients))

            optimizer.__class__ = Wrong
        gradients_of = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
        for x, y in rows(3):
            optimizer(gradients_of(x, y)[1])
    found = {row["law"] for row in lines(tmp_path, "finding")}
    assert found & {"update-formula", "moments-formula"} if is_wrong else not found
    checked = {row["law"]: row["checks"] for row in lines(tmp_path, "checked")}
    assert checked["update-formula"] == 3


def test_the_table_has_no_other_entry() -> None:
    assert {name for name in FORMULAS if name.startswith("nn.")} == {
        *filter(lambda kind: "nn." in kind, KINDS),
        "nn.Lamb",
    }


@pytest.mark.graph_compiler
def test_a_step_in_a_graph_trains_as_without_laws(tmp_path: Path) -> None:
    plain = trained(adam, is_jitted=True)
    with watched(tmp_path):
        seen = trained(adam, is_jitted=True)
    assert all(np.array_equal(one, other) for one, other in zip(plain, seen))


def test_what_was_replaced_is_put_back(tmp_path: Path) -> None:
    names = [(nn.Cell, "__call__"), (nn.Optimizer, "__call__"), (nn.Optimizer, "__init__"), (ops, "cross_entropy")]
    before = [getattr(owner, name) for owner, name in names]
    with watched(tmp_path):
        assert [getattr(owner, name) for owner, name in names] != before
    assert [getattr(owner, name) for owner, name in names] == before


def test_an_optimizer_that_is_not_known_is_said_to_be_so(tmp_path: Path) -> None:
    class Signs(nn.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(0.1, parameters)

        def construct(self, gradients: Any) -> bool:
            for item, gradient in zip(self.parameters, gradients):
                ops.assign(item, item - 0.1 * ops.sign(gradient))
            return True

    with watched(tmp_path):
        trained(lambda network: Signs(network.trainable_params()))
    unchecked = {row["law"]: row["unchecked"] for row in lines(tmp_path, "checked")}
    assert unchecked["update-formula"] == "no formula of Signs is known"
    assert unchecked["in-one-optimizer"] == ""


@pytest.mark.parametrize("kind", ["nn.Adam", "nn.SGD", "experimental"])
def test_records_of_optimizers_hold_what_the_formula_needs(kind: str, tmp_path: Path) -> None:
    from msprobe_collector.dump_format import Dump
    from msprobe_collector.mindspore import PrecisionDebugger
    from msprobe_laws.formula_check import FormulaCheck
    from msprobe_laws.suite.recorded import update_of
    from msprobe_laws.updates import MomentsFormula, UpdateFormula

    (tmp_path / "config.json").write_text(
        json.dumps({"task": "tensor", "level": "L0", "dump_path": str(tmp_path / "dump"), "step": [], "rank": []}),
        "utf-8",
    )
    network = Mlp()
    optimizer = {
        "nn.Adam": lambda: nn.Adam(network.trainable_params(), 1e-2, weight_decay=0.1),
        "nn.SGD": lambda: nn.SGD(network.trainable_params(), 0.05, 0.9, 0.1, 1e-2),
        "experimental": lambda: optim.AdamW(network.trainable_params(), lr=1e-2),
    }[kind]()
    made: Any = PrecisionDebugger
    made._instance = None
    debugger = made(str(tmp_path / "config.json"))
    gradients_of = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
    for x, y in rows(2):
        debugger.start(network)
        _, gradients = gradients_of(x, y)
        optimizer(gradients)
        debugger.stop()
        debugger.step()
    for step in range(2):
        dump = Dump(next((tmp_path / "dump" / f"step{step}").glob("*/dump.json")))
        record = next(name for name in dump.record_names if name.startswith("Optimizer."))
        update = update_of(dump, record, step)
        assert update.settings[0]["lr"] == (0.05 if kind == "nn.SGD" else 0.01)
        assert UpdateFormula().check(FormulaCheck(update)) == []
        if step or kind != "nn.SGD":
            assert MomentsFormula().check(FormulaCheck(update)) == []


def test_laws_keep_no_network_alive(tmp_path: Path) -> None:
    network = Mlp()
    gone = weakref.ref(network)

    def train(network: nn.Cell) -> None:
        optimizer = nn.Adam(network.trainable_params(), 1e-2)
        gradients_of = ms.value_and_grad(lambda x, y: squared(network, x, y), None, optimizer.parameters)
        for x, y in rows(2):
            _, gradients = gradients_of(x, y)
            optimizer(gradients)

    with watched(tmp_path):
        train(network)
        del network
        gc.collect()
        assert gone() is None


def step_of(loss: Callable[..., Tensor], items: Any) -> Callable[..., Any]:
    """What gives the gradients of these parameters."""
    gradients_of = ms.value_and_grad(loss, None, items)
    return lambda *inputs: gradients_of(*inputs)[1]


def in_turn() -> None:
    """A generator that is in evaluation mode while its critic is trained."""
    generator = nn.SequentialCell(nn.Dense(8, 8), nn.Dropout(p=0.2))
    critic = nn.SequentialCell(nn.Dense(8, 1))
    generator.update_parameters_name("generator.")
    critic.update_parameters_name("critic.")
    optimizers = [nn.SGD(cell.trainable_params(), 0.01) for cell in (generator, critic)]
    makes = step_of(lambda x: -critic(generator(x)).mean(), optimizers[0].parameters)
    judges = step_of(lambda x: critic(x).mean() - critic(generator(x)).mean(), optimizers[1].parameters)
    for x, _ in rows(4):
        generator.set_train()
        optimizers[0](makes(x))
        generator.set_train(False)
        optimizers[1](judges(x))


class Outer(nn.Optimizer):
    """An optimizer that has another one do its steps."""

    def __init__(self, inner: nn.Optimizer) -> None:
        super().__init__(0.1, list(inner.parameters))
        self.inner = inner

    def construct(self, gradients: Any) -> Any:
        return self.inner(gradients)


def one_inside_the_other() -> None:
    """An optimizer that is called by another one."""
    network = Mlp()
    optimizer = Outer(nn.SGD(network.trainable_params(), 0.1))
    gradients_of = step_of(lambda x, y: squared(network, x, y), optimizer.inner.parameters)
    for x, y in rows(4):
        optimizer(gradients_of(x, y))


def updated_by_the_script() -> None:
    """A temperature that the script updates itself, without an optimizer."""
    network, scale = Mlp(), ms.Parameter(Tensor(np.ones(1, np.float32)), name="scale")
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    items = [*optimizer.parameters, scale]
    gradients_of = step_of(lambda x, y: (scale * (network(x) - y) ** 2).mean(), ms.ParameterTuple(items))
    for x, y in rows(4):
        *gradients, last = gradients_of(x, y)
        optimizer(tuple(gradients))
        ops.assign(scale, scale - 0.1 * last)


def frozen_in_turn(name: str = "encoder") -> None:
    """A Cell, or a part of it, that is frozen after two steps."""
    network = Mlp()
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    gradients_of = step_of(lambda x, y: squared(network, x, y), optimizer.parameters)
    for number, (x, y) in enumerate(rows(4)):
        if number == 2:
            for item in network.trainable_params():
                item.requires_grad = not item.name.startswith(name)
        optimizer(gradients_of(x, y))


def two_losses() -> None:
    """Gradients of two scaled losses, which are divided by the scale when both are there."""
    networks = [Mlp(), Mlp(hidden=4)]
    networks[1].update_parameters_name("other.")
    scaler = ms.amp.StaticLossScaler(1024.0)
    optimizers = [nn.SGD(network.trainable_params(), 0.1) for network in networks]
    steps = [
        step_of(lambda x, y, network=network: scaler.scale(squared(network, x, y)), optimizer.parameters)
        for network, optimizer in zip(networks, optimizers)
    ]
    for x, y in rows(3):
        for optimizer, gradients in [(optimizer, step(x, y)) for optimizer, step in zip(optimizers, steps)]:
            optimizer(scaler.unscale(gradients))


def tied_by_cells() -> None:
    """A layer whose weight is that of another one, and which is replaced."""
    network = Mlp()
    network.head = nn.Dense(16, 16)
    network.head.weight = network.hidden.weight
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    gradients_of = step_of(lambda x, y: squared(network, x, y), optimizer.parameters)
    for number, (x, y) in enumerate(rows(4)):
        optimizer(gradients_of(x, y))
        if number == 2:
            network.head = nn.Dense(16, 16)


@pytest.mark.parametrize(
    ("train", "laws"),
    [
        (in_turn, set()),
        (one_inside_the_other, set()),
        (updated_by_the_script, set()),
        (frozen_in_turn, set()),
        (lambda: frozen_in_turn("encoder.weight"), {"stays-trainable"}),
        (two_losses, set()),
        (tied_by_cells, {"ties-kept"}),
    ],
)
def test_trainings_are_judged_as_those_of_pytorch_are(
    train: Callable[[], None], laws: set[str], tmp_path: Path
) -> None:
    ms.set_seed(0)
    with watched(tmp_path):
        train()
    assert not list(tmp_path.glob("*/dump_error_info.log"))
    assert {row["law"] for row in lines(tmp_path, "finding")} == laws
