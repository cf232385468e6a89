"""The tables of callable operators and their reader."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

Framework = Literal["mindspore", "torch"]

_SECTION = re.compile(r"\[(?P<type>\w+)\] (?P<owner>[\w.]+)")
_NEXT_STEP = "the hook pytest_msprobe_reference can judge an operator of your own"


def find_operator(framework: Framework, api_type: str, name: str) -> str | None:
    """Path of the callable that `framework` has for an API, `mindspore.mint.linalg.inv`, or None when it is not known.

    Args:
        framework: whose table is asked; reading it imports nothing.
        api_type: API type of a record. `Mint`, `MintFunctional`, `Functional`, `Tensor` and `Primitive` are those of
            MindSpore; `Torch`, `Functional`, `Tensor`, `VF` and `Aten` those of PyTorch.
        name: name in the record, the class for a Primitive.
    """
    return _operators(framework).get(_normal(api_type, name))


def operator_names(framework: Framework) -> tuple[tuple[str, str], ...]:
    """(API type, name) of every operator in the tables of `framework`, each once."""
    return tuple(_operators(framework))


def unknown_operator(framework: Framework, api_type: str) -> str:
    """Why a record of `api_type` is not run whose name is in no table; begins after the name."""
    owners = dict.fromkeys(path for kind, path in _sections(framework) if kind == api_type)
    return f"not a known operator of {next(iter(owners), framework)}; {_NEXT_STEP}"


def _normal(api_type: str, name: str) -> tuple[str, str]:
    inner = "nn.functional."
    if api_type == "Mint" and name.startswith(inner):
        return "MintFunctional", name[len(inner) :]
    return api_type, name


@cache
def _operators(framework: Framework) -> Mapping[tuple[str, str], str]:
    return {
        (api_type, word): f"{owner}.{word}" for (api_type, owner), text in _texts(framework) for word in text.split()
    }


@cache
def _sections(framework: Framework) -> tuple[tuple[str, str], ...]:
    return tuple(section for section, _ in _texts(framework))


def _texts(framework: Framework) -> Iterator[tuple[tuple[str, str], str]]:
    """((API type, owner), names as text) of each section, newest version family last."""
    for file in sorted(Path(__file__).parent.glob(f"{framework}_*.txt")):
        for section in file.read_text(encoding="utf-8").split("\n\n")[1:]:
            head, _, names = section.partition("\n")
            match = _SECTION.fullmatch(head)
            if match is None:
                raise ValueError(f"{file.name}: not the head of a section: {head}")
            yield (match["type"], match["owner"]), names
