"""Calls in threads: of the script, of pools, of PyTorch's engine; and those that are no calls of the script."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn, overrides

from msprobe_collector.dump_format import Dump


def in_thread(work: Any, *args: Any) -> None:
    thread = threading.Thread(target=work, args=args)
    thread.start()
    thread.join()
    assert "run" not in vars(thread)


class OwnThread(threading.Thread):
    def __init__(self, work: Any) -> None:
        super().__init__()
        self.work = work

    def run(self) -> None:
        self.work()


def test_a_forward_in_a_thread_is_recorded_as_one_here(make_debugger, records, step_folder) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
            self.is_threaded = False

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            found: list[torch.Tensor] = []

            def work() -> None:
                found.append(torch.relu(self.other(self.one(value).contiguous())))

            in_thread(work) if self.is_threaded else work()
            return found[0] * 2

    torch.manual_seed(0)
    net, start = nn.Sequential(Parts()), torch.randn(3, 4, requires_grad=True)
    found = []
    for is_threaded in (False, True):
        net[0].is_threaded = is_threaded
        debugger = make_debugger(level="mix", task="tensor")
        with debugger.collect(net, rank_id=0):
            x = start
            for _ in range(20):  # so that nodes of this thread have greater numbers than those of the other
                x = x + 0.01
            net(x).sum().backward()
        found.append((records(), json.loads((step_folder() / "construct.json").read_text())))
    (here, parents), (there, parents_there) = found
    assert there == here
    assert parents_there == parents
    assert "Functional.linear.1.backward" in there


@pytest.mark.parametrize(
    "run",
    [
        in_thread,
        lambda work: in_thread(lambda: in_thread(work)),
        lambda work: [OwnThread(work)][0].start(),
        lambda work: ThreadPoolExecutor(1).submit(work).result(),
        lambda work: list(ThreadPoolExecutor(2).map(lambda _: work(), [1])),
    ],
    ids=["thread", "nested", "subclass", "submit", "map"],
)
def test_ways_to_run_in_threads(run: Any, make_debugger, records) -> None:
    debugger = make_debugger()
    done = threading.Event()

    def work() -> None:
        torch.relu(torch.ones(2))
        done.set()

    with debugger.collect():
        run(work)
        assert done.wait(60)
    assert [name for name in records() if "relu" in name] == ["Torch.relu.0.forward"]


def test_a_pool_that_was_there_before_and_is_there_afterwards(make_debugger, records) -> None:
    before = threading.Thread.start, ThreadPoolExecutor.submit
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        debugger = make_debugger()
        with debugger.collect():
            pool.submit(torch.relu, torch.ones(2)).result()  # a function of PyTorch itself
            pool.submit(lambda: torch.sin(torch.ones(2))).result()
        assert (threading.Thread.start, ThreadPoolExecutor.submit) == before
        assert pool.submit(overrides._len_torch_function_stack).result() == 0
        pool.submit(lambda: torch.cos(torch.ones(2))).result()
    assert "Torch.sin.0.forward" in records()
    assert not [name for name in records() if "cos" in name]


def test_many_threads_at_once_lose_no_record(make_debugger, records, step_folder) -> None:
    debugger = make_debugger(task="tensor")
    calls, threads = 40, 6
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        start.wait()
        for step in range(calls):
            torch.add(torch.full((3,), float(number)), step)

    with debugger.collect():
        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    data = {name: record for name, record in records().items() if name.startswith("Torch.add")}
    assert set(data) == {f"Torch.add.{number}.forward" for number in range(calls * threads)}
    sums = [record["input_args"][0]["Max"] + record["input_args"][1]["value"] for record in data.values()]
    assert sums == [record["output"][0]["Max"] for record in data.values()]
    assert sorted(sums) == sorted(float(number + step) for number in range(threads) for step in range(calls))
    assert Dump(step_folder() / "dump.json").problem == ""


def test_services_of_pytorch_and_python_leave_no_records(make_debugger, records) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, num_workers=1)
    debugger = make_debugger()
    with debugger.collect():
        for batch in loader:  # it draws a seed in this thread
            torch.sin(batch)
    assert set(records()) == {"Tensor.random_.0.forward", "Torch.sin.0.forward", "Torch.sin.1.forward"}


def test_an_error_in_a_thread_is_the_script_s(make_debugger) -> None:
    debugger = make_debugger()
    with debugger.collect(), ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="shape"):
        pool.submit(lambda: torch.ones(3).view(7)).result()


class Deep(torch.autograd.Function):
    """Its backward runs another backward; more than 60 of them inside each other go on in threads of the engine."""

    seen: set[int] = set()

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, depth: int) -> torch.Tensor:
        ctx.depth = depth
        return value * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        Deep.seen.add(threading.get_ident())
        if ctx.depth:
            with torch.enable_grad():
                leaf = torch.ones(2, requires_grad=True)
                Deep.apply(leaf, ctx.depth - 1).sum().backward()
        return torch.cos(gradient), None


def test_calls_in_threads_of_the_engine_are_recorded(make_debugger, records, tmp_path: Path) -> None:
    debugger = make_debugger()
    with debugger.collect():
        Deep.apply(torch.ones(2, requires_grad=True), 70).sum().backward()
    assert len(Deep.seen) > 1, "the engine made no thread"
    assert sum(name.startswith("Torch.cos.") for name in records()) == 71
    assert not list(tmp_path.rglob("dump_error_info.log"))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        return value * value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (value,) = ctx.saved_tensors
        return F.relu(gradient) * 2 * torch.sin(value)


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_backward_of_an_own_function(create_graph: bool, make_debugger, records) -> None:
    debugger = make_debugger()
    x = torch.randn(3, requires_grad=True)
    with debugger.collect():
        y = Scale.apply(x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=create_graph)
        if create_graph:
            gradient.square().sum().backward()
    names = list(records())
    assert "Functional.relu.0.forward" in names
    assert "Torch.sin.0.forward" in names
    assert ("Torch.sin.0.backward" in names) is create_graph
