"""Statistics that are computed after the records: the path of a device, on tensors of the CPU."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from msprobe_collector.dump_format.writing.statistics import statistics_of  # noqa: E402
from msprobe_collector.pytorch import PrecisionDebugger, host_arrays, pending, tensor_values  # noqa: E402
from msprobe_collector.pytorch.host_arrays import host_array  # noqa: E402

#: Operations that bring elements to the host, or wait for them.
_WAITING = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero"}


class Operations(TorchDispatchMode):
    """Counts operations of PyTorch, by name and by those that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.partition(".")[0]
        if not func.is_view:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def waits(self) -> int:
        return sum(count for name, count in self.counts.items() if name in _WAITING)


@pytest.fixture
def _as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "is_on_host", lambda tensor: False)
    monkeypatch.setattr(pending, "_BLOCK", 1 << 14)


@contextmanager
def counted() -> Iterator[Operations]:
    with Operations() as operations:
        yield operations


def values() -> Iterator[tuple[str, object]]:
    torch.manual_seed(0)
    for size in (1, 7, 4096, 4097, 50_000):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            yield f"{dtype} {size}", torch.randn(size).to(dtype)
        yield f"int64 {size}", torch.randint(-9, 9, (size,))
        yield f"bool {size}", torch.rand(size) > 0.5
        yield f"complex {size}", torch.randn(size, dtype=torch.complex64)
        yield f"float8 {size}", torch.randn(size).to(torch.float8_e5m2)
    yield "no dimension", torch.tensor(-2.5)
    yield "wide integers", torch.tensor([2**63 - 1, -(2**63)]).repeat(4096)
    yield "zeros", torch.zeros(5000)
    yield "a mask", torch.full((70, 70), -math.inf).triu(1)
    yield "not finite", torch.tensor([math.nan, math.inf, -math.inf, 1.0]).repeat(2000)
    yield "large", torch.full((5000,), 3e38)
    yield "small", torch.full((5000,), 1e-44)
    yield "transposed", torch.randn(300, 90).t()
    yield "every other column", torch.randn(300, 180)[:, ::2]
    yield "broadcast", torch.randn(300, 1).expand(300, 90)
    yield "conjugated", torch.randn(9000, dtype=torch.complex64).conj()
    yield "negated", torch.randn(9000, dtype=torch.complex64).conj().imag


def bits_of(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("tensor", [pytest.param(tensor, id=name) for name, tensor in values()])
@pytest.mark.usefixtures("_as_on_a_device")
def test_a_device_gives_the_statistics_of_the_host(tensor):
    held = pending.TorchPending()
    number = held.add(tensor)
    ((found_number, found, _),) = held.fetch()
    expected = statistics_of(host_array(tensor.resolve_conj().resolve_neg()))
    assert found_number == number
    if tensor.is_complex():
        assert (found.maximum, found.minimum) == pytest.approx((expected.maximum, expected.minimum), rel=1e-6)
    else:
        assert found[:2] == pytest.approx(expected[:2], rel=0, abs=0, nan_ok=True)
    assert found[4:] == expected[4:]
    if tensor.dtype is torch.bool:
        assert found[2:4] == (None, None)
    elif expected.norm is not None and math.isfinite(expected.norm):
        assert found.norm == pytest.approx(expected.norm, rel=1e-7)
        assert found.mean == pytest.approx(
            expected.mean, rel=1e-7, abs=1e-7 * expected.norm / math.sqrt(tensor.numel())
        )


@pytest.mark.usefixtures("_as_on_a_device")
def test_nothing_waits_and_few_operations_run_until_all_is_fetched():
    held = pending.TorchPending()
    tensors = [tensor for name, tensor in values() if not tensor.is_complex() and not tensor.is_neg()]
    for tensor in tensors:
        before = bits_of(tensor).clone()
        with counted() as operations:
            held.add(tensor)
        # A view that is not dense is halved until its parts are small enough.
        blocks = math.ceil(tensor.numel() / (1 << 14)) if tensor.is_contiguous() else 4
        assert operations.waits == 0
        assert operations.counts.total() <= (8 * blocks if tensor.numel() > 4096 else 1), operations.counts
        assert torch.equal(bits_of(tensor), before)
    assert len(list(held.fetch())) == len(tensors)


def test_memory_that_a_device_does_not_have_costs_statistics_alone(monkeypatch, caplog):
    def refuse(block, **_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(pending, "is_on_host", lambda tensor: False)
    monkeypatch.setattr(pending, "_reduced_block", refuse)
    held = pending.TorchPending()
    for _ in range(3):
        held.add(torch.ones(10_000))
    held.add(torch.ones(3))
    assert [number for number, *_ in held.fetch()] == [3]
    assert caplog.text.count("gives no statistics of some values") == 1


def waits_of(train: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often `train` reads elements of tensors on the host, in the collector too, which works outside of modes."""
    reads = []
    for owner, name in (
        (torch.Tensor, "tolist"),
        (torch.Tensor, "cpu"),
        (host_arrays, "shared"),
        (tensor_values, "shared"),
        (tensor_values, "host_array"),
    ):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, _original=original: reads.append(1) or _original(*args))
    with torch.autograd.profiler.profile() as profile:
        train()
    monkeypatch.undo()
    return len(reads) + sum(event.name.partition("::")[2] in _WAITING for event in profile.function_events)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_step_is_collected_without_a_wait(level, make_debugger, records, monkeypatch):
    def trained(debugger: PrecisionDebugger | None) -> tuple[int, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 80), nn.Linear(80, 80), nn.LayerNorm(80), nn.Dropout(0.1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if debugger is not None:
            debugger.start(model)

        def train() -> None:
            hidden = model(torch.arange(100) % 9)
            loss = (hidden * hidden).masked_fill(hidden > 1, 0).square().mean()
            loss.backward()
            optimizer.step()

        monkeypatch.setattr(pending, "is_on_host", lambda tensor: False)
        monkeypatch.setattr(tensor_values, "is_on_host", lambda tensor: False)
        waits = waits_of(train, monkeypatch)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return waits, [parameter.detach() for parameter in model.parameters()]

    bare, expected = trained(None)
    collected, parameters = trained(make_debugger(level=level))
    assert collected == bare
    assert all(torch.equal(left, right) for left, right in zip(parameters, expected, strict=True))
    texts = json.dumps(list(records(0).values()))
    assert texts.count('"Norm": ') > 20
    assert '"Max": null' not in texts
