"""Who a process is among the others of its training, as dump.json says it under `ranks`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def ranks_of(rank: int, world_size: int, groups: Iterable[tuple[str, Sequence[int]]]) -> dict[str, object]:
    """What `Framework.ranks` gives, of (name, global ranks) of each group, some perhaps several times.

    A group without a name, or with one that stands for other ranks already, is called `group_0_1`; the group of all is
    `world`. Groups without `rank` are left out.
    """
    named = {"world": list(range(world_size))}
    for name, ranks in groups:
        members = list(ranks)
        is_named = bool(name) and named.get(name, members) == members
        if rank in members and (is_named or members not in named.values()):
            named.setdefault(name if is_named else f"group_{'_'.join(map(str, sorted(members)))}", members)
    places = {name: {"ranks": members, "index": members.index(rank)} for name, members in named.items()}
    return {"world_size": world_size, "rank": rank, "groups": places}
