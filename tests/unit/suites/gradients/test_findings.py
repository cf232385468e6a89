"""What verdicts amount to, and the table and pictures of them."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from pytest_msprobe.suites.gradients.findings import Findings, GradientResult, SignAgreement
from pytest_msprobe.suites.gradients.report import (
    MOST_PARAMETERS,
    SimilarityPictures,
    reserve_folder,
    write_similarities,
)

ALL, HALF = SignAgreement(10, 10), SignAgreement(5, 10)
PNG = b"\x89PNG\r\n\x1a\n"


def passed(step: int, order: int, agreement: SignAgreement = ALL, *, rank: int = 0) -> GradientResult:
    return GradientResult(rank, step, f"p{order}", order, "pass", agreement=agreement)


def failed(step: int, order: int, agreement: SignAgreement = HALF, *, rank: int = 0) -> GradientResult:
    return GradientResult(rank, step, f"p{order}", order, "error", "similarity", f"low at {step}", agreement=agreement)


VERDICTS = [
    *(passed(step, order) for step in (0, 1) for order in (0, 1, 2)),
    passed(2, 0),
    failed(2, 1, SignAgreement(6, 10)),
    failed(2, 2, SignAgreement(7, 10)),
    *(failed(10, order, rank=0) for order in (0, 1, 2)),
    failed(2, 0, rank=1),
    GradientResult(0, 1, "p3", 3, "error", "unmatched", "only one side"),
]
LINES = [
    "first problem step: 2, rank 0: 2 of 3 gradients",
    "  p1: low at 2",
    "  p2: low at 2",
    "nearest the loss: p2; look between it and the loss first: dump step 2 of rank 0 (level mix) in both runs and "
    "compare",
    "problem steps of rank 0: 2, 10",
    "problem steps of rank 1: 2",
    "all gradients together: lowest similarity 0.5000, at step 2 of rank 1",
    "1 gradient fails, which could not be read or compared",
]


@pytest.mark.parametrize("seed", range(3))
def test_the_first_problem_step_is_named_whatever_the_order(seed: int) -> None:
    findings = Findings()
    for verdict in random.Random(seed).sample(VERDICTS, len(VERDICTS)):
        findings.count(verdict)
    assert list(findings.lines()) == LINES


def test_no_problem_and_nothing_judged() -> None:
    findings = Findings()
    assert list(findings.lines()) == ["no gradient was judged"]
    findings.count(passed(0, 0))
    assert next(findings.lines()) == "no problem step: every gradient that was judged is within the rules"


def test_all_gradients_together_weigh_by_their_elements() -> None:
    findings = Findings()
    findings.count(passed(0, 0, SignAgreement(3, 4)))
    findings.count(passed(0, 1, SignAgreement(10, 10)))
    findings.count(passed(0, 2, SignAgreement(0, 0)))
    assert findings.overall(0, 0) == SignAgreement(13, 14)


def test_the_table_has_the_known_form(tmp_path: Path) -> None:
    findings = Findings()
    for verdict in VERDICTS:
        findings.count(verdict)
    findings.count(GradientResult(0, 0, "=1+1", 4, "pass", agreement=SignAgreement(3, 4)))
    path = write_similarities(tmp_path / "rank0", findings, 0)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", "0", "1", "2", "10"]
    assert rows[2] == ["p1", "1.0", "1.0", "0.6", "0.5"]
    assert rows[4] == ["'=1+1", "0.75", "", "", ""]
    assert rows[5] == ["summary", str(33 / 34), "1.0", str(23 / 30), "0.5"]


def test_a_folder_is_never_another_run_s(tmp_path: Path) -> None:
    folders = {reserve_folder(tmp_path / "out") for _ in range(3)}
    assert len(folders) == 3


@pytest.mark.needs("matplotlib")
def test_pictures_of_names_that_look_like_formulas() -> None:
    findings = Findings()
    for step in range(3):
        findings.count(GradientResult(0, step, r"$\frac{$", 0, "pass", agreement=SignAgreement(9, 10)))
        findings.count(failed(step, 1))
    findings.count(GradientResult(0, 0, "once", 2, "pass", agreement=SignAgreement(0, 0)))
    pictures = SimilarityPictures(findings, 0)
    drawn = [pictures.heat_map(), *pictures.lines()]
    assert [picture.stem for picture in drawn] == [
        "heat_map",
        "summary_similarities",
        r"$\frac{$_similarities",
        "p1_similarities",
        "once_similarities",
    ]
    assert all(picture.png.startswith(PNG) for picture in drawn)
    assert len({picture.png for picture in drawn}) == len(drawn)


def test_of_many_parameters_those_with_a_problem_are_drawn() -> None:
    findings = Findings()
    for order in range(MOST_PARAMETERS + 20):
        findings.count((failed if order >= MOST_PARAMETERS else passed)(0, order))
    shown = SimilarityPictures(findings, 0).shown
    assert len(shown) == MOST_PARAMETERS
    assert shown[-21:] == ["p79", *(f"p{order}" for order in range(100, 120))]
