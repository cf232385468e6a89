"""`python -m pytest_msprobe diagnose`: what it runs, what it says, and that it claims no more than it has judged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from dump_builder import DumpBuilder
from gradient_runs import write_step

from pytest_msprobe.__main__ import main
from pytest_msprobe.answers import Answer, Gap, Measure, Outcome
from pytest_msprobe.answers.answer import SCHEMA_FILE
from pytest_msprobe.answers.words import MOST_LINES
from pytest_msprobe.diagnose.running import PlannedRun, Ran, summed_up

ROOT = Path(__file__).parents[2]
X = np.linspace(0.5, 2.0, 12, dtype=np.float32).reshape(3, 4)


def step(folder: Path, *, fault: float = 1.0, bad: bool = False) -> None:
    """exp, square and abs of x; `fault` times exp's output, or an infinite element of it."""
    made = np.exp(X) * np.float32(fault)
    if bad:
        made[1, 2] = np.inf
    builder = DumpBuilder(folder / "step0" / "rank0")
    builder.call("Mint.exp.0", [X], [made])
    builder.call("Mint.square.0", [made], [np.square(made)]).call("Mint.abs.0", [made], [np.abs(made)])
    builder.write()


def without_tensors(folder: Path) -> None:
    """Take the tensors of a dump away, and what names them."""
    for path in folder.rglob("dump.json"):
        text = path.read_text(encoding="utf-8").replace('"data_name"', '"name"').replace('"tensor"', '"statistics"')
        content = json.loads(text)
        content["task"] = "statistics"
        path.write_text(json.dumps(content), encoding="utf-8")
        shutil.rmtree(path.parent / "dump_tensor_data")


class Asked:
    """What the command said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int) -> dict[str, Any]:
        """The JSON of the answer, held to its schema; the text is the same."""
        ended = main(["diagnose", *arguments, "--json", "-"])
        out, self.talk = self._capsys.readouterr()
        assert ended == code, self.talk
        assert len(out) <= 4096
        found: dict[str, Any] = json.loads(out)
        jsonschema.validate(found, json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
        answer = self.talk[self.talk.index(found["headline"]) :].splitlines()
        assert len(answer) <= MOST_LINES
        return found


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The command, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Asked(capsys)


@pytest.mark.needs("torch")
def test_two_dumps_are_compared_and_the_fault_is_named(asked: Asked, tmp_path: Path) -> None:
    step(tmp_path / "target", fault=1.02)
    step(tmp_path / "golden")
    found = asked("target", "golden", "--page", "page.html", code=1)
    assert (found["outcome"], found["suite"]) == ("wrong", "comparison")
    assert found["headline"] == "Wrong: Mint.exp.0, 1.02 x too large, net.py:7"
    assert found["findings"][0]["id"].endswith("target/step0/rank0/dump.json::Mint.exp.0::forward")
    (ran,) = found["steps"]
    assert ran["arguments"] == ["pytest", "--msprobe-dump=target", "--msprobe-golden=golden"]
    assert "pytest --msprobe-dump=target --msprobe-golden=golden" in asked.talk
    assert "Mint.exp.0" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["golden", "page.html", "target"]


@pytest.mark.needs("torch")
def test_one_dump_is_right_and_one_is_wrong(asked: Asked, tmp_path: Path) -> None:
    step(tmp_path / "right")
    step(tmp_path / "wrong", fault=1.02)
    assert asked("right", code=0)["outcome"] == "right"
    found = asked("wrong", code=1)
    assert [(each["place"]["record"], each["confidence"]) for each in found["findings"]] == [
        ("Mint.exp.0.forward", "proved")
    ]


def test_without_tensors_the_first_difference_is_named_and_nothing_is_proved(asked: Asked, tmp_path: Path) -> None:
    for side, fault in (("target", 1.02), ("golden", 1.0)):
        step(tmp_path / side, fault=fault)
        without_tensors(tmp_path / side)
    found = asked("target", "golden", code=1)
    assert (found["outcome"], found["basis"]) == ("wrong", "statistics")
    assert [each["confidence"] for each in found["findings"]] == ["first difference only"]
    write, collect = (step["arguments"] for step in found["next"][:2])
    assert write[3:] == ["diagnose", "target", "golden", "--json", "diagnosis.json"]
    assert collect[3:] == ["next", "diagnosis.json", "-o", "proof.json"]
    assert main(write[3:]) == 1
    assert main(collect[3:]) == 0
    assert (tmp_path / "proof.json").is_file()


@pytest.mark.needs("torch")
def test_where_infinity_begins_is_asked_first(asked: Asked, tmp_path: Path) -> None:
    step(tmp_path / "target", bad=True)
    found = asked("target", code=1)
    assert (found["suite"], found["findings"][0]["place"]["record"]) == ("overflow", "Mint.exp.0.forward")
    assert found["findings"][0]["kind"] == "abnormal"
    suites = [step["arguments"][-1] for step in found["steps"]]
    assert suites == ["--msprobe-suite=overflow", "--msprobe-standard=backward-error"], "a call may lose NaN and Inf"
    assert [one["place"]["record"] for one in found["findings"]] == ["Mint.exp.0.forward"]


@pytest.mark.needs("torch")
def test_a_call_that_loses_a_nan_is_named_beside_where_it_begins(asked: Asked, tmp_path: Path) -> None:
    spoilt = np.array([1.0, np.nan, 2.0], np.float32)
    builder = DumpBuilder(tmp_path / "target" / "step0" / "rank0").call("Mint.mul.0", [spoilt, 2.0], [2 * spoilt])
    lost = np.array([0, np.nan, 0], np.float32)
    builder.call("MintFunctional.softmax.0", [2 * spoilt], [lost], keywords={"dim": -1}).write()
    found = asked("target", code=1)
    records = [one["place"]["record"] for one in found["findings"]]
    assert records == ["MintFunctional.softmax.0.forward", "Mint.mul.0.forward"]


def a_wrong_call(folder: Path) -> list[str]:
    step(folder / "target", fault=1.02)
    return ["target"]


def a_wrong_call_of_two_runs(folder: Path) -> list[str]:
    step(folder / "golden")
    return [*a_wrong_call(folder), "golden"]


def statistics_of_two_runs(folder: Path) -> list[str]:
    sides = a_wrong_call_of_two_runs(folder)
    for side in sides:
        without_tensors(folder / side)
    return sides


def infinity(folder: Path) -> list[str]:
    step(folder / "target", bad=True)
    return ["target"]


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("build", [a_wrong_call, a_wrong_call_of_two_runs, statistics_of_two_runs, infinity])
def test_each_command_that_is_named_next_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    """Exit code 0 or 1: no wrong use, and something is judged. What says that it writes files writes some."""
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", *build(tmp_path), "--json=answer.json"]) == 1
    found = json.loads((tmp_path / "answer.json").read_text(encoding="utf-8"))
    commands = [each["arguments"] for each in found["next"] if each["arguments"]]
    assert commands
    for command in commands:
        assert "diagnosis.json" not in command
        words = command[1:] if command[0] == "python" else ["-m", *command]
        ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert ended.returncode in (0, 1), f"{command}: {ended.stdout}{ended.stderr}"
        for word in command:
            option, _, folder = word.partition("=")
            assert option != "--msprobe-error-data" or list((tmp_path / folder).rglob("*")), command


def ran(suite: str, outcome: Outcome, *gaps: str) -> Ran:
    """A run of a suite, which left something open for each of `gaps`."""
    measure = Measure(judged=3, total=3 + len(gaps))
    kind = "not checked" if suite == "laws" else "skipped"
    open_parts = tuple(Gap(kind=kind, what=gap, reason="random") for gap in gaps)
    answer = Answer(suite=suite, outcome=outcome, open=open_parts, measure=measure)
    is_main = suite not in ("laws", "overflow")
    return Ran(PlannedRun(suite, (), "", 1.0, is_main=is_main), 0, answer)


@pytest.mark.parametrize(
    ("runs", "has_following_steps", "outcome", "gaps"),
    [
        ([ran("laws", "right", "law"), ran("precheck", "right")], False, "right", []),
        ([ran("laws", "right", "law"), ran("precheck", "right")], True, "right", ["law"]),
        ([ran("laws", "wrong"), ran("precheck", "right", "call")], False, "wrong", ["call"]),
        (
            [ran("overflow", "nothing judged", "dump"), ran("precheck", "right", "call")],
            False,
            "right",
            ["call", "dump"],
        ),
        (
            [ran("overflow", "nothing judged"), ran("precheck", "nothing judged", "call")],
            False,
            "nothing judged",
            ["call"],
        ),
    ],
)
def test_one_answer_of_several_runs(
    runs: list[Ran], has_following_steps: bool, outcome: Outcome, gaps: list[str]
) -> None:
    answer = summed_up(runs, setup=(), has_following_steps=has_following_steps)
    assert (answer.outcome, [gap.what for gap in answer.open]) == (outcome, gaps)


def test_a_path_that_is_not_there_is_to_be_checked(asked: Asked) -> None:
    found = asked("nowhere", code=4)
    assert found["next"][0]["tells"].startswith("check the path nowhere")


@pytest.mark.needs("torch")
def test_a_backward_of_the_script_is_said_not_to_be_judged(asked: Asked, tmp_path: Path) -> None:
    """Each call in it may be right, and the derivative wrong."""
    builder = DumpBuilder(tmp_path / "target" / "step0" / "rank0", framework="pytorch")
    builder.call("Torch.exp.0", [X], [np.exp(X)])
    line = builder.stacks["Torch.exp.0.forward"][0].replace("in construct", "in backward")
    builder.stacks["Torch.exp.0.forward"] = [line, "File /x/torch/autograd/function.py, line 3, in apply, \n user_fn()"]
    builder.write()
    shutil.copytree(tmp_path / "target", tmp_path / "golden")
    found = asked("target", code=0)
    assert found["open"][0]["what"] == "the backward that the script defines itself, at net.py:7"
    assert not any("backward" in each["what"] for each in asked("target", "golden", code=0)["open"])


def test_gradients_are_compared(asked: Asked, tmp_path: Path) -> None:
    rising = np.arange(1.0, 101.0)
    for side in ("a", "b"):
        for number in range(3):
            wrong = np.where(np.arange(100) < 20, -1.0, 1.0) if (side, number) == ("a", 2) else 1.0
            write_step(tmp_path / side, number, {"w": rising * wrong})
    found = asked("a", "b", code=1)
    assert (found["suite"], found["findings"][0]["place"]["steps"]) == ("gradients", [2])
    both = asked(".", code=5)
    assert both["next"][0]["arguments"][3:] == ["diagnose", "a", "b"]


def an_empty_folder(folder: Path) -> list[str]:
    (folder / "empty").mkdir()
    return ["empty"]


def a_text(folder: Path) -> list[str]:
    (folder / "notes.txt").write_text("hello")
    return ["notes.txt"]


def nothing(_: Path) -> list[str]:
    return ["nowhere"]


def a_torn_dump(folder: Path) -> list[str]:
    step(folder / "torn")
    (folder / "torn" / "step0" / "rank0" / "dump.json").write_text('{"task": ')
    return ["torn"]


def a_dump_without_records(folder: Path) -> list[str]:
    DumpBuilder(folder / "none").write()
    return ["none"]


def a_manifest_alone(folder: Path) -> list[str]:
    (folder / "made").mkdir()
    (folder / "made" / "run.json").write_text("{}")
    return ["made"]


def other_models(folder: Path) -> list[str]:
    step(folder / "one")
    other = np.ones((5, 7), np.float32)
    DumpBuilder(folder / "other" / "step0" / "rank0").call("Mint.neg.0", [other], [-other]).write()
    return ["one", "other"]


def a_dump_and_a_text(folder: Path) -> list[str]:
    step(folder / "one")
    return ["one", *a_text(folder)]


@pytest.mark.parametrize(
    ("build", "code", "words"),
    [
        (an_empty_folder, 5, "holds no dump.json"),
        (a_text, 4, "is not valid JSON"),
        (nothing, 4, "there is no such file or folder"),
        (a_torn_dump, 5, "is not"),
        (a_dump_without_records, 5, "holds no record"),
        (a_manifest_alone, 5, "holds a manifest"),
        (other_models, 5, "is of another model or batch"),
        (a_dump_and_a_text, 4, "is not valid JSON"),
    ],
)
def test_what_cannot_be_judged_is_said_and_no_suite_runs(
    asked: Asked, tmp_path: Path, build: Any, code: int, words: str
) -> None:
    found = asked(*build(tmp_path), code=code)
    assert (found["outcome"], found["steps"], found["findings"]) == ("nothing judged", [], [])
    assert words in found["open"][0]["reason"]
    assert found["next"]


@pytest.mark.needs("torch")
def test_a_rank_that_cannot_be_read_is_wrong(asked: Asked, tmp_path: Path) -> None:
    step(tmp_path / "target")
    shutil.copytree(tmp_path / "target" / "step0" / "rank0", tmp_path / "target" / "step0" / "rank1")
    (tmp_path / "target" / "step0" / "rank1" / "dump.json").write_text("{")
    found = asked("target", code=1)
    assert found["outcome"] == "wrong"
    assert any("rank1" in each["detail"] for each in found["findings"])


@pytest.mark.parametrize("option", ["--json", "--page"])
def test_a_place_that_cannot_be_written_is_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    step(tmp_path / "target")
    (tmp_path / "file").write_text("")
    assert main(["diagnose", str(tmp_path / "target"), option, str(tmp_path / "file" / "answer")]) == 2
    out, error = capsys.readouterr()
    assert (out, len(error.splitlines())) == ("", 1)
    assert f"{option}={tmp_path / 'file'}: " in error


def test_files_of_others_stay(asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.json").write_text("[1]")
    (tmp_path / "page.html").write_text("<p>mine")
    for option, name in (("--json", "notes.json"), ("--page", "page.html")):
        assert main(["diagnose", ".", option, name]) == 2
        assert name in capsys.readouterr().err
    assert (tmp_path / "notes.json").read_text() == "[1]"
