"""Trainings of several gloo ranks: the collector changes no bit of them, and records what moves between the ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.slow

TWO_RANKS = (
    *("tensor_parallel", "fully_sharded", "fully_sharded_accumulated", "data_parallel"),
    *("pipeline", "expert_parallel", "context_parallel", "fully_sharded_flat", "outside_of_mesh"),
)
#: Seconds after which torchrun is stopped; a rank that dies ends it at once.
PATIENCE = 300

Read = Callable[..., dict[str, Any]]


def launched(dump: Path, ranks: int, kinds: tuple[str, ...]) -> Path:
    """The folder of what `ranks` have dumped of `kinds`: two steps of each, in order."""
    script = Path(__file__).with_name("sharded_training.py")
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script), str(dump)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, *kinds], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert not list(dump.glob("*/*/dump_error_info.log"))
    return dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launched(tmp_path_factory.mktemp("sharded") / "dump", 2, TWO_RANKS)


@pytest.fixture
def read(dump: Path) -> Read:
    """The records of the second step of a kind, by name."""

    def records(kind: str, rank: int = 0) -> dict[str, Any]:
        path = dump / f"step{2 * TWO_RANKS.index(kind) + 1}" / f"rank{rank}" / "dump.json"
        data: dict[str, Any] = json.loads(path.read_text())["data"]
        return data

    return records


def tensors(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and value.get("type") == "torch.Tensor":
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


def calls(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [record for key, record in data.items() if key.startswith(f"{name}.") and key.endswith(".forward")]


def test_two_dimensions_of_ranks_train_as_without_the_collector(tmp_path: Path) -> None:
    dump = launched(tmp_path / "dump", 4, ("fully_sharded_tensor_parallel",))
    content = json.loads((dump / "step1" / "rank2" / "dump.json").read_text())
    assert content["ranks"]["groups"] == {
        "world": {"ranks": [0, 1, 2, 3], "index": 2},
        "dp": {"ranks": [0, 2], "index": 1},
        "tp": {"ranks": [2, 3], "index": 0},
    }
    update = content["data"]["Optimizer.AdamW.0.forward"]["input_kwargs"]
    assert update["gradients.inner.0.up.weight"]["dtensor"]["mesh_dim_names"] == ["dp", "tp"]
    assert all(tensor["Norm"] is not None for tensor in tensors(content["data"]))


def test_every_tensor_of_a_dtensor_has_statistics_and_a_file(read: Read) -> None:
    found = list(tensors(read("tensor_parallel")))
    assert all(tensor["Norm"] is not None and "data_name" in tensor for tensor in found)
    (output,) = read("tensor_parallel")["Module.inner.0.down.Linear.forward.0"]["output"]
    assert (output["dtensor"]["placements"], output["shape"]) == (["S(1)"], [4, 3, 8])


def test_functional_collectives_are_records_with_their_groups(read: Read) -> None:
    data = read("tensor_parallel")
    for name in ("all_reduce", "all_gather_single", "reduce_scatter_single"):
        for record in calls(data, f"Distributed.{name}"):
            given = [*record["input_args"], *record["input_kwargs"].values()]
            groups = [value for value in given if isinstance(value, dict) and value["type"] == "torch.ProcessGroup"]
            assert [group["group_ranks"] for group in groups] == [[0, 1]]
            assert record["output"][0]["Norm"] is not None
    sent = calls(read("expert_parallel"), "Distributed.all_to_all_single_autograd")
    assert len(sent) == 2
    assert "Distributed.all_to_all_single_autograd.1.backward" in read("expert_parallel")


def test_fully_sharded_parameters_are_gathered_and_reduced_in_records(read: Read) -> None:
    data = read("fully_sharded")
    assert calls(data, "Distributed.all_gather_single")
    assert calls(data, "Distributed.reduce_scatter_single")
    (norm,) = data["Optimizer.clip_grad_norm.0.forward"]["output"]
    assert norm["Norm"] > 0


def test_the_method_by_which_fsdp1_clips_is_a_record(read: Read) -> None:
    """Of the flat shards of this rank, with the norm of all."""
    both = [read("fully_sharded_flat", rank) for rank in range(2)]
    clipped = [data["Optimizer.clip_grad_norm.0.forward"] for data in both]
    (norm,) = {record["output"][0]["Norm"] for record in clipped}
    squares = [
        value["Norm"] ** 2
        for record in clipped
        for name, value in record["input_kwargs"].items()
        if name.startswith("gradients.")
    ]
    assert norm == pytest.approx(sum(squares) ** 0.5, rel=1e-6)
    assert [record["input_kwargs"]["max_norm"]["value"] for record in clipped] == [0.1, 0.1]
    assert len(calls(both[0], "Optimizer.clip_grad_norm")) == 1


def test_a_rank_outside_of_a_mesh_has_nothing_of_its_tensors(read: Read) -> None:
    inside, outside = (read("outside_of_mesh", rank)["Optimizer.SGD.0.forward"] for rank in range(2))
    for name in ("parameters.weight", "gradients.weight"):
        assert inside["input_kwargs"][name]["shape"] == [4, 2]
        value = outside["input_kwargs"][name]
        assert (value["shape"], value["Norm"], value["dtensor"]["mesh"]) == ([0], None, [0])
    assert not any("uninitialized" in tensor for tensor in tensors(read("outside_of_mesh", 1)))


def test_operations_of_a_batch_have_their_peers(read: Read) -> None:
    for rank in range(2):
        first = calls(read("context_parallel", rank), "Distributed.batch_isend_irecv")[0]
        (operations,) = first["input_args"]
        assert [(item["op"]["value"], item["peer"]["value"]) for item in operations] == [
            ("isend", 1 - rank),
            ("irecv", 1 - rank),
        ]
        ((_, received),) = first["output"]
        other = calls(read("context_parallel", 1 - rank), "Distributed.batch_isend_irecv")[0]["input_args"][0][0]
        assert received["tensor"]["Norm"] == other["tensor"]["Norm"]


def test_records_of_a_pipeline_know_their_microbatch(read: Read) -> None:
    for rank in range(2):
        data = read("pipeline", rank)
        for direction in ("forward", "backward"):
            found = [data[f"Functional.linear.{number}.{direction}"]["microbatch"] for number in range(8)]
            assert found == [0, 0, 1, 1, 2, 2, 3, 3]
        assert [data[f"Module.norm.LayerNorm.forward.{number}"]["microbatch"] for number in range(4)] == [0, 1, 2, 3]
        moved = [*calls(data, "Distributed.isend"), *calls(data, "Distributed.irecv")]
        assert {record["microbatch"] for record in moved} == {0, 3}
        for record in calls(data, "Distributed.batch_isend_irecv"):
            assert all("microbatch" in operation for operation in record["input_args"][0])


def test_an_optimizer_gets_reduced_gradients(read: Read) -> None:
    """DDP reduces when the second microbatch runs: the gradients of both ranks are equal, those of backward are not."""
    both = [read("data_parallel", rank)["Optimizer.SGD.0.forward"] for rank in range(2)]
    names = [name for name in both[0]["input_kwargs"] if name.startswith("gradients.")]
    assert len(names) == 12
    assert names[0] == "gradients.module.0.norm.weight"
    for name in names:
        assert both[0]["input_kwargs"][name]["Norm"] == both[1]["input_kwargs"][name]["Norm"]
    state = "state.module.0.up.weight.momentum_buffer"
    assert state in both[0]["input_kwargs"]
    assert both[0]["output"][0][state]["Norm"] != both[0]["input_kwargs"][state]["Norm"]


@pytest.mark.parametrize(
    ("kind", "backwards"), [("tensor_parallel", 1), ("fully_sharded", 1), ("fully_sharded_accumulated", 2)]
)
def test_gradients_of_parameters_are_what_each_backward_brings(
    kind: str, backwards: int, read: Read, dump: Path
) -> None:
    """Whoever shards the parameters: not what clipping leaves, and not what an earlier backward brought."""
    data, numbers = read(kind), range(backwards)
    folder = dump / f"step{2 * TWO_RANKS.index(kind) + 1}" / "rank0" / "dump_tensor_data"
    arrives = data["Optimizer.clip_grad_norm.0.forward"]["input_kwargs"]
    records = [name for name in data if ".parameters_grad." in name]
    assert len(records) == len(set(records)) == 6 * backwards
    front = "inner." if kind == "tensor_parallel" else ""
    for layer in ("norm", "up", "down"):
        (label,) = {record.rpartition(".")[0] for record in records if f"{front}1.{layer}." in record}
        for own in ("weight", "bias"):
            parts = [torch.load(folder / data[f"{label}.{number}"][own][0]["data_name"]) for number in numbers]
            whole = torch.load(folder / arrives[f"gradients.{front}1.{layer}.{own}"]["data_name"])
            torch.testing.assert_close(sum(parts), whole)
            assert all(part.abs().sum() > 0 for part in parts)
