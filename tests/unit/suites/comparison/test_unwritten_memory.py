"""Memory that nobody had written yet is a skip in comparison, and only that memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosing import diagnose
from dump_builder import DumpBuilder

from pytest_msprobe.suites.comparison.operations import DumpComparison
from pytest_msprobe.suites.comparison.options import ComparisonSettings

X = np.linspace(-1, 2, 8, dtype=np.float32)
GARBAGE = {"target": X * 1e20, "golden": X * 0}


def statuses(
    folder: Path, name: str, *, framework: str = "mindspore", incoming: list[Any] | None = None, **places: Any
) -> dict[str, str]:
    """Status by path of one call whose values are equal but for None among `places`, which is garbage on both sides."""
    for side, garbage in GARBAGE.items():

        def filled(value: Any, garbage: Any = garbage) -> Any:
            if isinstance(value, dict) and "type" not in value:
                return {key: filled(item) for key, item in value.items()}
            return [filled(item) for item in value] if isinstance(value, list) else garbage if value is None else value

        builder = DumpBuilder(folder / side, framework=framework)
        keywords = {
            key: builder.value(filled(value), f"{name}.0.forward.input.{key}")
            for key, value in places.get("keywords", {}).items()
        }
        builder.call(
            f"{name}.0",
            filled(places.get("arguments", [])),
            filled(places["outputs"]),
            keywords=keywords,
            incoming=filled(incoming) if incoming else None,
            gradients=[X] if incoming else None,
        )
        builder.write()
    compared = DumpComparison(folder / "target" / "dump.json", folder / "golden" / "dump.json", ComparisonSettings())
    return {
        f"{record.operation.phase}.{leaf.target.path}": leaf.status
        for record in compared.verdicts()
        for leaf in record.values
        if leaf.target is not None and leaf.target.is_tensor
    }


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("MintDistributed.all_gather_into_tensor", "mindspore"),
        ("Distributed.all_gather_into_tensor", "pytorch"),
        ("Distributed._all_gather_base", "pytorch"),
        ("MintDistributed.reduce_scatter_tensor", "mindspore"),
        ("MintDistributed.all_to_all_single", "mindspore"),
    ],
)
def test_a_buffer_that_a_collective_fills(tmp_path: Path, name: str, framework: str) -> None:
    found = statuses(tmp_path, name, framework=framework, arguments=[None, X], outputs=[X])
    assert found == {"forward.input.0": "skip", "forward.input.1": "pass", "forward.output.0": "pass"}


def test_a_buffer_by_keyword(tmp_path: Path) -> None:
    # In MindSpore two functions have this name; only one of them knows this keyword.
    found = statuses(
        tmp_path,
        "Distributed.all_gather_into_tensor",
        keywords={"output_tensor": None, "input_tensor": X},
        outputs=[X],
    )
    assert found["forward.input.output_tensor"] == "skip"
    assert found["forward.input.input_tensor"] == "pass"


def test_what_comm_func_sends_counts(tmp_path: Path) -> None:
    assert statuses(tmp_path, "Distributed.all_gather_into_tensor", arguments=[None], outputs=[X]) == {
        "forward.input.0": "error",
        "forward.output.0": "pass",
    }


@pytest.mark.parametrize("name", ["MintDistributed.recv", "Distributed.irecv"])
def test_a_tensor_that_is_received_into(tmp_path: Path, name: str) -> None:
    found = statuses(tmp_path, name, arguments=[None], outputs=[X])
    assert found == {"forward.input.0": "skip", "forward.output.0": "pass"}


def test_a_batch_of_sends_and_receives(tmp_path: Path) -> None:
    found = statuses(tmp_path, "MintDistributed.batch_isend_irecv", arguments=[[None, X]], outputs=[X])
    assert found == {"forward.input.0.0": "skip", "forward.input.0.1": "skip", "forward.output.0": "pass"}


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("Tensor.resize_", "mindspore"),
        ("Tensor.resize_", "pytorch"),
        ("Torch.empty_permuted", "pytorch"),
        ("Mint.empty_like", "mindspore"),
        ("Primitive.held.Empty", "mindspore"),
    ],
)
def test_memory_that_a_call_returns(tmp_path: Path, name: str, framework: str) -> None:
    found = statuses(tmp_path, name, framework=framework, arguments=[X], outputs=[None])
    assert found == {"forward.input.0": "pass", "forward.output.0": "skip"}


def test_gradients_of_a_collective_count(tmp_path: Path) -> None:
    found = statuses(tmp_path, "MintDistributed.all_gather_into_tensor", arguments=[X, X], outputs=[X], incoming=[None])
    assert found["backward.input.0"] == "error"


@pytest.mark.parametrize("name", ["Tensor.masked_fill_", "Tensor.resize", "Mint.gather", "Functional.scatter"])
def test_other_calls_count(tmp_path: Path, name: str) -> None:
    assert statuses(tmp_path, name, arguments=[None], outputs=[None]) == {
        "forward.input.0": "error",
        "forward.output.0": "error",
    }


def test_what_a_kernel_leaves_unwritten_beside_its_result_is_no_difference(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = statuses(tmp_path, "Primitive.bn_train.BatchNorm", arguments=[X] * 5, outputs=[X, None, None, X, X])
    assert found["forward.output.0"] == "pass"
    assert {found[f"forward.output.{place}"] for place in (1, 2)} == {"skip"}
    diagnosis = diagnose(*(tmp_path / side / "dump.json" for side in ("target", "golden")))
    assert diagnosis.outcome == "rounding"
    assert {step.account.kind for step in diagnosis.steps} == {"equal"}
    assert not any(key.is_beyond for step in diagnosis.steps for key in step.account.keys)
