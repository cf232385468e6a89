"""A third run in float64 tells which of two runs is nearer to what the script means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documented import blocks
from situations import EXIT_CODES, SCRIPTS, Ended, Runner, Training, first_line_of, line_of

pytestmark = pytest.mark.needs("torch")


def attention(*words: str, task: str = "tensor", exact: bool = False) -> Training:
    options = ("--exit", f"--task={task}", *(("--dtype=float64",) if exact else ()))
    return Training("attention", words, options)


PLAIN, WRONG, EXACT = attention(), attention("wrong"), attention(exact=True)
SOFTMAX = line_of("attention", "weights = functional.softmax")


def ask(runner: Runner, target: Training, golden: Training, exact: Training) -> tuple[Ended, dict[str, Any]]:
    """What `diagnose` prints of a pair and its exact run, and what it writes."""
    file = runner.folder / "answer.json"
    ended = runner.diagnose(target, golden, options=(f"--exact={runner.dump(exact)}", f"--json={file}"))
    answer: dict[str, Any] = json.loads(file.read_bytes())
    assert ended.code == EXIT_CODES[first_line_of(ended.output)[0]], ended.output
    return ended, answer


@pytest.mark.parametrize("wrong", ["target", "golden"])
def test_the_run_with_a_wrong_kernel_is_named(runner: Runner, wrong: str) -> None:
    pair = (WRONG, PLAIN) if wrong == "target" else (PLAIN, WRONG)
    ended, answer = ask(runner, *pair, EXACT)
    exact = answer["exact"]
    assert (answer["outcome"], exact["kind"], exact["farther"], exact["is_proved"]) == ("wrong", "left", wrong, True)
    assert exact["record"] == "Functional.softmax.0.forward"
    assert exact["source"].endswith(SOFTMAX)
    right = "golden" if wrong == "target" else "target"
    assert exact[right] < 8 < 10_000 < exact[wrong]
    assert f"{'the target' if wrong == 'target' else 'the golden run'} is wrong" in " ".join(ended.output.split())
    sides = [about["side"] for about in answer["about"]]
    # The file has a limit, and paths may be long: what is cut is counted.
    assert sides == ["target", "golden", "exact"][: len(sides)]
    assert len(sides) + answer.get("cut", {}).get("about", 0) == 3


def test_statistics_say_less(runner: Runner) -> None:
    runs = (attention("wrong", task="statistics"), attention(task="statistics"))
    ended, answer = ask(runner, *runs, attention(task="statistics", exact=True))
    exact = answer["exact"]
    assert (exact["kind"], exact["farther"], exact["basis"]) == ("left", "target", "statistics")
    assert exact["record"] == "Functional.softmax.0.forward"
    assert not exact["is_proved"]
    assert "the target leaves it there, by statistics alone" in " ".join(ended.output.split())


@pytest.mark.parametrize(
    ("target", "dtype"), [("autocast", "bfloat16"), ("half", "float16"), ("halves", "float32"), ("dropout", "float32")]
)
def test_runs_that_round_are_both_near(runner: Runner, target: str, dtype: str) -> None:
    golden = attention("dropout") if target == "dropout" else PLAIN
    words = ("dropout",) if target == "dropout" else ("half",) if target == "half" else ()
    _, answer = ask(runner, attention(target), golden, attention(*words, exact=True))
    exact = answer["exact"]
    assert (exact["kind"], exact["farther"]) == ("near", ""), exact
    assert (exact["target_dtype"], exact["golden_dtype"]) == (dtype, "float32")
    assert max(exact["target"], exact["golden"]) < 16
    assert exact["judged"] > 20


def test_a_fault_within_the_roundings_of_a_dtype_blames_nobody(runner: Runner) -> None:
    """1 % is two to three roundings of bfloat16."""
    exact = ask(runner, attention("wrong", "autocast"), attention("autocast"), EXACT)[1]["exact"]
    assert (exact["kind"], exact["farther"]) == ("near", "")


def test_runs_that_agree_and_are_far_off_are_open(runner: Runner) -> None:
    ended, answer = ask(runner, attention("dropout"), attention("dropout"), attention("dropout", "drawn", exact=True))
    exact = answer["exact"]
    assert (exact["kind"], exact["farther"]) == ("together", "both")
    assert exact["record"] == "Functional.dropout.0.forward"
    assert [gap["kind"] for gap in answer["open"]] == ["exact"]
    assert first_line_of(ended.output)[0] == "Right as far as judged"


def test_an_exact_run_of_another_batch_says_nothing(runner: Runner) -> None:
    ended, answer = ask(runner, PLAIN, PLAIN, attention("batch", exact=True))
    exact = answer["exact"]
    assert (answer["outcome"], exact["kind"], exact["judged"]) == ("right", "other input", 0)
    assert exact["record"] == "Functional.embedding.0.forward"
    assert "exact run: says nothing, since it is of another step, batch or seed" in ended.output


def test_the_suite_says_the_same(runner: Runner) -> None:
    file = runner.folder / "of_suite.json"
    run = runner.pytest(WRONG, PLAIN, f"--msprobe-exact={runner.dump(EXACT)}", f"--msprobe-diagnosis={file}")
    assert run.code == 1
    assert json.loads(file.read_bytes())["exact"] == ask(runner, WRONG, PLAIN, EXACT)[1]["exact"]


def test_what_is_no_exact_run_is_refused_before_anything_runs(runner: Runner) -> None:
    plain = runner.dump(PLAIN)
    refused = runner.diagnose(WRONG, PLAIN, options=(f"--exact={plain}",))
    assert (refused.code, refused.errors.count("\n")) == (2, 1)
    assert f"--exact={plain}: computes nothing in float64; make it by" in refused.errors
    alone = runner.diagnose(WRONG, options=(f"--exact={runner.dump(EXACT)}",))
    assert (alone.code, "no two runs are compared" in alone.errors) == (2, True)
    suite = runner.pytest(WRONG, PLAIN, f"--msprobe-exact={plain}")
    assert (suite.code, f"--msprobe-exact={runner.folder / plain}: computes nothing" in suite.errors) == (4, True)


def test_the_commands_of_the_page_work(runner: Runner) -> None:
    """As docs/two_runs.md has them."""
    (block,) = (block for block in blocks() if "--dtype=float64" in block.text)
    collected, asked = (command.words[1:] for command in block.commands)
    script = str(SCRIPTS / "attention.py")
    assert runner.run(*[script if word == "train.py" else word for word in collected]).code == 0
    sides = {"target": runner.dump(WRONG), "golden": runner.dump(PLAIN)}
    said = runner.run(*[sides.get(word, word) for word in asked])
    assert (said.code, "the target is wrong" in " ".join(said.output.split())) == (1, True)


def dtypes_of_outputs(dump: Path) -> set[str]:
    """The float dtypes of what the calls of a dump make."""
    data = json.loads(next(dump.rglob("dump.json")).read_bytes())["data"]
    return {dtype for record in data.values() for dtype in _dtypes(record.get("output")) if "int" not in dtype}


def _dtypes(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield from (dtype for entry in value for dtype in _dtypes(entry))
    elif isinstance(value, dict) and "dtype" in value:
        yield value["dtype"]


@pytest.mark.parametrize("kind", ["function", "recomputed", "reentrant", "state", "drawn", "constants", "scaled"])
def test_everything_is_computed_in_float64_from_the_same_numbers(runner: Runner, kind: str) -> None:
    plain = Training("exact_kinds", (kind,))
    exact = Training("exact_kinds", (kind,), ("--exit", "--dtype=float64"))
    answer = ask(runner, plain, plain, exact)[1]
    assert dtypes_of_outputs(runner.folder / runner.dump(exact)) <= {"torch.float64", "torch.complex128", "torch.bool"}
    assert dtypes_of_outputs(runner.folder / runner.dump(plain)) & {"torch.float32"}
    assert (answer["exact"]["kind"], answer["exact"]["judged"] > 10) == ("near", True), answer["exact"]
