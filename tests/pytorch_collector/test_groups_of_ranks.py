"""Names of process groups: those of Megatron, for which a module of the same functions stands here, and of meshes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from msprobe_collector.pytorch.communication import ranks_of_this_process


@pytest.fixture
def group() -> Iterator[Any]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.new_group([0])
    distributed.destroy_process_group()


def test_groups_have_the_names_that_megatron_gives_them(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_initialised() -> None:
        raise AssertionError("context parallel group is not initialized")

    state: Any = ModuleType("megatron.core.parallel_state")
    state.get_tensor_model_parallel_group = lambda check_initialized=True: group
    state.get_pipeline_model_parallel_group = lambda: None
    state.get_context_parallel_group = not_initialised
    monkeypatch.setitem(sys.modules, state.__name__, state)
    found: Any = ranks_of_this_process()
    assert found["groups"] == {"world": {"ranks": [0], "index": 0}, "tp": {"ranks": [0], "index": 0}}
    monkeypatch.delitem(sys.modules, state.__name__)
    assert "tp" not in ranks_of_this_process()["groups"]  # type: ignore[operator]  # it is a dictionary


def names() -> set[str]:
    groups: Any = ranks_of_this_process()["groups"]
    return set(groups) - {"world"}


def test_a_group_of_a_mesh_that_is_gone_is_there_as_long_as_somebody_holds_it(group: Any) -> None:
    """A mesh describes its groups by the names of its dimensions, and nothing destroys them when it goes."""
    made = distributed.new_group([0], group_desc="mesh_tp")
    mesh = DeviceMesh.from_group(made, "cpu", mesh_dim_names=("tp",))
    assert names() == {"tp"}
    del mesh
    assert names() == {"tp"}
    del made
    assert not names()


def test_a_group_that_was_destroyed_is_not_there(group: Any) -> None:
    made = distributed.new_group([0])
    mesh = DeviceMesh.from_group(made, "cpu", mesh_dim_names=("dp",))
    assert names() == {"dp"}
    distributed.destroy_process_group(made)
    assert mesh.mesh_dim_names == ("dp",)
    assert not names()
