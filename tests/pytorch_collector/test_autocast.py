"""A training step under autocast: what is recorded, and that precheck takes it for what it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.machine_kernels

LOW = {"bfloat16": "torch.bfloat16", "float16": "torch.float16"}


class Network(nn.Module):
    """Layer norm, products with a weight that is used twice, attention, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.shared = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.mix, self.head = nn.Conv1d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.up(self.norm(x)).chunk(3, -1)
        x = x + self.shared(F.softmax(query @ key.transpose(-1, -2), -1) @ value)
        x = x + self.shared(F.scaled_dot_product_attention(query, key, value))
        return self.head(self.mix(x.transpose(1, 2)).transpose(1, 2))


def train(make_debugger: Callable[..., Any], dtype: str) -> None:
    net, debugger = Network(), make_debugger(level="L1", task="tensor")
    x, labels = torch.randn(3, 12, 16), torch.arange(36) % 10
    debugger.start(net)
    with torch.autocast("cpu", getattr(torch, dtype)):
        logits = net(x)
        with torch.autocast("cpu", enabled=False):
            torch.square(logits)
        loss = F.cross_entropy(logits.flatten(0, 1), labels)
    loss.backward()
    debugger.stop()
    debugger.step()


def check(pytester: pytest.Pytester, dump: Path, *options: str) -> pytest.RunResult:
    return pytester.runpytest(f"--msprobe-dump={dump}", "--msprobe-standard=backward-error", "-q", *options)


@pytest.mark.parametrize("dtype", LOW)
def test_autocast_is_recorded_where_it_is_on(make_debugger: Any, records: Any, dtype: str) -> None:
    train(make_debugger, dtype)
    found = records()
    entry = found["Functional.linear.0.forward"]["autocast"]
    assert {key: value["value"] for key, value in entry.items()} == {"device_type": "cpu", "dtype": LOW[dtype]}
    assert "autocast" not in found["Torch.square.0.forward"]
    assert not any("autocast" in record for name, record in found.items() if name.endswith("backward"))


def test_a_shared_weight_has_the_gradient_of_each_use(make_debugger: Any, step_folder: Any, records: Any) -> None:
    train(make_debugger, "bfloat16")
    weights = [records()[f"Functional.linear.{number}.backward"]["output"][1] for number in (1, 2)]
    assert [weight["dtype"] for weight in weights] == ["torch.bfloat16"] * 2
    folder = step_folder() / "dump_tensor_data"
    first, second = (torch.load(folder / weight["data_name"]) for weight in weights)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("device", ["recorded", "torch:cpu"])
def test_nothing_fails_in_a_right_step(
    make_debugger: Any, pytester: Any, tmp_path: Path, dtype: str, device: str
) -> None:
    train(make_debugger, dtype)
    result = check(pytester, tmp_path / "dump", f"--msprobe-device={device}")
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=result.parseoutcomes()["passed"])
    assert result.parseoutcomes()["passed"] >= 35


def test_a_wrong_product_and_a_wrong_gradient_are_found(
    make_debugger: Any, pytester: Any, tmp_path: Path, step_folder: Any, records: Any
) -> None:
    train(make_debugger, "bfloat16")
    folder = step_folder() / "dump_tensor_data"
    output = records()["Functional.linear.0.forward"]["output"][0]["data_name"]
    gradient = records()["Functional.conv1d.0.backward"]["output"][1]["data_name"]
    for name in (output, gradient):
        values = torch.load(folder / name)
        torch.save(torch.cat([values[:1] * 1.1, values[1:]]), folder / name)
    result = check(pytester, tmp_path / "dump", "--msprobe-jsonl=rows.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    rows = [json.loads(line) for line in (pytester.path / "rows.jsonl").read_text().splitlines()]
    failed = {(row["call"], row["part"]) for row in rows if row.get("outcome") == "failed"}
    # What follows the product got its right values, so that only the call itself is wrong.
    assert failed == {("Functional.linear.0", "forward"), ("Functional.conv1d.0", "backward")}
