"""Laws of a PyTorch training: each one broken once, trainings that break none, and that nothing of it changes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from law_trainings import OWN, PLANTED, PLANTED_PLAINLY, SGD, Average, Net, train, train_plainly
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from msprobe_collector.dump_format import Dump
from msprobe_laws.formula_check import FormulaCheck
from msprobe_laws.formulas import FORMULAS
from msprobe_laws.journal import LAWS
from msprobe_laws.observation import Content, TensorPlace, Update, UpdatedParameter
from msprobe_laws.pytorch.watch import TorchWatch
from msprobe_laws.suite.recorded import update_of
from msprobe_laws.updates import DecayAsDeclared, UpdateFormula

#: Laws on ranks and files, which tests/unit/suites/laws and the tests of resuming below break.
ELSEWHERE = {"replicas-agree", "ranks-draw-differently", "resume-continues", "labels-aligned"}


def lines_of(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("rank*/laws.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def findings_in(folder: Path) -> list[dict[str, Any]]:
    assert not list(folder.glob("*/dump_error_info.log")), "a fault of ours"
    return [line for line in lines_of(folder) if line["kind"] == "finding"]


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")  # PyTorch warns of two
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("fault", PLANTED)
def test_a_law_that_does_not_hold_is_named(fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    law, parameter = PLANTED[fault]
    train(tmp_path, fault, steps=12 if fault == "a decay feeds on itself" else 6)
    found = [line for line in findings_in(tmp_path) if line["law"] == law]
    assert found
    assert any(parameter in (line["parameter"], *line["others"]) or not parameter for line in found)
    told = capfd.readouterr().err
    assert f"law {law}: " in told
    assert law in told.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch warns of some of them, too
@pytest.mark.parametrize("fault", ["", *PLANTED_PLAINLY])
def test_a_law_of_a_plain_training_is_named(fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    law, parameter = PLANTED_PLAINLY.get(fault, ("", ""))
    train_plainly(tmp_path, fault)
    found = findings_in(tmp_path)
    assert {line["law"] for line in found} == ({law} if law else set())
    assert not fault or any(parameter in (line["parameter"], *line["others"]) or not parameter for line in found)
    assert all("law_trainings.py" in line["source"] for line in found)


def test_every_law_is_broken_once_and_documented() -> None:
    assert {law for law, _ in (PLANTED | PLANTED_PLAINLY).values()} | ELSEWHERE == set(LAWS)
    page = Path(__file__).parents[1] / "README.md"
    laws = page.read_text(encoding="utf-8").partition("## The laws\n\n")[2].partition("\n\n")[0]
    documented = dict(re.findall(r"^- `([a-z-]+)`: (.*)$", laws.replace("\n  ", " "), re.MULTILINE))
    assert documented == {name: law.sentence for name, law in LAWS.items()}


def test_a_watched_training_is_the_same_to_the_bit(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bare = train(None)
    assert all(map(torch.equal, bare, train(tmp_path)))
    assert findings_in(tmp_path) == []
    told = capfd.readouterr().err
    assert "laws were checked in 6 steps: what was compared holds" in told
    assert len(told.splitlines()) == 1


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"weight_decay": 0.01, "amsgrad": True, "fused": True},
    "AdamW": {"maximize": True, "foreach": True},
    "NAdam": {"decoupled_weight_decay": True, "weight_decay": 0.1},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adagrad": {"lr_decay": 0.1},
    "Adamax": {},
    "Adadelta": {},
    "Adafactor": {"weight_decay": 0.1},
    "Muon": {"lr": 0.1},
}


#: Every optimizer once; in other dtypes those whose bounds differ most: plain, with a root, with sums over a matrix.
IN_DTYPES = [
    *((kind, torch.float32) for kind in OPTIMIZERS),
    *((kind, torch.bfloat16) for kind in ("AdamW", "Adafactor", "Muon")),
    ("SGD", torch.float64),
]


@pytest.mark.parametrize(("kind", "dtype"), IN_DTYPES)
def test_optimizers_of_torch_obey_their_formulas(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(12, 20, bias=kind != "Muon").to(dtype)
    watch = TorchWatch(tmp_path, ["updates-arrive"])  # a step of bfloat16 may be lost, which is no fault of the formula
    watch.install()
    optimizer = getattr(torch.optim, kind)(net.parameters(), **OPTIMIZERS[kind])
    for _ in range(8):
        optimizer.zero_grad()
        net(torch.randn(4, 12, dtype=dtype)).square().mean().backward()
        optimizer.step()
    watch.close()
    assert findings_in(tmp_path) == []
    checked = {line["law"]: line["checks"] for line in lines_of(tmp_path) if line["kind"] == "checked"}
    assert checked["update-formula"] == 8


@pytest.mark.parametrize("is_wrong", [False, True], ids=["right", "wrong"])
@pytest.mark.parametrize("kind", [*OPTIMIZERS, *OWN])
def test_every_formula_of_the_table_is_checked(kind: str, is_wrong: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Linear(12, 20, bias=kind != "Muon")
    watch = TorchWatch(tmp_path, ())
    watch.install()
    settings = {name: value for name, value in OPTIMIZERS.get(kind, {}).items() if name not in ("fused", "foreach")}
    optimizer = OWN[kind](net.parameters()) if kind in OWN else getattr(torch.optim, kind)(net.parameters(), **settings)
    if is_wrong:
        original = optimizer._init_group

        def scaled(*args: Any, **kwargs: Any) -> Any:
            """Change gradients after the step has begun."""
            for item in net.parameters():
                item.grad.mul_(1.5)
            return original(*args, **kwargs)

        optimizer._init_group = scaled
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 12)).square().mean().backward()
        optimizer.step()
    watch.close()
    found = {line["law"] for line in findings_in(tmp_path)}
    assert found & {"update-formula", "moments-formula"} if is_wrong else not found
    checked = {line["law"]: line["checks"] for line in lines_of(tmp_path) if line["kind"] == "checked"}
    assert checked["update-formula"] == 3


def test_the_table_has_no_other_entry() -> None:
    assert {name for name in FORMULAS if not name.startswith("nn.")} == {*OPTIMIZERS, *OWN}


def test_a_subclass_with_another_step_is_not_judged(tmp_path: Path) -> None:
    class Signed(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for item in self.param_groups[0]["params"]:
                item.sub_(item.grad.sign(), alpha=0.1)

    net = nn.Linear(4, 4)
    watch = TorchWatch(tmp_path, ())
    watch.install()
    optimizer = Signed(net.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    watch.close()
    assert findings_in(tmp_path) == []
    checked = {line["law"]: line for line in lines_of(tmp_path) if line["kind"] == "checked"}
    assert checked["update-formula"]["unchecked"] == "no formula of Signed is known"
    assert checked["gradients-are-fresh"]["checks"] == 2


class Moments(torch.optim.Optimizer):
    """An own class that is called as one of PyTorch's, with `names` of its moments; `wrong`: its step is too long."""

    def __init__(self, parameters: Any, names: tuple[str, str], *, wrong: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8})
        self.names, self.wrong = names, wrong

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (first, second), lr = self.param_groups[0]["betas"], self.param_groups[0]["lr"]
        for item in self.param_groups[0]["params"]:
            state = self.state[item]
            state["step"] = count = state.get("step", 0) + 1
            one, other = (state.setdefault(name, torch.zeros_like(item)) for name in self.names)
            one.lerp_(item.grad, 1 - first)
            other.lerp_(item.grad.square(), 1 - second)
            move = one / (1 - first**count) / ((other / (1 - second**count)).sqrt() + 1e-8)
            item.sub_(move, alpha=2 * lr if self.wrong else lr)


@pytest.mark.parametrize(
    ("names", "wrong", "laws"),
    [
        (("exp_avg", "exp_avg_sq"), False, set()),
        (("exp_avg", "exp_avg_sq"), True, {"update-formula"}),
        (("m", "v"), False, set()),
        (("m", "v"), True, {"update-formula"}),
        (("one", "other"), False, set()),
        (("one", "other"), True, set()),
    ],
)
def test_own_states_are_known_by_usual_names(
    names: tuple[str, str], wrong: bool, laws: set[str], tmp_path: Path
) -> None:
    net = nn.Linear(4, 4)
    watch = TorchWatch(tmp_path, ())
    watch.install()
    optimizer = type("Adam", (Moments,), {})(net.parameters(), names, wrong=wrong)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    watch.close()
    assert {line["law"] for line in findings_in(tmp_path)} == laws
    checked = {line["law"]: line for line in lines_of(tmp_path) if line["kind"] == "checked"}
    said = "" if names[0] != "one" else "Adam does not keep the states of Adam under its names"
    assert checked["update-formula"]["unchecked"] == said


def test_a_class_derived_from_the_checkpoint_stays_its_own(tmp_path: Path) -> None:
    class Doubled(CheckpointFunction):
        @staticmethod
        def forward(context: Any, function: Any, preserves: bool, *args: Any) -> Any:
            return 2 * function(*args)

    watch = TorchWatch(tmp_path, ())
    watch.install()
    assert Doubled.apply(torch.relu, False, torch.ones(2)).tolist() == [2, 2]
    watch.close()
    assert "apply" not in vars(CheckpointFunction)


def test_what_explains_an_update_begins_with_the_variant_that_the_others_follow() -> None:
    """Three own updates without bias correction, and one with it, in a group without decay: no fault of decay."""
    gradient = np.array([1.0, -2.0, 3.0, -4.0])
    settings = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 0.0, "weight_decay": 0.0, "correct_bias": False, "step": 5}
    moments = {"exp_avg": 0.1 * gradient, "exp_avg_sq": 0.01 * gradient**2}
    zeros = dict.fromkeys(moments, np.zeros(4))
    place = TensorPlace(0, "float64", shape=(4,))
    before = Content(np.ones(4), place, zeros)
    correction = np.sqrt(1 - 0.99**5) / (1 - 0.9**5)
    parameters = [
        UpdatedParameter(name, 0, before, Content(1 - 0.1 * size * np.sign(gradient), place, moments), gradient)
        for name, size in (("a", 1.0), ("b", 1.0), ("c", 1.0), ("corrected", correction))
    ]
    seen = FormulaCheck(Update("AdamW", "AdamW", [settings], parameters, 4, is_own=True))
    assert seen.variant == {"no_bias_correction": True}
    assert [item.parameter for item in UpdateFormula().check(seen)] == ["corrected"]  # type: ignore[union-attr]
    assert DecayAsDeclared().check(seen) == []


def test_averages_of_two_networks_of_one_kind(tmp_path: Path) -> None:
    """Two critics with an average each: of equal shapes, and averages of their own networks only."""
    watch = TorchWatch(tmp_path, ())
    watch.install()
    torch.manual_seed(0)
    critics = [Net(), Net()]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in critics]
    averages = [Average(net, "") for net in critics]
    for _ in range(8):
        x = torch.randn(16, 32)
        for net, optimizer, average in zip(critics, optimizers, averages):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            average.update(net)
    watch.close()
    assert [line for line in findings_in(tmp_path) if line["law"] == "ema-decay"] == []
    checked = {line["law"]: line["checks"] for line in lines_of(tmp_path) if line["kind"] == "checked"}
    assert checked["ema-decay"] >= 14


class Words(nn.Module):
    """Causal attention over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        return self.head(nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True))


@pytest.mark.parametrize(("offset", "said"), [(0, "learns to copy"), (1, ""), (2, "shifted twice")])
def test_labels_of_language_models(offset: int, said: str, tmp_path: Path) -> None:
    net = Words()
    watch = TorchWatch(tmp_path, ())
    watch.install()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        text = torch.randint(0, 50, (4, 34))
        optimizer.zero_grad()
        logits = net(text[:, :32])
        nn.functional.cross_entropy(logits.flatten(0, 1), text[:, offset : offset + 32].flatten()).backward()
        optimizer.step()
    watch.close()
    found = [line["message"] for line in findings_in(tmp_path) if line["law"] == "labels-aligned"]
    assert said in found[0] if said else not found


def resumed(fault: str, path: Path) -> None:
    """Five steps; then two of them again, from a file that the third has left."""

    def make() -> tuple[nn.Sequential, torch.optim.AdamW, torch.optim.lr_scheduler.ExponentialLR]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 2))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        return net, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def run(net: nn.Sequential, optimizer: torch.optim.AdamW, scheduler: Any, begin: int) -> None:
        for number in range(begin, 5):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            scheduler.step()
            if number == 2:
                parts = {"net": net, "optimizer": optimizer, "scheduler": scheduler}
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**states, "random": torch.get_rng_state()}, path)

    run(*make(), 0)
    net, optimizer, scheduler = make()
    saved = torch.load(path)
    net.load_state_dict(saved["net"])
    if fault != "optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    if fault != "scheduler":
        scheduler.load_state_dict(saved["scheduler"])
    else:
        optimizer.param_groups[0]["lr"] = 0.01
    if fault != "random":
        torch.set_rng_state(saved["random"])
    if fault == "moment":
        optimizer.state[net[0].weight]["exp_avg"].zero_()
    run(net, optimizer, scheduler, 0 if fault == "data" else 3)


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ("none", set()),
        ("optimizer", {"0.weight", "group 0"}),
        ("scheduler", {"group 0"}),
        ("random", {"random state"}),
        ("moment", {"0.weight.exp_avg"}),
        ("data", {"data position"}),
    ],
)
def test_a_resumed_training_goes_on(fault: str, parts: set[str], tmp_path: Path) -> None:
    watch = TorchWatch(tmp_path / "laws", ())
    watch.install()
    resumed(fault, tmp_path / "saved.pt")
    watch.close()
    found = [line for line in findings_in(tmp_path / "laws") if line["law"] == "resume-continues"]
    assert {line["parameter"] for line in found} == parts


class Wrapped(torch.optim.Optimizer):
    """As wrappers of accelerate and others: an optimizer that has another one inside, and nothing of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        self.optimizer.step(closure)


def test_a_wrapper_of_an_optimizer_is_not_in_the_way(tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    watch = TorchWatch(tmp_path, ())
    watch.install()
    optimizer = Wrapped(torch.optim.AdamW(net.parameters(), lr=0.1))
    for _ in range(2):
        net.zero_grad()
        net(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    watch.close()
    assert findings_in(tmp_path) == []
    checked = {(line["law"], line["about"]): line["checks"] for line in lines_of(tmp_path) if line["kind"] == "checked"}
    assert checked["update-formula", "AdamW"] == 2


def test_a_fault_of_ours_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bare = train(None)
    monkeypatch.setattr("msprobe_laws.pytorch.reading.arrays_of", lambda tensors: 1 / 0)
    monkeypatch.setattr("msprobe_laws.pytorch.modules.fingerprint_of", lambda tensors: 1 / 0)
    assert all(map(torch.equal, bare, train(tmp_path)))
    assert "the checks themselves failed in part" in capfd.readouterr().err
    assert lines_of(tmp_path)[-1] == {"kind": "fault", "faults": 1}


@pytest.mark.parametrize(("fault", "law"), [("", ""), ("it moves half as far", "update-formula")])
def test_records_of_a_dump_are_judged(fault: str, law: str, make_debugger: Any, step_folder: Any) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 8)
    optimizer = SGD(net.parameters(), 0.1, fault, None) if fault else torch.optim.SGD(net.parameters(), lr=0.1)
    with make_debugger(level="mix", task="tensor").collect(net):
        net(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    checked = FormulaCheck(update_of(Dump(step_folder() / "dump.json"), "Optimizer.SGD.0.forward", 0))
    found = UpdateFormula().check(checked)
    assert {finding.law for finding in found} == ({law} if law else set())  # type: ignore[union-attr]
    assert not law or "its change is 0.5 times that of SGD" in found[0].message  # type: ignore[index]


@pytest.mark.parametrize("where", ["call", "variable", "run.json"])
def test_what_is_meant_is_information(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    meant = {"stays-trainable": "inner layers are frozen"}
    if where == "variable":
        monkeypatch.setenv("MSPROBE_LAWS_MEANT", json.dumps(meant))
    elif where == "run.json":
        (tmp_path / "run.json").write_text(json.dumps({"laws_meant": meant}), "utf-8")
    train(tmp_path, "a parameter is frozen", laws_meant=meant if where == "call" else None)
    told = capfd.readouterr().err.splitlines()
    assert told[0].startswith("msprobe: meant (inner layers are frozen): stays-trainable: inner.weight")
    assert "what was compared holds; meant: stays-trainable; " in told[-1]
    assert lines_of(tmp_path)[0]["meant"] == meant


def test_a_law_that_does_not_exist_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    TorchWatch(tmp_path, ["clip-norms"])
    assert capfd.readouterr().err == "msprobe: there is no law clip-norms\n"


def test_functions_that_are_transformed_are_no_fault(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    watch = TorchWatch(tmp_path, ())
    watch.install()
    optimizer = torch.optim.AdamW(net.parameters())
    values = {name: item.detach() for name, item in net.named_parameters()}

    def loss(values: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, values, (x,)).square().mean()

    for _ in range(3):
        gradients = torch.func.grad(loss)(values, torch.randn(8, 4))
        torch.func.vmap(torch.func.grad(loss), (None, 0), randomness="different")(values, torch.randn(8, 4))
        for name, item in net.named_parameters():
            item.grad = gradients[name].clone()
        optimizer.step()
    watch.close()
    assert findings_in(tmp_path) == []
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("is_coherent", [True, False])
def test_states_may_be_put_anew_with_their_parameters(is_coherent: bool, tmp_path: Path) -> None:
    """Lookahead without a class: slow weights are put in place, and momentum begins anew."""
    net = nn.Linear(8, 2)
    watch = TorchWatch(tmp_path, ())
    watch.install()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    slow = [item.detach().clone() for item in net.parameters()]
    for number in range(6):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        if number == 3:
            for own, item in zip(slow, net.parameters()):
                item.data.lerp_(own, 0.5 if is_coherent else 0.0)
            optimizer.state.clear()
    watch.close()
    assert {line["law"] for line in findings_in(tmp_path)} == (set() if is_coherent else {"state-continues"})
