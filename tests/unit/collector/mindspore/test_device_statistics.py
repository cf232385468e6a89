"""Statistics that are computed after the records: the path of a device, with MindSpore's operations on the CPU."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, amp, mint, nn, ops  # noqa: E402

from msprobe_collector import PrecisionDebugger  # noqa: E402
from msprobe_collector.dump_format import array_dtype, find_dtype  # noqa: E402
from msprobe_collector.dump_format.sketches import Sketch, distance, row_of  # noqa: E402
from msprobe_collector.dump_format.writing.statistics import statistics_of  # noqa: E402
from msprobe_collector.mindspore import (  # noqa: E402
    device,
    tensor_values,
)

#: Those of the values below.
DTYPES = ("Float32", "BFloat16", "Float16", "Float64", "Int64", "Bool", "Complex64")
#: What brings elements to the host.
_READING = ("asnumpy", "numpy", "get_bytes", "item", "tolist", "__bool__", "__int__", "__float__", "__index__")


@pytest.fixture(autouse=True)
def _synchronous() -> None:
    ms.runtime.launch_blocking()
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture
def _as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tensor_values, "is_on_host", lambda: False)
    monkeypatch.setattr(device, "_BLOCK", 1 << 14)
    tensor_values.mindspore_values.cache_clear()
    yield
    tensor_values.mindspore_values.cache_clear()


def values() -> Iterator[tuple[str, Callable[[], Tensor]]]:
    random = np.random.default_rng(0)
    for size in (1, 7, 4096, 4097, 50_000):
        numbers = random.standard_normal(size).astype(np.float32)
        for dtype in (ms.float32, ms.bfloat16, ms.float16, ms.float64):
            yield f"{dtype} {size}", lambda numbers=numbers, dtype=dtype: ops.cast(Tensor(numbers), dtype)
        yield f"int64 {size}", lambda size=size: Tensor(np.arange(size) % 19 - 9)
        yield f"bool {size}", lambda numbers=numbers: Tensor(numbers > 0.5)
        yield f"complex {size}", lambda numbers=numbers: Tensor(numbers * np.complex64(1 + 2j))
    wide = np.array([2**63 - 1, -(2**63)]).repeat(4096)
    yield "no dimension", lambda: Tensor(-2.5, ms.float32)
    yield "no element", lambda: Tensor(np.zeros((0, 3), np.float32))
    yield "wide integers", lambda: Tensor(wide)
    yield "unsigned", lambda: Tensor(wide.astype(np.uint64))
    yield "zeros", lambda: mint.zeros(5000)
    yield "a mask", lambda: Tensor(np.triu(np.full((70, 70), -math.inf, np.float32), 1))
    yield "not finite", lambda: Tensor(np.array([math.nan, math.inf, -math.inf, 1.0] * 2000, np.float32))
    yield "large", lambda: Tensor(np.full(5000, 3e38, np.float32))
    yield "small", lambda: Tensor(np.full(5000, 1e-44, np.float32))
    matrix = random.standard_normal((300, 180)).astype(np.float32)
    yield "transposed", lambda: Tensor(matrix).T
    yield "every other column", lambda: Tensor(matrix)[:, ::2]
    yield "a view in the middle", lambda: mint.narrow(Tensor(matrix), 1, 3, 90)


CASES = [pytest.param(make, id=name) for name, make in values()]


def array_of(tensor: Tensor) -> np.ndarray:
    array = tensor.asnumpy()
    return array.view(array_dtype(find_dtype(str(tensor.dtype))))  # MindSpore has a bfloat16 of its own


@pytest.mark.parametrize("make", CASES)
@pytest.mark.usefixtures("_as_on_a_device")
def test_a_device_gives_the_statistics_of_the_host(make):
    tensor = make()
    waiting = device.MindSporePending(has_sketches=False)
    number = waiting.add(tensor)
    ((fetched_number, statistics, _),) = waiting.fetch()
    expected = statistics_of(array_of(tensor))
    assert fetched_number == number
    if tensor.is_complex():
        assert statistics[:2] == pytest.approx(expected[:2], rel=1e-6)
    elif tensor.size:
        assert statistics[:2] == pytest.approx(expected[:2], rel=0, abs=0, nan_ok=True)
    assert [type(value) for value in statistics] == [type(value) for value in expected]
    assert statistics[4:] == expected[4:]
    if expected.norm is not None and math.isfinite(expected.norm):
        resolution = 1e-7 * expected.norm / math.sqrt(tensor.size)
        assert statistics.norm == pytest.approx(expected.norm, rel=1e-7)
        assert statistics.mean == pytest.approx(expected.mean, rel=1e-7, abs=resolution)


@pytest.mark.parametrize("make", CASES)
@pytest.mark.usefixtures("_as_on_a_device")
def test_a_device_gives_the_sketch_of_the_host(make):
    tensor = make()
    waiting = device.MindSporePending(has_sketches=True)
    waiting.add(tensor)
    ((_, statistics, sketched),) = waiting.fetch()
    largest = max(abs(statistics.maximum or 0), abs(statistics.minimum or 0))
    array = array_of(tensor)
    if array.dtype.kind in "bfV":  # of many float32 in a row NumPy's sums have lost digits
        array = array.astype(np.float64)
    row, expected = sketched.sketch(largest), row_of(array)
    if row is None:  # the digits of very small numbers are lost in float32
        assert largest < 1e-28
        return
    assert row.not_finite == expected.not_finite
    sketches = [Sketch.of_row(item, tensor.shape) for item in (row, expected)]
    assert distance(*sketches).value <= distance(*sketches).resolution


@pytest.mark.usefixtures("_as_on_a_device")
def test_the_hash_of_a_device_tells_contents_apart():
    numbers = np.random.default_rng(0).standard_normal(9000).astype(np.float32)
    swapped = numbers.copy()
    swapped[[0, 8191]] = swapped[[8191, 0]]
    tensors = [numbers, numbers.copy(), swapped, -numbers, numbers[:5]]
    sums = device.on_host([device.sum_of_bits(Tensor(array)) for array in tensors])
    first, same, *others = (int(array[0]) for array in sums)
    assert first == same
    assert len({first, *others}) == 1 + len(others)


def reads_of(action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """How often `action` reads elements of tensors in this thread."""
    reads, thread = [], threading.get_ident()

    def counted(original):
        def read(*args, **kwargs):
            if threading.get_ident() == thread:
                reads.append(original)
            return original(*args, **kwargs)

        return read

    with monkeypatch.context() as patches:
        for name in _READING:
            if hasattr(Tensor, name):
                patches.setattr(Tensor, name, counted(getattr(Tensor, name)))
        action()
    return len(reads)


@pytest.mark.usefixtures("_as_on_a_device")
def test_all_values_come_in_one_copy(monkeypatch):
    tensors = [make() for _, make in values()]
    waiting = device.MindSporePending(has_sketches=True)
    for tensor in tensors:  # whether the device has the operations for a dtype is asked once
        waiting.add(tensor)
    list(waiting.fetch())
    assert reads_of(lambda: [waiting.add(tensor) for tensor in tensors], monkeypatch) == 0
    assert reads_of(lambda: list(waiting.fetch()), monkeypatch) == 1


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.first, self.second = (
            Parameter(Tensor(random.standard_normal((80, 80)).astype(np.float32) * 0.1), name=name)
            for name in ("first", "second")
        )
        self.inner = nn.ReLU()

    def construct(self, x: Tensor) -> Tensor:
        hidden = self.inner(mint.matmul(x, self.first))
        left, right = mint.chunk(mint.matmul(hidden, self.second), 2, 1)
        return mint.mean(left * left) + mint.sum(right) / right.size


def kinds_of_values() -> None:
    """Calls of all kinds of values."""
    mask = Tensor(np.triu(np.full((70, 70), -math.inf, np.float32), 1))
    mint.add(mint.zeros((70, 70)), mask)
    mint.add(Tensor(-2.5, ms.float32), 1)
    mint.logical_not(mask == 0)
    mint.add(Tensor(np.arange(9000)), 1)
    mint.exp(Tensor(np.ones((300, 90), np.float32)).T[:, ::2])
    for dtype in (ms.bfloat16, ms.float16, ms.float64):
        mint.add(ops.cast(Tensor(np.ones(9000, np.float32)), dtype), 1)


def as_it_is(network: nn.Cell) -> nn.Cell:
    return network


def by_cell(network: nn.Cell) -> nn.Cell:
    return network.to_float(ms.float16)


def automatic(network: nn.Cell) -> nn.Cell:
    return amp.auto_mixed_precision(network, "auto", dtype=ms.float16)


class Training:
    """A training of a few steps; the same at every start."""

    def __init__(self, precision: Callable[[nn.Cell], nn.Cell] = as_it_is) -> None:
        self.network = precision(Network())
        self.batch = Tensor(np.random.default_rng(1).standard_normal((60, 80)).astype(np.float32))
        parameters = self.network.trainable_params()
        self.gradients_of = ms.value_and_grad(self.network, None, parameters)
        self.optimizer = nn.SGD(parameters, 0.1, momentum=0.9)

    def backward(self) -> None:
        kinds_of_values()
        _, self.gradients = self.gradients_of(self.batch)

    def update(self) -> None:
        self.optimizer(self.gradients)


TASKS = {
    "statistics": {},
    "md5": {"summary_mode": "md5"},
    "fingerprint": {"summary_mode": "fingerprint"},
    "sketch": {"summary_mode": "sketch"},
    "tensor": {"task": "tensor"},
    "tensor with sketches": {"task": "tensor", "summary_mode": "sketch"},
    "overflow_check": {"task": "overflow_check", "overflow_nums": 300},
    "async_dump": {"common": {"async_dump": True}},
}
OTHER_CASES = [
    pytest.param(level, task, marks=pytest.mark.slow)
    for level, task in [("L0", "statistics"), ("L1", "statistics"), *(("mix", task) for task in TASKS)]
    if (level, task) not in (("mix", "statistics"), ("mix", "tensor"))
]


@pytest.mark.parametrize(("level", "task"), [("mix", "statistics"), ("mix", "tensor"), *OTHER_CASES])
@pytest.mark.usefixtures("_as_on_a_device")
def test_a_step_is_collected_without_a_wait(level, task, make_debugger, records, monkeypatch):
    def trained(debugger: PrecisionDebugger | None) -> tuple[Training, list[int], list[int], list[int]]:
        training, of_calls, of_updates, of_ends = Training(), [], [], []
        for _ in range(2):
            if debugger is not None:
                debugger.start(training.network)
            of_calls.append(reads_of(training.backward, monkeypatch))
            of_updates.append(reads_of(training.update, monkeypatch))
            if debugger is not None:
                of_ends.append(reads_of(debugger.stop, monkeypatch))
                debugger.step()
        return training, of_calls, of_updates, of_ends

    bare, *_ = trained(None)
    training, of_calls, of_updates, of_ends = trained(make_debugger(level=level, **TASKS[task]))
    for left, right in zip(training.network.trainable_params(), bare.network.trainable_params(), strict=True):
        assert np.array_equal(left.asnumpy(), right.asnumpy())
    assert of_calls[0] <= len(DTYPES)  # the first step learns what the device can, a dtype at a time
    assert of_calls[1] == 0
    # Settings of the optimizer, whatever its parameters are: rate, decay, momentum, steps, and steps for the laws.
    assert of_updates[1] <= 6
    fetches_at_end = task not in ("fingerprint", "overflow_check")  # there the writing thread has the elements
    assert of_ends == [1 + fetches_at_end] * 2  # and the fingerprints of the batch
    for step in range(2):
        text = json.dumps(records(step))
        assert text.count('"Norm": ') == (5 if task == "overflow_check" else {"L0": 24, "L1": 97, "mix": 101}[level])
        assert '"Max": null' not in text


def collected(make_debugger, folder, precision=as_it_is, **keys) -> tuple[dict, dict[str, bytes]]:
    """Records of a step and the files of its tensors."""
    training = Training(precision)
    with make_debugger(level="mix", **keys).collect(training.network):
        training.backward()
        training.update()
    data = json.loads((folder / "dump.json").read_text())["data"]
    return data, {path.name: path.read_bytes() for path in sorted(folder.glob("dump_tensor_data/*"))}


def assert_same(left: object, right: object, norm: float = 0.0) -> None:
    """Assert that a value of a record is that of the other one, means and norms up to rounding."""
    if isinstance(left, dict) and isinstance(right, dict):
        assert left.keys() - {"sketch"} == right.keys() - {"sketch"}
        norm = right["Norm"] if isinstance(right.get("Norm"), float) else norm
        for key in right.keys() - {"sketch"}:
            assert_same(left[key], right[key], norm if key in ("Mean", "Norm") else 0.0)
    elif isinstance(left, list) and isinstance(right, list):
        for item, other in zip(left, right, strict=True):
            assert_same(item, other)
    elif isinstance(right, float):
        assert left == pytest.approx(right, rel=0, abs=1e-7 * norm if math.isfinite(norm) else 0, nan_ok=True)
    else:
        assert left == right


@pytest.mark.parametrize(
    ("task", "precision"),
    [
        ("statistics", as_it_is),
        ("statistics", by_cell),
        pytest.param("statistics", automatic, marks=pytest.mark.slow),
        pytest.param("tensor", by_cell, marks=pytest.mark.slow),
    ],
)
def test_a_device_writes_the_dump_of_the_host(task, precision, make_debugger, request, tmp_path):
    folder = tmp_path / "dump" / "step0" / "proc0"
    expected, files = collected(make_debugger, folder, precision, task=task)
    request.getfixturevalue("_as_on_a_device")
    data, files_of_device = collected(make_debugger, folder, precision, task=task)
    assert list(data) == list(expected)
    assert_same(data, expected)
    assert files_of_device == files


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.usefixtures("_as_on_a_device")
def test_values_are_those_before_the_training_changes_them(task, make_debugger, records):
    small, large = (Parameter(Tensor(np.full(size, 3.0, np.float32)), name=f"of {size}") for size in (5, 9000))
    with make_debugger(level="L1", task=task).collect():
        for parameter in (small, large):
            mint.exp(parameter)
            parameter.set_data(Tensor(np.zeros(parameter.shape, np.float32)))
            ops.assign(parameter, Tensor(np.ones(parameter.shape, np.float32)))
    for number in (0, 1):
        (value,) = records()[f"Mint.exp.{number}.forward"]["input_args"]
        assert (value["Max"], value["Min"], value["Mean"]) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.usefixtures("_as_on_a_device")
def test_a_write_that_no_record_shows_is_told_by_the_content(task, make_debugger, records):
    with make_debugger(level="L1", task=task).collect():
        for size in (12, 9000):
            y = mint.square(Tensor(np.ones(size, np.float32)))
            mint.exp(y)
            y.asnumpy()[0] = 7.0
            mint.exp(y)
    arguments = [records()[f"Mint.exp.{number}.forward"]["input_args"][0] for number in range(4)]
    assert [argument["made_by"].split(".")[2] for argument in arguments] == ["0", "0", "1", "1"]
    assert [argument.get("changed_since") for argument in arguments] == [None, True, None, True]


@pytest.mark.usefixtures("_as_on_a_device")
def test_records_are_whole_as_far_as_rows_have_come(make_debugger, step_folder, monkeypatch):
    monkeypatch.setattr(device, "_MOST_VALUES", 6)
    x = Tensor(np.ones(3, np.float32))
    debugger = make_debugger(level="L1")
    debugger.start()
    for _ in range(4):
        mint.add(x, 1)
    data = json.loads((step_folder() / "dump.json").read_text())["data"]  # as after a kill
    debugger.stop()
    assert list(data) == ["Mint.add.0.forward", "Mint.add.1.forward", "Mint.add.2.forward"]
    assert data["Mint.add.2.forward"]["output"][0]["Max"] == 2.0


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.usefixtures("_as_on_a_device")
def test_what_is_left_of_a_gradient_is_null_where_nothing_is(task, make_debugger, records):
    def call(x):
        made = x * 2
        return made * 3, made

    module = SimpleNamespace(call=call)
    for step, factor in enumerate((0, 7)):
        debugger = make_debugger(task=task)
        debugger.set_init_step(step)
        debugger.register_custom_api(module, "call", "Custom")

        def loss(x, factor=factor):
            whole, part = module.call(x)
            return mint.sum(whole) + (mint.sum(part) * factor if factor else 0)

        with debugger.collect():
            ms.grad(loss)(Tensor(np.ones((80, 80), np.float32)))
        debugger.restore_custom_api(module, "call")
        came = records(step)["Custom.call.0.backward"]["input"]
        assert [value and value["Max"] for value in came] == [1.0, factor or None]


@pytest.mark.usefixtures("_as_on_a_device")
def test_what_a_device_cannot_compute_is_read_at_once(make_debugger, records, monkeypatch, caplog):
    def refuse(dtype):
        raise RuntimeError("unsupported")

    monkeypatch.setattr(device, "_wide", refuse)
    with make_debugger(level="L1").collect():
        for _ in range(2):
            mint.exp(Tensor(np.ones(9000, np.float32)))
    assert records()["Mint.exp.1.forward"]["output"][0]["Max"] == pytest.approx(math.e)
    assert caplog.text.count("whose elements are waited for") == 1


@pytest.mark.usefixtures("_as_on_a_device")
def test_a_device_that_is_lost_costs_statistics_and_is_said_once(make_debugger, records, monkeypatch, caplog):
    def lost(*_):
        raise RuntimeError("the device is gone")

    with make_debugger(level="L1").collect():
        for _ in range(2):
            mint.exp(Tensor(np.ones(3, np.float32)))
        monkeypatch.setattr(device, "on_host", lost)
    assert [entry["output"][0]["Max"] for entry in records().values()] == [None, None]
    assert caplog.text.count("the device is gone") == 1
