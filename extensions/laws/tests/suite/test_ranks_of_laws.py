"""Laws on all ranks of a run, from small files that each would have written."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_laws.suite.live import LawsFile
from msprobe_laws.suite.ranks import judge_draws, judge_replicas

KNOWN = "ff" * 64
DROPPED = "18" * 64


def file_of(rank: int, *, replicas: dict[str, Any] | None = None, draws: dict[str, Any] | None = None) -> LawsFile:
    found = LawsFile({"rank": rank})
    if replicas is not None:
        found.replicas["AdamW", 0] = {"ranks": [0, 1], **replicas}
    if draws is not None:
        found.draws[0] = {"place": "drop", "known": KNOWN, **draws}
    return found


@pytest.mark.parametrize(
    ("second", "status", "said"),
    [
        ({"w": "a", "v": "b"}, "pass", ""),
        ({"w": "a", "v": "c"}, "error", "v: ranks 1 and 0 have replicas that differ after step 0 of AdamW"),
    ],
)
def test_replicas_of_data_parallel_ranks(second: dict[str, str], status: str, said: str) -> None:
    verdict = judge_replicas(
        [
            file_of(rank, replicas={"parameters": held, "are_all": True})
            for rank, held in enumerate(({"w": "a", "v": "b"}, second))
        ]
    )
    assert verdict.status == status
    assert said in verdict.message


def test_only_what_began_alike_is_a_replica_where_the_script_sums_gradients_itself() -> None:
    def replicas(rank: int, shard: str) -> dict[str, Any]:
        held = {"w": "a", "norm": f"n{rank}", "shard": shard, "bias": shard}
        begins = {"w": "x", "norm": "y", "shard": shard, "bias": "zero"}
        return {"parameters": held, "begins": begins, "reduced": ["w"], "constant": ["bias"]}

    verdict = judge_replicas([file_of(rank, replicas=replicas(rank, f"s{rank}")) for rank in range(2)])
    assert [row.label for row in verdict.outputs] == ["norm"]


@pytest.mark.parametrize(
    ("second", "status"),
    [
        ({"dropped": DROPPED, "batch": "two"}, "error"),
        ({"dropped": DROPPED, "batch": "one"}, "skip"),  # ranks of tensor parallelism draw alike
        ({"dropped": "81" * 64, "batch": "two"}, "pass"),
        ({"dropped": "no number", "batch": "two"}, "skip"),
    ],
)
def test_masks_of_ranks(second: dict[str, str], status: str) -> None:
    first = {"dropped": DROPPED, "batch": "one"}
    assert judge_draws([file_of(0, draws=first), file_of(1, draws=second)]).status == status


def test_one_rank() -> None:
    assert judge_replicas([file_of(0)]).status == judge_draws([file_of(0)]).status == "skip"
