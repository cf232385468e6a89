"""The evals: each has a recipe and reasons for its answers; the score tells right, unknown and wrong answers apart."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from quality.evals.command import lines_of_answer, main
from quality.evals.questions import FILE, Eval, read
from quality.evals.scoring import read_answer, score

RECIPES = Path(__file__).parents[1] / "evals"
EVALS = read(is_held_out_too=True)


def test_there_are_24_over_all_suites_with_both_frameworks_and_traps() -> None:
    shipped = read()
    assert len(shipped) == 24
    assert len({one.name for one in EVALS}) == len(EVALS)
    suites = {"precheck", "comparison", "overflow", "gradients", "repeat", "sharded", "laws", "trap"}
    assert {one.suite for one in shipped} == suites
    assert sum(one.suite == "trap" for one in shipped) >= 3
    assert sum(one.module == "mindspore_recipes" for one in shipped) >= 6
    assert json.loads(FILE.read_text())["version"] == 1


@pytest.mark.parametrize("one", EVALS, ids=lambda one: one.name)
def test_each_has_a_recipe_and_reasons(one: Eval) -> None:
    source = ast.parse((RECIPES / f"{one.module}.py").read_text())
    recipes = {node.name: node for node in source.body if isinstance(node, ast.FunctionDef)}
    assert ast.get_docstring(recipes[one.name])
    assert one.question.endswith("?")
    assert all(reason for reason in one.also_right.values())
    assert (one.suite == "trap") == (one.answer == "none")


def asked(answer: str, **also_right: str) -> Eval:
    return Eval("name", "torch_recipes", "precheck", False, "which?", answer, also_right)


def diagnosis(
    outcome: str = "wrong", record: str = "", setup: tuple[str, ...] = (), steps: tuple[int, ...] = (0,), **more: Any
) -> str:
    place = {"record": record, "value": "", "steps": steps}
    entry = {"place": place, "name": "", "detail": "", "confidence": "proved", **more}
    return json.dumps({"outcome": outcome, "headline": "", "findings": [entry] if record else [], "setup": setup})


@pytest.mark.parametrize(
    ("right", "output", "expected"),
    [
        ("Torch.add.1.forward", "thinking\nTorch.add.1.forward\n", "right"),
        ("Torch.add.1.forward", "Torch.add.1", "right"),
        ("Torch.add.1.forward", "step0/dump.json::Torch.add.1::forward", "right"),
        ("Torch.add.1.forward", "Torch.add.1.backward", "confidently wrong"),
        ("Torch.add.1.forward", "Torch.add.11.forward?", "wrong"),
        ("Torch.add.1.forward", "unknown", "not known"),
        ("Torch.add.1.forward", "", "not known"),
        ("Torch.add.1.forward", "none", "confidently wrong"),
        ("none", "none", "right"),
        ("Torch.add.1.forward", diagnosis(record="Torch.add.1.forward"), "right"),
        ("Torch.add.1.forward", diagnosis(record="Torch.mul.1.forward"), "confidently wrong"),
        (
            "Torch.add.1.forward",
            diagnosis(record="Torch.mul.1.forward", confidence="first difference only"),
            "wrong",
        ),
        ("Torch.add.1.forward", diagnosis("nothing judged"), "not known"),
        ("Torch.add.1.forward", diagnosis("right"), "confidently wrong"),
        ("none", diagnosis("right"), "right"),
        ("none", diagnosis(record="Torch.mul.1.forward"), "confidently wrong"),
        ("lr", diagnosis(record="x", confidence="first difference only", setup=("lr of group 0: 1",)), "right"),
        ("lr", diagnosis(record="x", setup=("lr of group 0: 1",)), "confidently wrong"),
        ("a.weight", diagnosis(record="x", detail="input.gradients.a.weight: nothing gives it"), "right"),
        ("a.weight", diagnosis(record="x", detail="b.a.weight: nothing gives it"), "confidently wrong"),
        ("step 4 a.weight", diagnosis(record="a.weight.step4", steps=(4,)), "right"),
        ("step 4 a.weight", diagnosis(record="a.weight.step5", steps=(5,)), "confidently wrong"),
    ],
)
def test_scores(right: str, output: str, expected: str) -> None:
    assert score(asked(right), read_answer(output)) == expected


def test_lines_of_an_answer_are_counted_behind_what_the_program_does() -> None:
    assert lines_of_answer("dump: tensors\nprecheck, about 3 s\n\nWrong: x\n  more\n") == 2


def test_a_program_is_asked_about_a_dump_that_the_recipe_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(tmp_path), "nothing_to_judge", "--at-least=1"]) == 0
    assert "1 evals: 1 right" in capsys.readouterr().out
    assert main(["run", str(tmp_path), "nothing_to_judge", "--at-least=1", "--", "echo", "Torch.add.0 in {dump}"]) == 1
    with pytest.raises(SystemExit):
        main(["make", str(tmp_path), "no_such_eval"])
