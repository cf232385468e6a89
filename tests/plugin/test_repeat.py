"""The suite `repeat` in whole runs: a device in NumPy, alone and as one of four, of which one is sick."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.__main__ import main
from pytest_msprobe.reports.jsonl import read_json_lines

X = np.linspace(0.5, 2.0, 64, dtype=np.float32).reshape(8, 8)

#: A device in NumPy whose faults depend on the API and on the number of the device.
DEVICE = """
from fakes.engine import FakeEngine
from pytest_msprobe.engines import selection
from pytest_msprobe.engines.protocol import own_device

class Device(FakeEngine):
    def forward(self, call, *, differentiate):
        self.fault = fault(call.api.short, own_device())
        return super().forward(call, differentiate=differentiate)

selection._make_device = lambda specification: Device()
"""
SICK = "def fault(api, device):\n    return 'flips the same bit always' if (api, device) == ('mul', '2') else 'none'\n"
FOUR = ("-n4", "--msprobe-device-ids=0-3")


@pytest.fixture(autouse=True)
def _dump(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = DumpBuilder(pytester.path)
    for number in range(3):
        builder.call(f"Mint.mul.{number}", [X, X], [X * X], incoming=[X], gradients=[X * X, X * X])
    builder.call("Mint.neg.0", [X], [-X])
    builder.call("Mint.dropout.0", [X], [X])
    builder.write()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def run(pytester: pytest.Pytester, fault: str, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest(fault + DEVICE)
    return pytester.runpytest_subprocess(
        "--msprobe-dump=dump.json", "--msprobe-suite=repeat", "--msprobe-repeat-runs=8", *arguments
    )


def table(pytester: pytest.Pytester, folder: str = ".") -> list[dict[str, str]]:
    (path,) = (pytester.path / folder).glob("repeat_result_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_device_that_flips_a_bit_now_and_then(pytester: pytest.Pytester) -> None:
    fault = "def fault(api, device):\n    return 'flips a bit now and then' if api == 'neg' else 'none'\n"
    result = run(pytester, fault)
    result.assert_outcomes(passed=6, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*1 of 8 runs (4) differ: bit 30 of one element at [[]4, 0[]]*"])
    rows = {(row["API Name"], row["Direction"]): row for row in table(pytester)}
    assert rows["Mint.neg.0", "forward"]["Status"] == "error"
    assert "bit 30" in rows["Mint.neg.0", "forward"]["Message"]
    assert rows["Mint.neg.0", "forward"]["Digest"] == ""
    assert rows["Mint.dropout.0", "forward"]["Status"] == "SKIP"
    assert len(rows["Mint.mul.0", "backward"]["Digest"]) == 16


@pytest.mark.slow
def test_a_sick_device_among_four_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, SICK, *FOUR, "--msprobe-jsonl=rows.jsonl")
    # Each device agrees with itself, so that no item fails by itself: that of the first difference does at the end.
    result.assert_outcomes(passed=27, failed=1, skipped=4)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "device 2 differs from the others in 6 of 7 results",
            "  Mint.mul.0 forward: device 2 against devices 0, 1 and 3: output.0 within *",
            "the devices do not compute the same: device 2 differs in 6 of 7 results*--msprobe-device-ids=2",
        ]
    )
    rows = table(pytester)
    assert len(rows) == 32
    odd = {(row["API Name"], row["Direction"]) for row in rows if row["Devices"].startswith("differs")}
    assert odd == {(f"Mint.mul.{number}", direction) for number in range(3) for direction in ("forward", "backward")}
    assert {row["Device"] for row in rows if row["Devices"].startswith("differs")} == {"2"}
    for _, row in read_json_lines(pytester.path / "rows.jsonl"):
        assert row.direction == row.part.partition("-")[0]
        if row.device:
            assert row.part.endswith(f"device{row.device.rpartition('device ')[2].rstrip(')')}")
    assert main(["baseline", "rows.jsonl", "-o", "baseline.json"]) == 0
    known = run(pytester, SICK, *FOUR, "--msprobe-baseline=baseline.json")
    known.assert_outcomes(passed=28, skipped=4)
    assert known.ret == pytest.ExitCode.OK


def test_sound_devices_agree(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def fault(api, device):\n    return 'none'\n", *FOUR)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["devices 0, 1, 2 and 3 agree to the bit, in all of 7 results"])


@pytest.mark.slow
def test_each_record_has_an_item_for_each_device_that_can_be_selected(pytester: pytest.Pytester) -> None:
    result = run(pytester, SICK, *FOUR, "-k", "mul.1 and (device2 or device3)")
    result.assert_outcomes(passed=3, failed=1)  # of what both have in common the first item fails
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["  Mint.mul.1 forward: devices 2 and 3 differ, without a majority: *"])
    assert {row["Device"] for row in table(pytester)} == {"2", "3"}


@pytest.mark.slow
def test_a_shard_has_all_devices_of_its_calls(pytester: pytest.Pytester) -> None:
    for number in (1, 2):
        run(pytester, SICK, *FOUR, f"--msprobe-shard={number}/2", f"--msprobe-out=shard{number}")
    shards = [table(pytester, f"shard{number}") for number in (1, 2)]
    calls = [{row["API Name"] for row in rows} for rows in shards]
    assert not calls[0] & calls[1]
    assert sum(map(len, shards)) == 32
    assert any(row["Devices"].startswith("differs") for rows in shards for row in rows)


@pytest.mark.slow
def test_a_device_whose_worker_dies_costs_an_item(pytester: pytest.Pytester) -> None:
    fault = "def fault(api, device):\n    return 'exits' if (api, device) == ('neg', '1') else 'none'\n"
    result = run(pytester, fault, *FOUR)
    result.assert_outcomes(passed=27, failed=1, skipped=4)
    lost = [row for row in table(pytester) if row["Status"] == "error"]
    assert [(row["API Name"], row["Device"]) for row in lost] == [("Mint.neg.0", "1")]
    assert "died in this check" in lost[0]["Message"]
    result.stdout.fnmatch_lines(["devices 0, 1, 2 and 3 agree to the bit, in all of 7 results"])


@pytest.mark.slow
def test_a_continued_run_still_compares_the_devices(pytester: pytest.Pytester) -> None:
    first = run(pytester, SICK, *FOUR, "--msprobe-jsonl=rows.jsonl", "--msprobe-out=a")
    rows = (pytester.path / "rows.jsonl").read_text().splitlines(keepends=True)
    (pytester.path / "rows.jsonl").write_text("".join(rows[:-3]))
    again = run(pytester, SICK, *FOUR, "--msprobe-resume=rows.jsonl", "--msprobe-out=b")
    assert (again.ret, len(table(pytester, "b"))) == (first.ret, 32)
    again.stdout.fnmatch_lines(["device 2 differs from the others in 6 of 7 results"])


def test_workers_without_devices_share_the_items(pytester: pytest.Pytester) -> None:
    result = run(pytester, SICK, "-n2")
    result.assert_outcomes(passed=7, skipped=1)
    result.stdout.fnmatch_lines(["results of one device: nothing was compared between devices"])


def test_recorded_values_cannot_be_repeated(pytester: pytest.Pytester) -> None:
    result = run(pytester, SICK, "--msprobe-device=recorded")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --msprobe-device=recorded: recorded values cannot be run again*"])


def test_one_run_is_no_repetition(pytester: pytest.Pytester) -> None:
    result = run(pytester, SICK, "--msprobe-repeat-runs=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --msprobe-repeat-runs: '1' is not a number of runs from 2 to 100000"])
