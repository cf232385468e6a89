"""Error data: failing calls on disk, as a dump that fails in the same way when it is checked."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports
from slow_parameters import WITH_WORKERS

RANDOM = np.random.default_rng(11)
A = RANDOM.standard_normal((4, 8)).astype(np.float32)
B = RANDOM.standard_normal((8, 5)).astype(np.float32)
G = RANDOM.standard_normal((4, 5)).astype(np.float32)
BF = A.astype(ml_dtypes.bfloat16)


def faulty_dump(folder: Path) -> DumpBuilder:
    """Each kind of call once, with a planted fault; the last is right."""
    builder = DumpBuilder(folder)
    wrong = [G @ B.T, (A.T @ G) * np.float32(1.1)]
    builder.call("Mint.matmul.0", [A, B], [A @ B + np.float32(0.5)], incoming=[G], gradients=wrong)
    builder.call("Mint.matmul.1", [A, B], [A @ B], incoming=[G], gradients=wrong)
    builder.call("Mint.cat.0", [[BF, BF]], [np.concatenate([BF, -BF])], keywords={"dim": 0})
    builder.call("Mint.sum.0", [], [A.sum(1) + 1], keywords={"input": A, "dim": 1})
    builder.call("Mint.chunk.0", [A, 2, 1], [A[:, :4], A[:, 4:] + 1])
    builder.call("Mint.where.0", [A > 0, A, float("inf")], [A])
    builder.call("Tensor.__getitem__.0", [A, {"type": "slice", "value": [1, None, 2]}], [-A[1::2]])
    builder.call("Tensor.to.0", [A, {"type": "mindspore.dtype", "value": "Float16"}], [A.astype(np.float16) + 1])
    builder.call("Primitive.mul.Mul.0", [A, A], [A * A], incoming=[A], gradients=[A, A])
    builder.call("Mint.exp.0", [A], [np.exp(A)])
    return builder


def statuses(folder: Path) -> dict[str, tuple[str, str]]:
    return {
        name: (row["Forward Test Success"], row["Backward Test Success"])
        for name, row in Reports(folder).results.items()
    }


@WITH_WORKERS
def test_the_folder_is_a_dump_with_the_same_failures(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    dump = faulty_dump(pytester.path / "dump").write()
    run = pytester.runpytest_subprocess  # pytester's runs in one process import parts of PyTorch anew
    first = run(f"--msprobe-dump={dump}", "--msprobe-out=first", "--msprobe-error-data=auto", *workers)
    first.assert_outcomes(failed=10, passed=3)
    first.stdout.fnmatch_lines(["error data: *first/error_data (9 API calls)"])
    second = run("--msprobe-dump=first/error_data", "--msprobe-out=second", *workers)
    second.assert_outcomes(failed=10, passed=2)
    found, expected = statuses(pytester.path / "second"), statuses(pytester.path / "first")
    assert found == {name: verdicts for name, verdicts in expected.items() if name != "Mint.exp.0"}
    details = Reports(pytester.path / "first").details
    for name, row in Reports(pytester.path / "second").details.items():
        assert row == details[name]
    second.stdout.fnmatch_lines(["called from /home/train/net.py:7, in construct:"])


def test_files_have_the_names_of_the_existing_tool_beside_those_of_the_benchmark(pytester: pytest.Pytester) -> None:
    dump = faulty_dump(pytester.path / "dump").write()
    pytester.runpytest(f"--msprobe-dump={dump}", "--msprobe-error-data=errors")
    folder = pytester.path / "errors" / "dump_tensor_data"
    names = {path.name for path in folder.iterdir()}
    assert {name for name in names if name.startswith("Mint.matmul.0.")} == {
        "Mint.matmul.0.forward.input.0.npy",
        "Mint.matmul.0.forward.input.1.npy",
        "Mint.matmul.0.forward.output.0.npy",
        "Mint.matmul.0.forward.bench_output.0.npy",
        "Mint.matmul.0.backward.input.0.npy",
        "Mint.matmul.0.backward.output.0.npy",
        "Mint.matmul.0.backward.output.1.npy",
        "Mint.matmul.0.backward.bench_output.0.npy",
        "Mint.matmul.0.backward.bench_output.1.npy",
    }
    assert {"Mint.cat.0.forward.input.0.0.npy", "Mint.cat.0.forward.input.0.1.npy"} < names
    assert {"Mint.sum.0.forward.kwargs.input.npy", "Mint.chunk.0.forward.output.1.npy"} < names
    stored = np.load(folder / "Mint.cat.0.forward.input.0.0.npy")
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, BF.astype(np.float32))
    assert np.load(folder / "Mint.matmul.0.forward.bench_output.0.npy").dtype == np.float64
    for path in (pytester.path / "errors").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640) & ~0o022, path


def test_random_inputs_become_recorded_ones(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path / "dump", real=False)
    builder.call("Mint.exp.0", [A * 8], [np.exp(A * 8)])
    arguments = ("--msprobe-device=mindspore:cpu", "--msprobe-max-abs=1e-30")
    dump = builder.write()
    first = pytester.runpytest(f"--msprobe-dump={dump}", *arguments, "--msprobe-error-data=e", "--msprobe-out=1")
    first.assert_outcomes(failed=1)
    again = pytester.runpytest("--msprobe-dump=e", "--msprobe-device=recorded", arguments[1], "--msprobe-out=2")
    again.assert_outcomes(failed=1)
    assert Reports(pytester.path / "1").details == Reports(pytester.path / "2").details


@WITH_WORKERS
def test_a_used_up_budget_is_said(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    builder = DumpBuilder(pytester.path / "dump")
    for number in range(6):
        builder.call(f"Mint.exp.{number}", [A], [A])
    size = 128 * 3 + A.nbytes * 4
    result = pytester.runpytest(
        f"--msprobe-dump={builder.write()}",
        "--msprobe-error-data=e",
        f"--msprobe-error-data-limit={size * 2 + 10}B",
        *workers,
    )
    result.assert_outcomes(failed=6)
    result.stdout.fnmatch_lines(["error data: *e (2 API calls)", "error data: 4 failed checks were not saved*"])
    assert len(json.loads((pytester.path / "e" / "dump.json").read_text())["data"]) == 2


def test_several_dumps_have_a_folder_each(pytester: pytest.Pytester) -> None:
    for rank in ("rank0", "rank1"):
        DumpBuilder(pytester.path / "step0" / rank).call("Mint.exp.0", [A], [A]).write()
    pytester.runpytest("--msprobe-dump=step0", "--msprobe-error-data=e").assert_outcomes(failed=2)
    assert {path.parent.name for path in (pytester.path / "e").rglob("dump.json")} == {"rank0", "rank1"}


def test_nothing_that_exists_is_written_over(pytester: pytest.Pytester) -> None:
    dump = DumpBuilder(pytester.path / "dump").call("Mint.exp.0", [A], [A]).write()
    (pytester.path / "e").mkdir()
    (pytester.path / "e" / "dump.json").write_text("mine")
    for _ in range(2):
        pytester.runpytest(f"--msprobe-dump={dump}", "--msprobe-error-data=e")
    assert (pytester.path / "e" / "dump.json").read_text() == "mine"
    assert [path.name for path in (pytester.path / "e").iterdir()] == ["dump.json"]
    assert (pytester.path / "e_2" / "dump.json").exists()
    assert (pytester.path / "e_3" / "dump.json").exists()


def test_a_run_without_failures_leaves_no_folder(pytester: pytest.Pytester) -> None:
    dump = DumpBuilder(pytester.path / "dump").call("Mint.exp.0", [A], [np.exp(A)]).write()
    result = pytester.runpytest(f"--msprobe-dump={dump}", "--msprobe-error-data=auto")
    result.assert_outcomes(passed=1)
    assert not (pytester.path / "error_data").exists()
    assert "error data" not in result.stdout.str()


def test_a_kill_leaves_a_whole_dump(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path / "dump")
    for number in range(5):
        builder.call(f"Mint.exp.{number}", [A], [A])
    pytester.makeconftest(
        "import os, signal, pytest\n"
        "def pytest_runtest_setup(item):\n"
        "    if 'exp.3' in item.nodeid:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pytester.runpytest_subprocess(f"--msprobe-dump={builder.write()}", "--msprobe-error-data=e")
    pytester.path.joinpath("conftest.py").unlink()
    pytester.runpytest("--msprobe-dump=e").assert_outcomes(failed=3)


@pytest.mark.parametrize("name", ["Mint.../../up.0", "Mint.a/b.0", "Mint." + "a" * 400 + ".0"])
def test_no_name_of_the_dump_leaves_the_folder(pytester: pytest.Pytester, name: str) -> None:
    builder = DumpBuilder(pytester.path / "dump")
    builder.call("Mint.exp.0", [A], [A])
    builder.records[f"{name}.forward"] = builder.records.pop("Mint.exp.0.forward")
    pytester.makeconftest(
        "import numpy as np, pytest_msprobe.suites.precheck.check as check\n"
        "from pytest_msprobe.engines.torch_bindings import Binding\n"
        "import pytest_msprobe.engines.torch_engine as engine\n"
        "engine.lookup = lambda *a: Binding('x', 'torch.exp')\n"
    )
    result = pytester.runpytest_subprocess(
        f"--msprobe-dump={builder.write()}", "--msprobe-error-data=e", "--msprobe-reproducers=r"
    )
    result.assert_outcomes(failed=1)
    assert {path.name for path in pytester.path.iterdir()} >= {"e"}
    files = [path for path in (pytester.path / "e" / "dump_tensor_data").iterdir() if path.is_file()]
    assert len(files) == 3
    assert not list(pytester.path.parent.glob("up*"))
    assert f"{name}.forward" in json.loads((pytester.path / "e" / "dump.json").read_text())["data"]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--msprobe-error-data=dump/dump.json", "is not a folder"),
        ("--msprobe-error-data=/proc/nothing/here", "--msprobe-error-data=/proc/nothing/here: cannot be"),
        ("--msprobe-error-data-limit=much", "'much' is not a size"),
        ("--msprobe-reproducers=dump/dump.json", "is not a folder"),
    ],
)
def test_wrong_options_end_the_run_before_it_begins(pytester: pytest.Pytester, option: str, text: str) -> None:
    dump = DumpBuilder(pytester.path / "dump").call("Mint.exp.0", [A], [A]).write()
    result = pytester.runpytest(f"--msprobe-dump={dump}", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{text}*"])


def test_ini_and_yaml_name_the_folder(pytester: pytest.Pytester) -> None:
    dump = DumpBuilder(pytester.path / "dump").call("Mint.exp.0", [A], [A]).write()
    pytester.makeini("[pytest]\nmsprobe_error_data = auto\n")
    pytester.runpytest(f"--msprobe-dump={dump}")
    assert (pytester.path / "error_data" / "dump.json").exists()
    (pytester.path / "c.yaml").write_text("error_data: here\nreproducers: there\n")
    pytester.runpytest(f"--msprobe-dump={dump}", "--msprobe-config=c.yaml")
    assert (pytester.path / "here" / "dump.json").exists()
    assert (pytester.path / "there" / "Mint.exp.0.py").exists()
