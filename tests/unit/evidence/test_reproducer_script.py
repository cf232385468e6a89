"""What may stand in a script: names, literals and harmless text; everything else is refused with a reason."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName, ForwardRecord, Frame
from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.inputs import GradientPairing
from pytest_msprobe.engines.protocol import Call, Output
from pytest_msprobe.evidence import BothResults, Evidence
from pytest_msprobe.evidence.reproducers import NoScript, in_docstring, script_call, write_reproducer
from pytest_msprobe.verdicts import Verdict

X = np.ones(3, np.float32)


def evidence(
    api: ApiName, *arguments: Any, framework: str = "mindspore", attributes: Any = None, **keywords: Any
) -> Evidence:
    call = Call(api, framework, arguments, keywords, attributes=attributes)
    case = Case(api, ForwardRecord((), {}, None), None, call, GradientPairing({}, (), ()), (), ())
    stacks = SimpleNamespace(user_frame=lambda record: Frame("/t/net.py", 3, "construct", "y = f(x)"))
    dump: Any = SimpleNamespace(path=Path("/d/dump.json"), framework=framework, stacks=stacks)
    results = BothResults((Output((0,), X),), (Output((0,), X.astype(np.float64)),))
    verdict = Verdict("error", "wrong", device="recorded values", bench="torch CPU float64")
    return Evidence(dump, case, results, {"forward": verdict}, 0)


REFUSED = {
    "no name": (ApiName("Mint", "add;import os", 0), (X,), {}, "not a known operator of mindspore.mint"),
    "look-alike letters": (ApiName("Mint", "\uff41dd", 0), (X,), {}, "not a known operator of mindspore.mint"),
    "a module": (ApiName("Mint", "os.system", 0), (X,), {}, "not a known operator of mindspore.mint"),
    "a Primitive that prints": (ApiName("Primitive", "p.Print", 0), (X,), {}, "not a known operator of mindspore.ops"),
    "a string": (ApiName("Mint", "add", 0), (X, "/etc/passwd"), {}, "the string '/etc/passwd' is not passed to add"),
    "a string in a list": (ApiName("Mint", "add", 0), (X, ("a",)), {}, "the string 'a' is not passed to add"),
    "a dict": (ApiName("Mint", "add", 0), (X, {"a": 1}), {}, "an argument of type dict"),
    "keyword argument": (ApiName("Mint", "add", 0), (X,), {"a=1, **b": 1}, "is not a name in Python"),
    "type": (ApiName("Distributed", "all_reduce", 0), (X,), {}, "calls of type 'Distributed'"),
    "method of nothing": (ApiName("Tensor", "item", 0), (), {}, "the tensor whose method it is"),
    "method of a number": (ApiName("Tensor", "item", 0), (3,), {}, "the tensor whose method it is"),
    "unknown value": (ApiName("Mint", "add", 0), (X, object()), {}, "an argument of type object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_down_is_refused_with_a_reason(case: str) -> None:
    api, arguments, keywords, reason = REFUSED[case]
    with pytest.raises(NoScript, match=reason):
        write_reproducer(evidence(api, *arguments, **keywords), "x")


def test_another_framework_is_refused() -> None:
    with pytest.raises(NoScript, match="pytorch"):
        script_call(evidence(ApiName("Torch", "add", 0), X, framework="pytorch").case.call)


def test_literals_are_those_of_python() -> None:
    arguments = (X, (1, (X,)), None, True, 1.5, float("-inf"), "floor", ..., slice(0, 2))
    call = script_call(evidence(ApiName("Mint", "div", 0), *arguments, key=X).case.call)
    text = call.expression(ApiName("Mint", "div", 0), copies_first=False)
    inner = "x0, (1, (x1,)), None, True, 1.5, float(\"-inf\"), 'floor', ..., slice(0, 2, None), key=x2"
    assert text == f"mint.div({inner})"
    ast.parse(text)


@pytest.mark.parametrize(
    "text", ['"""', "\\", '\\"""', "a\\", "line\nbreak\r\x0c\u2028", "\u202eevil", "\ud800", "\0", 'ends with "']
)
def test_a_docstring_holds_any_text_without_ending(text: str) -> None:
    source = f'"""Title {in_docstring(text)}\n"""\n'
    tree = ast.parse(source.encode())
    assert len(tree.body) == 1
    assert "\n" not in in_docstring(text)


def test_the_script_is_python_and_says_where_the_call_was_made() -> None:
    made = write_reproducer(evidence(ApiName("Mint", "exp", 4), X), "Mint.exp.4")
    docstring = ast.get_docstring(ast.parse(made.text))
    assert docstring is not None
    assert "/t/net.py:3, in construct: y = f(x)" in docstring
    assert "return mint.exp(x0)" in made.text
    assert set(made.arrays) == {"x0", "recorded0", "benchmark0"}


def test_an_edge_case_is_made_as_it_was_tested() -> None:
    found = evidence(ApiName("Mint", "exp", 4), X.reshape(1, 3))
    case = replace(found.case, call=replace(found.case.call, is_strided=True), constructed="strided")
    text = write_reproducer(replace(found, case=case), "Mint.exp.4-strided").text
    assert "wrong results in the edge case strided" in text
    assert "x0 = x0.swapaxes(-1, -2).contiguous().swapaxes(-1, -2)" in text
    ast.parse(text)


def test_a_primitive_is_made_with_its_attributes() -> None:
    attributes = {"transpose_a": False, "transpose_b": True}
    script = write_reproducer(evidence(ApiName("Primitive", "p.MatMul", 0), X, X, attributes=attributes), "m")
    assert "return MatMul(transpose_a=False, transpose_b=True)(x0, x1)" in script.text


@pytest.mark.parametrize(("attributes", "reason"), [({"mode": "x"}, "the string 'x'"), ({"a b": 1}, "not a name")])
def test_attributes_that_cannot_be_written_down_are_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoScript, match=reason):
        write_reproducer(evidence(ApiName("Primitive", "p.MatMul", 0), X, X, attributes=attributes), "m")
