"""Dumps and options as they come from elsewhere: one clear sentence each, and the rest still runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from gradient_runs import write_step
from report_reader import Reports

A = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = "Mint.neg.9"


def builder_with_a_good_call(folder: Path) -> DumpBuilder:
    return DumpBuilder(folder).call(GOOD, [A], [-A])


UNUSABLE: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"hello", "is not valid JSON"),
    "empty": (b"", "is not valid JSON"),
    "truncated": (b'{"task": "tensor", "data": {"Mint.neg.0.forward": {"input_args"', "incomplete file?"),
    "a list": (b"[1, 2]", "is not a dump.json of an API dump: Expected `object`, got `array`"),
    "no data": (b'{"task": "tensor"}', "missing required field `data`"),
    "data is a list": (b'{"task": "tensor", "data": []}', "Expected `object`, got `array` - at `$.data`"),
    "no task": (b'{"data": {}}', "missing required field `task`"),
    "unknown task": (b'{"task": "secret", "data": {}}', "task: unknown task 'secret'; known are "),
    "unknown framework": (
        b'{"task": "tensor", "framework": "jax", "data": {}}',
        "framework: unknown framework 'jax'; known are mindspore, mindtorch, pytorch",
    ),
    "not text": (b"\xff\xfe\x00", "is not valid JSON"),
    "deep": (b'{"task": "tensor", "data": {"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}", "nested too deeply"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_file_is_one_sentence_and_other_dumps_run(pytester: pytest.Pytester, case: str) -> None:
    content, sentence = UNUSABLE[case]
    builder_with_a_good_call(pytester.path / "good").write()
    bad = pytester.path / "bad" / "dump.json"
    bad.parent.mkdir()
    bad.write_bytes(content)
    result = pytester.runpytest("--msprobe-dump=good", "--msprobe-dump=bad")
    result.assert_outcomes(passed=1, errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (line,) = [line for line in result.outlines if line.startswith(str(bad))]
    assert sentence in line
    assert "Traceback" not in result.stdout.str()


def spoil_file(name: str, content: bytes) -> Callable[[DumpBuilder], None]:
    def spoil(builder: DumpBuilder) -> None:
        (builder.folder / "dump_tensor_data" / name).write_bytes(content)

    return spoil


def set_field(record: str, path: list[str | int], value: object) -> Callable[[DumpBuilder], None]:
    def spoil(builder: DumpBuilder) -> None:
        target = builder.records[record]
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value

    return spoil


def save(name: str, array: np.ndarray) -> Callable[[DumpBuilder], None]:
    return lambda builder: np.save(builder.folder / "dump_tensor_data" / name, array, allow_pickle=True)


def remove(name: str) -> Callable[[DumpBuilder], None]:
    return lambda builder: (builder.folder / "dump_tensor_data" / name).unlink()


def link_outside(builder: DumpBuilder) -> None:
    secret = builder.folder.parent / "secret.npy"
    np.save(secret, A)
    path = builder.folder / "dump_tensor_data" / "Mint.neg.0.forward.input.0.npy"
    path.unlink()
    path.symlink_to(secret)


def no_arguments(builder: DumpBuilder) -> None:
    del builder.records["Mint.neg.0.forward"]["input_args"]


INPUT = "Mint.neg.0.forward.input.0.npy"
RECORD = "Mint.neg.0.forward"
SPOILT: dict[str, tuple[Callable[[DumpBuilder], None], str, str]] = {
    "missing npy": (remove(INPUT), "error", "input_args[0].data_name: 'Mint.neg.0.forward.input.0.npy' is not in"),
    "empty npy": (spoil_file(INPUT, b""), "error", "is not a NumPy .npy file"),
    "not an npy": (spoil_file(INPUT, b"junk" * 100), "error", "is not a NumPy .npy file"),
    "truncated npy": (spoil_file(INPUT, b""), "error", "input_args[0].data_name"),
    "pickled npy": (save(INPUT, np.array([{"a": 1}], dtype=object)), "error", "holds pickled objects"),
    "wrongly shaped npy": (save(INPUT, A.T), "error", "has shape (3, 2), the record says (2, 3)"),
    "npy of another dtype": (save(INPUT, A.astype(np.int64)), "error", "holds int64, the record says Float32"),
    "parent folder": (
        set_field(RECORD, ["input_args", 0, "data_name"], "../secret.npy"),
        "error",
        "'../secret.npy' is not a plain file name inside the tensor folder; refused",
    ),
    "absolute path": (
        set_field(RECORD, ["input_args", 0, "data_name"], "/etc/passwd"),
        "error",
        "'/etc/passwd' is not a plain file name",
    ),
    "link out of the folder": (link_outside, "error", "is a link that leads out of"),
    "no arguments": (no_arguments, "SKIP", "Mint.neg.0.forward: has no input_args"),
    "arguments are not list": (
        set_field(RECORD, ["input_args"], "x"),
        "error",
        "Mint.neg.0.forward: input_args: expected a list, found str",
    ),
    "record is not an object": (
        lambda builder: builder.records.update({RECORD: 7}),
        "error",
        "expected an object, found int",
    ),
    "unknown dtype": (
        set_field(RECORD, ["input_args", 0, "dtype"], "Float99"),
        "error",
        "input_args[0].dtype: unknown tensor dtype 'Float99'",
    ),
    "negative shape": (
        set_field(RECORD, ["input_args", 0, "shape"], [-1, 3]),
        "error",
        "input_args[0].shape: expected a list of whole numbers",
    ),
    "huge shape": (
        set_field(RECORD, ["input_args", 0, "shape"], [10**12, 3]),
        "SKIP",
        "needs up to 84TB (its largest tensor has shape (1000000000000, 3)), more than --msprobe-max-memory=",
    ),
    "a value that is not a form": (
        set_field(RECORD, ["input_args", 0], 3.5),
        "error",
        "input_args[0]: expected an object with a type, a list or null, found 3.5",
    ),
    "too many gradients": (
        lambda builder: builder.call("Mint.neg.0", [A], [-A], incoming=[A], gradients=[-A, -A]) and None,
        "pass",
        "backward: Mint.neg.0.backward: output[1]: this gradient fits no tensor argument",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_bad_record_is_one_sentence_with_file_record_and_field(
    pytester: pytest.Pytester, reports: Reports, case: str
) -> None:
    spoil, verdict, sentence = SPOILT[case]
    builder = builder_with_a_good_call(pytester.path / "rank0").call("Mint.neg.0", [A], [-A])
    spoil(builder)
    result = pytester.runpytest(f"--msprobe-dump={builder.write()}", "-rs")
    row = reports.results["Mint.neg.0"]
    assert row["Forward Test Success"] == verdict
    assert sentence in row["Message"]
    assert "\n" not in row["Message"]
    if verdict == "error":
        assert row["Message"].startswith(str(builder.path))
    assert reports.results[GOOD]["Forward Test Success"] == "pass"
    assert "INTERNALERROR" not in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    "name", ["Mint.neg.forward", "Mint.neg.x.forward", "Mint.neg.0", "forward", "", "Mint.0.forward"]
)
def test_a_name_without_call_number_is_an_item_that_fails(pytester: pytest.Pytester, name: str) -> None:
    builder = builder_with_a_good_call(pytester.path)
    builder.records[name] = {"input_args": [], "input_kwargs": {}, "output": []}
    result = pytester.runpytest(f"--msprobe-dump={builder.write()}")
    result.assert_outcomes(passed=1, failed=1)
    assert f"the record name {name!r}" in result.stdout.str()


class Grenade:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_nothing_in_a_dump_is_executed(pytester: pytest.Pytester) -> None:
    builder = builder_with_a_good_call(pytester.path).call("Mint.neg.0", [A], [-A])
    save(INPUT, np.array([Grenade(pytester.path / "boom")], dtype=object))(builder)
    pytester.runpytest(f"--msprobe-dump={builder.write()}").assert_outcomes(passed=1, failed=1)
    assert not (pytester.path / "boom").exists()


def test_a_broken_stack_file_costs_nothing_but_the_stack(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.neg.0", [A], [A])
    dump = builder.write()
    (pytester.path / "stack.json").write_text("{")
    pytester.runpytest(f"--msprobe-dump={dump}").assert_outcomes(failed=1)


def test_nan_in_a_real_files_json_is_read(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path).call(
        "Mint.neg.0", [np.array([np.nan], np.float32)], [np.array([np.nan], np.float32)]
    )
    dump = builder.write()
    assert "NaN" in dump.read_text()
    pytester.runpytest(f"--msprobe-dump={dump}").assert_outcomes(passed=1)


@pytest.mark.parametrize("kind", ["xfail", "skip", "skipif", "usefixtures", "_private", "no name", "Fresh"])
def test_no_name_of_a_record_means_something_to_pytest(pytester: pytest.Pytester, kind: str) -> None:
    """The first part of a name becomes a marker; `xfail` would hide every error of its calls."""
    builder = builder_with_a_good_call(pytester.path)
    builder.records[f"{kind}.neg.0.forward"] = 3
    builder.write()
    result = pytester.runpytest("--msprobe-dump=dump.json", "--strict-markers")
    result.assert_outcomes(passed=1, failed=1)


WRONG_OPTIONS = {
    "--msprobe-device=gpu": "--msprobe-device: 'gpu' is not a device; use auto, recorded,",
    "--msprobe-device=mindspore:ascend:x": "has no valid device id",
    "--msprobe-bench=numpy": "--msprobe-bench: 'numpy' is not a benchmark; use auto, torch, torch:cuda or mindspore",
    "--msprobe-seed=-1": "--msprobe-seed: '-1' is not a whole number",
    "--msprobe-max-memory=lots": "--msprobe-max-memory: 'lots' is not a size",
    "--msprobe-cosine=high": "--msprobe-cosine: 'high' is not a number",
    "--msprobe-cosine=1.5": "--msprobe-cosine: '1.5' is not a cosine limit",
    "--msprobe-max-abs=nan": "--msprobe-max-abs: 'nan' is not a finite number",
    "--msprobe-bench-python=/no/python": "--msprobe-bench-python: '/no/python' is not an executable file",
    "--msprobe-out=dump.json/reports": "is not a folder",
    "--msprobe-config=none.yaml": "--msprobe-config=none.yaml: cannot be read",
    "--msprobe-dump=nowhere": "there is no such file or folder",
    "--msprobe-dump=empty": "holds no dump.json; give a dump, step or rank folder",
}


@pytest.mark.parametrize("option", WRONG_OPTIONS)
def test_a_wrong_option_is_a_usage_error_before_anything_is_collected(pytester: pytest.Pytester, option: str) -> None:
    pytester.mkdir("empty")
    builder_with_a_good_call(pytester.path).write()
    result = pytester.runpytest("--msprobe-dump=dump.json", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert WRONG_OPTIONS[option] in result.stderr.str()
    assert "collected" not in result.stdout.str()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: [1]", "--msprobe-config=m.yaml: key 'seed': '[1]' is not a whole number"),
        ("devise: cpu", "unknown key 'devise'; did you mean 'device'?"),
        ("- a", "expected keys and values, found list"),
        ("a: [", "is not valid YAML"),
        ("dump: 3", "key 'dump': expected a path or a list of paths, found 3"),
    ],
)
def test_a_wrong_yaml_is_a_usage_error(pytester: pytest.Pytester, text: str, sentence: str) -> None:
    builder_with_a_good_call(pytester.path).write()
    (pytester.path / "m.yaml").write_text(text)
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=m.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()


def test_the_command_line_wins_over_yaml_over_ini(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path / "d").call("Mint.neg.0", [A], [-A + np.float32(0.001)])
    builder.write()
    pytester.makeini("[pytest]\nmsprobe_dump = d\nmsprobe_max_abs = 0.01\n")
    pytester.runpytest().assert_outcomes(passed=1)
    (pytester.path / "m.yaml").write_text("max_abs: 1.0e-4\n")
    pytester.runpytest("--msprobe-config=m.yaml").assert_outcomes(failed=1)
    pytester.runpytest("--msprobe-config=m.yaml", "--msprobe-max-abs=0.1").assert_outcomes(passed=1)


def test_yaml_may_name_the_dumps_relative_to_itself(pytester: pytest.Pytester) -> None:
    builder_with_a_good_call(pytester.path / "sub" / "d").write()
    (pytester.path / "sub" / "m.yaml").write_text("dump: d\nout: reports\n")
    pytester.runpytest("--msprobe-config=sub/m.yaml").assert_outcomes(passed=1)
    assert list((pytester.path / "reports").glob("*.csv"))


def test_a_folder_that_becomes_unwritable_ends_with_what_was_written(pytester: pytest.Pytester) -> None:
    """A full disk, played by a limit on the size of files that this process may write."""
    builder = DumpBuilder(pytester.path)
    for number in range(40):
        builder.call(f"Mint.neg.{number}", [A], [-A])
    builder.write()
    pytester.makeconftest(
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "def pytest_runtest_setup(item):\n"
        "    if 'neg.20' in item.nodeid: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))\n"
    )
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "--msprobe-out=out", "-p", "no:cacheprovider")
    assert "writing stopped at Mint.neg." in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()
    (path,) = (pytester.path / "out").glob("*_result_*.csv")
    assert len(path.read_text(encoding="utf-8-sig").splitlines()) >= 20


def test_json_of_another_kind_named_dump_json_is_not_touched(pytester: pytest.Pytester) -> None:
    (pytester.path / "dump.json").write_text(json.dumps({"name": "a database dump"}))
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest().assert_outcomes(passed=1)


#: Of each suite that writes files: its arguments, in a folder that holds two equal dumps and a run of gradients.
WRITING = {
    "precheck": ("--msprobe-dump=a",),
    "comparison": ("--msprobe-dump=a", "--msprobe-golden=b", "--msprobe-xlsx", "--msprobe-diagnosis=new/found.json"),
    "overflow": ("--msprobe-dump=a", "--msprobe-suite=overflow"),
    "gradients": ("--msprobe-gradients=run", "--msprobe-golden=run"),
}


@pytest.mark.parametrize("suite", WRITING)
def test_reports_follow_the_umask(pytester: pytest.Pytester, suite: str) -> None:
    """A web server or another user of a CI machine reads them where the umask lets it."""
    for name in ("a", "b"):
        builder_with_a_good_call(pytester.path / name).write()
    write_step(pytester.path / "run", 0, {"w": np.arange(1.0, 11.0)})
    reports = ("--msprobe-jsonl=new/rows.jsonl", "--msprobe-page=new/page.html", "--msprobe-out=new/folder")
    for umask in (0o022, 0o027):
        old = os.umask(umask)
        try:
            assert pytester.runpytest(*WRITING[suite], *reports).ret == 0
        finally:
            os.umask(old)
        written = [pytester.path / "new", *(pytester.path / "new").rglob("*")]
        assert len(written) > 4
        for path in written:
            assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path
        shutil.rmtree(pytester.path / "new")
