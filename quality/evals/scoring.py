"""What a program answered, and whether that is right."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from quality.evals.questions import Eval

Score = Literal["right", "not known", "wrong", "confidently wrong"]
SCORES: tuple[Score, ...] = ("right", "not known", "wrong", "confidently wrong")
NONE, UNKNOWN = "none", "unknown"
#: Confidences of a diagnosis with which a wrong name is worse than no answer.
SURE = ("proved", "likely")


@dataclass(frozen=True)
class Answer:
    """What a program said.

    Attributes:
        names: What it named as the first cause, in order of weight; `none` or `unknown` alone where it named nothing.
        is_sure: Whether it said so without reserve.
    """

    names: tuple[str, ...]
    is_sure: bool


def read_answer(output: str) -> Answer:
    """The answer in the output of a program: a diagnosis as JSON, or its last line that is not empty.

    Such a line is a name, a name with `?` behind it for a guess, `none`, or `unknown`.
    """
    diagnosis = _diagnosis(output)
    if diagnosis is not None:
        return of_diagnosis(diagnosis)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1] if lines else UNKNOWN
    return Answer((last.rstrip("? "),), not last.endswith("?"))


def of_diagnosis(diagnosis: dict[str, Any]) -> Answer:
    """The answer of a diagnosis: its first cause, and the first difference of set-ups if that is unsure."""
    if diagnosis["outcome"] == "nothing judged":
        return Answer((UNKNOWN,), False)
    if diagnosis["outcome"] == "right":
        return Answer((NONE,), True)
    first, setup = diagnosis["findings"][0], diagnosis["setup"]
    place = first["place"]
    is_sure = first["confidence"] in SURE
    names = [place["record"], first["name"], place["value"], first["detail"], diagnosis["headline"]]
    names += [f"step {step} {place['record'].removesuffix(f'.step{step}')}" for step in place["steps"][:1]]
    if setup and not is_sure:
        names.append(setup[0])
    return Answer(tuple(filter(None, names)) or (UNKNOWN,), is_sure)


def score(asked: Eval, answer: Answer) -> Score:
    """Whether the answer is right; a wrong name without reserve is the worst."""
    accepted = (asked.answer, *asked.also_right)
    if any(_names(said, right) for said in answer.names for right in accepted):
        return "right"
    if answer.names == (UNKNOWN,):
        return "not known"
    return "confidently wrong" if answer.is_sure else "wrong"


def _names(said: str, right: str) -> bool:
    """Whether `said` has `right` in it as a whole name; a call's name without its direction names both records."""
    said = re.sub(r"\b(?:input|output)\.(?:gradients|parameters|state)\.", "", said)
    said = re.sub(r"::(forward|backward)\b", r".\1", said).replace("::", " ")
    if re.search(rf"(?<![\w.]){re.escape(right)}(?![\w]|\.\w)", said):
        return True
    call = re.fullmatch(r"(?P<call>[\w.]+\.\d+)\.(forward|backward)", right)
    return call is not None and said == call["call"]


def _diagnosis(output: str) -> dict[str, Any] | None:
    start = output.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(output, start)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "outcome" in found else None
