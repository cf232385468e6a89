"""Random and uninitialised APIs: the law of their outputs, and what their arguments say of it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis.fact_table import Fact, facts
from pytest_msprobe.apis.signature import Term, read_signature, read_terms

_UNINITIALISED = Term("uninitialised", (), {})


@dataclass(frozen=True, slots=True)
class RandomApi:
    """An API whose outputs no benchmark can foretell.

    Attributes:
        signature: of the API.
        law: what its outputs follow; None when none is known.
        form: the dtype and shape that they must have; None when the arguments do not tell.
        reason: why there is no law; "" when there is one.
    """

    signature: inspect.Signature
    law: Term | None
    form: Term | None
    reason: str = ""

    def bind(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all parameters for one call. TypeError when they do not fit."""
        bound = self.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        return dict(bound.arguments)


def random_api(api: ApiName, framework: str) -> RandomApi | None:
    """What is known of `api` in a dump of `framework` when it is random or uninitialised, else None."""
    unwritten = facts("unwritten").of(api, framework)
    if unwritten is not None and unwritten.text.startswith("outputs("):
        return _random(unwritten, "uninitialised memory: its values mean nothing")
    found = facts("random").of(api, framework)
    if found is None:
        return None
    why = found.reason or f"the table of laws has no {api.type}.{api.table_name}"
    return _random(found, f"random by nature: {why}")


def random_apis(framework: str = "mindspore") -> Mapping[str, str]:
    """`Type.name` of every API with a line of its own: its law (`uniform`, `uninitialised`, ...), or "" without one."""
    lines = {name: fact for name, fact in facts("unwritten").typed(framework).items() if fact.parameters}
    found = {name: _random(fact).law for name, fact in {**lines, **facts("random").typed(framework)}.items()}
    return {name: law.name if law else "" for name, law in found.items()}


@cache
def _random(fact: Fact, reason: str = "") -> RandomApi:
    """What a line says; `reason` when it has no law and no signature."""
    if not fact.parameters:
        return RandomApi(inspect.Signature(), None, None, reason)
    law, *form = read_terms(fact.text)
    law = _UNINITIALISED if law.name == "outputs" else law
    return RandomApi(read_signature(fact.parameters), law, form[0] if form else None)
