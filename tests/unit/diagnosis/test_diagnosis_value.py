"""The value of a diagnosis: its JSON fits 4 kB and its schema, its text 12 lines, its headline 90 characters."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from pytest_msprobe.diagnosis import AtFault, CannotSay, Diagnosis, Inherited, NextStep, TakenStep
from pytest_msprobe.diagnosis.value import (
    MOST_BYTES,
    MOST_HEADLINE,
    MOST_LINES,
    SCHEMA_FILE,
    figure,
    headline,
    json_schema,
    listed_numbers,
)

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def fault(number: int = 0, *, long: int = 1, **more: Any) -> AtFault:
    return AtFault(
        id=f"{'step0/' * long}rank0/dump.json::Mint.exp.{number}::forward",
        record=f"Mint.exp.{number}.forward",
        kind="wrong",
        confidence="proved",
        name=f"Mint.exp.{number} forward",
        sentence="output.0 is off " * 20 * long,
        source="/home/train/" * long + "net.py:7",
        evidence={"ratio": 3.123456789, "pattern": "one row " * long},
        **more,
    )


def answer(count: int, *, long: int = 1) -> Diagnosis:
    return Diagnosis(
        suite="precheck",
        outcome="fault",
        headline=headline("fault", "Mint.exp.0", "3.1 x its tolerance", source="net.py:7"),
        at_fault=tuple(fault(number, long=long) for number in range(count)),
        inherited=Inherited(12, "Mint.sum.0.forward"),
        cannot_say=tuple(CannotSay(f"call {number} " * long, "no benchmark " * 30) for number in range(count)),
        next=tuple(NextStep(("pytest", "-k", "x" * 40 * long), "all figures " * 10) for _ in range(count)),
        manifest=tuple(f"dropout {number} " * 10 * long for number in range(count)),
        dumps=tuple(f"/dumps/{number}/" * long for number in range(count)),
        steps=tuple(TakenStep(("pytest", "-x"), "fault", "Fault: x") for _ in range(count)),
    )


def test_the_schema_file_is_that_of_the_value() -> None:
    assert json.loads(json.dumps(json_schema())) == SCHEMA


@pytest.mark.parametrize(("count", "long"), [(0, 1), (1, 1), (3, 1), (12, 1), (300, 1), (12, 20), (5, 400)])
def test_the_json_fits_and_counts_what_is_cut(count: int, long: int) -> None:
    encoded = answer(count, long=long).to_json()
    assert len(encoded) <= MOST_BYTES
    found = json.loads(encoded)
    jsonschema.validate(found, SCHEMA)
    for name in ("at_fault", "cannot_say", "next", "manifest", "dumps", "steps"):
        assert len(found[name]) + found["cut"].get(name, 0) == count
    assert [each["record"] for each in found["at_fault"]] == [
        f"Mint.exp.{number}.forward" for number in range(len(found["at_fault"]))
    ]


def test_one_cause_is_never_cut_where_paths_are_of_usual_length() -> None:
    assert json.loads(answer(300).to_json())["at_fault"][0]["id"] == "step0/rank0/dump.json::Mint.exp.0::forward"


def test_figures_have_four_digits_and_json_has_no_nan() -> None:
    found = answer(1)
    odd = fault(1, size=float("inf"))
    odd.evidence.update(ratio=float("nan"), worst=2.0 / 3)
    encoded = json.loads(Diagnosis(suite="x", outcome="fault", headline="Fault: x", at_fault=(odd,)).to_json())
    assert (encoded["at_fault"][0]["size"], encoded["at_fault"][0]["evidence"]["ratio"]) == (None, "nan")
    assert encoded["at_fault"][0]["evidence"]["worst"] == 0.6667
    assert json.loads(found.to_json())["at_fault"][0]["evidence"]["ratio"] == 3.123


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_the_text_fits(count: int, width: int) -> None:
    lines = answer(count).lines(width)
    assert lines[0] == "Fault: Mint.exp.0, 3.1 x its tolerance, net.py:7"
    assert len(lines) <= MOST_LINES
    assert all(len(line) <= width for line in lines[1:] if not line.startswith("next: "))
    if count > 3:
        assert f"and {count - 3} more causes" in "\n".join(lines) or width == 40


def test_a_command_is_never_cut() -> None:
    step = NextStep(("pytest", "--msprobe-dump=a folder/dump.json", "-k", "Mint.exp.0"), "all figures")
    lines = Diagnosis(suite="x", outcome="fault", headline="Fault: x", next=(step,)).lines(40)
    assert lines[1] == "next: pytest '--msprobe-dump=a folder/dump.json' -k Mint.exp.0"


def test_nothing_of_a_dump_reaches_the_terminal_unprinted() -> None:
    found = Diagnosis(suite="x", outcome="fault", headline="Fault: x", at_fault=(fault(value="\x1b[31m"),))
    bad = Diagnosis(suite="x", outcome="fault", headline="Fault: \x1b[31mx", cannot_say=(CannotSay("\x07", "\x1b"),))
    assert not any(ord(character) < 32 for each in (found, bad) for line in each.lines(80) for character in line)


def test_a_headline_names_what_matters_first_and_fits() -> None:
    long = headline(
        "fault", "Functional.scaled_dot_product_attention " * 3, "12 % off", source="/a/train.py:25", others=2
    )
    assert len(long) <= MOST_HEADLINE
    assert long.endswith("..., train.py:25")
    name = "Functional.gelu in 12 layers (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22)"
    short = headline("fault", name, "2 % off", source="train.py:25", others=2)
    assert short == "Fault: Functional.gelu in 12 layers, 2 % off, train.py:25 (and 2 more)"
    assert headline("equal", "all 3 records") == "Equal: all 3 records"
    assert headline("fault", "x", "y " * 60, "in z") == "Fault: x, in z"


def test_numbers() -> None:
    assert listed_numbers([3, 0, 1, 2, 7]) == "0 to 3, 7"
    assert [figure(value) for value in (0.012345, 123.4, 4321.0, 54321.0)] == ["0.0123", "123", "4321", "5.43e+04"]
