"""What is left out by pytest's own options, by shards and by hooks has no row; everything else has one."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from contract_runs import Run, Workspace, assert_whole, comparable_answer
from contract_samples import SAMPLES

from msprobe_collector.dump_format import DIRECTIONS

SHARDS = 3


def scope(node_id: str) -> str:
    """What is selected as one: an API call with both its directions."""
    call, _, part = node_id.rpartition("::")
    return call if part in DIRECTIONS else node_id


def test_markers_keywords_and_deselect(workspace: Workspace, plain: Run, suite: str) -> None:
    ids = [row["node_id"] for row in plain.rows]
    directions = {row["node_id"]: row["direction"] for row in plain.rows}
    wanted: dict[tuple[str, ...], list[str]] = {
        ("-m", direction): [node_id for node_id in ids if directions[node_id] == direction] for direction in DIRECTIONS
    }
    for api_type in SAMPLES[suite].types:
        is_all = api_type == "Gradient"
        wanted["-m", api_type] = [
            row["node_id"] for row in plain.rows if is_all or row["call"].startswith(f"{api_type}.")
        ]
    part = ids[1].rpartition("::")[2]
    file = ids[-1].partition("::")[0]
    wanted["-k", f"{part} and rank0"] = [i for i in ids if part in i and "rank0" in i]
    wanted[f"--deselect={ids[0]}", f"--deselect={file}"] = [i for i in ids[1:] if not i.startswith(file)]
    wanted[ids[0], f"{file}"] = list(dict.fromkeys([ids[0], *(i for i in ids if i.startswith(file))]))
    for (arguments, expected), run in zip(wanted.items(), workspace.run_all(wanted)):
        if not expected:
            assert run.exit_code == 5, (arguments, run.text)
            continue
        assert Counter(row["node_id"] for row in run.rows) == Counter(expected), arguments
        assert_whole(run, expected)
        assert {i: plain.outcomes[i] for i in expected} == run.outcomes, arguments


@pytest.mark.one_suite
def test_shards_are_disjoint_and_together_the_whole(workspace: Workspace, plain: Run) -> None:
    runs = workspace.run_all([f"--msprobe-shard={number}/{SHARDS}"] for number in range(1, SHARDS + 1))
    parts = [[row["node_id"] for row in run.rows] for run in runs]
    assert sorted(chain.from_iterable(parts)) == sorted(plain.by_id)
    assert all(parts), "a shard is empty"
    scopes = [{scope(node_id) for node_id in part} for part in parts]
    assert sum(map(len, scopes)) == len(set().union(*scopes)), "a call is split"
    for run, part in zip(runs, parts):
        assert_whole(run, part)
        assert run.deselected == plain.by_id.keys() - {*part}


@pytest.mark.one_suite
def test_a_hook_selects(workspace: Workspace, plain: Run) -> None:
    """The first call that is asked for is left out, with all its records."""
    conftest = (
        "FIRST = []\n"
        "def pytest_msprobe_select(api, dump):\n"
        "    FIRST.append((str(api), dump))\n"
        "    return FIRST[0] != FIRST[-1]\n"
    )
    run = workspace.run(conftest=conftest)
    kept = [row["node_id"] for row in run.rows]
    assert_whole(run, kept)
    left_out = plain.by_id.keys() - {*kept}
    assert 1 <= len(left_out) <= 2
    assert run.deselected == left_out
    assert not {scope(i) for i in left_out} & {scope(i) for i in kept}


@pytest.mark.one_suite
def test_a_selection_that_raises_is_a_usage_error(workspace: Workspace) -> None:
    run = workspace.run(conftest="def pytest_msprobe_select(api):\n    return api.nonsense\n")
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "pytest_msprobe_select failed for" in run.text
    assert "AttributeError" in run.text


def test_workers_give_the_same_rows(workspace: Workspace, plain: Run, plain_tables: dict[str, list[str]]) -> None:
    run = workspace.run("-n2")
    assert run.outcomes == plain.outcomes
    assert_whole(run, plain.by_id)
    assert run.exit_code == plain.exit_code
    assert workspace.tables(run.out) == plain_tables
    assert comparable_answer(run) == comparable_answer(plain)
