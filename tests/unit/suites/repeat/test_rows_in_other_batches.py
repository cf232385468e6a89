"""Rows of a call in other batches: which arguments have rows, and what changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.checking import NO_LIMIT, Bench
from fakes.engine import FakeEngine

from msprobe_collector.dump_format import Direction, Dump, parse_api_name
from pytest_msprobe.engines.protocol import Call, NumpyArgument
from pytest_msprobe.suites.repeat import RepeatSettings
from pytest_msprobe.suites.repeat.check import RepeatCheck, UnknownBatch, find_batch, variants
from pytest_msprobe.verdicts import Verdict


def t(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def call(name: str, *arguments: Any, **keywords: Any) -> Call:
    api = parse_api_name(f"{name}.0")
    assert api is not None
    framework = "pytorch" if name.startswith(("Torch", "NPU")) else "mindspore"
    return Call(api, framework, arguments, keywords)


#: A call, and the positions or names of the arguments with rows.
WITH_ROWS: dict[str, tuple[Call, set[Any]]] = {
    "linear": (call("Functional.linear", t(4, 8), t(5, 8), t(5)), {0}),
    "linear by name": (call("Functional.linear", weight=t(5, 8), input=t(4, 8)), {"input"}),
    "matmul with a weight": (call("Mint.matmul", t(4, 3, 8), t(8, 5)), {0}),
    "matmul of batches": (call("Mint.matmul", t(4, 3, 8), t(4, 8, 5)), {0, 1}),
    "matmul, the first of a batch": (call("Mint.matmul", t(4, 3, 8), t(1, 8, 5)), {0}),
    "matmul, the second of a batch": (call("Mint.matmul", t(1, 3, 8), t(4, 8, 5)), {1}),
    "addmm": (call("Mint.addmm", t(5), t(4, 8), t(8, 5)), {1}),
    "addmm with a full bias": (call("Mint.addmm", t(4, 5), t(4, 8), t(8, 5)), {0, 1}),
    "elements": (call("Mint.mul", t(4, 3), t(4, 3)), {0, 1}),
    "elements, broadcast": (call("Mint.mul", t(4, 3), t(3)), {0}),
    "elements, one row broadcast": (call("Mint.mul", t(1, 3), t(4, 3)), {1}),
    "elements and a number": (call("Mint.mul", t(4, 3), 2.0), {0}),
    "softmax": (call("Functional.softmax", t(4, 3), -1), {0}),
    "softmax by name": (call("Functional.softmax", t(4, 3), dim=1), {0}),
    "layer_norm": (call("Functional.layer_norm", t(4, 3), (3,), t(3), t(3)), {0}),
    "rms_norm": (call("Functional.rms_norm", t(4, 3), t(3)), {0}),
    "conv2d": (call("Functional.conv2d", t(4, 3, 8, 8), t(2, 3, 3, 3), t(2)), {0}),
    "embedding": (call("Functional.embedding", np.arange(4), t(9, 3)), {0}),
    "sum": (call("Mint.sum", t(4, 3), (1,)), {0}),
    "topk": (call("Mint.topk", t(4, 3), 2), {0}),
    "attention": (
        call("Functional.scaled_dot_product_attention", t(4, 2, 5, 3), t(4, 2, 5, 3), t(4, 2, 5, 3)),
        {0, 1, 2},
    ),
    "attention with a mask": (
        call("Functional.scaled_dot_product_attention", *[t(4, 2, 5, 3)] * 3, attn_mask=t(4, 1, 5, 5)),
        {0, 1, 2, "attn_mask"},
    ),
    "attention with one mask for all": (
        call("Functional.scaled_dot_product_attention", *[t(4, 2, 5, 3)] * 3, t(5, 5)),
        {0, 1, 2},
    ),
    "fused attention": (call("NPU.npu_fusion_attention", *[t(4, 5, 6)] * 3, 2, "BSH", atten_mask=t(5, 5)), {0, 1, 2}),
}


@pytest.mark.parametrize("name", WITH_ROWS)
def test_arguments_with_rows(name: str) -> None:
    made, expected = WITH_ROWS[name]
    batch = find_batch(made)
    assert {path[1] for path in batch.places} == expected
    assert batch.size == 4


WITHOUT_ROWS: dict[str, tuple[Call, str]] = {
    "unknown": (call("Mint.cat", (t(4, 3), t(4, 3))), "it is not known which dimension is its batch"),
    "loss": (call("Functional.cross_entropy", t(4, 3), np.arange(4)), "a loss is a sum or mean over the batch"),
    "batch norm": (call("Functional.batch_norm", t(4, 3), t(3), t(3)), "its statistics are those of the batch"),
    "softmax over rows": (call("Functional.softmax", t(4, 3), 0), "values are joined along dimension 0"),
    "softmax over rows from behind": (call("Functional.softmax", t(4, 3), -2), "values are joined along dimension 0"),
    "sum over all": (call("Mint.sum", t(4, 3)), "values are joined over all dimensions"),
    "norm of all": (
        call("Functional.layer_norm", t(4, 3), (4, 3)),
        "a tensor of 2 dimensions is one without a batch here",
    ),
    "image": (
        call("Functional.conv2d", t(3, 8, 8), t(2, 3, 3, 3)),
        "a tensor of 3 dimensions is one without a batch here",
    ),
    "vector": (call("Functional.linear", t(8), t(5, 8)), "a tensor of 1 dimensions is one without a batch here"),
    "numbers": (call("Mint.mul", t(), t()), "its tensors have no rows"),
    "no rows": (call("Mint.mul", t(0, 3), t(0, 3)), "its tensors have no rows"),
    "scaled embedding": (call("Functional.embedding", np.arange(4), t(9, 3), None, 1.0), "input[3] is given"),
    "layout": (call("NPU.npu_fusion_attention", *[t(5, 4, 6)] * 3, 2, "SBH"), "its layout is SBH"),
    "more tensors": (
        call("NPU.npu_fusion_attention", *[t(4, 5, 6)] * 3, 2, "BSH", prefix=t(4)),
        "it is not known whether kwargs['prefix'] is part of the batch",
    ),
    "doubtful mask": (
        call("Functional.scaled_dot_product_attention", *[t(5, 2, 5, 3)] * 3, t(5, 5)),
        "input[3] may be part of the batch or not",
    ),
    "NumPy": (call("Mint.mul", t(4, 3), NumpyArgument(t(4, 3))), "some of its tensors are in a list, or NumPy arrays"),
}


@pytest.mark.parametrize("name", WITHOUT_ROWS)
def test_calls_of_which_no_rows_are_known(name: str) -> None:
    made, reason = WITHOUT_ROWS[name]
    with pytest.raises(UnknownBatch) as stop:
        find_batch(made)
    assert str(stop.value) == reason


def test_other_batches() -> None:
    assert [(name, [rows.tolist() for rows in runs]) for name, runs in variants(5)] == [
        ("alone", [[0], [1], [2], [3], [4]]),
        ("halved", [[0, 1], [2, 3, 4]]),
        ("doubled", [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4]]),
        ("reversed", [[4, 3, 2, 1, 0]]),
    ]
    assert [name for name, _ in variants(1)] == ["doubled"]
    ((_, alone), *_) = variants(1000)
    assert [int(rows[0]) for rows in alone] == [0, 143, 285, 428, 571, 714, 856, 999]


X = np.linspace(0.5, 2.0, 48, dtype=np.float32).reshape(6, 8)


def check(folder: Path, engine: FakeEngine, *, api: str = "mul", arguments: list[Any] | None = None) -> list[Verdict]:
    bench = Bench(folder, api=api, arguments=[X, X] if arguments is None else arguments)
    settings = RepeatSettings(runs=3, max_memory_bytes=NO_LIMIT, batch=True)
    directions: tuple[Direction, ...] = ("forward", "backward")
    dump = Dump(bench.recorded().write())
    made = RepeatCheck(dump, bench.name, engine, "cpu", settings, directions=directions)
    return [made.run(direction) for direction in directions]


def test_a_device_whose_rows_are_the_same_in_every_batch(tmp_path: Path) -> None:
    for verdict in check(tmp_path, FakeEngine()):
        assert verdict.status == "pass"
        assert {row.figures["rows"] for row in verdict.outputs} == {0}


def test_another_kernel_for_one_row(tmp_path: Path) -> None:
    for verdict in check(tmp_path, FakeEngine(fault="another kernel for one row")):
        assert (verdict.status, verdict.message) == ("error", "rows change with the batch")
        assert verdict.attachment["digest"]  # type: ignore[index]  # devices are compared all the same
        row = verdict.outputs[0]
        assert row.figures == {"rows": 6, "elements": 4, "ulp": 1}
        assert row.message.startswith("rows change by up to 1 ulp, ")
        assert row.message.endswith(": alone (batch of 1) 6 of 6 rows: 0, 1, 2, 3, 4, 5")


def test_rows_that_are_those_of_others(tmp_path: Path) -> None:
    forward, _ = check(tmp_path, FakeEngine(fault="mixes up the rows of small batches"))
    assert (
        "of the largest value of the row, more than rounding: halved (batch of 3) 6 of 6" in forward.outputs[0].message
    )


def test_gradients_of_weights_are_not_compared(tmp_path: Path) -> None:
    forward, backward = check(tmp_path, FakeEngine(), api="matmul", arguments=[X, X.T.copy()])
    assert [row.figures.get("rows") for row in forward.outputs] == [0]
    assert [row.figures.get("rows") for row in backward.outputs] == [0, None]


def test_a_call_whose_runs_differ_says_that_alone(tmp_path: Path) -> None:
    forward, _ = check(tmp_path, FakeEngine(fault="other values in every run"))
    assert "3 different results" in forward.message or "runs" in forward.outputs[0].message


def test_a_call_of_which_no_rows_are_known_is_skipped(tmp_path: Path) -> None:
    (forward, _) = check(tmp_path, FakeEngine(), api="split", arguments=[X, 2])
    assert (forward.status, forward.message) == (
        "skip",
        "its rows were not compared: it is not known which dimension is its batch",
    )
