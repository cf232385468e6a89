"""The catalogue of trainings that break a law: what is in it, how answers are scored, and some of its entries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quality.laws.answers import NAMES, Answer, read
from quality.laws.entries import LAWS, Entry, catalogue
from quality.laws.launching import launched


def entry(name: str) -> Entry:
    return next(one for one in catalogue("torch") if one.name == name)


@pytest.mark.needs("torch")
def test_every_law_has_a_violation_and_there_are_sources() -> None:
    entries = catalogue("torch")
    wrong = [one for one in entries if not one.is_clean]
    assert {law for one in wrong for law in one.laws} == set(LAWS)
    assert len(wrong) >= 40
    assert sum(one.link.startswith("https://") for one in wrong) >= 20
    assert all(bool(one.source) == bool(one.link) and one.at and one.wrong.endswith(".") for one in wrong)
    assert len(entries) - len(wrong) >= 20


def test_names_of_laws_are_those_of_the_product() -> None:
    from msprobe_laws import signals, training, updates

    known = {one.name for one in training.STATEMENTS} | {signals.IN_EVAL, signals.INDEPENDENT, signals.RECOMPUTED}
    for module in (signals, updates):
        known |= {one.name for one in vars(module).values() if isinstance(getattr(one, "name", None), str)}
    assert {name for names in NAMES.values() for name in names} - known == set()
    assert set(NAMES) == set(LAWS)


def written(folder: Path, *findings: tuple[str, list[str]]) -> Path:
    """A folder with what laws write."""
    rows: list[dict[str, object]] = [{"kind": "run", "schema": 1, "rank": 0}]
    for law, names in findings:
        rows.append(
            {"kind": "finding", "law": law, "parameter": names[0], "others": names[1:], "message": "", "step": 1}
        )
    rows.append({"kind": "checked", "law": "update-formula", "checks": 10})
    file = folder / "msprobe_laws" / "rank0" / "laws.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return folder


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("findings", "verdict"),
    [
        ([("gradients-arrive", ["goals.weight", "goals.bias"])], "right"),
        ([("gradients-arrive", ["goals.weight"]), ("update-formula", ["goals.weight"])], "innocent named too"),
        ([("gradients-arrive", ["goals.weight", "head.bias"])], "wrong name"),
        ([("update-formula", ["goals.weight"])], "wrong law"),
        ([], "missed"),
    ],
)
def test_a_violation_is_right_only_with_law_and_parameter(
    findings: list[tuple[str, list[str]]], verdict: str, tmp_path: Path
) -> None:
    assert read(entry("a branch is detached"), written(tmp_path, *findings)).verdict == verdict


@pytest.mark.needs("torch")
def test_a_training_that_wrote_nothing_has_no_answer(tmp_path: Path) -> None:
    answer = read(entry("SGD"), tmp_path)
    assert (answer.verdict, answer.failure) == ("no answer", "no law was checked")
    assert read(entry("SGD"), written(tmp_path)).verdict == "clean"
    assert Answer(entry("SGD"), failure="exit 1").verdict == "no answer"


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("name", "verdict"), [("zero_grad left out", "right"), ("Adam", "clean")])
def test_entries_are_trained_and_judged(name: str, verdict: str, tmp_path: Path) -> None:
    outcome = launched(entry(name), tmp_path)
    assert read(entry(name), outcome.folder, failure=outcome.failure).verdict == verdict
