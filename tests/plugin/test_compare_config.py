"""compare.json of older tools as --msprobe-config, and dumps of kernels, which are out of scope."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison import compare, compare_distributed

X = np.linspace(-1, 2, 12, dtype=np.float32)
KERNEL = "MatMul.Default_network-MatMul_op1.0.7.1690000000000000.input.0.DefaultFormat.npy"


@pytest.fixture
def pair(pytester: pytest.Pytester) -> Path:
    """A folder with two dumps, `target` and `golden`, the second 1 % larger."""
    for side, factor in (("target", 1.0), ("golden", 1.01)):
        folder = pytester.path / side / "step0" / "rank0"
        DumpBuilder(folder).call("Mint.op.0", [X], [X * np.float32(factor)]).write()
    return pytester.path


def config(folder: Path, **more: object) -> str:
    content = {"npu_path": "target/step0/rank0/dump.json", "bench_path": "golden/step0/rank0/dump.json", **more}
    (folder / "compare.json").write_text(json.dumps(content))
    return "--msprobe-config=compare.json"


def test_a_compare_json_names_both_dumps(pytester: pytest.Pytester, pair: Path) -> None:
    result = pytester.runpytest(config(pair, stack_path="target/step0/rank0/stack.json", is_print_compare_log=True))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["table: *", "Wrong: differs first in Mint.op.0*"])


def test_it_may_hold_folders_and_our_own_keys(pytester: pytest.Pytester, pair: Path) -> None:
    option = config(pair, npu_path="target", bench_path="golden", distance="Float32=0.1", out="here")
    pytester.runpytest(option).assert_outcomes(passed=1)
    assert list((pair / "here").glob("compare_result_rank0_*.csv"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rank_id", [0], "key 'rank_id' is for dumps of kernels, which nothing here compares"),
        ("step_id", [], "key 'step_id' is for dumps of kernels"),
        ("npu_path", 3, "key 'npu_path': expected the path of a dump, found 3"),
        ("npu_pth", "a", "unknown key 'npu_pth'"),
        ("bench_path", "nowhere", "there is no such file or folder"),
    ],
)
def test_what_it_cannot_mean_is_refused(
    pytester: pytest.Pytester, pair: Path, key: str, value: object, words: str
) -> None:
    result = pytester.runpytest(config(pair, **{key: value}))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{words}*"])


@pytest.mark.parametrize("name", [KERNEL, "statistic.csv"])
@pytest.mark.parametrize("side", ["dump", "golden"])
def test_a_dump_of_kernels_is_named_as_such(pytester: pytest.Pytester, pair: Path, name: str, side: str) -> None:
    (pair / "kernels" / "rank_0" / "Net" / "0" / "0").mkdir(parents=True)
    (pair / "kernels" / "rank_0" / "Net" / "0" / "0" / name).touch()
    paths = {"dump": "target", "golden": "golden"} | {side: "kernels"}
    result = pytester.runpytest(*(f"--msprobe-{option}={path}" for option, path in paths.items()))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --msprobe-{side}=*kernels: holds a dump of kernels *"])
    with pytest.raises(ValueError, match="holds a dump of kernels"):
        compare_distributed(pair / paths["dump"], pair / paths["golden"], pair / "out")


def test_a_call_prints_where_its_result_is_and_each_value_if_asked(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"npu_path": "target/step0/rank0/dump.json", "bench_path": "golden/step0/rank0/dump.json"}
    paths = {key: str(pair / name) for key, name in names.items()}
    table, advice = compare(paths, pair / "out").files
    assert capsys.readouterr().out.splitlines() == [f"table: {table}", f"advice: {advice}"]
    compare({**paths, "is_print_compare_log": True}, pair / "out")
    values = capsys.readouterr().out.splitlines()[:2]
    assert values[0] == "Mint.op.0.forward.input.0: pass"
    assert values[1].startswith("Mint.op.0.forward.output.0: error Relative distance 0.0099 is above 0.0001.")
    compare_distributed(pair / "target", pair / "golden", pair / "out", is_print_compare_log=True)
    assert capsys.readouterr().out.splitlines()[:2] == values
    for wrong, message in (({"is_print_compare_log": "yes"}, "neither True nor False"), ({"rank_id": [0]}, "kernels")):
        with pytest.raises(ValueError, match=message):
            compare({**paths, **wrong}, pair / "out")
