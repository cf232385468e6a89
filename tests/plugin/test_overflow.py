"""Where NaN and Inf begin, through real pytest runs."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from overflow_dumps import F16, F32, INF, NAN, X, chain, edited, parallel
from slow_parameters import WITH_WORKERS

from pytest_msprobe.__main__ import main

SUITE = "--msprobe-suite=overflow"
BAD = np.array([1.0, NAN, 2.0], F32)


def table(folder: Path) -> list[dict[str, str]]:
    (path,) = folder.glob("overflow_result_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def summary(folder: Path) -> Any:
    (path,) = folder.glob("overflow_summary_*.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_node_ids_outcomes_and_findings(pytester: pytest.Pytester) -> None:
    chain(pytester.path / "step3" / "rank0")
    result = pytester.runpytest("--msprobe-dump=step3", SUITE, "-v", "-rs")
    result.assert_outcomes(passed=2, skipped=2, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "step3/rank0/dump.json::Mint.mul.0::forward PASSED*",
            "step3/rank0/dump.json::Mint.exp.0::forward FAILED*",
            "step3/rank0/dump.json::Mint.add.0::forward SKIPPED*",
            "step3/rank0/dump.json::Mint.clamp.0::forward PASSED*",
            "step3/rank0/dump.json::first_anomaly::step SKIPPED*",
            "SKIPPED *propagated from Mint.exp.0.forward*",
            "first anomaly of step 3: rank 0, Mint.exp.0.forward: the range of its dtype is too small",
            "  output.0 Float16 (3,) holds 1 Inf, first at [[]1[]]",
            "  called from /home/train/net.py:7, in construct: y = Mint.exp.0(x)",
            "step3/rank0/dump.json: 1 origin, 1 propagated, 1 absorbed, 1 clean (1 the range of its dtype is *",
            "results: *overflow_result_*.csv",
            "summary: *overflow_summary_*.json",
            "Wrong: Mint.exp.0.forward, 1 Inf, net.py:7",
            "Mint.exp.0.forward (range of the dtype too small, likely): *",
        ]
    )


def test_a_step_without_anomaly_passes(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path / "step0" / "rank0").call("Mint.add.0", [X, X], [X + X]).write()
    result = pytester.runpytest("--msprobe-dump=step0", SUITE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["Right: no NaN or Inf begins in 1 record"])


def test_the_table_and_the_summary(pytester: pytest.Pytester) -> None:
    path = chain(pytester.path / "step3" / "rank0")
    pytester.runpytest("--msprobe-dump=step3", SUITE, "--msprobe-out=out")
    rows = table(pytester.path / "out")
    assert list(rows[0]) == (
        "step rank api_name direction level verdict in_nan in_inf out_nan out_inf dtype shape first_bad_index cpu_same "
        "cpu_high is_first_origin stack message"
    ).split(" ")
    assert rows[1] == {
        "step": "3",
        "rank": "0",
        "api_name": "Mint.exp.0",
        "direction": "forward",
        "level": "origin",
        "verdict": "normal-range",
        "in_nan": "0",
        "in_inf": "0",
        "out_nan": "0",
        "out_inf": "1",
        "dtype": "Float16",
        "shape": "(3,)",
        "first_bad_index": "[1]",
        "cpu_same": "Inf",
        "cpu_high": "finite",
        "is_first_origin": "True",
        "stack": "/home/train/net.py:7, in construct: y = Mint.exp.0(x)",
        "message": "the CPU gets the same, but float64 does not: the range of the dtype is too small",
    }
    assert [row["level"] for row in rows] == ["clean", "origin", "propagated", "absorbed"]
    found = summary(pytester.path / "out")
    assert found["first_anomaly"][0]["headline"] == "first anomaly of step 3: rank 0, Mint.exp.0.forward"
    assert found["ranks"][0]["dump"] == str(path)
    assert found["ranks"][0]["levels"] == {"absorbed": 1, "clean": 1, "origin": 1, "propagated": 1}
    assert found["ranks"][0]["first_origin"]["record"] == "Mint.exp.0.forward"


@WITH_WORKERS
def test_what_a_rank_receives_comes_from_the_sender(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    parallel(pytester.path)
    result = pytester.runpytest("--msprobe-dump=step0", SUITE, "-v", "-rs", *workers)
    result.assert_outcomes(passed=1, skipped=5, failed=1)
    result.stdout.fnmatch_lines(
        [
            "first anomaly of step 0: rank 1, Mint.log.0.forward: float64 gives NaN or Inf, too",
            "  later: rank 0, MintDistributed.all_reduce.0.forward",
            "step0/rank0/dump.json: 2 propagated, 1 clean",
            "step0/rank1/dump.json: 1 origin, 2 propagated (1 float64 gives NaN or Inf, too)",
        ]
    )
    result.stdout.fnmatch_lines(["SKIPPED *rank0/dump.json*: propagated from rank 1, Mint.log.0.forward"])
    rows = {(row["rank"], row["api_name"]): row for row in table(pytester.path)}
    assert len(rows) == 6
    assert rows["0", "MintDistributed.all_reduce.0"]["level"] == "propagated"
    origins = {rank["rank"]: rank["first_origin"] for rank in summary(pytester.path)["ranks"]}
    assert origins[0] is None
    assert origins[1]["record"] == "Mint.log.0.forward"


def test_what_is_received_from_a_rank_that_is_not_there_is_undecided(pytester: pytest.Pytester) -> None:
    parallel(pytester.path)
    result = pytester.runpytest("--msprobe-dump=step0/rank0", SUITE)
    result.assert_outcomes(passed=1, skipped=2, failed=1)
    result.stdout.fnmatch_lines(["*origin, undecided: communication: *no dump of another rank tells*add those ranks"])


def test_what_comes_back_to_the_rank_that_made_it(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path / "d").call("Mint.log.0", [np.zeros(2, F32)], [np.full(2, -INF, F32)])
    builder.call("MintDistributed.all_reduce.0", [X], [BAD]).write()
    result = pytester.runpytest("--msprobe-dump=d", SUITE, "-rs")
    result.assert_outcomes(skipped=2, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED *propagated from rank 0, Mint.log.0.forward"])


FAILURES = [
    ([X, X], [np.full(3, INF, F32)], {}, "*origin, abnormal: the CPU in the same dtype is finite here*"),
    ([X, X], [np.full(3, INF, F32)], {"real": False}, "*origin, undecided: *dump this step with task tensor"),
    ([BAD, X], [BAD], {}, "*propagated, uncollected: no record before it made what it passes on: input.0 Float32*"),
]


@pytest.mark.parametrize(
    ("arguments", "outputs", "more", "words"), FAILURES, ids=["abnormal", "undecided", "uncollected"]
)
def test_failures_explain(
    pytester: pytest.Pytester, arguments: list[Any], outputs: list[Any], more: dict[str, Any], words: str
) -> None:
    DumpBuilder(pytester.path / "d", **more).call("Mint.add.0", arguments, outputs).write()
    result = pytester.runpytest("--msprobe-dump=d", SUITE)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines([words, "*called from /home/train/net.py:7, in construct: *"])


@pytest.mark.parametrize("name", ["dtype", "", "Mint.add.0.sideward"])
def test_an_origin_that_is_no_api_call_is_undecided(pytester: pytest.Pytester, name: str) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.exp.0", [X], [BAD])
    builder.records = {name: builder.records["Mint.exp.0.forward"]}
    builder.write()
    result = pytester.runpytest("--msprobe-dump=dump.json", SUITE)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*undecided: its name is not that of an API call, which alone can be computed again*"])
    assert "internal error" not in result.stdout.str()


def test_options_for_the_verdict(pytester: pytest.Pytester) -> None:
    chain(pytester.path / "d")
    pytester.runpytest("--msprobe-dump=d", SUITE, "--msprobe-overflow-fail-reproduced").assert_outcomes(
        passed=2, skipped=2, failed=1
    )
    builder = DumpBuilder(pytester.path / "e").call("Custom.alloc.0", [X], [BAD])
    builder.write()
    pytester.runpytest("--msprobe-dump=e", SUITE).assert_outcomes(failed=1, skipped=1)
    undecided = pytester.runpytest("--msprobe-dump=e", SUITE, "--msprobe-overflow-undecided=skip")
    undecided.assert_outcomes(failed=1, skipped=1)
    (pytester.path / "rules.yaml").write_text("- apis: [Custom.alloc]\n  outputs: [0]\n")
    ruled = pytester.runpytest("--msprobe-dump=e", SUITE, "--msprobe-overflow-rules=rules.yaml", "-rs")
    ruled.assert_outcomes(skipped=1, passed=1)
    ruled.stdout.fnmatch_lines(["SKIPPED *uninitialised buffer: its content means nothing"])


def test_a_mask_of_infinities_is_no_anomaly(pytester: pytest.Pytester) -> None:
    masked = np.array([1.0, -INF, 2.0], F32)
    DumpBuilder(pytester.path / "d").call("Mint.masked_fill.0", [X, X > 2, -INF], [masked]).call(
        "Mint.softmax.0", [masked], [X]
    ).write()
    pytester.runpytest("--msprobe-dump=d", SUITE).assert_outcomes(passed=3)
    assert [row["verdict"] for row in table(pytester.path)] == ["intended", ""]


def test_a_pytorch_dump(pytester: pytest.Pytester) -> None:
    large = np.full(3, 6e4, F16)
    path = (
        DumpBuilder(pytester.path / "d", framework="pytorch")
        .call("Torch.add.0", [large, large], [np.full(3, INF, F16)])
        .call("Functional.softmax.0", [np.full(3, -INF, F32)], [np.full(3, NAN, F32)], keywords={"dim": -1})
        .write()
    )
    path.write_text(
        path.read_text().replace("mindspore.Tensor", "torch.Tensor").replace('"Float16"', '"torch.float16"')
    )
    pytester.runpytest("--msprobe-dump=d", SUITE).assert_outcomes(skipped=2, failed=1)
    assert [(row["level"], row["verdict"]) for row in table(pytester.path)] == [
        ("origin", "normal-range"),
        ("propagated", ""),
    ]


def test_a_mix_dump_has_an_item_for_every_record(pytester: pytest.Pytester, dumps: Path) -> None:
    result = pytester.runpytest(f"--msprobe-dump={dumps / 'gpt_tiny_mix'}", SUITE)
    result.assert_outcomes(passed=237)
    assert len(table(pytester.path)) == 236


def test_choosing_and_repeating(pytester: pytest.Pytester) -> None:
    chain(pytester.path / "d")
    some = pytester.runpytest("--msprobe-dump=d", SUITE, "-k", "exp or add")
    some.assert_outcomes(failed=1, skipped=1, deselected=3)
    some.stdout.fnmatch_lines(
        ["the first anomaly was not looked for: its item did not run", "Wrong: Mint.exp.0.forward, 1 Inf, net.py:7"]
    )
    pytester.runpytest("d/dump.json::Mint.exp.0::forward", SUITE).assert_outcomes(failed=1)
    pytester.runpytest("d/dump.json::Mint.mul.0::forward", SUITE).assert_outcomes(passed=1)
    pytester.runpytest("--msprobe-dump=d", SUITE).assert_outcomes(passed=2, skipped=2, failed=1)
    pytester.runpytest("--msprobe-dump=d", SUITE, "--lf").assert_outcomes(failed=1)


def test_an_origin_that_a_baseline_knows_fails_nothing(pytester: pytest.Pytester) -> None:
    chain(pytester.path / "d")
    pytester.runpytest("--msprobe-dump=d", SUITE, "--msprobe-jsonl=rows.jsonl")
    assert main(["baseline", "rows.jsonl", "-o", "baseline.json"]) == 0
    result = pytester.runpytest("--msprobe-dump=d", SUITE, "--msprobe-baseline=baseline.json")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=2, skipped=2, xfailed=1)


def test_rows_page_and_junit(pytester: pytest.Pytester) -> None:
    chain(pytester.path / "d")
    options = ("--html=page.html", "--self-contained-html", "--junitxml=junit.xml", "--msprobe-jsonl=rows.jsonl")
    pytester.runpytest("--msprobe-dump=d", SUITE, *options)
    rows = [json.loads(line) for line in (pytester.path / "rows.jsonl").read_text().splitlines()]
    assert [(row["name"], row["direction"], row["status"]) for row in rows] == [
        ("Mint.mul.0", "forward", "pass"),
        ("Mint.exp.0", "forward", "error"),
        ("Mint.add.0", "forward", "skip"),
        ("Mint.clamp.0", "forward", "pass"),
        ("first_anomaly.step", None, "skip"),
    ]
    assert rows[1]["outputs"][0]["message"] == "output.0 Float16 (3,) holds 1 Inf, first at [1]"
    page = (pytester.path / "page.html").read_text(encoding="utf-8")
    assert page.index("<li>first anomaly of") < page.index("looking for where NaN and Inf begin")
    junit = (pytester.path / "junit.xml").read_text(encoding="utf-8")
    assert '<property name="level" value="origin" /><property name="overflow_verdict" value="normal-range" />' in junit


def test_no_framework_is_imported_where_there_is_no_origin(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path / "d").call("Mint.add.0", [X, X], [X + X]).write()
    pytester.makeconftest(
        "import sys\ndef pytest_unconfigure():\n"
        "    print('loaded:', [name for name in ('torch', 'mindspore') if name in sys.modules])\n"
    )
    result = pytester.runpytest_subprocess("--msprobe-dump=d", SUITE)
    result.stdout.fnmatch_lines(["loaded: []"])


BAD_OPTIONS = [
    (["--msprobe-overflow-undecided=maybe"], "*--msprobe-overflow-undecided: 'maybe' is none of fail, skip"),
    (["--msprobe-overflow-rules=no.yaml"], "*--msprobe-overflow-rules: 'no.yaml' is not a file; give rules in YAML"),
    (["--msprobe-overflow-rules=bad.yaml"], "*--msprobe-overflow-rules: *bad.yaml: entry 1: unknown key 'api'*"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=["word", "no file", "wrong key"])
def test_wrong_options_are_one_sentence(pytester: pytest.Pytester, options: list[str], words: str) -> None:
    chain(pytester.path / "d")
    (pytester.path / "bad.yaml").write_text("- api: Mint.empty\n")
    result = pytester.runpytest("--msprobe-dump=d", SUITE, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([words])


@pytest.mark.parametrize("way", ["--msprobe-config=own.yaml", "--msprobe-suite=overflow"])
def test_without_a_dump_the_suite_says_what_it_needs(pytester: pytest.Pytester, way: str) -> None:
    (pytester.path / "own.yaml").write_text("suite: overflow\n")
    result = pytester.runpytest(way)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--msprobe-suite=overflow needs --msprobe-dump=PATH*"])


def test_bad_dumps_are_named_and_the_others_are_looked_through(pytester: pytest.Pytester) -> None:
    chain(pytester.path / "step0" / "rank1")
    DumpBuilder(pytester.path / "step0" / "rank0").write()
    structure = DumpBuilder(pytester.path / "step0" / "rank2").call("Mint.add.0", [X], [X])
    structure.header["task"] = "structure"
    structure.write()
    result = pytester.runpytest("--msprobe-dump=step0", SUITE)
    result.assert_outcomes(passed=2, skipped=2, failed=1, errors=2)
    result.stdout.fnmatch_lines(
        ["*rank0/dump.json: data: this dump holds no record*", "*rank2/dump.json: task: *holds no values*"],
    )
    result.stdout.fnmatch_lines(["Wrong: Mint.exp.0.forward, *"])


def test_no_anomaly_is_no_pass_when_a_rank_cannot_be_read(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path / "step0" / "rank0").call("Mint.add.0", [X, X], [X + X]).write()
    DumpBuilder(pytester.path / "step0" / "rank1").write()
    result = pytester.runpytest("--msprobe-dump=step0", SUITE, "-rs")
    result.assert_outcomes(passed=1, skipped=1, errors=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED *no anomaly in step 0: no NaN or Inf is left; 1 dumps or records could not be judged"]
    )


def test_bad_records_fail_and_the_others_are_judged(pytester: pytest.Pytester) -> None:
    path = DumpBuilder(pytester.path / "d").call("Mint.add.0", [X, X], [X + X]).call("Mint.mul.0", [X, X], [X]).write()
    edited(path, "Mint.add.0.forward", lambda record: record["output"][0].update(dtype="Float7"))
    (pytester.path / "d/dump_tensor_data/Mint.mul.0.forward.input.1.npy").unlink()
    path.write_text(path.read_text().replace('"data": {', '"data": {"strange": 3,'))
    result = pytester.runpytest("--msprobe-dump=d", SUITE)
    result.assert_outcomes(failed=3, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*strange: expected an object, found int*",
            "*Mint.add.0.forward: output[[]0[]].dtype: unknown tensor dtype 'Float7'*",
            "*Mint.mul.0.forward.input.1.npy' is not in *",
        ]
    )


def test_a_real_training_step(pytester: pytest.Pytester, dumps: Path) -> None:
    shutil.copy(dumps / "overflow_attention" / "train_attention.py", pytester.path)
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "train_attention.py", "dump"]
    subprocess.run(command, cwd=pytester.path, env=environment, check=True, capture_output=True)
    result = pytester.runpytest("--msprobe-dump=dump", SUITE)
    result.assert_outcomes(passed=4, skipped=10, failed=1)
    result.stdout.fnmatch_lines(["Wrong: Mint.matmul.3.forward, 7 Inf, train_attention.py:*"])


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("call", "taken_out", "level"),
    [
        ("log", "nan_to_num", "discarded"),
        ("log", "reciprocal", "discarded"),
        ("square", "nan_to_num", "discarded"),
        ("square", "reciprocal", "origin"),
    ],
)
def test_what_is_discarded_is_no_anomaly_where_nothing_is_lost(
    pytester: pytest.Pytester, call: str, taken_out: str, level: str
) -> None:
    """log(0) is -Inf in any dtype; the square of 300 is too large for float16 alone, and its reciprocal is lost."""
    builder = DumpBuilder(pytester.path / "step0", framework="pytorch")
    given = np.array([0.0, 2.0], F32) if call == "log" else np.array([300.0, 2.0], F16)
    with np.errstate(all="ignore"):
        made = getattr(np, call)(given)
        used = getattr(np, taken_out)(made)
    builder.call(f"Torch.{call}.0", [given], [made])
    builder.call(f"Torch.{taken_out}.0", [made], [used]).write()
    result = pytester.runpytest("--msprobe-dump=step0", SUITE, "--msprobe-out=out")
    assert table(pytester.path / "out")[0]["level"] == level
    assert result.ret == (pytest.ExitCode.OK if level == "discarded" else pytest.ExitCode.TESTS_FAILED)
