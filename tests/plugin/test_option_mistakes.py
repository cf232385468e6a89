"""Options that cannot be meant so: one line before the run."""

from __future__ import annotations

import numpy as np
import pytest
from dump_builder import DumpBuilder

A = np.arange(6, dtype=np.float32).reshape(2, 3)
ASCEND = "--msprobe-device=mindspore:ascend"

MISTAKES = {
    "--html=folder": "--html=folder: is a folder; name a file",
    "--junitxml=folder": "--junitxml must be a filename, given: folder",
    "--msprobe-jsonl=folder": "--msprobe-jsonl: 'folder' is a folder; name a file",
    "--msprobe-out=dump.json": "dump.json is not a folder",
    "--msprobe-error-data=dump.json": "dump.json: is not a folder",
    "--msprobe-timeout=5": "--msprobe-timeout: ends a worker, and a run without -n has none; add -n 1",
    "--msprobe-device-ids=0": "--msprobe-device-ids: is for workers; add -n",
    f"{ASCEND} --msprobe-device-ids=7 -n 1": "--msprobe-device-ids: device 7 does not exist here; visible are: 0, 1",
    f"{ASCEND} --msprobe-device-ids=7 -n auto": "--msprobe-device-ids: device 7 does not exist here; visible are: 0, 1",
    f"{ASCEND}:7": "--msprobe-device: there is no ascend:7; visible are: 0, 1, counted from ascend:0",
    "--msprobe-standard=ulp --msprobe-max-abs=1": "--msprobe-max-abs: is a limit of the standard",
    "--msprobe-standard=msprobe --msprobe-cosine=0.9": "--msprobe-cosine: is a limit of the standard cosine-maxabs",
    "--msprobe-fail-on=saturation": "--msprobe-fail-on: has no effect under cosine-maxabs, only under",
    "--msprobe-fail-on=subnormals --msprobe-standard=msprobe": "--msprobe-fail-on: has no effect under msprobe",
    "--msprobe-error-data-limit=1MB": "--msprobe-error-data-limit: has no effect without --msprobe-error-data or",
    "--msprobe-golden=dump.json --msprobe-accounting=off --msprobe-inherited=fail": "--msprobe-inherited: has no",
    "--msprobe-golden=dump.json --msprobe-accounting=off --msprobe-bench=torch": "--msprobe-bench: has no effect with",
    f"{ASCEND}:1 -n 1": "give each worker its own with --msprobe-device-ids=1",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_a_mistake_is_one_sentence_before_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    pytester.mkdir("folder")
    result = pytester.runpytest("--msprobe-dump=dump.json", *options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert MISTAKES[options] in result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str()


def test_n_0_takes_back_what_is_for_workers(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    options = ("-n", "0", "--msprobe-device-ids=0", "--msprobe-timeout=5")
    pytester.runpytest("--msprobe-dump=dump.json", *options).assert_outcomes(passed=1)


def test_a_dump_may_follow_the_option_that_saves_error_data(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [A]).write()
    pytester.runpytest("--msprobe-error-data=auto", "dump.json").assert_outcomes(failed=1)
    assert (pytester.path / "error_data" / "dump.json").is_file()


def test_limits_of_the_default_standard_may_stand_beside_another_one_where_it_judges_something(
    pytester: pytest.Pytester,
) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    (pytester.path / "msprobe.yaml").write_text("standards: {apis: {Mint.neg: cosine-maxabs}}")
    options = ("--msprobe-config=msprobe.yaml", "--msprobe-standard=ulp", "--msprobe-max-abs=1")
    pytester.runpytest("--msprobe-dump=dump.json", *options).assert_outcomes(passed=1)


def test_an_option_of_a_standard_may_stand_beside_another_one_where_it_judges_something(
    pytester: pytest.Pytester,
) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    (pytester.path / "msprobe.yaml").write_text("standards: {dtypes: {Float32: fused}}\nfail_on: subnormals\n")
    for more in (
        ("--msprobe-config=msprobe.yaml", "--msprobe-fail-on=saturation"),
        ("-o", "msprobe_fail_on=saturation"),
    ):
        pytester.runpytest("--msprobe-dump=dump.json", *more).assert_outcomes(passed=1)


#: Options of one suite, in the suites that have nothing to do with them.
OF_OTHERS = {
    "precheck": ("--msprobe-fuzzy", "--msprobe-overflow-fail-reproduced", "--msprobe-gradient-drop=0.1"),
    "comparison": (
        "--msprobe-standard=ulp",
        "--msprobe-max-abs=1",
        "--msprobe-error-data=auto",
        "--msprobe-device-ids=0",
    ),
    "overflow": ("--msprobe-standard=ulp", "--msprobe-reproducers=here", "--msprobe-golden=dump.json"),
    "gradients": ("--msprobe-seed=3", "--msprobe-bench=torch", "--msprobe-accept=unmatched"),
}


@pytest.mark.parametrize(
    ("suite", "option"), [(suite, option) for suite, given in OF_OTHERS.items() for option in given]
)
def test_an_option_of_another_suite_is_refused(pytester: pytest.Pytester, suite: str, option: str) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    golden = ("--msprobe-golden=dump.json",) if suite == "comparison" else ()
    result = pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-suite={suite}", *golden, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    flag = option.partition("=")[0]
    result.stderr.fnmatch_lines([f"ERROR: {flag}: has no effect in the suite {suite}, only in *"])


def test_a_file_of_settings_may_serve_several_suites(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    (pytester.path / "msprobe.yaml").write_text("standard: ulp\nfuzzy: true\n")
    pytester.makeini("[pytest]\nmsprobe_standard = ulp\nmsprobe_gradient_drop = 0.1\n")
    for more in ((), ("--msprobe-golden=dump.json",), ("--msprobe-suite=overflow",)):
        result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=msprobe.yaml", *more)
        assert result.ret == pytest.ExitCode.OK
