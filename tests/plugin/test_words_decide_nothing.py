"""Nothing is decided by a sentence: with other words all outcomes, findings, groupings and exit codes stay."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from inspect import isfunction
from pathlib import Path
from typing import Any

import pytest
from dump_builder import DumpBuilder
from msgspec import structs
from test_diagnose import X, step, without_tensors

from pytest_msprobe.__main__ import main
from pytest_msprobe.answers import Answer, exact_words, words

NONSENSE = "differs by 3 against 4: blocks.0, rounding. Right: Wrong"
TEXTS = ("headline", "name", "how", "text", "tells", "detail", "reason")


def nonsense_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of words.py that says something else."""
    if function.__name__ == "lines":
        return lambda *_, **__: [NONSENSE]
    if function.__name__ == "listed_numbers":
        return lambda *_, **__: "7"
    if function.__name__ == "exact_said":
        return lambda exact: exact
    if function.__name__ != "said":
        return lambda *_, **__: NONSENSE

    def said(answer: Answer) -> Answer:
        findings = [structs.replace(one, name=NONSENSE, how=NONSENSE, detail=NONSENSE) for one in answer.findings]
        gaps = [structs.replace(one, text=NONSENSE, reason=NONSENSE) for one in answer.open]
        steps = [structs.replace(one, tells=NONSENSE) for one in answer.next]
        texts = {"findings": tuple(findings), "open": tuple(gaps), "next": tuple(steps), "headline": NONSENSE[:80]}
        return structs.replace(answer, **texts)

    return said


def with_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what words.py says, in it and wherever it has been imported."""
    says = [one for module in (words, exact_words) for one in vars(module).values() if isfunction(one)]
    functions = {one: nonsense_of(one) for one in says if one.__module__ in (words.__name__, exact_words.__name__)}
    assert len(functions) > 20
    for name, module in list(sys.modules.items()):
        if name.startswith(("pytest_msprobe", "msprobe_laws")):
            for attribute, value in list(vars(module).items()):
                if isfunction(value) and value in functions:
                    monkeypatch.setattr(module, attribute, functions[value])
    for table in (words._RIGHT, words._NAMES, words._HOW_OF_KIND):
        for key in table:
            monkeypatch.setitem(table, key, lambda *_: NONSENSE)  # type: ignore[arg-type]


def a_right_dump(folder: Path) -> list[str]:
    step(folder / "a")
    return ["a"]


def a_wrong_call(folder: Path) -> list[str]:
    step(folder / "a", fault=1.02)
    return ["a"]


def infinity(folder: Path) -> list[str]:
    step(folder / "a", bad=True)
    return ["a"]


def two_runs(folder: Path) -> list[str]:
    step(folder / "a", fault=1.02)
    step(folder / "b")
    return ["a", "b"]


def statistics_of_two_runs(folder: Path) -> list[str]:
    sides = two_runs(folder)
    for side in sides:
        without_tensors(folder / side)
    return sides


def weights_in_layers(folder: Path) -> list[str]:
    """Parameters of layers with numbers differ, as with another seed."""
    for side, factor in (("a", 1.0), ("b", 1.5)):
        builder = DumpBuilder(folder / side / "step0" / "rank0")
        for layer in range(4):
            weight = X[0] * (factor + layer)
            builder.call(f"Mint.mul.{layer}", [X, weight], [X * weight])
        builder.write()
    return ["a", "b"]


SITUATIONS = [a_right_dump, a_wrong_call, infinity, two_runs, statistics_of_two_runs, weights_in_layers]


def decided(folder: Path, arguments: list[str]) -> tuple[int, Any]:
    """Exit code, and the answer without its texts."""
    code = main(["diagnose", *arguments, "--json=answer.json", "--page=page.html"])
    answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))

    def without_texts(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_texts(one) for key, one in value.items() if key not in TEXTS}
        return [without_texts(one) for one in value] if isinstance(value, list) else value

    return code, without_texts(answer)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("build", SITUATIONS)
def test_other_words_change_no_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[[Path], list[str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = build(tmp_path)
    usual = decided(tmp_path, arguments)
    assert usual[0] == (0 if build is a_right_dump else 1)
    with_nonsense(monkeypatch)
    assert decided(tmp_path, arguments) == usual
