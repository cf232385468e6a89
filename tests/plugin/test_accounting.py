"""Differences accounted for through real pytest runs."""

from __future__ import annotations

import json
import shutil
import weakref
import zlib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_dumps import change_tensors, dump_below, unpack_perturbed
from dump_builder import DumpBuilder
from page_reader import page_content

from msprobe_collector.dump_format import FieldPath, TensorFolder, TensorValue
from pytest_msprobe.__main__ import main
from pytest_msprobe.reports.page import write_page
from pytest_msprobe.suites.comparison import figures
from pytest_msprobe.suites.comparison.accounting import accountant
from pytest_msprobe.suites.comparison.suite import ComparisonSuite

pytestmark = pytest.mark.needs("torch")

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(0.5, -0.3, 12, dtype=np.float32).reshape(4, 3)


def step(
    folder: Path, *, fault: float = 1.0, weight: float = 1.0, api: str = "exp", leaf: str | None = "up.weight"
) -> None:
    """x @ w, exp, mean of a small network; `fault` times exp's output, `weight` times one weight of the name `leaf`."""
    w = W.copy()
    w[1, 2] *= np.float32(weight)
    product = X @ w
    grown = np.exp(product) * np.float32(fault)
    builder = DumpBuilder(folder / "step0" / "rank0")
    builder.call("Mint.matmul.0", [X, w], [product])
    if leaf is not None:
        builder.records["Mint.matmul.0.forward"]["input_args"][1]["leaf"] = leaf
    builder.call(f"Mint.{api}.0", [product], [grown], incoming=[X @ W], gradients=[(X @ W) * grown])
    builder.call("Mint.square.0", [grown], [np.square(grown)])
    builder.write()


def pair(folder: Path, *, leaf: str | None = "up.weight", **target: Any) -> tuple[str, str]:
    """Options for a target with a fault and a golden dump without."""
    step(folder / "target", leaf=leaf, **target)
    step(folder / "golden", leaf=leaf)
    return f"--msprobe-dump={folder / 'target'}", f"--msprobe-golden={folder / 'golden'}"


def diagnosis(pytester: pytest.Pytester) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pytester.path / "diagnosis.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("says_makers", [True, False])
def test_each_tensor_is_read_once_and_each_value_measured_once(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, says_makers: bool
) -> None:
    """Where a dump does not say who made its values, their elements do, at the price of one more look."""
    reads: Counter[Path] = Counter()
    measured: Counter[tuple[object, ...]] = Counter()
    load, measure = TensorFolder.load, figures.measure_pair

    def counted_load(self: TensorFolder, value: TensorValue, place: FieldPath) -> Any:
        if type(self) is TensorFolder:  # what shares loaded tensors hands over to one that reads files
            reads[self.folder / str(value.data_name)] += 1
        return load(self, value, place)

    def counted_measure(target: Any, golden: Any) -> figures.Figures:
        measured[target.shape, zlib.crc32(target.tobytes()), zlib.crc32(golden.tobytes())] += 1
        return measure(target, golden)

    monkeypatch.setattr(TensorFolder, "load", counted_load)
    monkeypatch.setattr(figures, "measure_pair", counted_measure)
    monkeypatch.setattr(accountant, "measure_pair", counted_measure)
    unpack_perturbed(pytester.path)
    if says_makers:
        for side in ("target", "golden"):
            dump = dump_below(pytester.path / side)
            change_tensors(dump, lambda entry, _: entry.update(made_by="Mint.other.0.forward"))
    result = pytester.runpytest_inprocess(
        "--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-page=page.html"
    )
    result.assert_outcomes(passed=38, failed=1, xfailed=137)
    files = {path for side in ("target", "golden") for path in (pytester.path / side).rglob("*.npy")}
    assert reads.keys() == files
    assert max(reads.values()) == (1 if says_makers else 2)
    assert set(measured.values()) == {1}


def test_no_more_than_the_tensors_of_one_call_are_held(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array that was read stays as long as something refers to it."""
    alive: list[tuple[str, weakref.ref[Any]]] = []
    calls: list[set[str]] = []
    load = TensorFolder.load

    def watched(self: TensorFolder, value: TensorValue, place: FieldPath) -> Any:
        array = load(self, value, place)
        if type(self) is TensorFolder:
            alive.append((".".join(str(value.data_name).split(".")[:3]), weakref.ref(array)))
            calls.append({call for call, array in alive if array() is not None})
        return array

    monkeypatch.setattr(TensorFolder, "load", watched)
    pytester.runpytest_inprocess(*pair(pytester.path, fault=1.02)).assert_outcomes(passed=1, failed=1, xfailed=2)
    assert len(calls) == 18
    assert all(len(found) == 1 for found in calls)


def test_the_operation_at_fault_fails_and_what_inherits_is_xfailed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*pair(pytester.path, fault=1.02), "-v", "-rx", "--msprobe-diagnosis=diagnosis.json")
    result.assert_outcomes(passed=1, failed=1, xfailed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*Mint.exp.0::forward FAILED*",
            "*Mint.exp.0::backward FAILED*",
            "*Mint.square.0::forward XFAIL*",
            "output.0: arises in the target: *",
            "*differs by 0.02: 100 % arises in the target",
            "answer: *diagnosis.json",
            "Mint.exp.0 forward and backward (wrong result, proved): arises in the target: *",
        ]
    )
    result.stdout.fnmatch_lines(["XFAIL *inherited: output.0 differs by 0.0404: 100 % inherited (growth x 2.02)*"])
    found = diagnosis(pytester)
    assert (found["schema"], found["outcome"], found["basis"]) == (2, "wrong", "tensors")
    (fault,) = found["findings"]
    assert (fault["place"]["record"], fault["name"]) == ("Mint.exp.0.forward", "Mint.exp.0 forward and backward")
    assert fault["id"] == "target/step0/rank0/dump.json::Mint.exp.0::forward"
    assert (fault["kind"], fault["figures"]["side"], fault["place"]["value"]) == ("born", "target", "output.0")
    assert (fault["confidence"], fault["count"], fault["place"]["source"]) == ("proved", 2, "/home/train/net.py:7")
    assert found["reach"] == {"count": 1, "last": "Mint.square.0.forward"}
    assert found["next"][0]["arguments"][:2] == [
        "pytest",
        f"--msprobe-dump={next(pytester.path.glob('target/*/*'))}/dump.json",
    ]
    assert found["counts"] == {"passed": 1, "failed": 1, "xfailed": 2}
    assert found["headline"] == "Wrong: Mint.exp.0, 1.02 x too large, net.py:7"


def test_the_golden_side_can_be_at_fault(pytester: pytest.Pytester) -> None:
    step(pytester.path / "target")
    step(pytester.path / "golden", fault=1.02)
    pytester.runpytest("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-diagnosis=diagnosis.json")
    (fault,) = diagnosis(pytester)["findings"]
    assert (fault["place"]["record"], fault["figures"]["side"]) == ("Mint.exp.0.forward", "golden")


@pytest.mark.parametrize(("leaf", "kind"), [("up.weight", "parameter"), (None, "unknown")])
def test_a_changed_weight_fails_the_operation_that_uses_it_first(
    pytester: pytest.Pytester, leaf: str | None, kind: str
) -> None:
    """It is a parameter where the dump says so; else nothing says what it is."""
    options = pair(pytester.path, weight=1.5, leaf=leaf)
    result = pytester.runpytest(*options, "--msprobe-diagnosis=diagnosis.json")
    result.assert_outcomes(failed=1, xfailed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (fault,) = diagnosis(pytester)["findings"]
    assert (fault["place"]["record"], fault["kind"], fault["place"]["value"]) == (
        "Mint.matmul.0.forward",
        kind,
        "input.1",
    )
    assert fault["name"] == (f"parameter {leaf}" if leaf else "an input of Mint.matmul.0 forward")


@pytest.mark.parametrize("fault", [1.0, 1.02])
def test_a_fault_that_a_baseline_knows_is_an_expected_one_in_the_answer(
    pytester: pytest.Pytester, fault: float
) -> None:
    """A new one is named all the same."""
    options = pair(pytester.path, weight=1.5)
    pytester.runpytest(*options, "--msprobe-jsonl=rows.jsonl")
    assert main(["baseline", "rows.jsonl", "-o", "baseline.json"]) == 0
    step(pytester.path / "target", weight=1.5, fault=fault)
    result = pytester.runpytest(*options, "--msprobe-baseline=baseline.json", "--msprobe-diagnosis=diagnosis.json")
    found = diagnosis(pytester)
    assert ("known", "parameter: up.weight") in [(gap["kind"], gap["what"]) for gap in found["open"]]
    if fault == 1.0:
        assert result.ret == pytest.ExitCode.OK
        assert (found["outcome"], found["findings"]) == ("right", [])
        assert found["headline"].startswith("Right as far as judged: ")
    else:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert [(each["kind"], each["place"]["record"]) for each in found["findings"]] == [
            ("born", "Mint.exp.0.forward")
        ]


def test_one_known_record_of_a_cause_leaves_the_others_at_fault(pytester: pytest.Pytester) -> None:
    options = pair(pytester.path, fault=1.02)
    pytester.runpytest(*options, "--msprobe-jsonl=rows.jsonl")
    assert main(["baseline", "rows.jsonl", "-o", "baseline.json"]) == 0
    content = json.loads(Path("baseline.json").read_text(encoding="utf-8"))
    content["known"] = [known for known in content["known"] if known["part"] == "forward"]
    Path("baseline.json").write_text(json.dumps(content), encoding="utf-8")
    pytester.runpytest(*options, "--msprobe-baseline=baseline.json", "--msprobe-diagnosis=diagnosis.json")
    (found,) = diagnosis(pytester)["findings"]
    assert found["id"].endswith("Mint.exp.0::backward")


def test_another_api_is_defined_differently(pytester: pytest.Pytester) -> None:
    mapping = pytester.path / "apis.yaml"
    mapping.write_text("- {ms_api: Mint.exp2, pt_api: Mint.exp, ms_args: [0], pt_args: [0]}\n", encoding="utf-8")
    options = pair(pytester.path, api="exp2")
    target = pytester.path / "target" / "step0" / "rank0" / "dump_tensor_data" / "Mint.exp2.0.forward.output.0.npy"
    np.save(target, np.exp2(X @ W))
    pytester.runpytest(*options, f"--msprobe-api-mapping={mapping}", "--msprobe-diagnosis=diagnosis.json")
    first = diagnosis(pytester)["findings"][0]
    assert (first["place"]["record"], first["kind"]) == ("Mint.exp2.0.forward", "defined")


def test_equal_dumps_are_equal(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*pair(pytester.path), "--msprobe-diagnosis=diagnosis.json")
    result.assert_outcomes(passed=4)
    assert result.ret == pytest.ExitCode.OK
    found = diagnosis(pytester)
    assert (found["outcome"], found["measure"]["kind"]) == ("right", "equal")


def test_inherited_differences_fail_where_that_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.runpytest(*pair(pytester.path, fault=1.02), "--msprobe-inherited=fail").assert_outcomes(passed=1, failed=3)


def test_without_the_accounting_distances_judge_as_before(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*pair(pytester.path, fault=1.02), "--msprobe-accounting=off")
    result.assert_outcomes(passed=1, failed=3)
    assert not result.stdout.str().count("At fault")


@pytest.mark.slow
def test_workers_and_a_resumed_run_come_to_the_same_answer(pytester: pytest.Pytester) -> None:
    options = pair(pytester.path, fault=1.02)
    answer = "--msprobe-diagnosis=diagnosis.json"
    pytester.runpytest(*options, answer, "--msprobe-jsonl=rows.jsonl", "--msprobe-out=one")
    alone = diagnosis(pytester)
    pytester.runpytest(*options, answer, "-n2", "-p", "xdist", "--msprobe-out=two").assert_outcomes(
        passed=1, failed=1, xfailed=2
    )
    assert diagnosis(pytester) == alone
    rows = (pytester.path / "rows.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (pytester.path / "rows.jsonl").write_text("".join(rows[:2]), encoding="utf-8")
    result = pytester.runpytest(*options, answer, "--msprobe-resume=rows.jsonl", "--msprobe-out=three")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert diagnosis(pytester) == alone


def test_a_part_of_a_run_says_what_was_left_out(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*pair(pytester.path, fault=1.02), "-k", "square", "-v")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(
        [
            "Wrong: 1 record differs, and the cause is not in the selection",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_what_no_benchmark_computes_keeps_its_distance_and_says_so(pytester: pytest.Pytester) -> None:
    for side, factor in (("target", 1.5), ("golden", 1.0)):
        builder = DumpBuilder(pytester.path / side / "step0" / "rank0")
        builder.call("Mint.no_such_api.0", [X], [X * np.float32(factor)]).write()
    options = ("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-diagnosis=diagnosis.json")
    result = pytester.runpytest(*options)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["judged by its distance alone: *"])
    found = diagnosis(pytester)
    assert found["outcome"] == "wrong"
    (suspect,) = found["findings"]
    assert (suspect["place"]["record"], suspect["kind"]) == ("Mint.no_such_api.0.forward", "unexplained")
    assert suspect["confidence"] == "first difference only"
    assert [(gap["kind"], gap["what"]) for gap in found["open"]] == [("uncomputed", "Mint.no_such_api.0.forward")]


def test_float32_against_bfloat16_is_rounding(pytester: pytest.Pytester) -> None:
    import ml_dtypes

    for side, dtype in (("target", ml_dtypes.bfloat16), ("golden", np.float32)):
        builder = DumpBuilder(pytester.path / side / "step0" / "rank0")
        x = X.astype(dtype)
        builder.call("Mint.exp.0", [x], [np.exp(x.astype(np.float64)).astype(dtype)]).write()
    result = pytester.runpytest(
        "--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-diagnosis=diagnosis.json"
    )
    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    found = diagnosis(pytester)
    assert (found["outcome"], found["measure"]["kind"]) == ("right", "rounding")
    result.stdout.fnmatch_lines(["Right: the only difference is rounding, in 1 operation"])


def test_one_story_in_terminal_json_page_advice_and_first_divergence(pytester: pytest.Pytester) -> None:
    """The page is made later, from the rows alone, without the tensors that showed what is at fault."""
    options = pair(pytester.path, fault=1.02)
    result = pytester.runpytest(*options, "--msprobe-diagnosis=diagnosis.json", "--msprobe-jsonl=rows.jsonl", "-v")
    (finding,) = diagnosis(pytester)["findings"]
    sentence = f"{finding['name']} (wrong result, proved): {finding['detail']}, at {finding['place']['source']}"
    (advice,) = pytester.path.glob("advisor_*.txt")
    line, suspect, expert = advice.read_text(encoding="utf-8").splitlines()
    assert suspect == "Suspect Nodes: Mint.exp.0.forward.output.0"
    assert expert.startswith(f"Expert Advice: {sentence}. pytest ")
    (table,) = pytester.path.glob("compare_result_*.csv")
    row = table.read_text(encoding="utf-8").splitlines()[int(line.removeprefix("Line: ")) - 1]
    assert row.startswith("Mint.exp.0.forward.output.0,")
    shutil.rmtree(pytester.path / "golden")
    write_page(pytester.path / "page.html", [pytester.path / "rows.jsonl"], {"comparison": ComparisonSuite}.get)
    (section,) = page_content(pytester.path / "page.html")["sections"]
    answer = section["answer"]
    assert all(point in result.outlines for point in answer["points"])
    assert answer["is_bad"]
    assert section["diagnosis"]["findings"][0]["sentence"] == sentence
    assert section["diagnosis"]["headline"] == diagnosis(pytester)["headline"] in result.outlines
    notes = [section["texts"][note] for note in section["rows"]["note"]]
    assert notes[1].startswith("output.0: arises in the target: 9 of 9 elements")
    assert notes[2].startswith("output.0: arises in the target: 9 of 9 elements")
    assert not any("the difference arises" in note for note in notes)


def test_the_advice_on_a_dump_is_of_the_causes_that_it_shows(pytester: pytest.Pytester) -> None:
    options = pair(pytester.path, fault=1.02)
    for side in ("target", "golden"):
        shutil.copytree(pytester.path / "golden" / "step0" / "rank0", pytester.path / side / "step0" / "rank1")
    pytester.runpytest(*options)
    suspects = [
        path.read_text(encoding="utf-8").splitlines()[1] for path in sorted(pytester.path.glob("advisor_*.txt"))
    ]
    assert suspects == ["Suspect Nodes: Mint.exp.0.forward.output.0", "Suspect Nodes: NA"]


def from_rows(pytester: pytest.Pytester, *rows: Path) -> dict[str, Any]:
    """The answer on a page that is made from rows."""
    page = pytester.path / "page.html"
    write_page(page, rows or [pytester.path / "rows.jsonl"], {"comparison": ComparisonSuite}.get)
    (section,) = page_content(page)["sections"]
    found: dict[str, Any] = section["diagnosis"]
    return found


@pytest.mark.parametrize(
    ("selection", "kind"), [("matmul or exp", "parameter"), ("square", "cause not selected")], ids=["cause", "effect"]
)
def test_what_the_rows_do_not_tell_goes_with_them(pytester: pytest.Pytester, selection: str, kind: str) -> None:
    """Which records were left out, the rows of the others do not say."""
    options = (*pair(pytester.path, weight=1.5), "--msprobe-jsonl=rows.jsonl", "--msprobe-diagnosis=diagnosis.json")
    pytester.runpytest(*options, "-k", selection)
    known, told = diagnosis(pytester), from_rows(pytester)
    assert [finding["kind"] for finding in told["findings"]] == [kind]
    assert "not in this run" in [gap["kind"] for gap in told["open"]]
    for key in ("outcome", "headline", "reach", "open", "next", "measure", "counts", "basis"):
        assert told[key] == known[key]


def test_what_a_run_did_not_compare_is_said_of_its_rows(pytester: pytest.Pytester) -> None:
    """It is of the run as a whole, and holds where only a part of the rows came from that run as well."""
    options = (*pair(pytester.path, leaf=None), "--msprobe-diagnosis=diagnosis.json")
    DumpBuilder(pytester.path / "golden" / "step0" / "rank3").call("Mint.exp.0", [X], [np.exp(X)]).write()
    pytester.runpytest(*options, "--msprobe-jsonl=rows.jsonl")
    assert diagnosis(pytester)["headline"] == from_rows(pytester)["headline"]
    for number in (1, 2):
        pytester.runpytest(*options, f"--msprobe-shard={number}/2", f"--msprobe-jsonl=rows/{number}.jsonl")
    told = from_rows(pytester, *sorted((pytester.path / "rows").glob("*.jsonl")))
    assert (told["outcome"], [finding["kind"] for finding in told["findings"]]) == ("wrong", ["incomplete"])


def test_a_value_at_fault_is_said_where_it_is_used(pytester: pytest.Pytester) -> None:
    """The record that uses it inherits its difference, and its item fails."""
    pytester.runpytest(*pair(pytester.path, weight=1.5), "--msprobe-page=page.html")
    (section,) = page_content(pytester.path / "page.html")["sections"]
    messages = [section["texts"][message] for message in section["rows"]["message"]]
    assert [message.startswith("parameter up.weight (") for message in messages] == [True, False, False, False]
    assert section["answer"]["is_bad"]


def test_rows_that_came_later_make_an_answer_of_their_own(pytester: pytest.Pytester) -> None:
    """An answer holds for the rows that it was made from."""
    options = pair(pytester.path, fault=1.02)
    for number in (1, 2):
        pytester.runpytest(*options, f"--msprobe-shard={number}/2", f"--msprobe-jsonl=rows/{number}.jsonl")
    rows = sorted((pytester.path / "rows").glob("*.jsonl"))
    told = from_rows(pytester, *rows)
    assert [gap["kind"] for gap in told["open"]] == []
    assert told["headline"].startswith("Wrong: Mint.exp.0")


def test_an_earlier_step_that_differs_is_said_before_the_later_one(pytester: pytest.Pytester) -> None:
    step(pytester.path / "target", fault=1.02)
    step(pytester.path / "golden")
    for side in ("target", "golden"):
        shutil.copytree(pytester.path / side / "step0", pytester.path / side / "step1")
    result = pytester.runpytest(
        "--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-diagnosis=diagnosis.json"
    )
    assert [fault["place"]["steps"] for fault in diagnosis(pytester)["findings"]] == [[0], [1]]
    causes = [f"{number}. Mint.exp.0 *, at /home/train/net.py:7, step {number - 1}" for number in (1, 2)]
    text = " ".join(line.strip() for line in result.outlines)
    assert fnmatch(text, f"*{causes[0]} {causes[1]} follows from it: *")


def test_other_steps_that_are_compared_are_said(pytester: pytest.Pytester) -> None:
    pair(pytester.path)
    (pytester.path / "golden" / "step0").rename(pytester.path / "golden" / "step3")
    dumps = ("target/step0/rank0/dump.json", "golden/step3/rank0/dump.json")
    result = pytester.runpytest(f"--msprobe-dump={dumps[0]}", f"--msprobe-golden={dumps[1]}", "-v")
    result.stdout.fnmatch_lines(["runs differ: step 0, golden step 3: these are not the same step"])
