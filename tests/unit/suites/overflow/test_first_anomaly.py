"""Ranks put in order by their communications."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dump_builder import DumpBuilder
from overflow_dumps import F32, NAN, X, parallel

from pytest_msprobe.suites.overflow.first_anomaly import (
    first_anomalies,
    layers,
    meetings,
    rank_numbers,
    steps_of,
)
from pytest_msprobe.suites.overflow.survey import Survey
from pytest_msprobe.suites.overflow.values import OverflowDump, read_rules

BAD = np.array([1.0, NAN, 2.0], F32)
GROUP = {"type": "mindspore.ProcessGroup", "group_ranks": [0, 2], "group_id": "0badf00d"}


class Ranks:
    """Dumps of some ranks, call by call; the n-th call of an API on a rank has number n."""

    def __init__(self, folder: Path, count: int) -> None:
        self.builders = [DumpBuilder(folder / f"rank{rank}", real=False) for rank in range(count)]

    def call(self, rank, api, arguments, output, **keywords):
        number = sum(name.startswith(f"{api}.") for name in self.builders[rank].records)
        self.builders[rank].call(f"{api}.{number}", arguments, [output], keywords=keywords)

    def send(self, rank, to, value=X, api="send"):
        self.call(rank, f"MintDistributed.{api}", [value], value, dst=to)

    def receive(self, rank, source, value=X, api="recv"):
        self.call(rank, f"MintDistributed.{api}", [X], value, src=source)

    def dumps(self):
        return [OverflowDump(builder.write()) for builder in self.builders]

    def layers(self):
        return layers({rank: meetings(dump, rank) for rank, dump in enumerate(self.dumps())})

    def anomalies(self):
        found = first_anomalies([(rank, Survey(dump, read_rules(None))) for rank, dump in enumerate(self.dumps())])
        return [(anomaly.rank, anomaly.record) for anomaly in found]


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_parameter_that_is_not_finite_is_named(tmp_path, is_noted):
    """By the name that the collector noted, else by that in the record of the layer; the block around made nothing."""
    builder = DumpBuilder(tmp_path / "rank0", real=False, framework="pytorch")
    builder.call("Functional.linear.0", [X, BAD], [BAD])
    records = builder.records
    if is_noted:
        records["Functional.linear.0.forward"]["input_args"][1]["leaf"] = "blocks.1.up.weight"
    layer = {"input_args": [builder.tensor(X, "")], "input_kwargs": {}, "output": [builder.tensor(BAD, "")]}
    up, block = "Module.blocks.1.up.Linear.forward.0", "Module.blocks.1.Block.forward.0"
    records[up] = {**layer, "parameters": {"weight": builder.tensor(BAD, "")}}
    records[block] = layer
    parents = {"Functional.linear.0.forward": up, up: block, block: None}
    (builder.folder / "construct.json").write_text(json.dumps(parents))
    survey = Survey(OverflowDump(builder.write()), read_rules(None))
    (anomaly,) = first_anomalies([(0, survey)])
    assert (anomaly.record, anomaly.parameters) == ("Functional.linear.0.forward", {"blocks.1.up.weight": "NaN"})
    assert [record.level for record in survey.records.values()] == ["propagated"] * 3
    assert survey.records[block].source == "Functional.linear.0.forward"


@pytest.fixture
def ranks(tmp_path):
    return lambda count: Ranks(tmp_path, count)


def test_before_the_first_communication_the_rank_with_an_origin_is_first(tmp_path):
    dumps = [OverflowDump(path) for path in parallel(tmp_path)]
    found = first_anomalies([(rank, Survey(dump, read_rules(None))) for rank, dump in enumerate(dumps)])
    assert [(one.rank, one.record, one.communications) for one in found] == [
        (1, "Mint.log.0.forward", 0),
        (0, "MintDistributed.all_reduce.0.forward", 1),
    ]


def test_a_message_orders_sender_before_receiver(ranks):
    it = ranks(2)
    for _ in range(3):  # rank 0 computes much before its origin, rank 1 little before its own
        it.call(0, "Mint.add", [X, X], X)
    it.call(0, "Mint.log", [X], BAD)
    it.send(0, 1, BAD)
    it.receive(1, 0, X)
    it.call(1, "Mint.log", [X], BAD)
    assert it.anomalies() == [(0, "Mint.log.0.forward"), (1, "Mint.log.0.forward")]


def test_a_pipeline_of_three_stages(ranks):
    it = ranks(3)
    it.send(0, 1)
    it.receive(1, 0)
    it.call(1, "Mint.log", [X], BAD)
    it.send(1, 2, BAD)
    it.receive(2, 1, BAD)
    it.call(2, "Mint.add", [BAD, X], BAD)
    assert it.anomalies() == [(1, "Mint.log.0.forward"), (2, "MintDistributed.recv.0.forward")]
    assert it.layers() == {
        (0, "MintDistributed.send.0.forward"): 1,
        (1, "MintDistributed.recv.0.forward"): 1,
        (1, "MintDistributed.send.0.forward"): 2,
        (2, "MintDistributed.recv.0.forward"): 2,
    }


def test_the_gap_counts_not_the_number_of_records_before_it(ranks):
    it = ranks(2)
    for _ in range(5):
        it.call(0, "Mint.add", [X, X], X)
    for rank in (0, 1):
        it.call(rank, "MintDistributed.all_reduce", [X], X)
    it.call(0, "Mint.log", [X], BAD)
    it.call(1, "Mint.add", [X, X], X)
    it.call(1, "Mint.log", [X], BAD)
    assert it.anomalies()[0] == (0, "Mint.log.0.forward")


def test_ranks_of_other_groups_do_not_wait(ranks):
    it = ranks(3)
    for rank in (0, 2):
        it.call(rank, "Distributed.all_reduce", [X], X, group=GROUP)
    for rank in (0, 1, 2):
        it.call(rank, "Distributed.broadcast", [X], X, src=0)
    found = it.layers()
    assert {found[rank, "Distributed.broadcast.0.forward"] for rank in (0, 1, 2)} == {2}
    assert found[0, "Distributed.all_reduce.0.forward"] == 1


def test_batches_of_messages_meet(ranks):
    it = ranks(2)
    for rank, peer in ((0, 1), (1, 0)):
        operations = [
            {"class_type": "mindspore.mint.distributed.P2POp", "tensor": None, "op": op, "peer": peer}
            for op in (("isend", "irecv") if rank else ("irecv", "isend"))
        ]
        builder = it.builders[rank]
        name = "MintDistributed.batch_isend_irecv.0.forward"
        builder.records[name] = {"input_args": [operations], "input_kwargs": {}, "output": []}
    assert set(it.layers().values()) == {2}


def test_messages_that_are_sent_before_any_is_received(ranks):
    it = ranks(2)
    for rank in (0, 1):
        it.send(rank, 1 - rank, api="isend")
        it.receive(rank, 1 - rank, api="irecv")
    found = it.layers()
    for rank in (0, 1):
        assert found[rank, "MintDistributed.isend.0.forward"] <= found[1 - rank, "MintDistributed.irecv.0.forward"]


def test_a_rank_that_stopped_does_not_stop_the_others(ranks):
    it = ranks(2)
    for _ in range(2):
        it.call(0, "MintDistributed.all_reduce", [X], X)
    it.call(1, "MintDistributed.all_reduce", [X], X)
    assert it.layers()[0, "MintDistributed.all_reduce.1.forward"] == 2


def test_asking_for_a_rank_is_no_communication(ranks):
    it = ranks(1)
    it.call(0, "MintDistributed.get_rank", [], 0)
    it.call(0, "MintDistributed.barrier", [], None)
    assert it.layers() == {}


def test_an_origin_goes_before_what_nobody_made(ranks):
    it = ranks(2)
    it.call(0, "Mint.add", [BAD, X], BAD)
    for rank in (0, 1):
        it.call(rank, "MintDistributed.all_reduce", [X], X)
    it.call(1, "Mint.log", [X], BAD)
    assert it.anomalies() == [(1, "Mint.log.0.forward"), (0, "Mint.add.0.forward")]


def test_folders_of_steps_and_numbers_of_ranks():
    paths = [Path(f"/d/step{step}/rank{rank}/dump.json") for step in (0, 1) for rank in (10, 9)]
    steps = steps_of(paths)
    assert [folder.name for folder in steps] == ["step0", "step1"]
    assert list(rank_numbers(steps[Path("/d/step0")]).values()) == [9, 10]
    assert rank_numbers([Path("/d/step0/proc4711/dump.json")]) == {Path("/d/step0/proc4711/dump.json"): 0}
    assert list(steps_of([Path("/a/dump.json"), Path("/b/dump.json")])) == [Path("/a"), Path("/b")]
