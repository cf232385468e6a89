"""Items of calls that no benchmark computes, and of outputs that are inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_dumps import change_tensors
from dump_builder import DumpBuilder

pytestmark = pytest.mark.needs("torch")
X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)


def step(folder: Path, *, before: float, inside: float) -> None:
    """A custom API between two exponentials; `before` times what it gets, `inside` times what it gives."""
    grown, builder = np.exp(X) * np.float32(before), DumpBuilder(folder / "step0" / "rank0")
    made = grown * np.float32(inside)
    builder.call("Mint.exp.0", [X], [grown])
    builder.call("Mint.own_operator.0", [grown], [made])
    builder.call(
        "Mint.linear.0", [made, X], [made @ X.T], incoming=[made @ X.T], gradients=[(made @ X.T).reshape(-1, 3)]
    )
    builder.write()


def outcomes(pytester: pytest.Pytester, *options: str, **target: Any) -> dict[str, int]:
    step(pytester.path / "target", **{"before": 1.0, "inside": 1.0, **target})
    step(pytester.path / "golden", before=1.0, inside=1.0)
    folders = "--msprobe-dump=target", "--msprobe-golden=golden"
    result = pytester.runpytest_inprocess(*folders, "-rx", *options)
    if target.get("inside", 1.0) == 1.0 and not options:
        result.stdout.fnmatch_lines(["*cannot be computed again: no benchmark*"])
    return result.parseoutcomes()


def test_what_differs_already_in_its_inputs_fails_nothing(pytester: pytest.Pytester) -> None:
    assert outcomes(pytester, before=1.1) == {"failed": 1, "xfailed": 3}  # exp, which is at fault


def test_what_its_inputs_may_have_made_fails_nothing(pytester: pytest.Pytester) -> None:
    """They are within their limit, and the output is beyond it by no more than some growth."""
    assert outcomes(pytester, before=1.00009, inside=1.0001) == {"failed": 1, "xfailed": 3}
    assert outcomes(pytester, before=1.000001, inside=1.0005) == {"failed": 1, "passed": 1, "xfailed": 2}


def test_what_cannot_be_computed_although_its_inputs_agree_fails(pytester: pytest.Pytester) -> None:
    assert outcomes(pytester, inside=1.1) == {"failed": 1, "passed": 1, "xfailed": 2}


def test_it_fails_where_inherited_differences_are_to_fail(pytester: pytest.Pytester) -> None:
    assert outcomes(pytester, "--msprobe-inherited=fail", before=1.1) == {"failed": 4}


@pytest.mark.parametrize(
    ("framework", "outcome"), [("pytorch", {"passed": 1, "failed": 1}), ("mindspore", {"passed": 1, "failed": 1})]
)
def test_a_gradient_of_another_shape_is_another_one_in_pytorch(
    pytester: pytest.Pytester, framework: str, outcome: dict[str, int]
) -> None:
    """msProbe records one inside the call where a kernel reduces otherwise; autograd gives each value its own shape."""
    mean = X.mean(1, keepdims=True)
    for side, gradient in (("target", mean), ("golden", np.ones_like(X))):
        builder = DumpBuilder(pytester.path / side / "step0" / "rank0", framework=framework)
        incoming = mean * np.float32(1 + (side == "target") * 1e-6)
        builder.call("Functional.own_pool.0", [X], [mean], incoming=[incoming], gradients=[gradient]).write()
    result = pytester.runpytest_inprocess("--msprobe-dump=target", "--msprobe-golden=golden")
    assert result.parseoutcomes() == outcome


def test_what_is_left_of_a_sum_of_zero_is_rounding(pytester: pytest.Pytester) -> None:
    """Both runs are far off from what the benchmark gets, and rounding explains it."""
    values = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    values[-1] -= values.sum(dtype=np.float64)
    for side, error in (("target", 2e-6), ("golden", -1e-6)):
        builder = DumpBuilder(pytester.path / side / "step0" / "rank0")
        builder.call("Mint.sum.0", [values], [np.array(values.sum(dtype=np.float64) + error, np.float32)]).write()
    result = pytester.runpytest_inprocess("--msprobe-dump=target", "--msprobe-golden=golden", "-v")
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["Right: the only difference is rounding, in 1 operation"])


@pytest.mark.parametrize(("accepted", "ret"), [((), 1), (("--msprobe-accept=unaccounted",), 0)])
def test_a_run_that_is_not_accounted_for_is_no_success_unless_that_is_accepted(
    pytester: pytest.Pytester, accepted: tuple[str, ...], ret: int
) -> None:

    def unwritten(entry: dict[str, Any], _: Path) -> None:
        if "input" in entry["data_name"]:
            entry["uninitialized"] = True

    for side, factor in (("target", 1), ("golden", 2)):
        folder, held = pytester.path / side / "step0" / "rank0", X * np.float32(factor)
        path = DumpBuilder(folder).call("Mint.exp.0", [held], [np.exp(held)]).write()
        change_tensors(path, unwritten)
    result = pytester.runpytest_inprocess("--msprobe-dump=target", "--msprobe-golden=golden", "-v", *accepted)
    assert (result.ret, result.parseoutcomes()) == (ret, {"failed" if ret else "xfailed": 1})
    word = "Wrong: differs first in an input of Mint.exp.0, " if ret else "Right as far as judged: "
    result.stdout.fnmatch_lines([f"{word}*"])
