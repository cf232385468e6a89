"""Laws from step to step, judged in dumps of small trainings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from msprobe_laws.suite.report import LawsSummary
from msprobe_laws.suite.suite import LawsSuite
from pytest_msprobe.__main__ import main
from pytest_msprobe.diagnose.looking import look_at
from pytest_msprobe.run.nodes import row_of
from pytest_msprobe.suites.contract import Context, ItemRecord
from pytest_msprobe.verdicts import MOOT

FRESH, CONTINUES = "gradients-are-fresh", "state-continues"


class Net(nn.Module):
    """A parameter of its own, one that two layers share, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(5, 8) / 8)
        self.letters = nn.Embedding(11, 8)
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.letters.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.letters(tokens) + self.places
        hidden = hidden + torch.tanh(self.twice(torch.tanh(self.twice(hidden))))
        return self.head(hidden)


def loss_of(net: nn.Module) -> torch.Tensor:
    tokens = torch.randint(11, (4, 6))
    return functional.cross_entropy(net(tokens[:, :5]).flatten(0, 1), tokens[:, 1:].flatten())


def accumulated(net: nn.Module, optimizer: Any) -> None:
    for _ in range(2):
        (loss_of(net) / 2).backward()
    optimizer.step()


def clipped(net: nn.Module, optimizer: Any) -> None:
    loss_of(net).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    optimizer.step()


def scaled(net: nn.Module, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(net)
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def limited(net: nn.Module, optimizer: Any) -> None:
    loss_of(net).backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.001)
    optimizer.step()


#: Status and message by step and law, of those from step to step; what was not checked.
Judge = Callable[..., tuple[dict[tuple[int, str], tuple[str, str]], str]]


@pytest.fixture
def judge(make_debugger: Any, tmp_path: Path) -> Judge:
    """judge(train) -> what the suite says of steps of a training; of the last one for None."""

    def dump(train: Any, *, is_cleared: bool, level: str, steps: Any) -> None:
        torch.manual_seed(3)
        shutil.rmtree(tmp_path / "dump", ignore_errors=True)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        debugger = make_debugger(level=level, task="tensor", common={"step": list(steps)})
        for _ in range(max(steps) + 1):
            debugger.start(net)
            train(net, optimizer)
            debugger.stop()
            if is_cleared:
                optimizer.zero_grad()
            debugger.step()

    def verdicts(train: Any, *, is_cleared: bool = True, level: str = "mix", steps: Any = (0, 1, 2)) -> Any:
        if train is not None:
            dump(train, is_cleared=is_cleared, level=level, steps=steps)
        files = sorted((tmp_path / "dump").rglob("dump.json"))
        context = Context(cast("pytest.Config", None), {}, tuple(files), tmp_path, True, False, 1, {})
        suite, summary, found = LawsSuite(context), LawsSummary(), {}
        for number, file in zip(steps, files):
            for group in suite.groups(file):
                record = ItemRecord(file, group, group.parts[0])
                verdict = suite.judge(record)
                summary.add(row_of(group.call, record, verdict, suite=suite, seed=0, host=""))
                law = group.call.rpartition(".")[2]
                if law in (FRESH, CONTINUES):
                    is_moot = any(name == MOOT for name, _ in verdict.properties)
                    found[number, law] = "moot" if is_moot else verdict.status, verdict.message
        unchecked = summary.unchecked()
        return found, "" if unchecked is None else f"{unchecked.what}: {unchecked.reason}"

    return verdicts


@pytest.mark.parametrize(("train", "level"), [(accumulated, "mix"), (clipped, "mix"), (scaled, "mix"), (clipped, "L1")])
def test_only_gradients_that_were_not_set_to_zero_are_found(train: Any, level: str, judge: Judge) -> None:
    found, unchecked = judge(train, level=level)
    assert unchecked == ""
    assert [status for status, _ in found.values()] == ["moot", "pass", "pass", "pass", "pass", "pass"]
    found, _ = judge(train, is_cleared=False, level=level)
    assert [found[step, FRESH][0] for step in range(3)] == ["pass", "error", "error"]
    assert " and 3 more: its gradient" in found[1, FRESH][1]
    assert "it was not set to zero" in found[1, FRESH][1]


@pytest.mark.parametrize(("is_cleared", "outcome"), [(True, "right"), (False, "wrong")])
def test_the_answer_on_a_dump_of_several_steps(
    is_cleared: bool, outcome: str, judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    judge(clipped, is_cleared=is_cleared)
    answer = tmp_path / "answer.json"
    assert main(["diagnose", str(tmp_path / "dump"), "--json", str(answer)]) == (outcome == "wrong")
    found = json.loads(answer.read_text(encoding="utf-8"))
    assert (found["outcome"], found["open"]) == (outcome, [])
    assert [(cause["kind"], cause["place"]["steps"]) for cause in found["findings"]] == (
        [] if is_cleared else [(FRESH, [1, 2])]
    )


@pytest.mark.parametrize(
    ("steps", "unreached", "names"),
    [((0,), (0,), "twice.weight, twice.bias"), ((0, 1), (0, 1), "twice.weight, twice.bias"), ((0, 1), (0,), "")],
)
def test_parameters_are_named_whose_gradients_are_zero_in_each_step(
    steps: Any, unreached: Any, names: str, judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gradient of zeros may be meant, so the answer stays right as far as it goes."""
    monkeypatch.chdir(tmp_path)
    number = iter(range(len(steps)))

    def train(net: nn.Module, optimizer: Any) -> None:
        loss_of(net).backward()
        if next(number) in unreached:
            for parameter in net.get_submodule("twice").parameters():
                cast("torch.Tensor", parameter.grad).zero_()
        optimizer.step()

    judge(train, steps=steps)
    answer = tmp_path / "answer.json"
    assert main(["diagnose", str(tmp_path / "dump"), "--json", str(answer)]) == 0
    found = json.loads(answer.read_text(encoding="utf-8"))
    assert [gap["what"] for gap in found["open"] if gap["kind"] == "zero gradient"] == ([names] if names else [])


def test_a_gradient_that_cannot_be_read_is_an_error(judge: Judge, tmp_path: Path) -> None:
    judge(clipped, steps=(0, 1))
    for path in (tmp_path / "dump" / "step1").rglob("*twice.Linear.parameters_grad.0.bias*"):
        path.unlink()
    found, _ = judge(None, steps=(0, 1))
    assert [found[step, FRESH][0] for step in (0, 1)] == ["pass", "error"]
    assert "Module.twice.Linear.parameters_grad.0" in found[1, FRESH][1]


def test_what_the_script_does_to_gradients_is_no_fault_and_no_praise(judge: Judge) -> None:
    found, unchecked = judge(limited)
    assert [found[step, FRESH][0] for step in range(3)] == ["moot", "skip", "skip"]
    assert "changed by the script" in unchecked
    assert "collect" not in unchecked


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((1,), "the step before it is not in the dump; collect two steps one after another; MSPROBE_LAWS"),
        ((0, 2), "the step before it is not in the dump; collect steps one after another; MSPROBE_LAWS"),
    ],
)
def test_a_step_without_the_one_before_says_what_to_collect(
    steps: Any, said: str, judge: Judge, tmp_path: Path
) -> None:
    found, unchecked = judge(clipped, steps=steps)
    assert {found[step, FRESH][0] for step in steps} == {"pass"}
    assert {found[step, CONTINUES][0] for step in steps} == {"skip"}
    assert unchecked.startswith(f"law state-continues: {said}")
    assert not look_at(tmp_path / "dump").has_following_steps
