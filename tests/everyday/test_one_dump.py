"""What is said of one dump, in the situations of everyday.

The number of a row is the name of its test; scripts are in the folder scripts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from real_dumps import COMMITTED
from situations import (
    AS_FAR,
    NOTHING,
    RIGHT,
    WRONG,
    Answered,
    Runner,
    Situation,
    Training,
    check,
    check_failures,
    first_line_of,
    line_of,
    on_cuda,
    row,
    row_of_cases,
    rows,
    without_last_rank,
)

FIVE_LINES = Training("five_lines", has_debugger=True, framework="mindspore")


@rows(
    Situation("1", COMMITTED / "gpt_tiny_tensor", first_line=("180",)),
    Situation("2", Training("accuracy"), absent=("Undecided",)),
    Situation("case 02", Training("router")),
    Situation("3", Training("position_buckets"), absent=("not finite",)),
    Situation(
        "4",
        Training("attention_dropout"),
        outcome=AS_FAR,
        first_line=("184 of 188", "dropout"),
        text=("rm_dropout",),
    ),
    Situation("5 five lines", Training("evaluation", has_debugger=True)),
    Situation("5 collect", Training("generation")),
    Situation("6", FIVE_LINES, absent=("eval",)),
    Situation(
        "7",
        Training("eval_left_on"),
        outcome=WRONG,
        first_line=("eval", line_of("eval_left_on", "model.eval()")),
        has_suite=False,  # which judges calls, and each of them is right
    ),
    Situation("8", Training("wrapped_optimizer")),
    Situation(
        "9",
        Training("gelu", ("wrong",)),
        outcome=WRONG,
        first_line=("gelu", "1.01 x too large", line_of("gelu", ".gelu(self.up")),
        failing=("Functional.gelu.0.forward",),
    ),
    Situation(
        "10",
        Training("nan_in_weight"),
        outcome=WRONG,
        first_line=("parameter blocks.1.up.weight holds NaN",),
        absent=("first difference",),
        failing=("Functional.linear.2.forward",),
        options=("--msprobe-suite=overflow",),
    ),
    Situation(
        "11",
        Training("raises"),
        outcome=WRONG,
        first_line=("the step ended in ZeroDivisionError", line_of("raises", "16 / 0")),
        has_suite=False,  # of an exception outside of every call there is no item
    ),
    Situation(
        "11 MindSpore",
        Training("five_lines", ("raise",), has_debugger=True, framework="mindspore"),
        outcome=WRONG,
        first_line=("the step ended in ZeroDivisionError", line_of("five_lines", "float(loss) / 0")),
        absent=("data_mode",),
        has_suite=False,
    ),
    Situation(
        "13",
        Training("convolution", ("rounded",), edit=on_cuda),
        first_line=("TF32",),
        options=("--msprobe-standard=backward-error",),  # the fixed limits are narrower than TF32
    ),
    Situation(
        "13 forbidden",
        Training("convolution", ("rounded", "forbidden"), edit=on_cuda),
        outcome=WRONG,
        first_line=("conv2d",),
        failing=("Functional.conv2d.0.forward",),
        options=("--msprobe-standard=backward-error", "-k", "forward"),
    ),
    Situation("14", Training("mixing", ("whole",)), outcome=AS_FAR, first_line=("compiled",), text=("mixing.py:",)),
    Situation(
        "case 03",
        Training("mixing", ("part",)),
        outcome=AS_FAR,
        first_line=("compiled",),
        text=("mix", line_of("mixing", "def mix")),
    ),
    Situation(
        "case 09",
        Training("router_without_gradient"),
        outcome=AS_FAR,
        also=(WRONG,),
        text=("gate.weight", "gradient"),
        has_suite=False,  # no call is wrong
    ),
    *(
        # The fixed limits are narrower than one rounding of bfloat16.
        Situation(f"15 {kind}", Training("mixed_precision", (kind,)), options=("--msprobe-standard=backward-error",))
        for kind in ("autocast", "bfloat16", "checkpointing", "masks", "zero_gradients")
    ),
    Situation("16 statistics", COMMITTED / "gpt_tiny_statistics", outcome=NOTHING, also=(RIGHT, AS_FAR)),
    # Biases in front of a norm, and of a key, have gradients that are 0 but for rounding: no cosine judges them.
    Situation("61", Training("pictures"), outcome=AS_FAR, first_line=("as large as its own rounding",)),
    Situation("62", Training("counted_router"), also=(AS_FAR,)),
    Situation("63", Training("recurrent"), absent=("as far as",)),
    Situation("64", Training("adversarial"), absent=("same batch",)),
    Situation("65", Training("fine_tuning"), absent=("lr", "no gradient")),
    Situation(
        "66",
        Training("data_parallel", ("2",), has_debugger=True, edit=without_last_rank),
        outcome=WRONG,
        first_line=("1 rank is missing of 2",),
    ),
    Situation(
        "case 10 softmax",
        Training("nan_swallowed", ("softmax",), has_debugger=True, framework="mindspore"),
        outcome=WRONG,
        text=("Functional.softmax.0", "Tensor.__mul__.0"),
        failing=("Functional.softmax.0.forward",),
        options=("--msprobe-standard=backward-error",),
    ),
    Situation(
        "case 10 amax",
        Training("nan_swallowed", ("amax",), has_debugger=True, framework="mindspore"),
        outcome=WRONG,
        text=("Functional.amax.0", "Tensor.__mul__.0"),
        failing=("Functional.amax.0.forward", "Functional.amax.0.backward"),
        options=("--msprobe-standard=backward-error",),
    ),
)
def test_answer(situation: Situation, answer: Callable[[Situation], Answered]) -> None:
    check(situation, answer(situation))


@row("1 pytest")
def test_the_main_job_takes_few_lines(runner: Runner, tmp_path: Path) -> None:
    repository = COMMITTED.parent.parent
    command = ("-m", "pytest", "--msprobe-dump=tests/dumps/gpt_tiny_tensor", f"--msprobe-out={tmp_path}")
    # A warning is an error in this repository, and the server has imported what pytest would rewrite.
    arguments = [sys.executable, *command, "-p", "no:cacheprovider"]
    run = subprocess.run(arguments, cwd=repository, capture_output=True, text=True, check=False)
    assert run.returncode == 0
    assert "Right: 180 of 180" in run.stdout
    assert "cosine > 0.99 and max error < 1e-4" in run.stdout
    assert len(run.stdout.splitlines()) <= 20, run.stdout


@row("8 collected")
def test_a_wrapped_optimizer_is_recorded(runner: Runner) -> None:
    collected = runner.collect(Training("wrapped_optimizer", options=("--exit", "--step=1")), "wrapped")
    assert collected.code == 0
    assert not [line for line in collected.errors.splitlines() if "Error" in line or "Warning" in line]
    (path,) = (runner.folder / "wrapped").rglob("run.json")
    (optimizer,) = json.loads(path.read_text(encoding="utf-8"))["optimizers"]
    assert optimizer["groups"][0]["settings"]["lr"] == pytest.approx(0.005)
    assert optimizer["schedulers"]
    assert optimizer["state"]


@row("12")
def test_an_older_dump_is_not_the_answer(runner: Runner) -> None:
    assert runner.collect(Training("gelu"), "older").code == 0
    failed = runner.collect(Training("fails_at_import"), "older")
    assert failed.code == 1
    assert "nothing was collected" in failed.errors + failed.output
    outcome, first_line = first_line_of(runner.run("-m", "pytest_msprobe", "diagnose", "older").output)
    assert outcome == NOTHING
    assert "fails_at_import.py" in first_line
    named = runner.run("-m", "pytest_msprobe", "diagnose", "older/step0").output
    assert first_line_of(named)[0] == RIGHT
    assert re.search(r"gelu.py.*\d\d:\d\d", named)


@row("case 04")
def test_a_run_for_nothing_does_not_begin(runner: Runner, answer: Callable[[Situation], Answered]) -> None:
    statistics = Training("convolutions", options=("--exit", "--task=statistics"))
    situation = Situation("case 04", statistics, outcome=NOTHING, first_line=("compared with itself",))
    answered = answer(situation)
    check(situation, answered)
    assert not re.search(r"about (?!1 s)\d+ s", answered.text)


@row("case 11")
def test_a_dump_without_its_framework_is_read_by_its_types(
    answer: Callable[[Situation], Answered], tmp_path: Path
) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float16", "shape": [4, 6], "requires_grad": False}
    tensor |= {"Max": 1.5, "Min": -1.0, "Mean": 0.1, "Norm": 3.0}
    dim = {"dim": {"type": "int", "value": 0}}
    joined = tensor | {"shape": [8, 6]}
    records = {
        "Torch.cat.0.forward": {"input_args": [[tensor] * 2], "input_kwargs": dim, "output": [joined]},
        "Tensor.__mul__.0.forward": {"input_args": [tensor] * 2, "input_kwargs": {}, "output": [tensor]},
    }
    head = {"task": "statistics", "level": "mix", "dump_data_dir": None}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({**head, "data": records}), encoding="utf-8")
    situation = Situation(
        "case 11",
        path,
        outcome=NOTHING,
        first_line=("PyTorch",),
        absent=("cannot be run from a dump", "mindspore", "MindSpore"),
    )
    check(situation, answer(situation))


FAULTS = [(mode, fault) for mode in ("bilinear", "bicubic") for fault in ("noise", "x1.01", "x1.2", "zeros")]


@row_of_cases("case 22", FAULTS)
def test_each_wrong_sample_of_a_grid_fails(runner: Runner, case: tuple[str, str]) -> None:
    samples = Training("grid_samples", case, has_debugger=True)
    options = ("--msprobe-standard=backward-error", "-k", "Functional.grid_sample")
    run, failures = runner.junit(samples, None, *options)
    assert run.code == 1
    check_failures(tuple(f"Functional.grid_sample.{call}.forward" for call in range(6)), failures)


@row_of_cases("case 22", [(mode, "none") for mode in ("bilinear", "bicubic", "nearest")])
def test_a_right_sample_of_a_grid_passes(runner: Runner, case: tuple[str, str]) -> None:
    samples = Training("grid_samples", case, has_debugger=True)
    run, failures = runner.junit(samples, None, "--msprobe-standard=backward-error", "-k", "Functional.grid_sample")
    assert (run.code, failures) == (0, []), run.output
