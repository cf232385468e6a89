"""What dumps of PyTorch say about where each tensor comes from."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from msprobe_collector.dump_format.records import decode_value
from msprobe_collector.dump_format.values import UNKNOWN, Provenance, TensorValue, tensors_in
from msprobe_collector.pytorch.provenance import Memory, TorchProvenances, may_overlap, place_of
from msprobe_collector.recording.guard import Activity, FaultLog, Guard


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of this process."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def origins(make_debugger: Any, records: Any) -> Callable[..., dict[str, list[Provenance]]]:
    """origins(run, *models, **configuration) -> provenances of all tensors that go into each forward, by record."""

    def collect(run: Callable[[], object], *models: Any, **configuration: Any) -> dict[str, list[Provenance]]:
        debugger = make_debugger(**configuration)
        debugger.start(list(models) or None)
        run()
        debugger.stop()
        debugger.step()
        found = {}
        for name, record in records().items():
            if ".forward" in name:
                values = [decode_value(record.get(key)) for key in ("input_args", "input_kwargs")]
                found[name.replace(".forward", "")] = [
                    tensor.provenance for value in values for tensor in tensors_in(value)
                ]
        return found

    return collect


def by(record: str, place: str = "output.0", **others: Any) -> Provenance:
    return Provenance(f"{record}.forward.{place}", **others)


def viewed(origin: Provenance, view: str) -> Provenance:
    return Provenance(origin.made_by, view=view, leaf=origin.leaf)


def test_parts_and_views_are_told_apart(origins: Any) -> None:
    """Chunks by their own names, in any order and shape; what no call made by the memory that it is a part of."""

    def run() -> None:
        both = torch.randn(3, 8).exp()
        q, k = both.chunk(2, dim=-1)
        torch.dot(q[0], k[1])
        q @ k.T
        (k.view(3, 2, 2).data * q.detach().view(3, 2, 2)).sum()
        for row in both:
            row.sin()
        both.as_strided((2,), (1,), 3).cos()

    found = origins(run)
    q, k = (by("Tensor.chunk.0", f"output.{place}") for place in (0, 1))
    assert found["Tensor.chunk.0"] == [by("Tensor.exp.0")]
    assert found["Tensor.__getitem__.0"] == [q]
    assert found["Torch.dot.0"] == [by("Tensor.__getitem__.0"), by("Tensor.__getitem__.1")]
    assert found["Tensor.__matmul__.0"] == [q, viewed(k, "0,4x1 3x8")]
    assert found["Tensor.__mul__.0"] == [viewed(k, "0,3x8 2x2 2x1"), viewed(q, "0,3x8 2x2 2x1")]
    for row in range(3):
        assert found[f"Tensor.sin.{row}"] == [by("Tensor.unbind.0", f"output.{row}")]
    assert found["Tensor.cos.0"] == [by("Tensor.exp.0", view="3,2x1")]


def test_a_call_that_returns_its_argument_gives_it_its_name(origins: Any) -> None:
    def run() -> None:
        value = torch.ones(3).exp()
        for _ in range(2):
            value = F.dropout(value, training=False)
        value.contiguous().to(torch.float32).sin()

    found = origins(run)
    assert found["Functional.dropout.1"] == [by("Functional.dropout.0")]
    assert found["Tensor.sin.0"] == [by("Tensor.to.0")]


def test_what_calls_leave_in_their_arguments(origins: Any, records: Any, step_folder: Any) -> None:
    def run() -> None:
        state = torch.zeros(2, 3)
        for step in range(3):
            state[:, step] = torch.full((2,), step + 1.0).exp()
        state.sum()
        both = [torch.ones(2), torch.ones(3)]
        torch._foreach_add_(both, 1.0)
        torch.cat(both)
        out = torch.ones(2, 2)
        torch.mm(out.exp(), out.exp(), out=out)
        out.sin()
        F.relu(out, inplace=True).cos()

    found = origins(run, task="tensor")
    assert [found[f"Tensor.__setitem__.{step}"][0] for step in range(3)] == [
        UNKNOWN,
        by("Tensor.__setitem__.0"),
        by("Tensor.__setitem__.1"),
    ]
    assert found["Tensor.sum.0"] == [by("Tensor.__setitem__.2")]
    saved = torch.load(step_folder() / "dump_tensor_data" / "Tensor.__setitem__.1.forward.output.0.pt")
    torch.testing.assert_close(saved[0], torch.tensor([1.0, 2.0, 0.0]).exp() * torch.tensor([1.0, 1.0, 0.0]))
    assert found["Torch.cat.0"] == [by("Torch._foreach_add_.0", f"output.{place}") for place in (0, 1)]
    assert len(records()["Torch._foreach_add_.0.forward"]["output"]) == 2
    assert found["Tensor.sin.0"] == [by("Torch.mm.0")]
    assert found["Tensor.cos.0"] == [by("Functional.relu.0")]


def test_writes_through_views(origins: Any) -> None:
    """They are known by what is written over; of memory that several calls wrote no single one is named."""

    def run() -> None:
        value = torch.randn(4, 4).exp()
        value[:, :2].mul_(2)
        left, right, top = value.narrow(1, 0, 2).data, value[:, 2:].data, value[0].data
        left.sin(), right.cos(), top.tan()
        value.sinh()
        value.data.mul_(2)
        value.cosh()

    found = origins(run)
    assert found["Tensor.sin.0"] == [by("Tensor.narrow.0")]
    assert found["Tensor.narrow.0"] == [UNKNOWN]
    assert found["Tensor.cos.0"] == [by("Tensor.__getitem__.1")]
    assert found["Tensor.tan.0"] == [by("Tensor.__getitem__.2")]
    assert found["Tensor.sinh.0"] == [UNKNOWN]
    assert found["Tensor.cosh.0"] == [by("Tensor.mul_.1")]


def test_elements_that_an_inner_write_leaves_alone_keep_their_maker(origins: Any) -> None:
    def run() -> None:
        value = torch.randn(2, 6).exp()
        first, second, third = value.split(2, dim=1)
        second.mul_(3)
        first.sin(), second.cos(), third.tan()
        value.as_strided((2, 1), (6, 1), 4).sinh()

    found = origins(run)
    assert found["Tensor.sin.0"] == [by("Tensor.split.0")]
    assert found["Tensor.cos.0"] == [by("Tensor.mul_.0")]
    assert found["Tensor.tan.0"] == [by("Tensor.split.0", "output.2")]
    assert found["Tensor.sinh.0"][0].view


def test_writes_that_no_record_shows(origins: Any) -> None:
    """By name in a list, by another thread of execution, by a call whose record the selection leaves out."""

    def run() -> None:
        value = torch.randn(3).exp()
        value.sin()
        value.mul_(2)
        value.sin()
        value.data.mul_(2)
        value.sin()
        other = value.exp()
        other.data.mul_(2)
        other.sin()
        value.mul_(2)
        value.exp()

    found = origins(run, list=["exp", "sin"])
    first = by("Tensor.exp.0")
    assert found["Tensor.sin.0"] == [first]
    assert found["Tensor.sin.1"] == found["Tensor.sin.2"] == [by("Tensor.exp.0", is_changed=True)]
    assert found["Tensor.sin.3"] == [by("Tensor.exp.1", is_changed=True)]
    assert "Tensor.mul_.0" not in found


def test_makers_are_in_the_dump(origins: Any, records: Any) -> None:
    def run() -> None:
        value = torch.randn(3).exp().sin()
        value.cos().tan()

    assert origins(run, scope=["Tensor.sin.0.forward", "Tensor.tan.0.forward"])["Tensor.sin.0"] == [UNKNOWN]
    assert origins(run, data_mode=["input"])["Tensor.tan.0"] == [UNKNOWN]
    assert origins(run, task="overflow_check") == {}


def test_writes_that_no_version_counts(origins: Any, alone: Any) -> None:
    """Communication and running statistics change values; views that were taken before show the change."""

    def run() -> None:
        flat = torch.randn(6).exp()
        left, right = flat[:3], flat[3:]
        distributed.all_reduce(flat)
        left.sin()
        distributed.broadcast(tensor=flat, src=0)
        right.sin()
        distributed.all_reduce(flat, async_op=True).wait()
        right.sin()
        gathered = [torch.zeros(6).exp()]
        first = gathered[0][:2]
        distributed.gather(flat, gathered)
        first.sin(), left.sin()
        for call, places in ((F.batch_norm, (1, 2)), (torch.instance_norm, (3, 4))):
            given: list[Any] = [torch.randn(2, 2, 2), None, None, None, None, True, 0.1, 1e-5, False]
            for place in places:
                given[place] = torch.ones(2).exp()
            call(*given[: 6 if call is F.batch_norm else 9])
            [given[place][1:].cos() for place in places]

    found = origins(run)
    views = [found[f"Tensor.sin.{number}"][0] for number in range(5)]
    assert views[:4] == [
        by("Distributed.all_reduce.0", view="0,3x1"),
        by("Distributed.broadcast.0", view="3,3x1"),
        by("Distributed.all_reduce.1", view="3,3x1"),
        by("Distributed.gather.0", "output.1.0", view="0,2x1"),
    ]
    assert views[4] == by("Distributed.gather.0", view="0,3x1")
    makers = ["Functional.batch_norm.0.forward.input.1", "Functional.batch_norm.0.forward.input.2"]
    makers += [f"Torch.instance_norm.0.forward.input.{place}" for place in (3, 4)]
    taken = [found[f"Tensor.__getitem__.{number}"][0].made_by for number in range(3, 7)]
    assert taken == makers


def test_communication_that_the_selection_leaves_out(origins: Any, alone: Any) -> None:
    def run() -> None:
        value = torch.randn(3).exp()
        distributed.all_reduce(value)
        value.sin()

    assert origins(run, list=["exp", "sin"])["Tensor.sin.0"] == [by("Tensor.exp.0", is_changed=True)]


def test_counters_of_several_tensors_of_one_memory(origins: Any) -> None:
    """Each tensor that `.data` makes counts from 0: equal versions are not the same write."""

    def run() -> None:
        value = torch.randn(2, 4).exp()
        for _ in range(2):
            left, right = value.chunk(2, dim=1)
            value.data.mul_(2)
        left.sin()
        value.mul_(3)
        right.sin()

    found = origins(run)
    assert found["Tensor.sin.0"] == [by("Tensor.mul_.1", view="0,2x4 2x1")]
    assert found["Tensor.sin.1"] == [by("Tensor.mul_.2", view="2,2x4 2x1")]


def test_several_arguments_in_one_memory(origins: Any) -> None:
    """Gradients in a bucket: each is written, and so are the views of each."""

    def run() -> None:
        bucket = torch.randn(200).exp()
        gradients = list(bucket.split(2))
        last = gradients[-1][1:]
        torch._foreach_mul_(gradients, 2.0)
        gradients[-1].sin(), last.sin(), bucket.sin()

    found = origins(run)
    assert found["Tensor.sin.0"] == [by("Torch._foreach_mul_.0", "output.99")]
    assert found["Tensor.sin.1"] == [by("Torch._foreach_mul_.0", "output.99", view="1,1x1")]
    assert found["Tensor.sin.2"] == [UNKNOWN]


def taken(provenances: TorchProvenances, tensor: torch.Tensor) -> str:
    return str(provenances.record("Tensor.sin.0.forward").of(tensor, "input.0") or "")


@pytest.fixture
def provenances() -> TorchProvenances:
    return TorchProvenances(Guard(Activity(), FaultLog()), lambda: 0)


def test_a_call_that_returns_a_part_of_what_it_changed(provenances: TorchProvenances) -> None:
    value = torch.ones(3)
    provenances.record("Torch.exp.0.forward").of(value, "output.0")
    call = provenances.record("own.double.0.forward")
    call.of(value, "input.0")
    call.of(value.mul_(2)[:1], "output.0")
    call.end()
    assert '"own.double.0.forward.output.0"' in taken(provenances, value[:1])
    assert '"own.double.0.forward.input.0", "view": "1,2x1"' in taken(provenances, value[1:])
    assert '"own.double.0.forward.input.0"' in taken(provenances, value)


def test_a_part_that_overlaps_itself_is_not_all_that_lies_between_its_ends(provenances: TorchProvenances) -> None:
    for shape, strides in (((2, 2), (0, 3)), ((2, 2, 2), (1, 1, 5)), ((2, 3), (2, 1))):
        value = torch.ones(8)
        provenances.record("Torch.exp.0.forward").of(value.as_strided(shape, strides), "output.0")
        assert taken(provenances, value[1:3]) == ""
    value = torch.ones(4)
    provenances.record("Torch.exp.0.forward").of(value, "output.0")
    assert '"view": "0,3x0 4x1"' in taken(provenances, value.expand(3, 4))


def test_a_parameter_keeps_its_name_in_other_memory(origins: Any) -> None:
    """`parameter.data = ...`, as sharding does; a gradient changed in place before the next backward is said to be."""
    net = nn.Linear(2, 1, bias=False)

    def run() -> None:
        net(torch.ones(3, 2)).sum().backward()
        net.weight.grad.mul_(2)
        net.weight.data = torch.zeros(1, 2)
        net(torch.ones(3, 2)).sum().backward()
        net.weight.grad.sin()

    found = origins(run, net)
    assert found["Functional.linear.1"][1] == Provenance(leaf="weight")
    assert found["Tensor.sin.0"] == [by("Tensor.mul_.0", is_changed=True, grad_of="weight")]


def test_a_record_that_waits_for_the_disk_holds_no_arguments(make_debugger: Any) -> None:
    debugger = make_debugger(data_mode=["input"], common={"async_dump": True})
    recorder = debugger._work.collection._recorder
    waiting: list[Any] = []
    recorder._queue.put = lambda work, held_bytes: waiting.append(work)
    debugger.start()
    value = torch.ones(3)
    gone = weakref.ref(value)
    value.exp()
    del value
    assert gone() is None
    assert waiting
    debugger.stop()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.norm(self.embedding(ids)))
        return result


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_parameters_buffers_and_gradients_have_names(origins: Any, level: str) -> None:
    net, free = Tied(), torch.randn(3, requires_grad=True)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)

    def run() -> None:
        ids = torch.tensor([0, 1, 2])
        (net(ids).sum() + free.sum()).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        net(ids), net.head.weight.T.sin()

    found = origins(run, net, level=level)
    tied = Provenance(leaf="embedding.weight")
    assert found["Functional.embedding.0"] == [UNKNOWN, tied]
    assert found["Functional.linear.0"][1:] == [tied, Provenance(leaf="head.bias")]
    running = [Provenance(leaf=f"norm.running_{name}") for name in ("mean", "var")]
    assert found["Functional.batch_norm.0"][1:3] == running
    left = by("Functional.batch_norm.0", "input.1", leaf="norm.running_mean")
    assert found["Functional.batch_norm.1"][1] == left
    assert Provenance(leaf="") in found["Tensor.sum.1"]
    names = ["embedding.weight", "norm.weight", "norm.bias", "head.bias"]
    assert found["Torch._foreach_norm.0"] == [Provenance(grad_of=name) for name in names]
    assert [origin.grad_of for origin in found["Torch._foreach_lerp_.0"]][4:] == names
    assert found["Torch._foreach_lerp_.0"][4].made_by.startswith("Torch._foreach_mul_.0")
    updated = by("Torch._foreach_addcdiv_.0", leaf="embedding.weight")
    assert found["Functional.embedding.1"][1] == updated
    assert found["Tensor.sin.0"] == [viewed(updated, "0,4x1 5x4")]


def test_gradients_are_those_of_the_last_backward(origins: Any) -> None:
    """Accumulated in place, and made anew."""
    net = nn.Linear(2, 1, bias=False)

    def run() -> None:
        for is_new in (False, True):
            net(torch.ones(3, 2)).sum().backward()
            net.weight.grad.sin()
            if is_new:
                net.weight.grad = None
        net(torch.ones(3, 2)).sum().backward()
        net.weight.grad.view(-1)[1:].cos()

    found = origins(run, net)
    assert found["Tensor.sin.0"] == found["Tensor.sin.1"] == [Provenance(grad_of="weight")]
    assert found["Tensor.__getitem__.0"] == [Provenance(grad_of="weight", view="0,2x1")]


def test_names_of_layers_yield_to_those_of_calls(origins: Any) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Tanh())

    def run() -> None:
        net(torch.ones(1, 2))

    assert origins(run, net, level="mix")["Module.2.Tanh.0"] == [by("Functional.linear.0")]
    assert origins(run, net, level="L0")["Module.2.Tanh.0"] == [Provenance("Module.0.Linear.forward.0.output.0")]


class Experts(nn.Module):
    """A mixture that gathers the results of its experts in memory that held something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gathered = torch.empty_like(x)
        chosen = torch.tensor([True, False, True])
        gathered[chosen] = x[chosen].exp()
        gathered[~chosen] = x[~chosen].sin()
        gathered.new_empty(2).fill_(1.0).cos()
        return gathered.cos()


def test_uninitialised_memory(origins: Any) -> None:
    found = origins(lambda: Experts()(torch.randn(3, 2)))
    assert found["Tensor.__setitem__.0"][0] == Provenance(is_uninitialized=True)
    assert found["Tensor.__setitem__.1"][0] == by("Tensor.__setitem__.0")
    assert found["Tensor.fill_.0"] == [Provenance(is_uninitialized=True)]
    assert found["Tensor.cos.0"] == [by("Tensor.fill_.0")]
    assert found["Tensor.cos.1"] == [by("Tensor.__setitem__.1")]


def test_memory_that_is_used_again_is_other_memory(origins: Any) -> None:
    """And none is held: what the training frees is free."""
    freed: list[bool] = []

    def run() -> None:
        for _ in range(1500):
            value = torch.ones(1000).exp()
            gone = weakref.ref(value)
            value = torch.ones(1000)
            freed.append(gone() is None)
            value.sin()

    found = origins(run)
    assert all(found[f"Tensor.sin.{number}"] == [UNKNOWN] for number in range(1500))
    assert all(freed)


def test_only_storages_in_use_are_kept(provenances: TorchProvenances) -> None:
    kept = torch.ones(3)
    provenances.record("Torch.exp.0.forward").of(kept, "output.0")
    for number in range(5000):
        provenances.record(f"Torch.cos.{number}.forward").of(torch.ones(3), "output.0")
    assert len(provenances.memory) <= 1024
    origin = provenances.record("Torch.sin.0.forward").of(kept, "input.0")
    assert origin is not None
    assert "Torch.exp.0.forward.output.0" in origin


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints(origins: Any, use_reentrant: bool) -> None:
    layer = nn.Linear(2, 2)

    def run() -> None:
        x = torch.ones(1, 2, requires_grad=True).exp()
        checkpoint(lambda x: layer(x).sin().cos(), x, use_reentrant=use_reentrant).tan().sum().backward()

    found = origins(run, layer)
    assert found["Tensor.cos.0"] == [by("Tensor.sin.0")]
    assert found["Functional.linear.0"][0] == by("Tensor.exp.0")
    assert found["Tensor.tan.0"] == [by("Tensor.cos.0")]
    assert "Tensor.cos.1" not in found


def test_threads_that_work_at_once(origins: Any) -> None:
    start = threading.Barrier(2)

    def work() -> None:
        start.wait()
        value = torch.ones(3)
        for _ in range(50):
            value = value.exp().sin()

    def run() -> None:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = origins(run)
    makers = [found[f"Tensor.sin.{number}"][0].made_by for number in range(100)]
    assert sorted(makers) == sorted(by(f"Tensor.exp.{number}").made_by for number in range(100))


@pytest.mark.parametrize(
    ("task", "common"), [("tensor", {"async_dump": True}), ("statistics", {"async_dump": True}), ("statistics", {})]
)
def test_every_way_to_write(origins: Any, task: str, common: dict[str, Any]) -> None:
    def run() -> None:
        q, k = torch.ones(4).exp().chunk(2)
        torch.cat([k, q], dim=0)
        F.linear(input=q, weight=k[None])

    found = origins(run, task=task, common=common, **({} if common else {"summary_mode": "md5"}))
    q, k = (by("Tensor.chunk.0", f"output.{place}") for place in (0, 1))
    assert found["Torch.cat.0"] == [k, q]
    assert found["Functional.linear.0"] == [q, by("Tensor.__getitem__.0")]


def test_values_in_inference_mode(origins: Any) -> None:
    """They count no versions; what a call writes is known by its name."""

    @torch.inference_mode()
    def run() -> None:
        value = torch.ones(2, 2).exp()
        value[0] = 1
        value.mul_(2)
        value.sin()

    found = origins(run)
    assert found["Tensor.mul_.0"] == [by("Tensor.__setitem__.0")]
    assert found["Tensor.sin.0"] == [by("Tensor.mul_.0")]


class Own(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_tensors_without_memory_of_their_own_have_no_keys(origins: Any) -> None:
    value = torch.randn(2, 3)
    with torch.no_grad():
        others = [
            value.to_sparse(),
            torch.nested.nested_tensor([value, value[:1]]),
            torch.nested.nested_tensor([value, value[:1]], layout=torch.jagged),
        ]

    def run() -> None:
        for tensor in others:
            (tensor * 2).abs()
        torch.vmap(lambda row: row.exp().sin())(value)
        torch.func.grad(lambda x: (x.exp() * x).sum())(value)
        torch.fft.fft(value).conj().tan()
        (value.as_subclass(Own) * 2).cos()

    found = origins(run)
    assert [found[f"Tensor.abs.{number}"] for number in range(3)] == [[UNKNOWN]] * 3
    assert found["Tensor.sin.0"] == found["Tensor.tan.0"] == [UNKNOWN]
    assert found["Tensor.cos.0"][0].made_by.startswith("Tensor.__mul__")
    assert place_of(7) is None


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (lambda x: x[0], lambda x: x[1], False),
        (lambda x: x[:, 0], lambda x: x[:, 1], False),
        (lambda x: x[:, :3], lambda x: x[:, 3:], False),
        (lambda x: x[..., ::2], lambda x: x[..., 1::2], False),
        (lambda x: x[:2], lambda x: x[1:3], True),
        (lambda x: x[:, 1:4], lambda x: x[:, 3:], True),
        (lambda x: x.T, lambda x: x[3, 5], True),
        (lambda x: x.diagonal(), lambda x: x[:, 0], True),
        (lambda x: x.view(torch.int32)[0], lambda x: x[1], True),
    ],
)
def test_overlap_of_parts(left: Any, right: Any, expected: bool) -> None:
    """None is overlooked, as elements that are numbered show."""
    value = torch.arange(24.0).view(4, 6)
    parts = [place_of(part(value)) for part in (left, right)]
    assert all(parts)
    assert [may_overlap(a[2], b[2]) for a, b in (parts, parts[::-1]) if a and b] == [expected] * 2


def test_many_names_of_one_storage_are_bounded() -> None:
    value = torch.zeros(500, 2)
    place = place_of(value)
    assert place is not None
    memory = Memory(place[0], 0, "whole", place[2])
    for row in value:
        part = place_of(row)
        assert part is not None
        memory.name(part[2], "named")
        memory.write(part[2], "row", 0, 0)
    assert max(len(memory.names), len(memory.writes)) <= 65
    assert memory.text(place[2]) == ""
    last = place_of(value[-1])
    assert last is not None
    assert memory.text(last[2]) == "row"


def test_entries_say_no_more_than_is_known(make_debugger: Any, records: Any) -> None:
    """Values that records made carry no keys where they are outputs, and constants none at all."""
    debugger = make_debugger()
    with debugger.collect():
        torch.ones(3).exp().sin()
    entry = records()["Tensor.exp.0.forward"]["input_args"][0]
    assert set(entry) == {"type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad"}
    assert "made_by" not in records()["Tensor.exp.0.forward"]["output"][0]
    assert isinstance(decode_value(entry), TensorValue)
