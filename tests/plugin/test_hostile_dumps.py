"""Dumps from elsewhere: nothing outside is read, no text is a command to the terminal, files are bounded."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

A = np.arange(6, dtype=np.float32).reshape(2, 3)
SECRET = A + 1000
DUMP = "--msprobe-dump=dump.json"
RECORDED = "--msprobe-device=recorded"
HOSTILE = "\x1b]0;title\x07\nFAILED forged::Mint.add.0 - line\x9b2J\u202e"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is not a part of the dump, with the output of the call and with other values as its input."""
    folder = tmp_path_factory.mktemp("outside")
    np.save(folder / "Mint.neg.0.forward.input.0.npy", SECRET)
    np.save(folder / "Mint.neg.0.forward.output.0.npy", A)
    return folder


def named(folder: Path, recorded: str) -> None:
    """A dump without tensors of its own, which says that they are in `recorded`."""
    DumpBuilder(folder).call("Mint.neg.0", [A], [-A]).write()
    for path in (folder / "dump_tensor_data").iterdir():
        path.unlink()
    content = json.loads((folder / "dump.json").read_text())
    (folder / "dump.json").write_text(json.dumps({**content, "dump_data_dir": recorded}))


def test_tensors_outside_the_dump_are_read_only_when_named(
    pytester: pytest.Pytester, outside: Path, reports: Reports
) -> None:
    named(pytester.path, str(outside))
    result = pytester.runpytest(DUMP, RECORDED, "--msprobe-error-data=auto")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"outside the dump, and is not followed; allow it with --msprobe-data-dir={outside}" in result.stdout.str()
    for path in (pytester.path / "error_data").rglob("*.npy"):
        assert not np.array_equal(np.load(path), SECRET)
    allowed = pytester.runpytest(DUMP, RECORDED, "--msprobe-data-dir=/tmp", f"--msprobe-data-dir={outside}")
    assert "not followed" not in allowed.stdout.str()
    assert "Max absolute error" in allowed.stdout.str()


@pytest.mark.parametrize("source", ["yaml", "ini"])
def test_folders_may_be_named_in_files(pytester: pytest.Pytester, outside: Path, source: str) -> None:
    named(pytester.path, str(outside))
    if source == "yaml":
        (pytester.path / "x.yaml").write_text(f"dump: dump.json\ndata_dir: [/tmp, {outside}]\n")
        result = pytester.runpytest("--msprobe-config=x.yaml", RECORDED)
    else:
        pytester.makeini(f"[pytest]\nmsprobe_data_dir =\n  /tmp\n  {outside}\n")
        result = pytester.runpytest(DUMP, RECORDED)
    assert "Max absolute error" in result.stdout.str()


def test_a_linked_tensor_folder_is_not_followed(pytester: pytest.Pytester, outside: Path) -> None:
    named(pytester.path, "")
    (pytester.path / "dump_tensor_data").rmdir()
    (pytester.path / "dump_tensor_data").symlink_to(outside)
    result = pytester.runpytest(DUMP, RECORDED)
    assert f"is a link to {outside}, outside the dump" in result.stdout.str()
    assert "Max absolute error" not in result.stdout.str()


MISTAKES = {
    f"--msprobe-out={'x' * 300}": "cannot be a path: File name too long",
    f"--msprobe-jsonl={'x' * 300}": "cannot be a path: File name too long",
    f"--msprobe-dump={'x' * 300}": "File name too long",
    "--msprobe-data-dir=relative": "--msprobe-data-dir: 'relative' is not an absolute path; write the folder in full",
    "--msprobe-data-dir=/none/of/this": "--msprobe-data-dir: '/none/of/this' is not a folder",
    "--msprobe-config=bomb.yaml": "--msprobe-config=bomb.yaml: has aliases that stand for more than 1000000 values",
    "--msprobe-config=sparse.yaml --msprobe-resume=none.csv": "--msprobe-resume=",
    "--msprobe-resume=accuracy_checking_result_1.csv": "does not have the columns",
}


@pytest.mark.parametrize("options", MISTAKES, ids=range(len(MISTAKES)))
def test_what_cannot_be_used_is_one_line(pytester: pytest.Pytester, options: str) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (pytester.path / "bomb.yaml").write_text("\n".join(levels))
    for name in ("sparse.yaml", "accuracy_checking_result_1.csv"):
        (pytester.path / name).touch()
        os.truncate(pytester.path / name, 200_000_000_000)
    result = pytester.runpytest(DUMP, RECORDED, *options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.stderr.str().splitlines() if line.strip()]
    assert len(lines) == 1
    assert MISTAKES[options] in lines[0]


def test_a_field_of_any_length_can_be_resumed(pytester: pytest.Pytester, reports: Reports) -> None:
    long = f"Mint.{'x' * 140_000}.0"
    DumpBuilder(pytester.path, real=False).call("Mint.neg.0", [A], [-A]).call(long, [A], [-A]).write()
    pytester.runpytest(DUMP, RECORDED)
    (pair,) = pytester.path.glob("accuracy_checking_result_*.csv")
    result = pytester.runpytest(DUMP, RECORDED, f"--msprobe-resume={pair}")
    result.assert_outcomes(deselected=2)


def hostile_dump(folder: Path) -> None:
    """Records whose names and values are written against terminals and tables; the stacks as well."""
    builder = DumpBuilder(folder)
    builder.call(f"Mint.neg{HOSTILE}.0", [A], [-A]).call("=1+Mint.neg.1", [A], [-A]).call("Mint.neg.2", [A], [A])
    builder.records[f"no record{HOSTILE}"] = {"input_args": HOSTILE}
    builder.records["Mint.neg.3.forward"] = {"input_args": [{"type": HOSTILE, "value": HOSTILE}], "output": [HOSTILE]}
    builder.records["Mint.neg.4.forward"] = {
        "input_args": [{"type": "mindspore.Tensor", "dtype": HOSTILE, "shape": [2], "data_name": HOSTILE}],
        "output": [],
    }
    builder.stacks = {
        name: [f"File /a{HOSTILE}.py, line 3, in f{HOSTILE}, \n x = '{HOSTILE}'"] for name in builder.records
    }
    builder.write()


@pytest.mark.parametrize("suite", ["precheck", "comparison", "overflow"])
def test_nothing_of_a_dump_is_a_command_to_a_terminal(pytester: pytest.Pytester, suite: str) -> None:
    hostile_dump(pytester.path / "dump")
    DumpBuilder(pytester.path / "golden").call("Mint.neg.2", [A], [-A]).call(f"Mint.abs{HOSTILE}.0", [A], [A]).write()
    options = {
        "precheck": [RECORDED],
        "comparison": ["--msprobe-golden=golden"],
        "overflow": ["--msprobe-suite=overflow"],
    }
    result = pytester.runpytest("--msprobe-dump=dump", *options[suite], "-v", "-rA", "--msprobe-out=out")
    text = result.stdout.str()
    assert CONTROL.search(text) is None
    assert not [line for line in text.splitlines() if line.startswith("FAILED forged")]
    assert "INTERNALERROR" not in text
    for table in (pytester.path / "out").glob("*.csv"):
        assert CONTROL.search(table.read_text(encoding="utf-8-sig").replace("\r\n", "\n")) is None
