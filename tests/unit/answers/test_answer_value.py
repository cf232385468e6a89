"""The value of a diagnosis: its JSON fits 4 kB and its schema, its text 12 lines, its headline 90 characters."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from msgspec import structs

from pytest_msprobe.answers import Answer, Finding, Gap, NextStep, Place, Reach, TakenStep
from pytest_msprobe.answers.answer import MOST_HEADLINE, SCHEMA_FILE, About, Measure, json_schema
from pytest_msprobe.answers.file import MOST_BYTES, to_json
from pytest_msprobe.answers.finding import Parted, SharedContent, SourceCall
from pytest_msprobe.answers.words import MOST_LINES, content_in_words, figure, headline, lines, listed_numbers, readable

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def finding(number: int = 0, *, long: int = 1, **more: Any) -> Finding:
    return Finding(
        id=f"{'step0/' * long}rank0/dump.json::Mint.exp.{number}::forward",
        kind="wrong",
        confidence="proved",
        place=Place(
            record=f"Mint.exp.{number}.forward",
            operation=f"Mint.exp.{number}",
            directions=("forward",),
            source="/home/train/" * long + "net.py:7",
            **more,
        ),
        figures={"ratio": 3.123456789, "dtype": "Float32 " * long},
        detail="output.0 is off " * 20 * long,
    )


def answer(count: int, *, long: int = 1) -> Answer:
    return Answer(
        suite="precheck",
        outcome="wrong" if count else "nothing judged",
        findings=tuple(finding(number, long=long) for number in range(count)),
        reach=Reach(12, "Mint.sum.0.forward"),
        open=tuple(
            Gap(kind="skipped", what=f"call {number} " * long, reason="no benchmark " * 30) for number in range(count)
        ),
        next=tuple(NextStep("figures", ("pytest", "-k", "x" * 40 * long)) for _ in range(count)),
        setup=tuple(f"dropout {number} " * 10 * long for number in range(count)),
        about=tuple(About(path=f"/dumps/{number}/" * long) for number in range(count)),
        steps=tuple(TakenStep(("pytest", "-x"), "wrong", "Wrong: x") for _ in range(count)),
    )


def test_the_schema_file_is_that_of_the_value() -> None:
    assert json.loads(json.dumps(json_schema())) == SCHEMA


def test_of_the_place_where_runs_part_the_first_and_the_last_calls_are_written() -> None:
    calls = tuple(
        SourceCall(f"Tensor.add.{number}", "forward", "/home/" * 40 + f"net.py:{number}") for number in range(16)
    )
    parted = Parted(target=calls, golden=calls[:1], target_count=16, golden_count=1, parameters=tuple("abcd"))
    content = SharedContent(found=8412, values=8530, regions=3, parted=parted)
    encoded = to_json(structs.replace(answer(12), content=content))
    assert len(encoded) <= MOST_BYTES
    found = json.loads(encoded)
    jsonschema.validate(found, SCHEMA)
    found = found["content"]["parted"]
    assert [call["call"] for call in found["target"]] == ["Tensor.add.0", "Tensor.add.15"]
    assert [call["call"] for call in found["golden"]] == ["Tensor.add.0"]
    assert (found["target_count"], found["parameters"]) == (16, ["a", "b", "c"])
    assert content_in_words(content) == (
        "found 8,412 of 8,530 values; 3 regions in other steps, equal again; "
        "parted at Tensor.add.0 to Tensor.add.15 (net.py:0), golden Tensor.add.0 (net.py:0), of a, b, c, ..."
    )


@pytest.mark.parametrize(("count", "long"), [(0, 1), (1, 1), (3, 1), (12, 1), (300, 1), (12, 20), (5, 400)])
def test_the_json_fits_and_counts_what_is_cut(count: int, long: int) -> None:
    encoded = to_json(answer(count, long=long))
    assert len(encoded) <= MOST_BYTES
    found = json.loads(encoded)
    jsonschema.validate(found, SCHEMA)
    for name in ("findings", "open", "next", "setup", "about", "steps"):
        assert len(found[name]) + found["cut"].get(name, 0) == count
    assert [each["place"]["record"] for each in found["findings"]] == [
        f"Mint.exp.{number}.forward" for number in range(len(found["findings"]))
    ]


def test_one_cause_is_never_cut_where_paths_are_of_usual_length() -> None:
    assert json.loads(to_json(answer(300)))["findings"][0]["id"] == "step0/rank0/dump.json::Mint.exp.0::forward"


def test_figures_have_four_digits_and_json_has_no_nan() -> None:
    odd = finding(1)
    odd.figures.update(ratio=float("nan"), worst=2.0 / 3)
    encoded = json.loads(to_json(Answer(suite="x", outcome="wrong", findings=(odd,))))
    assert encoded["findings"][0]["figures"]["ratio"] == "nan"
    assert encoded["findings"][0]["figures"]["worst"] == 0.6667
    assert json.loads(to_json(answer(1)))["findings"][0]["figures"]["ratio"] == 3.123


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_the_text_fits(count: int, width: int) -> None:
    shown = lines(answer(count), width)
    start = "Wrong: Mint.exp.0, 3.12 x its tolerance, net.py:7" if count else "Nothing judged: "
    assert shown[0].startswith(start)
    assert len(shown) <= MOST_LINES
    assert all(len(line) <= width for line in shown[1:] if not line.startswith("next: "))
    if count > 3:
        assert f"and {count - 3} more causes" in "\n".join(shown) or width == 40


def test_a_command_is_never_cut() -> None:
    step = NextStep("figures", ("pytest", "--msprobe-dump=a folder/dump.json", "-k", "Mint.exp.0"))
    shown = lines(Answer(suite="x", outcome="right", next=(step,)), 40)
    assert shown[1] == "next: pytest '--msprobe-dump=a folder/dump.json' -k Mint.exp.0"


def test_nothing_of_a_dump_reaches_the_terminal_unprinted() -> None:
    first = Answer(suite="x", outcome="wrong", findings=(finding(value="\x1b[31m", cell="\x1b[2J"),))
    second = Answer(suite="x", outcome="right", open=(Gap(kind="\x1b", what="\x07", reason="\x1b"),))
    third = Answer(suite="x", outcome="right", next=(NextStep("figures", ("\x1b[31m",)),), setup=("\x1b",))
    for each in (first, second, third):
        assert not any(ord(character) < 32 for line in lines(each, 80) for character in line)


def found(place: Place, count: int = 1, **figures: float) -> str:
    first = Finding(kind="wrong", confidence="proved", place=place, figures=dict(figures))
    return headline(Answer(suite="x", outcome="wrong", findings=(first,) * count))


def test_a_headline_names_what_matters_first_and_fits() -> None:
    name = "Functional.scaled_dot_product_attention " * 3
    long = found(Place(record="a", operation=name, source="/a/train.py:25"), 3, size=0.12)
    assert len(long) <= MOST_HEADLINE
    assert long.endswith("..., train.py:25")
    layers = Place(
        record="a", operation="Functional.gelu", calls=12, layers=tuple(range(0, 24, 2)), source="train.py:25"
    )
    assert found(layers, 3, size=0.02) == "Wrong: Functional.gelu in 12 layers, 2 % off, train.py:25 (and 2 more)"


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (
            Measure(kind="limits", judged=180, total=180, limits={"cosine": 0.99, "max_abs": 1e-4}),
            "Right: 180 of 180 records are within cosine > 0.99 and max error < 1e-4",
        ),
        (Measure(kind="rounding", judged=226, total=226, differing=203), "Right: all 203 differences are rounding"),
        (Measure(kind="equal", judged=1, total=1, names=("tensors",)), "values of 1 record are equal, bit by bit"),
        (Measure(kind="a stranger's", judged=3, total=3, noun="checks"), "Right: 3 of 3 checks passed"),
    ],
)
def test_what_is_right_says_by_what_it_is(measure: Measure, words: str) -> None:
    assert words in headline(Answer(suite="x", outcome="right", measure=measure))


def test_what_was_not_judged_stands_in_the_first_line() -> None:
    measure = Measure(kind="limits", judged=384, total=388)
    gap = Gap(kind="skipped", what="Functional.dropout.0 forward", count=4, reason="it is random")
    line = headline(Answer(suite="x", outcome="right", measure=measure, open=(gap,)))
    assert line == "Right as far as judged: 384 of 388 records; it is random (4)"


def test_numbers() -> None:
    assert listed_numbers([3, 0, 1, 2, 7]) == "0 to 3, 7"
    assert [figure(value) for value in (0.012345, 123.4, 4321.0, 54321.0)] == ["0.0123", "123", "4321", "5.43e+04"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scale 0.08838834764831845 against 0.125", "scale 0.08839 against 0.125"),
        ("Max is -3.4028234663852886e+38.", "Max is -3.403e+38."),
        ("eps 1.0000001 against 1.0000002", "eps 1.0000001 against 1.0000002"),
        ("net.py:7, Mint.exp.0.forward.output.0, 512341 elements, 1e-05", None),
        ("mode '2.50000' against 2.0.1234567", None),
    ],
)
def test_figures_of_a_sentence_have_four_digits_or_as_many_as_tell_them_apart(text: str, expected: str | None) -> None:
    assert readable(text) == (expected or text)
