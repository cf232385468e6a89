"""Options that cannot be meant so: one line before the run."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from dump_builder import DumpBuilder
from gradient_runs import write_step

A = np.arange(6, dtype=np.float32).reshape(2, 3)
ASCEND = "--msprobe-device=mindspore:ascend"

MISTAKES = {
    "--html=folder": "--html=folder: is a folder; name a file",
    "--junitxml=folder": "--junitxml must be a filename, given: folder",
    "--msprobe-jsonl=folder": "--msprobe-jsonl: 'folder' is a folder; name a file",
    "--msprobe-out=dump.json": "dump.json is not a folder",
    "--msprobe-error-data=dump.json": "dump.json: is not a folder",
    "--msprobe-out=/proc/new": "--msprobe-out=/proc/new: /proc cannot be written",
    "--msprobe-jsonl=/proc/new/rows.jsonl": "--msprobe-jsonl=/proc/new: /proc cannot be written",
    "--msprobe-bench-python=/bin/false": "--msprobe-bench-python=/bin/false: is not a Python interpreter",
    "--msprobe-bench-python=/bin/false --msprobe-suite=overflow": "is not a Python interpreter",
    "--msprobe-bench-python=/bin/false --msprobe-golden=dump.json": "is not a Python interpreter",
    "--msprobe-bench-python=bare": "--msprobe-bench-python=bare: lacks numpy",
    "--msprobe-bench=torch:cuda": "--msprobe-bench=torch:cuda: this machine has no NVIDIA GPU, or its PyTorch is built",
    f"--msprobe-bench=torch:cuda --msprobe-bench-python={sys.executable}": "not with --msprobe-bench-python",
    "--msprobe-golden=dump.json --msprobe-bench=torch:cuda": "this machine has no NVIDIA GPU",
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
    "--msprobe-device=torch:cpu --msprobe-device-ids=0,1 -n 2": "nothing is run on a device here",
    "--msprobe-device-ids=0,1 -n 2": "--msprobe-device-ids=0,1: nothing is run on a device here; leave the option out",
    "-n 5000": "-n 5000: this machine has ",
    f"{ASCEND} -n 3": "-n 3: 3 workers, 2 devices (0, 1) with 1 worker each; use at most -n 2",
    f"{ASCEND}:1 -n 1": "give each worker its own with --msprobe-device-ids=1",
}


@pytest.mark.parametrize("options", MISTAKES)
def test_a_mistake_is_one_sentence_before_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1")
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    pytester.mkdir("folder")
    bare = pytester.path / "bare"  # a Python without packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
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


#: Options that another one leaves without an effect, with the arguments of the run.
WITHOUT_EFFECT = {
    "--msprobe-error-data-limit=1MB": ("--msprobe-dump=dump.json",),
    "--msprobe-inherited=fail": ("--msprobe-dump=dump.json", "--msprobe-golden=dump.json", "--msprobe-accounting=off"),
    "--msprobe-bench=torch": ("--msprobe-dump=dump.json", "--msprobe-golden=dump.json", "--msprobe-accounting=off"),
    "--msprobe-gradient-drop=0.5": ("--msprobe-gradients=run",),
    "--msprobe-gradient-warmup=2": ("--msprobe-gradients=run", "--msprobe-golden=run"),
}


@pytest.mark.parametrize("option", WITHOUT_EFFECT)
def test_an_option_that_another_one_leaves_without_effect_is_refused(pytester: pytest.Pytester, option: str) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A]).write()
    write_step(pytester.path / "run", 0, {"w": np.arange(1.0, 11.0)})
    result = pytester.runpytest("--collect-only", *WITHOUT_EFFECT[option], option)
    result.stderr.fnmatch_lines([f"ERROR: {option.partition('=')[0]}: has no effect w*"])


#: A mapping file with a name that the dumps do not have, and one that they have.
MAPPINGS = {
    "data-mapping": (
        "Mint.nug.0.forward.output.0: Mint.neg.0.forward.output.0",
        "Mint.neg.0.forward: Mint.neg.0.forward",
    ),
    "cell-mapping": ("net.Dense: net.Linear", "head.Dense: head.Dense"),
    "api-mapping": (
        "- {ms_api: Mint.nug, pt_api: Torch.neg, ms_args: [0], pt_args: [0], ms_outputs: [0], pt_outputs: [0]}",
        "- {ms_api: Mint.neg, pt_api: Mint.neg, ms_args: [0], pt_args: [0], ms_outputs: [0], pt_outputs: [0]}",
    ),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_a_mapping_that_fits_nothing_is_told(pytester: pytest.Pytester, name: str) -> None:
    builder = DumpBuilder(pytester.path).call("Mint.neg.0", [A], [-A])
    builder.records["Cell.head.Dense.forward.0"] = {"input_args": [], "input_kwargs": {}, "output": []}
    builder.write()
    for text, is_told in zip(MAPPINGS[name], (True, False)):
        (pytester.path / "names.yaml").write_text(text)
        arguments = ("--msprobe-dump=dump.json", "--msprobe-golden=dump.json", f"--msprobe-{name}=names.yaml")
        result = pytester.runpytest("--collect-only", *arguments)
        assert result.ret == 0
        assert ("names fit nothing in the dumps" in result.stdout.str()) == is_told, text


def test_a_quiet_run_that_judged_nothing_says_why(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path).call("Mint.nobody_knows.0", [A], [-A]).write()
    result = pytester.runpytest("-q", "--msprobe-dump=dump.json")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["not judged:", "*1  *nobody_knows*", "nothing was judged*"])
