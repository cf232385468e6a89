"""Statistics that are computed after the records: the path of a device, on tensors of the CPU."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from msprobe_collector.dump_format.writing.statistics import statistics_of  # noqa: E402
from msprobe_collector.pytorch import (  # noqa: E402  # noqa: E402
    PrecisionDebugger,
    device as host_arrays,
    device as pending,
    one_pass,
    tensor_values,
)
from msprobe_collector.pytorch.device import host_array  # noqa: E402

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


def test_a_device_that_is_lost_costs_statistics_and_is_said_once(monkeypatch, caplog):
    def lost(*_):
        raise RuntimeError("CUDA error: the device is gone")

    monkeypatch.setattr(pending, "is_on_host", lambda tensor: False)
    held = pending.TorchPending()
    held.add(torch.ones(3))
    monkeypatch.setattr(pending, "host_arrays", lost)
    assert list(held.fetch()) == []
    monkeypatch.setattr(pending, "_pieces", lost)
    assert held.add(torch.ones(10_000)) == 1
    assert list(held.fetch()) == []
    assert caplog.text.count("the device is gone") == 1


def waits_of(train: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often `train` reads elements of tensors on the host, in the collector too, which works outside of modes."""
    reads, thread = [], threading.get_ident()

    def seen(original):
        def read(*args, **kwargs):
            if threading.get_ident() == thread:
                reads.append(original)
            return original(*args, **kwargs)

        return read

    for owner, name in (
        (torch.Tensor, "tolist"),
        (torch.Tensor, "cpu"),
        (host_arrays, "shared"),
        (tensor_values, "shared"),
        (tensor_values, "host_array"),
    ):
        monkeypatch.setattr(owner, name, seen(getattr(owner, name)))
    with torch.autograd.profiler.profile() as profile:
        train()
    events = [event for event in profile.function_events if event.name.partition("::")[2] in _WAITING]
    return len(reads) + len(events)


def kinds_of_values() -> None:
    """Calls of all kinds of values."""
    zeros, mask = torch.zeros(70, 70), torch.full((70, 70), -math.inf).triu(1)
    torch.add(zeros, mask).mul_(2)
    torch.add(torch.tensor(-2.5), torch.ones(()))
    torch.add(torch.zeros(0, 3), 1)
    torch.logical_not(zeros.bool())
    torch.add(torch.arange(9000), torch.ones(9000, dtype=torch.int8))
    torch.randn(9000).to(torch.float8_e5m2).clone()
    torch.exp(torch.randn(300, 90).t()[:, ::2])
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64):
        torch.exp(torch.randn(9000).to(dtype))
    torch.full((70, 70), torch.finfo(torch.float32).min).add(1)


class FakeDevice:
    """What `torch.get_device_module` gives for tensors of the CPU: streams, in whose order things happen at once."""

    def __init__(self) -> None:
        self.order = []

    def Stream(self, device):
        return SimpleNamespace(
            wait_stream=lambda other: self.order.append("waits for the training"),
            record_event=lambda: SimpleNamespace(synchronize=lambda: self.order.append("arrives")),
        )

    def current_stream(self, device):
        return None

    def stream(self, side):
        return nullcontext()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """Tensors of the CPU are taken for those of a device."""
    fake = FakeDevice()
    for module in (pending, tensor_values, host_arrays):
        monkeypatch.setattr(module, "is_on_host", lambda tensor: False, raising=False)
    monkeypatch.setattr(pending, "has_pinned_memory", lambda: True)
    monkeypatch.setattr(torch, "get_device_module", lambda place: fake)
    monkeypatch.setattr(host_arrays, "_pinned", torch.empty_like)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, side: None)
    monkeypatch.setattr(host_arrays, "_streams", {})
    return fake


TASKS = {
    "statistics": {},
    "md5": {"summary_mode": "md5"},
    "fingerprint": {"summary_mode": "fingerprint"},
    "sketch": {"summary_mode": "sketch"},
    "tensor": {"task": "tensor"},
    "tensor with sketches": {"task": "tensor", "summary_mode": "sketch"},
    "overflow_check": {"task": "overflow_check", "overflow_nums": 3},
}


@pytest.mark.parametrize(
    ("level", "task"), [*((level, "statistics") for level in ("L0", "L1", "mix")), *(("mix", task) for task in TASKS)]
)
@pytest.mark.usefixtures("device")
def test_a_step_is_collected_without_a_wait(level, task, make_debugger, records, monkeypatch):
    def trained(debugger: PrecisionDebugger | None) -> tuple[int, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 80), nn.Linear(80, 80), nn.LayerNorm(80), nn.Dropout(0.1))
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        if debugger is not None:
            debugger.start(model)

        def train() -> None:
            kinds_of_values()
            hidden = checkpoint(model, torch.arange(100) % 9, use_reentrant=False)
            left, right = (hidden * hidden).masked_fill(hidden > 1, 0).chunk(2)
            (left.square().mean() + (right / right.detach().norm()).sum()).backward()
            optimizer.step()

        with monkeypatch.context() as patches:
            waits = waits_of(train, patches)
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return waits, [parameter.detach() for parameter in model.parameters()]

    bare, expected = trained(None)
    collected, parameters = trained(make_debugger(level=level, **TASKS[task]))
    assert collected == bare
    assert all(torch.equal(left, right) for left, right in zip(parameters, expected, strict=True))
    texts = json.dumps(list(records(0).values()))
    assert texts.count('"Norm": ') > (1 if task == "overflow_check" else 20)
    # Nothing else than what is empty, of booleans or out of range is without numbers.
    entries = [entry for entry in texts.split('{"type": "torch.Tensor"') if '"Max": null' in entry]
    assert all('"shape": [0, 3]' in entry for entry in entries)


def test_elements_of_a_device_are_those_that_the_call_had(device, make_debugger, step_folder):
    x = torch.randn(300, 40)
    before = x.clone()
    with make_debugger(level="L1", task="tensor").collect():
        torch.exp(x).zero_()
        x.add_(1)
    folder = step_folder() / "dump_tensor_data"
    saved = [torch.load(folder / f"Torch.exp.0.forward.{place}.0.pt") for place in ("input", "output")]
    assert torch.equal(saved[0], before)
    assert torch.equal(saved[1], torch.exp(before))
    assert device.order[0] == "waits for the training"
    assert "arrives" in device.order


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.usefixtures("device")
def test_what_is_left_of_a_gradient_is_null_where_nothing_is(task, make_debugger, records):
    def call(x):
        made = x * 2
        return made * 3, made

    module = SimpleNamespace(call=call)
    for step, factor in enumerate((0, 7)):
        debugger = make_debugger(task=task)
        debugger.set_init_step(step)
        debugger.register_custom_api(module, "call", "Custom")
        with debugger.collect():
            whole, part = module.call(torch.ones(80, 80, requires_grad=True))
            (whole.sum() + (factor and part.sum() * factor)).backward()
        debugger.restore_custom_api(module, "call")
        came = records(step)["Custom.call.0.backward"]["input"]
        assert [value and value["Max"] for value in came] == [1.0, factor or None]


INTERPRETED = """
import math, warnings
from test_pending_statistics import one_pass, pending, torch, values
warnings.simplefilter("ignore")
pending.is_on_host = lambda tensor: False
one_pass._DEVICES = {"cpu"}
held, count = pending.TorchPending(has_sketches=True), 0
for name, tensor in values():
    if 4096 < tensor.numel() < 30_000 and tensor.dtype in one_pass._FLOATS | one_pass._INTEGERS:
        results = []
        for one_pass._DEVICES in ({"cpu"}, set()):
            held.add(tensor)
            ((_, found, sketched),) = held.fetch()
            row = sketched.sketch(None)
            results.append([*found, *(row.not_finite if row else ())])
        for left, right in zip(*results):
            is_same = left == right or (left != left and right != right)
            assert is_same or math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-14), (name, results)
        count += 1
assert not one_pass._failed
print(count)
"""


@pytest.mark.slow
def test_the_kernel_gives_the_same_numbers():
    """In a process of its own, since Triton asks when it is loaded whether it is to interpret."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", INTERPRETED]
    assert int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout) > 10


def test_the_kernel_compiles_for_a_device(monkeypatch, tmp_path):
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    source = Path(one_pass.__file__).with_name("triton_kernel.py")
    kernel = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("kernel", source))
    spec.loader.exec_module(kernel)
    signature = {"source": "*bf16", "parts": "*fp64", "count": "i64", "BLOCK": "constexpr"}
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = ASTSource(kernel.reduce, signature=signature, constexprs={(3,): 1024})
    assert triton.compile(made, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


def test_calls_in_the_capture_of_a_graph_are_not_read(device, make_debugger, records, monkeypatch, caplog):
    class Graph:
        def capture_begin(self, pool=None):
            return pool

        def capture_end(self):
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    x = torch.randn(5, requires_grad=True)
    with make_debugger(level="L1").collect():
        torch.exp(x)
        for _ in range(2):
            graph = Graph()
            assert graph.capture_begin(pool=3) == 3
            torch.sin(x).sum().backward()
            graph.capture_end()
        torch.cos(x)
    assert {name.split(".")[1] for name in records(0)} == {"exp", "cos"}
    assert caplog.text.count("the capture of a graph") == 1
    assert vars(Graph)["capture_end"].__name__ == "capture_end"
    assert not hasattr(Graph.capture_end, "__wrapped__")
