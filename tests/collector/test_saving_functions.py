"""save, save_grad and step: files of tensors from PyNative code and from inside graphs."""

from __future__ import annotations

import logging

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn

from msprobe_collector import save, save_grad, step
from msprobe_collector.mindspore.static_graph.files import SAVED

pytestmark = pytest.mark.graph_compiler

X = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)


@pytest.fixture(params=["pynative", "jit", "graph"])
def how(request):
    if request.param == "graph":
        ms.set_context(mode=ms.GRAPH_MODE)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(autouse=True)
def first_step(monkeypatch):
    monkeypatch.setattr(SAVED, "_step", 0)
    monkeypatch.setattr(SAVED, "_next_id", 0)
    monkeypatch.setattr(SAVED, "_warned", set())


class Network(nn.Cell):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def construct(self, x):
        y = x * 2
        save(self.folder, "y", y)
        y = save_grad(self.folder, "y", y)
        return (y * y).sum()


def as_asked(cell, how):
    if how != "jit":
        return cell

    @ms.jit
    def compiled(x):
        return cell(x)

    return compiled


def files(folder):
    return {path.relative_to(folder).as_posix(): np.load(path) for path in sorted(folder.rglob("*.npy"))}


def test_values_and_gradients_go_to_the_folder_of_their_step(tmp_path, how):
    network = as_asked(Network(str(tmp_path)), how)
    for factor in (1, 10):
        loss, gradient = ms.value_and_grad(network)(Tensor(X * factor))
        assert loss.asnumpy() == pytest.approx(np.sum((2 * X * factor) ** 2))
        np.testing.assert_allclose(gradient.asnumpy(), 8 * X * factor)
        step()
    found = files(tmp_path)
    assert list(found) == [
        "step0/rank0/y_float32_0.npy",
        "step0/rank0/y_grad_float32_1.npy",
        "step1/rank0/y_float32_2.npy",
        "step1/rank0/y_grad_float32_3.npy",
    ]
    np.testing.assert_array_equal(found["step0/rank0/y_float32_0.npy"], 2 * X)
    np.testing.assert_array_equal(found["step0/rank0/y_grad_float32_1.npy"], 4 * X)
    np.testing.assert_array_equal(found["step1/rank0/y_float32_2.npy"], 20 * X)
    np.testing.assert_array_equal(found["step1/rank0/y_grad_float32_3.npy"], 40 * X)


class Nested(nn.Cell):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def construct(self, x):
        save(self.folder, "state", (x, {"k": x.astype(ms.bfloat16), "l": [x > 0, x.astype(ms.int32)]}, x.sum()))
        return x


def test_values_inside_others_are_named_by_their_place(tmp_path, how):
    as_asked(Nested(str(tmp_path)), how)(Tensor(X))
    step()
    found = files(tmp_path)
    assert list(found) == [
        "step0/rank0/state.0_float32_0.npy",
        "step0/rank0/state.1.k_float32_1.npy",
        "step0/rank0/state.1.l.0_bool_2.npy",
        "step0/rank0/state.1.l.1_int32_3.npy",
        "step0/rank0/state.2_float32_4.npy",
    ]
    values = list(found.values())
    np.testing.assert_array_equal(values[1], X)  # exact in bfloat16
    np.testing.assert_array_equal(values[2], X > 0)
    np.testing.assert_array_equal(values[3], X.astype(np.int32))
    assert values[4].shape == ()
    assert values[4] == X.sum()


def test_a_large_bfloat16_is_written_as_float32(tmp_path):
    save(str(tmp_path), "large", Tensor(np.ones((300, 300), np.float32)).astype(ms.bfloat16))
    (value,) = files(tmp_path).values()
    assert value.dtype == np.float32
    assert value.shape == (300, 300)
    assert (value == 1).all()


class Branching(nn.Cell):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def construct(self, x):
        for index in range(3):
            x = x + index
            save(self.folder, "loop", x)
        if x.sum() > 1000:
            save(self.folder, "large", x)
        return x


def test_only_what_runs_is_saved(tmp_path, how):
    network = as_asked(Branching(str(tmp_path)), how)
    network(Tensor(X))
    step()
    network(Tensor(X * 1000))
    step()
    names = [name.rpartition("_float32")[0] for name in files(tmp_path)]
    assert sorted(names) == sorted(["step0/rank0/loop"] * 3 + ["step1/rank0/loop"] * 3 + ["step1/rank0/large"])


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [(7, "x", "the folder 7 is not text"), ("f", 3, "the name 3 is not text"), ("f", "a/b", "cannot be a file name")],
)
def test_what_cannot_be_a_file_is_warned_about(tmp_path, monkeypatch, caplog, folder, name, expected):
    monkeypatch.chdir(tmp_path)
    x = Tensor(X)
    with caplog.at_level(logging.WARNING):
        save(folder, name, x)
        assert save_grad(folder, name, x) is x
    assert expected in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_keys_of_a_dict_lead_nowhere_else(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        save(str(tmp_path / "saved"), "state", {"../../k": Tensor(X), "k": Tensor(X)})
    assert list(files(tmp_path)) == ["saved/step0/rank0/state.k_float32_0.npy"]
    assert "'state.../../k' cannot be a file name" in caplog.text


def test_a_folder_that_is_a_file_costs_the_files_and_nothing_else(tmp_path, how, caplog):
    (tmp_path / "taken").write_text("mine")
    with caplog.at_level(logging.WARNING):
        loss, _ = ms.value_and_grad(as_asked(Network(str(tmp_path / "taken")), how))(Tensor(X))
        assert loss.asnumpy() == pytest.approx(np.sum((2 * X) ** 2))
        step()
        for _ in range(3):
            save(str(tmp_path / "taken"), "y", Tensor(X))
    assert caplog.text.count("'y' cannot be saved") == 1
    assert (tmp_path / "taken").read_text() == "mine"


def test_what_has_no_gradient_is_passed_on(tmp_path, caplog):
    integers = Tensor(np.arange(3))
    with caplog.at_level(logging.WARNING):
        assert save_grad(str(tmp_path), "i", integers) is integers
        assert save_grad(str(tmp_path), "i", 3) == 3
    assert "which has no gradient" in caplog.text


def test_names_bound_in_a_network_that_also_uses_mint(tmp_path):
    def forward(x):
        y = save_grad(str(tmp_path), "hidden", mint.exp(x))
        return mint.sum(y * 3)

    ms.value_and_grad(forward)(Tensor(X))
    (gradient,) = files(tmp_path).values()
    np.testing.assert_array_equal(gradient, np.full((2, 2), 3, np.float32))
