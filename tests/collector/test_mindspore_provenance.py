"""What dumps of MindSpore say about where their tensors come from."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from msprobe_collector.dump_format.values import MADE_BY
from msprobe_collector.mindspore import provenance
from msprobe_collector.recording.guard import Activity, FaultLog, Guard

address_of = provenance._address

KEYS = ("made_by", "changed_since", "view", "leaf", "grad_of", "uninitialized")


def batch(*shape):
    return Tensor(np.random.default_rng(0).normal(size=shape).astype("float32"))


@pytest.fixture
def origin(records):
    """The keys of an argument of a record."""

    def find(record, *path, key="input_args"):
        value = records()[record][key]
        for step in path:
            value = value[step]
        return {name: value[name] for name in KEYS if name in value}

    return find


def test_parts_of_a_chunk_are_told_apart_also_where_a_script_swaps_them(make_debugger, origin):
    x = batch(2, 8)
    with make_debugger().collect():
        first, second = mint.chunk(mint.square(x), 2, 1)
        mint.sub(second, first)
        mint.sub(mint.transpose(first, 0, 1), 1.0)
    assert origin("Mint.square.0.forward", 0) == {}
    assert origin("Mint.chunk.0.forward", 0) == {MADE_BY: "Mint.square.0.forward.output.0"}
    assert origin("Mint.sub.0.forward", 0) == {MADE_BY: "Mint.chunk.0.forward.output.1"}
    assert origin("Mint.sub.0.forward", 1) == {MADE_BY: "Mint.chunk.0.forward.output.0"}
    assert origin("Mint.sub.1.forward", 0) == {MADE_BY: "Mint.transpose.0.forward.output.0"}


def test_equal_values_have_their_own_makers(make_debugger, origin):
    x = batch(3, 3)
    with make_debugger().collect():
        left, right = mint.abs(x), mint.abs(x)
        mint.matmul(right, left)
    assert origin("Mint.matmul.0.forward", 0) == {MADE_BY: "Mint.abs.1.forward.output.0"}
    assert origin("Mint.matmul.0.forward", 1) == {MADE_BY: "Mint.abs.0.forward.output.0"}


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_what_a_write_leaves_is_made_by_the_call_that_wrote(make_debugger, origin, is_asynchronous):
    """MindSpore 2.10 on CPU writes a slice in place or gives the tensor other memory, as it was used before."""
    x = batch(3, 4)
    with make_debugger(common={"async_dump": is_asynchronous}).collect():
        y = mint.square(x)
        row = y[1]
        before = address_of(y)
        y[:, 0] = 2.0
        is_in_place = address_of(y) == before
        mint.exp(y)
        mint.exp(row)
        row[2] = 5.0
        is_seen_by_all = is_in_place and address_of(row) == before
        mint.abs(y)
    first, second = (f"Tensor.__setitem__.{number}.forward.output.0" for number in (0, 1))
    assert origin("Mint.exp.0.forward", 0) == {MADE_BY: first}
    shown = {MADE_BY: first, "view": "4,4x1"} if is_in_place else {MADE_BY: "Tensor.__getitem__.0.forward.output.0"}
    assert origin("Mint.exp.1.forward", 0) == shown
    if is_seen_by_all:
        assert origin("Mint.abs.0.forward", 0) == {MADE_BY: second, "view": "0,3x4 4x1"}


@pytest.mark.xfail(ms.__version__.startswith("2.7"), reason="MindSpore 2.7 does not say that the memory is another")
def test_a_write_that_gives_the_tensor_other_memory_leaves_what_views_show(make_debugger, origin):
    with make_debugger().collect():
        y = mint.square(batch(3, 4))
        row = y[1]
        y[y > 0.5] = 0.0
        mint.exp(y)
        mint.exp(row)
    assert origin("Mint.exp.0.forward", 0) == {MADE_BY: "Tensor.__setitem__.0.forward.output.0"}
    assert origin("Mint.exp.1.forward", 0) == {MADE_BY: "Tensor.__getitem__.0.forward.output.0"}


def test_a_write_that_no_record_shows_is_told_by_the_content(make_debugger, origin):
    with make_debugger().collect():
        y = mint.square(batch(3, 4))
        y.asnumpy()[0] = 7.0
        mint.exp(y)
    assert origin("Mint.exp.0.forward", 0) == {MADE_BY: "Mint.square.0.forward.output.0", "changed_since": True}


def test_a_write_that_the_selection_leaves_out_makes_the_origin_unknown(make_debugger, origin):
    with make_debugger(list=["Mint.square", "Mint.exp"]).collect():
        y = mint.square(batch(3, 4))
        z = mint.abs(y)
        mint.exp(y)
        mint.exp(z)
        y[0] = 1.0
        mint.exp(y)
    assert origin("Mint.exp.0.forward", 0) == {MADE_BY: "Mint.square.0.forward.output.0"}
    assert origin("Mint.exp.1.forward", 0) == {}
    assert origin("Mint.exp.2.forward", 0) == {}


@pytest.mark.parametrize("is_held", [True, False])
def test_writes_that_have_no_record_wait_for_nothing(make_debugger, origin, monkeypatch, is_held):
    """Where a tensor lies is known when it is computed: that is asked for at the next record only."""
    asked = []
    monkeypatch.setattr(provenance, "_address", lambda tensor: asked.append(0) or address_of(tensor))
    with make_debugger(list=["Mint.square", "Mint.exp"]).collect():
        y = mint.square(batch(3, 4))
        held = [y[1], len(asked)]
        held[0][2] = 1.0
        if not is_held:
            held[0] = None
        assert len(asked) == held[1]
        mint.exp(y)
    assert origin("Mint.exp.0.forward", 0) == {}


def test_what_communication_receives_is_made_by_it(make_debugger):
    """Also where the tensor was a part of other memory, and in lists."""
    provenances = provenance.MindSporeProvenances(Guard(Activity(), FaultLog()), sees_writes=True)
    x = mint.square(batch(2, 3))
    row = x[1]
    provenances.record("Mint.square.0.forward").of(x, "output.0")
    provenances.record("Tensor.__getitem__.0.forward").of(row, "output.0")
    for name, front in (("all_reduce", "0"), ("all_gather", "0.0")):
        call = provenances.record(f"MintDistributed.{name}.0.forward")
        for kind in ("input", "output"):
            call.of(x, f"{kind}.{front}")
        call.end()
        keys = provenances.record("Mint.exp.0.forward").of(row, "input.0").keys("")
        assert f'"MintDistributed.{name}.0.forward.output.{front}", "view": "3,3x1"' in keys


def test_memory_that_is_used_again_has_no_origin(make_debugger, origin):
    x = batch(64, 64)
    addresses = set()
    with make_debugger(list=["Mint.square", "Mint.exp"]).collect():
        for _ in range(10):
            y = mint.square(x)
            addresses.add(y.untyped_storage().data_ptr())
            del y
            z = mint.abs(x)  # not recorded
            addresses.add(z.untyped_storage().data_ptr())
            mint.exp(z)
            del z
    assert len(addresses) < 20  # some were used again
    assert [origin(f"Mint.exp.{number}.forward", 0) for number in range(10)] == [{}] * 10


def test_parameters_are_named_and_what_assignments_leave_in_them(make_debugger, origin):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.up = nn.Dense(4, 4)
            self.count = Parameter(np.zeros(4, "float32"), name="count", requires_grad=False)
            self.assign = ops.Assign()

        def construct(self, x):
            self.assign(self.count, x[0])
            return mint.mul(self.up(x).to(ms.float32), mint.exp(self.count))

    net = Net()
    with make_debugger(level="mix").collect(net):
        net(batch(3, 4))
    assert origin("Primitive.matmul.MatMul.0.forward", 1) == {"leaf": "up.weight"}
    assert origin("Cell.up.Dense.forward.0", "weight", key="parameters") == {"leaf": "up.weight"}
    assert origin("Primitive.assign.Assign.0.forward", 0) == {"leaf": "count"}
    left = "Primitive.assign.Assign.0.forward.input.0"
    assert origin("Mint.exp.0.forward", 0) == {"leaf": "count", MADE_BY: left}
    # A Cell returns what a call inside it made.
    assert origin("Cell.up.Dense.forward.0", 0, key="output")[MADE_BY].startswith("Primitive.bias_add.BiasAdd.0")


def test_cells_alone_are_makers_too(make_debugger, origin):
    net = nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 2))
    with make_debugger(level="L0").collect(net):
        net(batch(3, 4))
    assert origin("Cell.1.Dense.forward.0", 0) == {MADE_BY: "Cell.0.Dense.forward.0.output.0"}


def test_gradients_that_an_optimizer_gets_are_those_of_parameters(make_debugger, origin):
    net = nn.Dense(4, 2)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    compute = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    with make_debugger().collect():
        _, gradients = compute(batch(3, 4))
        clipped = ops.clip_by_global_norm(gradients, 1.0)
        optimizer(clipped)
    names = [parameter.name for parameter in optimizer.parameters]
    got = [origin("Functional.clip_by_global_norm.0.forward", 0, place) for place in range(2)]
    assert got == [{"grad_of": name} for name in names]
    assert origin("Jit.SGD.0.forward", 0, 1) == {MADE_BY: "Functional.clip_by_global_norm.0.forward.output.1"}


def test_memory_that_nothing_was_written_to_is_told(make_debugger, origin):
    with make_debugger().collect():
        y = mint.empty((3, 4), device="CPU")  # without a device, that of MindSpore 2.7 is an NPU
        mint.abs(y)
        y[0] = 1.0
        mint.abs(y)
    assert origin("Mint.empty.0.forward", 0, key="output") == {"uninitialized": True}
    assert origin("Mint.abs.0.forward", 0) == {MADE_BY: "Mint.empty.0.forward.output.0", "uninitialized": True}
    assert origin("Mint.abs.1.forward", 0) == {MADE_BY: "Tensor.__setitem__.0.forward.output.0"}


def test_a_step_knows_nothing_of_the_one_before(make_debugger, records):
    debugger = make_debugger()
    with debugger.collect():
        y = mint.square(batch(2, 2))
    with debugger.collect():
        mint.exp(y)
    assert not set(KEYS) & records(step=1)["Mint.exp.0.forward"]["input_args"][0].keys()
