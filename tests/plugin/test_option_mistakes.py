"""Options that cannot be meant so: one sentence before the run."""

from __future__ import annotations

import numpy as np
import pytest
from dump_builder import DumpBuilder

A = np.arange(6, dtype=np.float32).reshape(2, 3)
ASCEND = "--msprobe-device=mindspore:ascend"

MISTAKES = {
    "--html=folder": "--html=folder: is a folder; name a file",
    "--junitxml=folder": "--junitxml must be a filename, given: folder",
    "--msprobe-jsonl=folder": "--msprobe-jsonl: 'folder' is a folder; name a file that does not exist yet",
    "--msprobe-out=dump.json": "dump.json is not a folder",
    "--msprobe-error-data-dir=dump.json": "dump.json: is not a folder",
    "--msprobe-timeout=5": "--msprobe-timeout: ends a worker, and a run without -n has none; add -n 1",
    "--msprobe-devices=0": "--msprobe-devices: is for workers; add -n",
    f"{ASCEND} --msprobe-devices=7 -n 1": "--msprobe-devices: device 7 does not exist here; visible are: 0, 1",
    f"{ASCEND} --msprobe-devices=7 -n auto": "--msprobe-devices: device 7 does not exist here; visible are: 0, 1",
    f"{ASCEND}:7": "--msprobe-device: there is no ascend:7; visible are: 0, 1, counted from ascend:0",
    f"{ASCEND}:1 -n 1": "give each worker its own with --msprobe-devices=1",
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
    options = ("-n", "0", "--msprobe-devices=0", "--msprobe-timeout=5")
    pytester.runpytest("--msprobe-dump=dump.json", *options).assert_outcomes(passed=1)


def test_a_dump_may_follow_the_flag_that_saves_error_data(pytester: pytest.Pytester) -> None:
    DumpBuilder(pytester.path).call("Mint.neg.0", [A], [A]).write()
    pytester.runpytest("--msprobe-save-error-data", "dump.json").assert_outcomes(failed=1)
    assert (pytester.path / "error_data" / "dump.json").is_file()
