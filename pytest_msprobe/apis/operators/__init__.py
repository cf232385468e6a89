"""Which operators a record may call, and which strings it may pass to them: the only way from a dump to a callable.

A name of a record is looked up in the tables of this package (`mindspore_2_10.txt`, `torch_2_13.txt`, one per framework
and version family, read as one). What is found is a constant of ours, the path of the callable; a name that is not
found is never looked up anywhere else. The tables are written by `python -m tools.operators` from the public
operators of an installed framework, without those of `excluded.txt`, and are reviewed like code.

The tables of callable operators and their reader.

Which strings a record may pass to an operator: `strings.txt` and its reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from msprobe_collector.dump_format import find_dtype

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
    owners = dict.fromkeys(path for (kind, path), _ in _texts(framework) if kind == api_type)
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
def _texts(framework: Framework) -> tuple[tuple[tuple[str, str], str], ...]:
    """((API type, owner), names as text) of each section, newest version family last."""
    lines = []
    for file in sorted(Path(__file__).parent.glob(f"{framework}_*.txt")):
        for section in file.read_text(encoding="utf-8").split("\n\n")[1:]:
            head, _, names = section.partition("\n")
            match = _SECTION.fullmatch(head)
            if match is None:
                raise ValueError(f"{file.name}: not the head of a section: {head}")
            lines.append(((match["type"], match["owner"]), names))
    return tuple(lines)


_HEAD = re.compile(r"\[[\w, ]+\] (?P<words>.+)")
_EQUATION = re.compile(r"[A-Za-z.,\-> ]{1,200}")
_DTYPE = re.compile(r"(?:torch\.|mindspore\.)?[A-Za-z0-9_]+")


def refused_argument(operator: str, value: str) -> str | None:
    """Why the string `value` may not be passed to `operator`, the short name of an API, or None when it may."""
    words = _words().get(operator, frozenset())
    if value in words or any(is_one(value) for word, is_one in _KINDS.items() if word in words):
        return None
    shown = ascii(value if len(value) <= 80 else f"{value[:77]}...")
    allowed = f", which takes {', '.join(sorted(words))}" if words else ", which takes no string"
    return f"the string {shown} is not passed to {operator}{allowed}"


_KINDS: Mapping[str, Callable[[str], bool]] = {
    "<equation>": lambda text: _EQUATION.fullmatch(text) is not None,
    "<dtype>": lambda text: _DTYPE.fullmatch(text) is not None and find_dtype(text) is not None,
}


@cache
def _words() -> Mapping[str, frozenset[str]]:
    """Allowed words by operator, read when the first string is met."""
    strings: dict[str, frozenset[str]] = {}
    words: frozenset[str] = frozenset()
    for line in Path(__file__).with_name("strings.txt").read_text(encoding="utf-8").splitlines():
        if match := _HEAD.fullmatch(line):
            words = frozenset(match["words"].split())
        elif not line.startswith("#"):
            strings.update({name: strings.get(name, frozenset()) | words for name in line.split()})
    return strings
