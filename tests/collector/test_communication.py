"""Two processes under msrun: communication is recorded, and the rank is taken when it becomes known."""

from __future__ import annotations

import numpy as np
import pytest
from two_ranks import run_on_two_ranks

from msprobe_collector.dump_format import Dump

TRAIN = """
import sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, ops
from mindspore.communication import get_rank, init
from mindspore.mint import distributed
from msprobe_collector import PrecisionDebugger

ms.set_device("CPU")
ms.runtime.launch_blocking()
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor")
debugger.start()
mint.square(Tensor([3.0]))
init()  # only now is there a rank

def value():
    return Tensor(np.full(3, get_rank() + 1.0), ms.float32)

reduced = value()
assert distributed.all_reduce(reduced) is None
waited = value()
handle = distributed.all_reduce(waited, async_op=True)
handle.wait()
forgotten = value()
kept = distributed.all_reduce(forgotten, async_op=True)
assert type(kept) is type(handle)
operation = distributed.P2POp(distributed.isend, value(), 1 - get_rank())
try:
    distributed.batch_isend_irecv([operation])
except RuntimeError:  # the CPU has no kernel for it
    pass
debugger.stop()
kept.wait()
assert [t.asnumpy().tolist() for t in (reduced, waited, forgotten)] == [[3.0] * 3] * 3
debugger.step()
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return run_on_two_ranks(tmp_path_factory.mktemp("communication"), TRAIN) / "step0"


@pytest.fixture(params=[0, 1])
def dump(folders, request):
    return Dump(folders / f"rank{request.param}" / "dump.json")


def test_folders_begun_without_a_rank_get_its_name(folders):
    assert sorted(path.name for path in folders.iterdir()) == ["rank0", "rank1"]


def test_the_moved_dump_knows_where_its_tensors_are(dump):
    assert dump.problem == ""
    assert str(dump.path.parent / "dump_tensor_data") in dump.path.read_text()
    assert dump.forward("Mint.square.0").outputs[0].maximum == 9.0


def rank_of(dump):
    return int(dump.path.parent.name.removeprefix("rank"))


@pytest.mark.parametrize("number", [0, 1], ids=["at once", "after wait"])
def test_a_call_that_fills_its_argument_has_it_before_and_after(dump, number):
    record = dump.forward(f"MintDistributed.all_reduce.{number}")
    before, after = record.arguments[0], record.outputs[0]
    assert (before.maximum, after.maximum) == (rank_of(dump) + 1.0, 3.0)
    stored = np.load(dump.path.parent / "dump_tensor_data" / after.data_name)
    assert stored.tolist() == [3.0] * 3


def test_a_handle_that_nobody_waits_for_in_the_step_leaves_no_outputs(dump):
    text = dump.path.read_text()
    line = next(line for line in text.splitlines() if line.startswith('"MintDistributed.all_reduce.2.forward"'))
    assert '"output"' not in line
    assert "the script had not waited" in line


def test_operations_of_a_batch_are_recorded_with_their_tensors(dump):
    line = next(line for line in dump.path.read_text().splitlines() if "batch_isend_irecv.0.forward" in line)
    assert '"class_type": "mindspore.mint.distributed.P2POp"' in line
    assert f'"op": "isend", "peer": {1 - rank_of(dump)}, "tag": 0, "group_id": null' in line
    assert "data_name" in line
