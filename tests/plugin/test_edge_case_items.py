"""--msprobe-edge-cases: their items, how these travel through the run, and what they find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

from msprobe_collector.dump_format import Dump
from pytest_msprobe.reports.jsonl import read_json_lines

X = np.linspace(0.5, 2.0, 12, dtype=np.float32).reshape(4, 3)

#: Device and benchmark in NumPy. The device loses NaN in `mul`, refuses empty tensors in `neg`, and reverses the rows
#: of the gradient of `exp` where the input is not contiguous.
DEVICE = """
import numpy as np
from fakes.engine import FakeEngine
from pytest_msprobe.api import Reference
from pytest_msprobe.engines import selection
from pytest_msprobe.engines.protocol import Output

class Device(FakeEngine):
    def forward(self, call, *, differentiate):
        if call.api.short == "neg" and call.arguments[0].size == 0:
            raise ValueError("an empty tensor")
        found = super().forward(call, differentiate=differentiate)
        if call.api.short == "mul":
            found.outputs = tuple(Output(one.path, np.nan_to_num(one.value)) for one in found.outputs)
        if call.api.short == "exp" and call.is_strided:
            right = found.differentiate
            found.differentiate = lambda incoming: tuple(one[::-1] for one in right(incoming))
        return found

def negative(x):
    if x.ndim == 0:
        raise ValueError("no scalar")
    if x.size == 0:
        raise ValueError("no empty array")
    return -x

KNOWN = {
    "neg": Reference(negative),
    "mul": Reference(np.multiply),
    "exp": Reference(np.exp, lambda incoming, x: [incoming[0] * np.exp(x)]),
}

def pytest_msprobe_reference(api):
    return KNOWN.get(api.short)

selection._make_device = lambda specification: Device()
"""


@pytest.fixture(autouse=True)
def _dump(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = DumpBuilder(pytester.path)
    for number in range(2):
        builder.call(f"Mint.mul.{number}", [X, X], [X * X])
    builder.call("Custom.neg.0", [X], [-X])
    builder.call("Mint.dropout.0", [X], [X])
    builder.write()
    pytester.makeconftest(DEVICE)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        "--msprobe-dump=dump.json", "--msprobe-device=mindspore:cpu", "--msprobe-edge-cases", *arguments
    )


MUL = {f"Mint.mul.0-{name}" for name in ("empty", "scalar", "broadcast", "strided", "large", "extreme", "nan", "inf")}
NEG = {f"Custom.neg.0-{name}" for name in ("empty", "scalar", "strided", "large", "extreme", "nan", "inf")}


def test_each_api_has_its_edge_cases_once_and_they_find_what_is_wrong(
    pytester: pytest.Pytester, reports: Reports
) -> None:
    result = run(pytester)
    calls = {"Mint.mul.0", "Mint.mul.1", "Custom.neg.0", "Mint.dropout.0"}
    assert {*reports.results} == calls | MUL | NEG
    words = {name: row["Forward Test Success"] for name, row in reports.results.items()}
    failed = {name for name, word in words.items() if word == "error"}
    assert failed >= {"Mint.mul.0-nan", "Mint.mul.0-inf"}
    assert failed <= {"Mint.mul.0-nan", "Mint.mul.0-inf", "Mint.mul.0-extreme"}
    assert {name for name, word in words.items() if word == "SKIP"} >= {"Custom.neg.0-empty", "Custom.neg.0-scalar"}
    assert "constructed: three NaN put into its float tensors" in reports.results["Mint.mul.0-nan"]["Message"]
    assert "both sides refuse the inputs" in reports.results["Custom.neg.0-empty"]["Message"]
    assert "only the device accepts the inputs" in reports.results["Custom.neg.0-scalar"]["Message"]
    assert "Mint.mul.0-nan.forward.output.0" in reports.details
    result.stdout.fnmatch_lines(["*Mint.mul.0, forward, edge case nan: three NaN put into its float tensors*"])


def test_ids_are_those_of_the_calls_with_the_name_of_the_case(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--collect-only", "-q")
    ids = [line for line in result.outlines if "::" in line]
    assert len(ids) == len({*ids}) == 4 + len(MUL) + len(NEG)
    assert {line.split("::")[1] for line in ids if "-" in line.split("::")[1]} == MUL | NEG
    assert all(line.endswith("::forward") for line in ids)
    assert ids[:4] == [line for line in ids if "-" not in line.split("::")[1]]


def test_last_failed_and_a_single_id(pytester: pytest.Pytester) -> None:
    run(pytester)
    again = run(pytester, "--lf")
    outcomes = again.parseoutcomes()
    assert outcomes["failed"] in (2, 3)
    assert "passed" not in outcomes
    one = run(pytester, "dump.json::Mint.mul.0-broadcast::forward")
    one.assert_outcomes(passed=1)


@pytest.mark.parametrize("kind", ["rows.jsonl", "csv"])
def test_an_interrupted_run_is_continued(pytester: pytest.Pytester, kind: str) -> None:
    first = run(pytester, "--msprobe-out=a", "--msprobe-jsonl=rows.jsonl")
    whole = {*Reports(pytester.path / "a").results}
    (csv,) = (pytester.path / "a").glob("accuracy_checking_result_*.csv")
    path = pytester.path / "rows.jsonl" if kind == "rows.jsonl" else csv
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]))
    again = run(pytester, f"--msprobe-resume={path}", "--msprobe-out=a" if kind == "csv" else "--msprobe-out=b")
    assert again.ret == first.ret
    assert sum(again.parseoutcomes().get(word, 0) for word in ("passed", "failed", "skipped")) < len(whole)
    assert {*Reports(pytester.path / ("a" if kind == "csv" else "b")).results} == whole


@pytest.mark.slow
def test_workers_and_shards(pytester: pytest.Pytester) -> None:
    run(pytester, "--msprobe-jsonl=one.jsonl")
    run(pytester, "-n2", "--msprobe-jsonl=two.jsonl")
    alone, workers = (
        {row.node_id: row.status for _, row in read_json_lines(pytester.path / f"{name}.jsonl")}
        for name in ("one", "two")
    )
    assert alone == workers
    parts = []
    for number in (1, 2):
        run(pytester, f"--msprobe-shard={number}/2", f"--msprobe-jsonl=shard{number}.jsonl")
        parts.append({row.node_id for _, row in read_json_lines(pytester.path / f"shard{number}.jsonl")})
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {*alone}


def test_recorded_values_have_no_edge_cases(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--msprobe-device=recorded")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --msprobe-edge-cases: nobody has recorded them*"])


@pytest.fixture
def _dump_with_gradients(pytester: pytest.Pytester) -> None:
    """One call of `exp`, with its gradient."""
    DumpBuilder(pytester.path).call("Mint.exp.0", [X], [np.exp(X)], incoming=[X], gradients=[X * np.exp(X)]).write()


@pytest.mark.usefixtures("_dump_with_gradients")
def test_gradients_are_judged_and_failures_leave_error_data_and_reproducers(
    pytester: pytest.Pytester, reports: Reports
) -> None:
    result = run(pytester, "--msprobe-error-data=auto", "--msprobe-reproducers=scripts", "--msprobe-jsonl=r.jsonl")
    rows = {(row.call, row.part): row for _, row in read_json_lines(pytester.path / "r.jsonl")}
    judged = {call.partition("-")[2] for call, part in rows if part == "backward"}
    assert judged == {"", "empty", "scalar", "strided", "extreme"}
    failed = {key for key, row in rows.items() if row.status == "error"}
    assert failed == {("Mint.exp.0-strided", "backward")}
    result.stdout.fnmatch_lines(["*Mint.exp.0, backward, edge case strided: every tensor a transposed view*"])
    assert reports.results["Mint.exp.0-strided"]["Backward Test Success"] == "error"
    script = (pytester.path / "scripts" / "Mint.exp.0-strided.py").read_text()
    assert "x0.swapaxes(-1, -2).contiguous()" in script
    kept = Dump(pytester.path / "error_data" / "edge_strided" / "dump.json")
    assert [*kept.record_names] == ["Mint.exp.0.forward", "Mint.exp.0.backward"]
    assert [*(pytester.path / "error_data").rglob("dump.json")] == [kept.path]
