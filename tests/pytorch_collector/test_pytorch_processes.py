"""Communication, DistributedDataParallel, FSDP2 and DTensor in two processes; operators of Ascend."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def dump(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    script = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, str(script)]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder / "store"), str(folder / "dump")], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()[-3000:]
    return folder / "dump"


def records(dump: Path, step: int, rank: int = 0) -> dict:
    return json.loads((dump / f"step{step}" / f"rank{rank}" / "dump.json").read_text())["data"]


def test_ddp_and_its_communication(dump: Path) -> None:
    for rank in range(2):
        data = records(dump, 0, rank)
        assert data["Module.module.0.Linear.parameters_grad.0"]["weight"][0]["shape"] == [8, 4]
        reduced = data["Distributed.all_reduce.0.forward"]
        assert reduced["input_kwargs"]["group"]["group_ranks"] == [0, 1]
        assert reduced["input_kwargs"]["op"]["value"].endswith("MAX")
        assert (reduced["input_args"][0]["Max"], reduced["output"][0]["Max"]) == (rank + 1.0, 2.0)
        assert data["Distributed.all_reduce.1.forward"]["output"][0]["Max"] == 3.0  # after wait
        assert "waited" in data["Distributed.all_reduce.2.forward"]["fault"]
        assert data["Distributed.all_gather.0.forward"]["output"][0][1]["Max"] == 3.0
    assert "Distributed.send.0.forward" in records(dump, 0)
    assert "Distributed.recv.0.forward" in records(dump, 0, 1)


def test_fsdp_and_dtensors_are_the_part_of_this_rank(dump: Path) -> None:
    data = records(dump, 1)
    (weight,) = data["Module.0.FSDPLinear.parameters_grad.0"]["weight"]
    assert weight["shape"] == [4, 4]
    assert weight["dtensor"] == {
        "placements": ["S(0)"],
        "mesh": [0, 1],
        "mesh_dim_names": ["shards"],
        "global_shape": [8, 4],
    }
    product = data["Tensor.__mul__.0.forward"]["output"][0]
    assert (product["shape"], product["Max"]) == ([2, 2], 6.0)
    assert not [name for name in data if name.startswith(("Aten", "Torch.as_strided"))]


def test_tensor_parallelism_calls_nothing_of_its_own_but_communication(dump: Path) -> None:
    data = records(dump, 2)
    calls = [name.rpartition(".")[0] for name in data if name.endswith(".forward")]
    reduced = data["Distributed.all_reduce.0.forward"]
    assert reduced["input_kwargs"]["group"]["group_ranks"] == [0, 1]
    calls = [call for call in calls if not call.startswith("Distributed.")]
    layers = ["Functional.linear.0", "Functional.relu.0", "Functional.linear.1"]
    assert calls == ["Torch.full.0", *layers, "Tensor.square.0", "Tensor.mean.0"]


def test_operators_of_ascend_are_named_npu(make_debugger, records) -> None:
    with torch.library._scoped_library("npu", "DEF") as library:
        library.define("npu_swiglu(Tensor self, int dim=-1) -> Tensor")
        library.impl(
            "npu_swiglu", lambda x, dim=-1: torch.nn.functional.silu(x.chunk(2, dim)[0]), "CompositeImplicitAutograd"
        )
        torch_npu = types.ModuleType("torch_npu")
        torch_npu.npu_swiglu = torch.ops.npu.npu_swiglu
        debugger = make_debugger()
        with debugger.collect():
            torch_npu.npu_swiglu(torch.randn(3, 4, requires_grad=True), dim=1).sum().backward()
    data = records()
    assert data["NPU.npu_swiglu.0.forward"]["input_kwargs"] == {"dim": {"type": "int", "value": 1}}
    assert data["NPU.npu_swiglu.0.backward"]["output"][0]["shape"] == [3, 4]
