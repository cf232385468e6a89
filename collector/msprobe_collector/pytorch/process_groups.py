"""The process groups of torch.distributed that this process is in, and what they are called."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from torch import distributed

from msprobe_collector.recording.process_groups import ranks_of

#: Getters of Megatron's `parallel_state`, by the names of its groups.
_MEGATRON = {
    "tp": "get_tensor_model_parallel_group",
    "pp": "get_pipeline_model_parallel_group",
    "dp": "get_data_parallel_group",
    "cp": "get_context_parallel_group",
    "ep": "get_expert_model_parallel_group",
}
_OF_MESH = "mesh_"


def ranks_of_this_process() -> dict[str, object]:
    """See `Framework.ranks`; communication is initialised."""
    groups = ((name, distributed.get_process_group_ranks(group)) for name, group in _named_groups())
    return ranks_of(distributed.get_rank(), distributed.get_world_size(), groups)


def _named_groups() -> Iterator[tuple[str, Any]]:
    """(name, group) of what `parallel_state` and meshes name, then of all that there are, with "" for no name.

    Left out are groups that were destroyed, and those of a mesh that is gone, unless somebody holds them besides.
    """
    abandoned = _abandoned_groups()
    groups = distributed.distributed_c10d._world.pg_map
    yield from ((name, group) for name, group in _megatron_groups() if group in groups)
    for mesh in _meshes():
        for index, name in enumerate(mesh.mesh_dim_names or ()):
            with suppress(Exception):  # it was destroyed, with all others perhaps
                if mesh.get_coordinate() is not None and (group := mesh.get_group(index)) in groups:
                    yield name, group
    for group in list(groups):
        description = getattr(group, "group_desc", "")
        if not description.startswith(_OF_MESH):
            yield "", group
        elif id(group) not in abandoned:
            yield description[len(_OF_MESH) :], group


def _abandoned_groups() -> set[int]:
    """Ids of the groups that nothing but the tables of torch.distributed holds."""
    world = distributed.distributed_c10d._world
    by_group = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "pg_coalesce_state")
    tables = [*(getattr(world, name, ()) for name in by_group), *world.tags_to_pg.values()]
    in_tables = Counter(map(id, chain(*tables)))
    numbers, (of_nobody,) = list(map(id, world.pg_map)), _references([object()])
    counts = zip(numbers, _references(list(world.pg_map)))
    return {number for number, count in counts if count - of_nobody <= in_tables[number]}


def _references(values: list[Any]) -> list[int]:
    return list(map(sys.getrefcount, values))


def _megatron_groups() -> Iterator[tuple[str, Any]]:
    state = sys.modules.get("megatron.core.parallel_state")
    for name, getter in _MEGATRON.items():
        try:
            group = getattr(state, getter)()
        except (AttributeError, AssertionError, TypeError):  # not imported, or not initialised
            continue
        if group is not None:
            yield name, group


def _meshes() -> list[Any]:
    """The meshes of the script, the largest first: parts of one have the names that it has."""
    kind = distributed.device_mesh.DeviceMesh
    meshes = [value for value in gc.get_objects() if type(value) is kind]
    return sorted(meshes, key=lambda mesh: -mesh.ndim)
