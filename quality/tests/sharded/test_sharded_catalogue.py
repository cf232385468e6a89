"""The catalogue of sharded runs, and the program that scores the suite by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quality.sharded import catalogue, held_out, public_bugs
from quality.sharded.__main__ import chosen, measured, unequal
from quality.sharded.answers import Answer, Blamed, answered, summary
from quality.sharded.entries import Entry
from quality.sharded.launching import Launch
from quality.sharded.table import tables_of


def test_the_catalogue_says_what_each_entry_needs() -> None:
    entries = catalogue.everything()
    assert len(catalogue.RIGHT) >= 30
    assert len(public_bugs.BUGS) >= 16
    assert len(held_out.BUGS) == 8
    assert len({one.name for one in entries}) == len({one.folder for one in entries}) == len(entries)
    for bug in (*public_bugs.BUGS, *held_out.BUGS):
        assert all((bug.wrong, bug.source, bug.expected, bug.change)), bug.name
        assert bug.direction in ("forward", "backward", "optimizer"), bug.name
    assert {one.world for one in entries} == {2, 4}


def test_pairs_are_of_one_training() -> None:
    for name, by in catalogue.PAIRS:
        assert catalogue.by_name(name).single == catalogue.by_name(by).single, name
        assert catalogue.by_name(by).change is None


def test_a_half_is_chosen_by_its_name() -> None:
    assert [one.name for one in chosen(["held out *"], "held-out")] == [one.name for one in held_out.BUGS]
    assert chosen(["held out *"], "seen") == []


def test_a_right_run_and_a_bug_are_scored(tmp_path: Path) -> None:
    launch, answers = measured(chosen(["tp2", "bias added before the reduction"], "seen"), tmp_path)
    assert (launch.failures, launch.changed) == ({}, [])
    right, bug = (one.entry for one in answers)
    assert list(unequal(launch, [right])) == []
    assert list(unequal(launch, [replace(bug, change=None)]))  # the bug changes what the run ends with
    assert [(one.entry.name, one.verdict) for one in answers] == [
        ("tp2", "right"),
        ("bias added before the reduction", "right"),
    ]
    assert answers[1].named.startswith("Module.blocks.0.attn.o.RowLinear.forward.0")
    pair = answered(bug, launch.dump(bug), launch.dump(right), tmp_path / "by_ranks")
    assert (pair.verdict, pair.named) == ("right", answers[1].named)
    alone = [one.alone for one in answers if one.alone is not None]
    assert [one.named for one in alone] == ["", "Functional.linear.1.forward 2"]
    assert [one.verdict for one in alone] == ["right", "right"]
    assert next(summary(answers)).startswith("right runs: 1; something blamed in 0")
    assert "without a logical run, right runs: 1; alarms in 0; no answer for 0" in summary(answers)
    assert "without a logical run, bugs, seen: 1; 1 found, 1 of them named at the place" in summary(answers)
    bugs, right_runs = tables_of(answers)
    assert [row[0] for row in right_runs.rows] == ["tp2"]
    assert bugs.rows[0][0].startswith("bias added before the reduction: ")
    again = Launch(tmp_path)
    again.run([answers[0].entry])
    assert again.logical(answers[0].entry).is_dir()


def test_a_rank_that_dies_is_quoted(tmp_path: Path) -> None:
    unknown = Entry("no such entry", "hand-made", {"tp": 2})
    launch = Launch(tmp_path)
    launch.run([unknown])
    assert "rank 1 ended with 1" in launch.failures["no such entry"]
    assert "StopIteration" in launch.failures["no such entry"]


@pytest.mark.parametrize(
    ("role", "record", "value", "verdict"),
    [
        ("first", "Optimizer.AdamW.0.forward", "gradients.norm.weight", "right"),
        ("first", "Optimizer.AdamW.0.forward", "gradients.emb.weight", "innocent named"),
        ("first", "Module.norm.Norm.forward.0", "0", "innocent named"),
        ("inherited", "Optimizer.AdamW.0.forward", "gradients.norm.weight", "not found"),
    ],
)
def test_only_what_is_named_first_counts(role: str, record: str, value: str, verdict: str) -> None:
    bug = catalogue.by_name("norm gradient not summed")
    assert Answer(bug, (Blamed(record, "", "optimizer", role, (value,)),)).verdict == verdict


def test_calls_are_known_by_their_module_and_modules_without_the_number_of_the_call() -> None:
    call = Blamed("Tensor.__add__.1.forward", "blocks.0.attn.o", "forward", "first", ())
    assert list(call.names()) == ["Tensor.__add__.1.forward", "blocks.0.attn.o > Tensor.__add__.1.forward"]
    module = Blamed("Module.emb.VocabEmbedding.forward.0", "", "forward", "first", ("0",))
    assert "Module.emb.VocabEmbedding.forward" in module.names()
