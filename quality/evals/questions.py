"""The evals as seen.json and held_out.json hold them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("seen.json")
#: Further evals, written after the first answers to those of FILE were known, for the measurement after that.
HELD_OUT = Path(__file__).with_name("held_out.json")


@dataclass(frozen=True)
class Eval:
    """One question with its right answer.

    Attributes:
        name: The recipe's function and the name of the folder.
        module: Where the recipe stands: `torch_recipes`, `mindspore_recipes` or `sharded_recipes`.
        suite: The suite whose question it is.
        has_golden: Whether there is a second run, which is right.
        question: What is asked of a program, in words.
        answer: The right name: a record, a parameter, a setting, or `none`.
        also_right: Other names that are right, each with the reason why.
    """

    name: str
    module: str
    suite: str
    has_golden: bool
    question: str
    answer: str
    also_right: dict[str, str]


def read(is_held_out_too: bool = False) -> list[Eval]:
    """All evals, in the order of the files."""
    files = [FILE, HELD_OUT] if is_held_out_too else [FILE]
    return [Eval(**entry) for file in files for entry in json.loads(file.read_text())["evals"]]
