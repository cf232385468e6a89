"""Which recorded values are memory that nobody had written yet: the one owner of this fact for all suites."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pytest_msprobe.apis.fact_table import facts
from pytest_msprobe.apis.signature import read_terms

#: More than there are APIs; a dump may hold any names.
_REMEMBERED = 8192
_PLACES = ("outputs", "inputs", "mixed", "overwritten")


@dataclass(frozen=True, slots=True)
class UnwrittenMemory:
    """The values of one API that mean nothing.

    Attributes:
        outputs: outputs that come back as the memory was found, by the first step of their path: "0", "tensor".
        inputs: arguments that the call fills, as they were before.
    """

    outputs: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()

    def covers(self, path: str) -> bool:
        """Whether the value at `path` (`input.0.1`, `output.0`) is in one of `outputs` or `inputs`."""
        side, _, rest = path.partition(".")
        return rest.partition(".")[0] in (self.inputs if side == "input" else self.outputs)


@lru_cache(_REMEMBERED)
def unwritten_memory(name: str, framework: str, partly: Literal["mixed", "overwritten"]) -> UnwrittenMemory:
    """What of the operation called `name` (`Mint.empty`, `Primitive.held.Empty`) means nothing in its records.

    Arguments that are such memory only in part are `inputs` when they are so in the way `partly`: see unwritten.txt.
    """
    api_type, _, api = name.partition(".")
    found = facts("unwritten").find(api_type, api.rpartition(".")[2] if api_type == "Primitive" else api, framework)
    terms = [] if found is None else [term for term in read_terms(found.text) if term.name in _PLACES]
    places = {term.name: {str(ast.literal_eval(item)) for item in term.arguments} for term in terms}
    inputs = places.get("inputs", set()) | places.get(partly, set())
    return UnwrittenMemory(frozenset(places.get("outputs", ())), frozenset(inputs))
