"""Each fault of the fake engine, as the tested side and as the benchmark: its verdict and its message."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.checking import Bench
from fakes.engine import FAULTS, FakeEngine, FakeEngines

#: fault -> (status, what message or explanation say) of the forward, and of the backward, when the device has it.
#: Where the backward is missing, it is as the forward is.
TESTED: dict[str, tuple[tuple[str, str], ...]] = {
    "none": (("pass", ""),),
    "bias": (("error", r"output\.0 Float32 \(2, 3\): Max absolute error 0\.01 is not below 0\.0001"),),
    "scale": (("error", r"Max absolute error 0\.[01]\d* is not below 0\.0001"),),
    "one element off": (("error", r"Cosine -?0\.\d+ is not above 0\.99"),),
    "negated": (("error", "Cosine -1 is not above 0.99"),),
    "NaN": (("error", "1 of 6 elements has a NaN or Inf that the other side lacks"),),
    "Inf": (("error", "1 of 6 elements has a NaN or Inf that the other side lacks"),),
    "all zero": (("error", "Cosine 0 is not above 0.99"),),
    "zeroed tail": (("error", r"3 of 6 elements"),),
    "wrong dtype": (("error", "Tested dtype Float16, but the dump recorded Float32"), ("pass", "")),
    "wrong shape": (("error", r"Shapes differ: tested \(6,\), benchmark \(2, 3\)"),),
    "cut": (("error", r"Shapes differ: tested \(1, 3\), benchmark \(2, 3\)"),),
    "one output less": (("error", "0 outputs tested, but the benchmark has 1"), ("pass", "")),
    "one output more": (("error", "2 outputs tested, but the benchmark has 1; the first 1 are compared"), ("pass", "")),
    "swapped": (("pass", ""), ("error", r"output\.0 Float32")),
    "plain value instead of an array": (("error", "float"), ("pass", "")),
    "None instead of an array": (("error", "0 outputs tested, but the benchmark has 1"), ("pass", "")),
    "refusal": (("skip", "device: no kernel for it"),),
    "unsupported": (("skip", "device: no such dtype here"),),
    "raises": (("error", r"device \(fake CPU\): RuntimeError: kernel failed$"),),
    "runs out of memory": (("error", r"device \(fake CPU\): MemoryError$"),),
    "unsupported gradient": (("pass", ""), ("skip", "device: no gradient kernel")),
    "raises in its gradient": (("pass", ""), ("error", r"device \(fake CPU\): ValueError: grad failed")),
}
#: The same when the benchmark has the fault and the device is right: what cannot be computed is a skip.
BENCHMARK: dict[str, tuple[tuple[str, str], ...]] = {
    "refusal": (("skip", "no benchmark: bench: no kernel for it"),),
    "unsupported": (("skip", "no benchmark: bench: no such dtype here"),),
    "raises": (("error", r"benchmark \(bench CPU float64\): RuntimeError: kernel failed$"),),
    "unsupported gradient": (("pass", ""), ("skip", "no benchmark: bench: no gradient kernel")),
    "raises in its gradient": (("pass", ""), ("error", r"benchmark \(bench CPU float64\): ValueError: grad failed")),
    "bias": (("error", "Max absolute error 0.01 is not below 0.0001"),),
    "one output more": (("error", "1 outputs tested, but the benchmark has 2"), ("pass", "")),
    "None instead of an array": (("skip", "returned nothing that can be compared"), ("pass", "")),
}
#: These end the process, and are tested in one of their own.
FATAL = ("hangs", "exits")
LOST_GRADIENT = "no gradient of the first argument"
CASES = [("device", fault, found) for fault, found in TESTED.items()]
CASES += [("benchmark", fault, found) for fault, found in BENCHMARK.items()]


def engines_with(side: str, fault: str) -> FakeEngines:
    """A device and a benchmark, of which `side` has the fault."""
    device = FakeEngine(fault=fault if side == "device" else "none")
    bench = FakeEngine("bench", is_raised=True, fault=fault if side == "benchmark" else "none")
    return FakeEngines(device, (bench,))


def test_every_fault_is_in_the_table() -> None:
    assert {*TESTED, *FATAL, LOST_GRADIENT} == {*FAULTS}


@pytest.mark.parametrize(("side", "fault", "expected"), CASES, ids=[f"{side}, {fault}" for side, fault, _ in CASES])
def test_fault_verdict_and_message(
    tmp_path: Path, side: str, fault: str, expected: tuple[tuple[str, str], ...]
) -> None:
    check = Bench(tmp_path, engines=engines_with(side, fault)).check()
    for direction, (status, words) in zip(("forward", "backward"), (expected * 2)[:2]):
        found = check.run(direction)  # type: ignore[arg-type]  # a direction
        text = "\n".join(filter(None, [found.explanation, found.message]))
        assert (found.status, bool(re.search(words, text, re.MULTILINE))) == (status, True), (direction, text)
    check.close()


@pytest.mark.parametrize("fault", [fault for fault, found in TESTED.items() if found[0][0] == "error"])
def test_an_error_says_what_and_where_on_its_first_line(tmp_path: Path, fault: str) -> None:
    found = Bench(tmp_path, engines=engines_with("device", fault)).verdict()
    first = (found.explanation or found.message).splitlines()[0]
    assert first.startswith(("output.0 ", "device (fake CPU): ")) or "outputs tested" in first
    assert "C++" not in first


@pytest.mark.parametrize(
    ("side", "status", "words"),
    [
        ("device", "error", "output.0: the device gave no gradient, the benchmark has one"),
        ("benchmark", "skip", "output.0: the benchmark gave no gradient, the device one that is not zero"),
    ],
)
def test_a_gradient_that_one_side_lost_is_no_pass(tmp_path: Path, side: str, status: str, words: str) -> None:
    found = Bench(tmp_path, engines=engines_with(side, LOST_GRADIENT)).verdict("backward")
    assert (found.status, found.message) == (status, words)
    assert [row.status for row in found.outputs] == (["pass"] if side == "device" else ["skip", "pass"])


FATAL_RUN = """
import sys
from pathlib import Path
from fakes.checking import Bench
from fakes.engine import FakeEngine, FakeEngines
{limit}
Bench(Path(sys.argv[1]), engines=FakeEngines(FakeEngine(fault=sys.argv[2]))).verdict()
"""


@pytest.mark.parametrize(
    ("fault", "limit", "code", "words"),
    [
        ("exits", "", 3, ""),
        ("hangs", "import faulthandler; faulthandler.dump_traceback_later(1, exit=True)", 1, "sleep"),
    ],
)
def test_what_ends_the_process_is_not_caught(tmp_path: Path, fault: str, limit: str, code: int, words: str) -> None:
    """Only another process can make a row of it; its time limit ends one that hangs."""
    run = subprocess.run(
        [sys.executable, "-c", FATAL_RUN.format(limit=limit), str(tmp_path), fault],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == code, run.stderr
    assert "forward" in run.stderr or not words
