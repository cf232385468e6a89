"""Hooks of a conftest.py: every example of docs/hooks.md, and what becomes of hooks that do wrong."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from hook_dump import A, hook_dump
from report_reader import Reports

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```console\n\$ pytest (.*?)\n(.*?)```", PAGE.read_text(), re.DOTALL)
HOOKS = sorted(set(re.findall(r"^## (pytest_msprobe_\w+)$", PAGE.read_text(), re.MULTILINE)))


def run(pytester: pytest.Pytester, conftest: str, *arguments: str) -> pytest.RunResult:
    pytester.makeconftest(conftest)
    hook_dump(pytester.path).write()
    return pytester.runpytest("--msprobe-dump=dump.json", *arguments)


@pytest.mark.parametrize(("conftest", "command", "shown"), EXAMPLES)
def test_every_example_of_the_page_does_what_it_says(
    pytester: pytest.Pytester, conftest: str, command: str, shown: str
) -> None:
    pytester.makeconftest(conftest)
    hook_dump(pytester.path).write()
    arguments = shlex.split(command)
    result = pytester.runpytest_subprocess(*arguments) if "-n" in arguments else pytester.runpytest(*arguments)
    # [ is not a pattern here, * is.
    result.stdout.fnmatch_lines([line.replace("[", "[[]") for line in shown.splitlines()])


def test_every_hook_has_an_example() -> None:
    from pytest_msprobe import hookspecs

    declared = sorted(name for name in vars(hookspecs) if name.startswith("pytest_msprobe_"))
    assert declared == HOOKS
    assert all(any(f"def {hook}(" in conftest for conftest, _, _ in EXAMPLES) for hook in declared)
    assert PAGE.read_text().count("```python") == len(EXAMPLES)


def test_every_public_name_is_there() -> None:
    from pytest_msprobe import api

    assert all(getattr(api, name) is not None for name in api.__all__)
    assert all(f"`{name}`" in PAGE.read_text() for name in api.__all__)
    with pytest.raises(AttributeError, match="'Referense'"):
        _ = api.Referense


def test_a_misspelt_hook_ends_the_run(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def pytest_msprobe_standrad(api):\n    pass\n")
    result.stdout.fnmatch_lines(["*unknown hook 'pytest_msprobe_standrad'*"])
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR


WRONG = {
    "standard raises": (
        "def pytest_msprobe_standard(api):\n    return {}[api.short]",
        "pytest_msprobe_standard failed: KeyError: 'matmul' (conftest.py:2)",
    ),
    "standard is a number": (
        "def pytest_msprobe_standard(api):\n    return 0.1",
        "pytest_msprobe_standard returned 0.1 for Mint.matmul.0 forward; expected a Standard, such as",
    ),
    "standard is a class": (
        "from pytest_msprobe.api import CosineMaxAbs\ndef pytest_msprobe_standard(api):\n    return CosineMaxAbs",
        "for Mint.matmul.0 forward; expected a Standard, such as CosineMaxAbs(0.99, 1e-3), or None",
    ),
    "reference is not a function": (
        "def pytest_msprobe_reference(api):\n    return 1",
        "pytest_msprobe_reference returned 1 for Mint.matmul.0; expected a Reference, a function or None",
    ),
    "outputs are too few": (
        "def pytest_msprobe_outputs(outputs):\n    return []",
        "pytest_msprobe_outputs returned a list of 0 for Mint.matmul.0 forward; expected a list of 1, or None",
    ),
    "an output is gone": (
        "def pytest_msprobe_outputs(outputs):\n    return [None for _ in outputs]",
        "pytest_msprobe_outputs returned None for entry 0 of Mint.matmul.0 forward; expected an array",
    ),
    "outputs are written to": (
        "def pytest_msprobe_outputs(outputs):\n    outputs[0][0, 0] = 1",
        "pytest_msprobe_outputs failed: ValueError: assignment destination is read-only (conftest.py:2)",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_hook_is_an_error_of_its_call(pytester: pytest.Pytester, reports: Reports, fault: str) -> None:
    conftest, text = WRONG[fault]
    run(pytester, conftest, "-k", "matmul").assert_outcomes(failed=2)
    assert text in reports.results["Mint.matmul.0"]["Message"]


def test_a_hook_may_skip(pytester: pytest.Pytester, reports: Reports) -> None:
    run(
        pytester,
        """
        import pytest
        def pytest_msprobe_standard(direction):
            if direction == "backward":
                pytest.skip("not yet")
        """,
        "-k",
        "matmul",
    ).assert_outcomes(passed=1, skipped=1)
    assert reports.results["Mint.matmul.0"]["Message"] == "backward: pytest_msprobe_standard: not yet"


def test_a_standard_knows_the_dtypes_and_the_direction(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        def pytest_msprobe_standard(config, api, direction, dtypes, default):
            print("asked:", api, direction, dtypes, default.max_abs)
        """,
        "-s",
        "--msprobe-max-abs=0.01",
    ).stdout.fnmatch_lines_random(
        [
            "*asked: Mint.matmul.0 forward ('Float32',) 0.01",
            "*asked: Mint.matmul.0 backward ('Float32', 'Float32') 0.01",
        ]
    )


REFERENCE = """
import numpy as np
from pytest_msprobe.api import Reference

def forward(gate, up):
    return {forward}

def backward(incoming, gate, up):
    return {backward}

def pytest_msprobe_reference(api):
    if api.type == "Fused":
        return Reference(forward, backward)
"""
RIGHT = "gate / (1 + np.exp(-gate)) * up"
BAD_FORWARDS = {
    "gate[0, 99]": "IndexError: index 99 is out of bounds for axis 1 with size 4 (conftest.py:5)",
    "(gate, up)": "returned 2 outputs, the tested side has 1 output",
    "gate.T": "returned shape (4, 3) for output 0, the tested side has shape (3, 4)",
    "float(gate.sum())": "returned a plain Python value for output 0, the tested side has shape (3, 4)",
    "{1, 2}": "TypeError: output 0 is not an array of numbers but set",
    "None": "returned 0 outputs, the tested side has 1 output",
}
BAD_BACKWARDS = {
    "gate": "ValueError: backward returned 1 gradient for 2 positional arguments",
    "(gate, up, gate)": "backward returned 3 gradients for 2 positional arguments",
    "(gate, None)": "backward returned no gradient of argument 1, which the tested side has",
    "(gate, up.T)": "backward returned a gradient of shape (4, 3) for argument 1 of shape (3, 4)",
    "{0: gate}": "backward returned no gradient of argument 1",
    "1 / 0": "ZeroDivisionError: division by zero (conftest.py:8)",
}


@pytest.mark.parametrize("forward", BAD_FORWARDS)
def test_a_wrong_forward_reference_is_named(pytester: pytest.Pytester, reports: Reports, forward: str) -> None:
    conftest = REFERENCE.format(forward=forward, backward="None")
    run(pytester, conftest, "-k", "Fused and forward").assert_outcomes(failed=1)
    message = reports.results["Fused.silu_mul.0"]["Message"]
    assert "reference forward of pytest_msprobe_reference" in message
    assert BAD_FORWARDS[forward] in message


@pytest.mark.parametrize("backward", BAD_BACKWARDS)
def test_a_wrong_backward_reference_is_named(pytester: pytest.Pytester, reports: Reports, backward: str) -> None:
    conftest = REFERENCE.format(forward=RIGHT, backward=backward)
    run(pytester, conftest, "-k", "Fused and backward").assert_outcomes(failed=1)
    message = reports.results["Fused.silu_mul.0"]["Message"]
    assert "reference forward of pytest_msprobe_reference" in message
    assert BAD_BACKWARDS[backward] in message


def test_a_reference_goes_before_the_engines_and_its_raise_is_final(
    pytester: pytest.Pytester, reports: Reports
) -> None:
    conftest = "def pytest_msprobe_reference(api):\n    return {'exp': lambda x: x, 'matmul': len}.get(api.short)"
    run(pytester, conftest, "-k", "Mint and forward").assert_outcomes(failed=2)
    assert "benchmark (reference len of pytest_msprobe" in reports.results["Mint.matmul.0"]["Message"]
    assert "TypeError" in reports.results["Mint.matmul.0"]["Message"]


def test_without_a_backward_the_engines_give_the_gradients(pytester: pytest.Pytester, reports: Reports) -> None:
    conftest = """
    import numpy as np
    def pytest_msprobe_reference(api):
        return {'matmul': np.matmul, 'silu_mul': lambda gate, up: gate / (1 + np.exp(-gate)) * up}.get(api.short)
    """
    result = run(pytester, conftest, "-k", "matmul or silu_mul")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines_random(["benchmark torch CPU float64: 1 judged"])
    assert "reference: it has no backward" in reports.results["Fused.silu_mul.0"]["Message"]


def test_a_reference_gets_raised_copies(pytester: pytest.Pytester) -> None:
    half = A.astype(np.float16)
    dtype = {"type": "mindspore.dtype", "value": "Float16"}
    builder = DumpBuilder(pytester.path)
    arguments: list[Any] = [half, [half, np.arange(3)], 2, dtype]
    builder.call("Fused.f.0", arguments, [half, 4.5], keywords={"w": half}, incoming=[half], gradients=[half, None])
    builder.write()
    pytester.makeconftest(
        """
        import numpy as np
        from pytest_msprobe.api import Reference

        def forward(x, pair, number, dtype, *, w):
            assert x.dtype == w.dtype == pair[0].dtype == dtype == np.float64 and pair[1].dtype == np.int64
            assert number == 2
            y = x.copy()
            x[:] = w[:] = pair[0][:] = 0
            return y, 4.5

        def backward(incoming, x, pair, number, dtype, *, w):
            assert [g.dtype for g in incoming] == [np.float64]
            return {0: incoming[0] * (x == w) * (x == pair[0]), "w": w}

        def pytest_msprobe_reference(api):
            return Reference(forward, backward)
        """
    )
    pytester.runpytest("--msprobe-dump=dump.json").assert_outcomes(passed=2)


def test_selection_names_the_dump_and_keeps_what_it_does_not_know(pytester: pytest.Pytester, reports: Reports) -> None:
    for rank in ("rank0", "rank1"):
        hook_dump(pytester.path / rank).write()
    pytester.makeconftest(
        """
        def pytest_msprobe_select(api, dump):
            if dump.parent.name == "rank1":
                return api.short == "matmul"
        """
    )
    result = pytester.runpytest("--msprobe-dump=rank0", "--msprobe-dump=rank1", "-m", "Mint")
    result.assert_outcomes(passed=4, failed=1, deselected=5)
    assert sorted(reports.results) == ["rank0/Mint.exp.0", "rank0/Mint.matmul.0", "rank1/Mint.matmul.0"]


def test_a_selection_that_raises_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def pytest_msprobe_select(api):\n    return api.nonsense\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: pytest_msprobe_select failed for Mint.matmul.0 of */dump.json: AttributeError: * (conftest.py:2)"]
    )


def test_altered_outputs_are_judged_and_marked(pytester: pytest.Pytester, reports: Reports) -> None:
    conftest = """
    def pytest_msprobe_outputs(api, direction, outputs):
        if api.short == "exp":
            return [outputs[0] - 0.001]
        return [output * 1.5 for output in outputs] if direction == "backward" else None
    """
    result = run(pytester, conftest, "-k", "Mint")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["tested: recorded values, altered by pytest_msprobe_outputs; benchmark: *"])


@pytest.mark.slow
def test_verdicts_arrive_once_on_the_writing_process(pytester: pytest.Pytester) -> None:
    hook_dump(pytester.path).write()
    pytester.makeconftest(
        """
        import os
        def pytest_msprobe_verdict(config, row):
            assert not hasattr(config, "workerinput")
            with open("verdicts.txt", "a") as file:
                print(os.getpid(), row.node_id, row.status, len(row.outputs), file=file)
        """
    )
    pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-n", "2")
    lines = [line.split() for line in (pytester.path / "verdicts.txt").read_text().splitlines()]
    assert len({line[0] for line in lines}) == 1
    assert sorted(line[1:] for line in lines) == [
        ["dump.json::Fused.silu_mul.0::backward", "skip", "0"],
        ["dump.json::Fused.silu_mul.0::forward", "skip", "0"],
        ["dump.json::Mint.exp.0::forward", "error", "1"],
        ["dump.json::Mint.matmul.0::backward", "pass", "2"],
        ["dump.json::Mint.matmul.0::forward", "pass", "1"],
    ]


def test_an_observer_that_raises_ends_only_itself(pytester: pytest.Pytester, reports: Reports) -> None:
    result = run(pytester, "def pytest_msprobe_verdict(row):\n    print('got one')\n    row.status = 'pass'\n", "-s")
    result.assert_outcomes(passed=2, failed=1, skipped=2)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert result.stdout.str().count("got one") == 1
    result.stdout.fnmatch_lines(
        ["pytest_msprobe_verdict failed at dump.json::Mint.matmul.0::forward: *Error: * (conftest.py:3); it got no*"]
    )
    assert len(reports.results) == 3


@pytest.mark.slow
def test_hooks_work_in_workers_on_a_dump_elsewhere(
    pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = hook_dump(tmp_path_factory.mktemp("dumps")).write()
    pytester.makeconftest(
        """
        from dataclasses import replace
        def pytest_msprobe_standard(default):
            return replace(default, max_abs=0.01)
        def pytest_msprobe_select(api):
            return api.type == "Mint"
        """
    )
    pytester.runpytest_subprocess(f"--msprobe-dump={elsewhere}", "-n", "2").assert_outcomes(passed=3)


def test_a_hook_that_raises_keeps_no_array_alive(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import gc, weakref
        gc.disable()
        seen = []
        def pytest_msprobe_outputs(outputs):
            assert [array for array in seen if array() is not None] == []
            seen.extend(weakref.ref(output.base) for output in outputs)
            raise ValueError(f"{len(seen)} seen")
        """
    )
    hook_dump(pytester.path).write()
    # A process of its own: pytester's recorder of hooks keeps their arguments.
    result = pytester.runpytest_subprocess("--msprobe-dump=dump.json", "-k", "forward")
    result.stdout.fnmatch_lines(["*ValueError: 1 seen*", "*ValueError: 2 seen*", "*ValueError: 3 seen*"])


def test_nobody_asks_hooks_that_nobody_implements(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    import pluggy

    called: list[str] = []
    original = pluggy.HookCaller.__call__

    def call(self: pluggy.HookCaller, **arguments: object) -> Any:
        called.append(self.name)
        return original(self, **arguments)

    monkeypatch.setattr(pluggy.HookCaller, "__call__", call)
    run(pytester, "").assert_outcomes(passed=2, failed=1, skipped=2)
    assert "pytest_runtest_protocol" in called
    assert not any(name.startswith("pytest_msprobe_") for name in called)
