"""What is held of a step of many ranks: what they have alike once, and of their files where records stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.sharded.matching import RecordMatching
from pytest_msprobe.suites.sharded.ranks import RankDump, ShardedStep, Slices, dumps_below
from tools.benchmarks import make_large_ranks

STAGES, RANKS = 4, 64


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["make_large_ranks", str(folder), "--data", "2", "--layers", "4"])
        make_large_ranks.main()
    return folder


def step_of(load: Path) -> ShardedStep:
    return ShardedStep.read(load / "ranks/step0", dumps_below(load / "ranks"), [])


def test_ranks_with_the_same_records_share_them(load: Path) -> None:
    step = step_of(load)
    ranks = list(step.ranks.values())
    assert (len(ranks), step.problems) == (RANKS, [])
    assert len({id(rank.operations) for rank in ranks}) == len({rank.twin.path for rank in ranks}) == STAGES
    assert all(isinstance(rank._records, Slices) for rank in ranks)
    places = {id(rank._records.places) for rank in ranks if isinstance(rank._records, Slices)}
    assert len(places) == STAGES
    logical = RankDump(load / "logical/step0/rank0/dump.json")
    matching = RecordMatching(logical, ranks, {})
    assert len(matching._indexes) == STAGES
    parts, reason = matching.parts("Module.layers.3.c01.Column.backward.0")
    assert (len(parts), reason) == (RANKS // STAGES, "")
    assert [calls.dump.number for calls in parts] == list(range(48, 64))


def test_a_record_is_what_its_file_has(load: Path) -> None:
    path = load / "ranks/step0/rank17/dump.json"
    rank = step_of(load).ranks[17]
    content = json.loads(path.read_text(encoding="utf-8"))["data"]
    assert rank.record_names == list(content)
    for name in (*list(content)[:4], *list(content)[-4:]):
        assert json.loads(bytes(rank.text(name))) == content[name]
    assert "Module.layers.1.c00.Norm.forward.0" in rank
    assert "Module.layers.0.c00.Norm.forward.0" not in rank


def test_a_file_that_goes_away_is_said(load: Path, tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / f"step0/rank{rank}"
        folder.mkdir(parents=True)
        (folder / "dump.json").write_bytes((load / f"ranks/step0/rank{rank}/dump.json").read_bytes())
    step = ShardedStep.read(tmp_path / "step0", dumps_below(tmp_path), [])
    (tmp_path / "step0/rank1/dump.json").unlink()
    with pytest.raises(DumpError, match=r"rank1/dump.json.*cannot be read"):
        step.ranks[1].leaves(step.ranks[1].record_names[0])


def test_a_file_with_bare_words_for_numbers_stays_in_memory(load: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step0/rank0"
    folder.mkdir(parents=True)
    text = (load / "ranks/step0/rank0/dump.json").read_text(encoding="utf-8")
    name = next(iter(json.loads(text)["data"]))
    at = text.index('"Max": ', text.index(name))
    (folder / "dump.json").write_text(f'{text[:at]}"Max": NaN{text[text.index(",", at) :]}', encoding="utf-8")
    step = ShardedStep.read(tmp_path / "step0", dumps_below(tmp_path), [])
    assert not isinstance(step.ranks[0]._records, Slices)
    assert step.ranks[0].leaves(name)[0].statistics[0] is not None
