"""What other tools read of a run: SARIF, properties of a JUnit file, scalars of TensorBoard, a notebook."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from test_diagnose import step

from pytest_msprobe.__main__ import main
from pytest_msprobe.answers import Answer, Finding, Gap, Place
from pytest_msprobe.reports.other_tools import to_sarif

GRADIENTS = Path(__file__).parents[1] / "dumps/gradients/target"


def test_a_wrong_call_is_in_sarif_and_junit(pytester: pytest.Pytester) -> None:
    step(pytester.path / "a", fault=1.02)
    step(pytester.path / "b")
    pair = ("--msprobe-dump=a", "--msprobe-golden=b", "--msprobe-sarif=out/findings.sarif", "--junitxml=junit.xml")
    run = pytester.runpytest_inprocess(*pair)
    assert run.ret == 1
    run.stdout.fnmatch_lines(["SARIF: *findings.sarif"])
    log = json.loads((pytester.path / "out/findings.sarif").read_text())["runs"][0]
    (result,) = log["results"]
    assert result["ruleId"] in [rule["id"] for rule in log["tool"]["driver"]["rules"]]
    assert "Mint.exp.0" in result["message"]["text"]
    assert log["properties"]["outcome"] == "wrong"
    properties = {
        entry.get("name"): entry.get("value") for entry in ET.parse(pytester.path / "junit.xml").iter("property")
    }
    assert properties["msprobe.outcome"] == "wrong"
    assert "Mint.exp.0" in str(properties["msprobe.finding"])


def test_a_finding_is_at_the_line_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    places = [f"{tmp_path}/models/my net.py:12", "/elsewhere/train.py:3", "no line", ""]
    findings = [Finding(kind="parted", place=Place(record="r", operation="o", source=source)) for source in places]
    answer = Answer(suite="comparison", outcome="wrong", findings=tuple(findings))
    results = to_sarif(answer)["runs"][0]["results"]
    physical = [result["locations"][0]["physicalLocation"] for result in results if "locations" in result]
    assert [(place["artifactLocation"]["uri"], place["region"]["startLine"]) for place in physical] == [
        ("models/my%20net.py", 12),
        ("file:///elsewhere/train.py", 3),
    ]


def test_what_was_not_judged_is_a_notification() -> None:
    gap = Gap(kind="compiled", what="f", count=1)
    log = to_sarif(Answer(suite="precheck", outcome="right", open=(gap,)))["runs"][0]
    assert log["results"] == []
    assert log["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_another_file_is_not_replaced(pytester: pytest.Pytester) -> None:
    step(pytester.path / "a")
    (pytester.path / "mine.json").write_text("{}")
    run = pytester.runpytest_inprocess("--msprobe-dump=a", "--msprobe-sarif=mine.json")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["ERROR: --msprobe-sarif=*mine.json holds something else than findings*"])
    assert (pytester.path / "mine.json").read_text() == "{}"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_is_refused_or_killed_leaves_no_findings_of_an_earlier_one(
    pytester: pytest.Pytester, is_killed: bool
) -> None:
    step(pytester.path / "a", fault=1.02)
    step(pytester.path / "b")
    file = pytester.path / "findings.sarif"
    pair = ("--msprobe-dump=a", "--msprobe-golden=b")
    pytester.runpytest_inprocess(*pair, f"--msprobe-sarif={file.name}")
    assert json.loads(file.read_text())["runs"][0]["results"]
    if is_killed:  # the file is named where no command line says it
        pytester.makeini(f"[pytest]\nmsprobe_sarif={file.name}")
        pytester.makeconftest("import os\ndef pytest_collection(): os._exit(9)")
        assert pytester.runpytest_subprocess(*pair).ret == 9
    else:
        run = pytester.runpytest_inprocess("--msprobe-dump=nowhere", f"--msprobe-sarif={file.name}")
        assert run.ret == pytest.ExitCode.USAGE_ERROR
    log = json.loads(file.read_text())["runs"][0]
    assert (log["results"], log["properties"]["outcome"]) == ([], "nothing judged")
    (invocation,) = log["invocations"]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"]


class Writer:
    """Stands for the writer of PyTorch, which needs tensorboard."""

    written: list[tuple[str, str, float, int]]

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).name

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.written.append((self.folder, tag, value, step))

    def close(self) -> None:
        pass


def test_norms_of_gradients_are_scalars(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytester.runpytest_inprocess(f"--msprobe-gradients={GRADIENTS}", "--msprobe-jsonl=rows.jsonl")
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter, Writer.written = Writer, []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    assert main(["tensorboard", "rows.jsonl", "logs"]) == 0
    assert "wrote 20 scalars" in capsys.readouterr().out
    steps = [number for folder, tag, _, number in Writer.written if tag == "gradients/norm/head.weight"]
    assert sorted(steps) == [0, 1, 2, 3, 4]
    step(pytester.path / "a")
    (pytester.path / "a/step0/rank0").rename(pytester.path / "without_step")
    pytester.runpytest_inprocess("--msprobe-dump=without_step", "--msprobe-jsonl=other.jsonl")
    assert main(["tensorboard", "other.jsonl", "logs"]) == 2
    assert "none of these rows has a step and a figure" in capsys.readouterr().err


def test_a_notebook_shows_an_answer() -> None:
    place = Place(record="r", operation="o")
    finding = Finding(kind="parted", place=place, name="Mint.exp.0", how="2 % off", detail="<b>")
    shown = Answer(suite="comparison", outcome="wrong", headline="Wrong: Mint.exp.0", findings=(finding,))._repr_html_()
    assert shown == "<b>Wrong: Mint.exp.0</b><ul><li>Mint.exp.0 2 % off &lt;b&gt;</li></ul>"
