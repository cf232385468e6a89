"""Two checkpoints in other layouts, names and dtypes; written and compared without a framework."""

from __future__ import annotations

import json
import threading
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from msprobe_checkpoints import comparison
from msprobe_checkpoints.comparison import ComparedTensor, compare
from msprobe_checkpoints.folders import read_checkpoint
from msprobe_checkpoints.layouts import TensorLayout
from pytest_msprobe.__main__ import main

CODES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "int64": "I64", "float16": "F16", "bool": "BOOL"}
State = dict[str, np.ndarray]


def write(path: Path, state: State) -> Path:
    """A safetensors file."""
    header, at = {}, 0
    for name, array in state.items():
        places = [at, at + array.nbytes]
        header[name] = {"dtype": CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": places}
        at += array.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in state.values():
            file.write(array.tobytes())
    return path


def compared(folder: Path, target: State, golden: State) -> ComparedTensor:
    sides = [read_checkpoint(write(folder / name, state)) for name, state in (("a", target), ("b", golden))]
    return compare(*sides, lambda done, total: None)


def normal(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def layer(index: int, *, heads: int = 4, groups: int = 2, size: int = 16) -> State:
    """Query, key and value of grouped attention, a gated MLP and a norm, with names as HuggingFace's."""
    prefix = f"model.layers.{index}"
    state = {
        f"{prefix}.self_attn.q_proj.weight": normal(heads * 8, size, seed=10 * index),
        f"{prefix}.self_attn.k_proj.weight": normal(groups * 8, size, seed=10 * index + 1),
        f"{prefix}.self_attn.v_proj.weight": normal(groups * 8, size, seed=10 * index + 2),
        f"{prefix}.mlp.gate_proj.weight": normal(40, size, seed=10 * index + 3),
        f"{prefix}.mlp.up_proj.weight": normal(40, size, seed=10 * index + 4),
        f"{prefix}.mlp.down_proj.weight": normal(size, 40, seed=10 * index + 5),
        f"{prefix}.input_layernorm.weight": np.ones(size, np.float32),
    }
    return state | {
        name.replace("weight", "bias"): normal(len(state[name]), seed=len(name)) for name in list(state)[:3]
    }


def grouped(parts: list[np.ndarray], groups: int) -> np.ndarray:
    """Parts interleaved in groups of rows, as Megatron has query, key and value."""
    cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(cut, axis=1).reshape(-1, *parts[0].shape[1:])


def fused(state: State, *, groups: int = 2) -> State:
    """The layers of `layer` as Megatron holds them."""
    tensors: State = {}
    for index in sorted({name.split(".")[2] for name in state}):
        old, new = f"model.layers.{index}", f"decoder.layers.{index}"
        for kind in ("weight", "bias"):
            qkv = [state[f"{old}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
            tensors[f"{new}.self_attention.linear_qkv.{kind}"] = grouped(qkv, groups)
        gate_up = [state[f"{old}.mlp.{name}_proj.weight"] for name in ("gate", "up")]
        tensors[f"{new}.mlp.linear_fc1.weight"] = np.concatenate(gate_up)
        tensors[f"{new}.mlp.linear_fc2.weight"] = state[f"{old}.mlp.down_proj.weight"]
        tensors[f"{new}.input_layernorm.weight"] = state[f"{old}.input_layernorm.weight"]
    return tensors


MODEL = layer(0) | layer(1) | layer(2)


def test_equal_checkpoints_are_equal(tmp_path: Path) -> None:
    result = compared(tmp_path, MODEL, MODEL)
    assert (result.exit_code, len(result.compared)) == (0, len(MODEL))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_target", [True, False])
def test_fused_layers_are_found_and_equal(tmp_path: Path, groups: int, is_target: bool) -> None:
    sides = [MODEL, fused(MODEL, groups=groups)]
    result = compared(tmp_path, *sides[:: -1 if is_target else 1])
    assert result.exit_code == 0
    assert sum("parts" in difference.how for difference in result.compared) == 9
    words = {difference.how for difference in result.compared if "linear_qkv" in difference.name}
    assert words == {"3 parts along dimension 0" + (", in 2 groups" if groups == 2 else "")}


def test_one_element_of_a_fused_layer_is_told(tmp_path: Path) -> None:
    changed = {name: array.copy() for name, array in MODEL.items()}
    changed["model.layers.1.self_attn.k_proj.weight"][5, 3] += 0.5
    result = compared(tmp_path, fused(changed), MODEL)
    (wrong,) = result.differing
    assert (wrong.name, wrong.unequal) == ("decoder.layers.1.self_attention.linear_qkv.weight", 1)
    assert wrong.golden == tuple(f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv")
    assert wrong.max_abs == pytest.approx(0.5)
    whole = fused(MODEL)["decoder.layers.1.self_attention.linear_qkv.weight"]
    assert wrong.relative == pytest.approx(0.5 / np.linalg.norm(whole))


def test_layouts_are_found_in_checkpoints_of_other_steps(tmp_path: Path) -> None:
    later = {name: array + 0.05 * normal(*array.shape, seed=99) for name, array in MODEL.items()}
    result = compared(tmp_path, fused(later), MODEL)
    assert not result.only[0]
    assert not result.only[1]
    assert len(result.differing) == len(result.compared) == 15
    for difference in result.compared:
        assert {name.split(".")[2] for name in (*difference.target, *difference.golden)} == {
            difference.name.split(".")[2]
        }
        assert 0.03 < difference.relative < 0.07


def test_models_without_relation_are_not_joined(tmp_path: Path) -> None:
    other = {name: normal(*array.shape, seed=500 + index) for index, (name, array) in enumerate(fused(MODEL).items())}
    result = compared(tmp_path, other, MODEL)
    assert result.compared == []
    assert (len(result.only[0]), len(result.only[1])) == (len(other), len(MODEL))
    assert result.exit_code == 1


QKV = [normal(16, 24, seed=seed) for seed in range(3)]
EXPERTS = [normal(6, 24, seed=seed) for seed in range(12)]
LAYOUTS: dict[str, tuple[State, State, str]] = {
    "transposed": ({"w": normal(6, 9)}, {"w": normal(6, 9).T.copy()}, "transposed"),
    "square and transposed": (
        {f"l.{index}.w": normal(9, 9, seed=index) for index in range(2)},
        {f"l.{index}.w": normal(9, 9, seed=index).T.copy() for index in range(2)},
        "transposed",
    ),
    "transposed, of another name": ({"w": normal(6, 9)}, {"x": normal(6, 9).T.copy()}, "transposed, found by content"),
    "a dimension of 1 more": ({"w": normal(6, 9).reshape(6, 1, 9)}, {"w": normal(6, 9)}, ""),
    "another shape": ({"w": normal(6, 9).reshape(3, 18)}, {"w": normal(6, 9)}, "shapes (3, 18) and (6, 9)"),
    "Conv1D": (
        {"h.0.attn.c_attn.weight": np.concatenate(QKV).T.copy()},
        {f"h.0.attn.{name}.weight": part for name, part in zip("qkv", QKV)},
        "3 parts along dimension 0 of the transposed matrix",
    ),
    "side by side": (
        {"l.0.w": np.concatenate(QKV, 1)},
        {f"rank{index}.l.0.w": part for index, part in enumerate(QKV)},
        "3 parts along dimension 1",
    ),
    "stacked experts": (
        {"l.0.experts.w": np.stack(EXPERTS)},
        {f"l.0.experts.{index}.w": part for index, part in enumerate(EXPERTS)},
        "found by content",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(tmp_path: Path, name: str) -> None:
    target, golden, how = LAYOUTS[name]
    result = compared(tmp_path, target, golden)
    assert {(difference.how, difference.unequal) for difference in result.compared} == {(how, 0)}
    assert result.exit_code == 0


NAMES: dict[str, tuple[list[str], list[str]]] = {
    "equal": (["a.weight", "b.bias"], ["a.weight", "b.bias"]),
    "wrapped": (["module.a.weight", "module._orig_mod.b.bias"], ["a.weight", "b.bias"]),
    "a prefix": (["model.a.0.weight", "model.a.1.weight"], ["a.0.weight", "a.1.weight"]),
    "the model before the average of it": (["ema.a.weight", "model.a.weight"], ["a.weight"]),
    "MindSpore": (
        ["norm.gamma", "norm.beta", "norm.moving_mean", "norm.moving_variance", "e.embedding_table"],
        ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "e.weight"],
    ),
    "MindSpore, with a prefix": (["norm.gamma", "norm.beta"], ["model.norm.weight", "model.norm.bias"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_names(tmp_path: Path, case: str) -> None:
    """Contents are all equal here: only names can tell."""
    target, golden = NAMES[case]
    result = compared(tmp_path, *({name: np.ones(3, np.float32) for name in names} for names in (target, golden)))
    pairs = {(*difference.target, *difference.golden) for difference in result.compared}
    kept = target[1:] if len(target) > len(golden) else target
    assert pairs == set(zip(kept, golden))
    assert [name for name, _, _ in result.only[0]] == target[: len(target) - len(golden)]


def test_moments_are_not_taken_for_their_parameter(tmp_path: Path) -> None:
    target = {"moment1.a.w": np.zeros((2, 2), np.float32), "a.w": normal(2, 2)}
    result = compared(tmp_path, target, {"a.w": normal(2, 2)})
    assert [difference.target for difference in result.compared] == [("a.w",)]
    assert result.states == (["moment1.a.w"], [])


def test_a_cast_is_told_from_another_difference(tmp_path: Path) -> None:
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in MODEL.items()}
    result = compared(tmp_path, rounded, MODEL)
    assert result.exit_code == 0
    assert all(difference.is_cast for difference in result.compared)
    rounded["model.layers.0.mlp.up_proj.weight"][0, 0] += 1
    result = compared(tmp_path, rounded, MODEL)
    assert [difference.name for difference in result.differing] == ["model.layers.0.mlp.up_proj.weight"]
    assert result.exit_code == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_figures_are_those_of_float64(tmp_path: Path, dtype: type) -> None:
    """A tensor of several blocks, of which some are equal."""
    right = normal(700, 1000).astype(dtype)
    wrong = right.copy()
    wrong[600:] = (wrong[600:].astype(np.float64) * 1.01).astype(dtype)
    wrong[3, 4], right[3, 5], wrong[5, 6], right[5, 6] = np.nan, np.inf, np.nan, np.nan
    (difference,) = compared(tmp_path, {"w": wrong}, {"w": right}).compared
    a, b = wrong.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    assert difference.unequal == int(((a != b) & ~(np.isnan(a) & np.isnan(b))).sum())
    assert difference.max_abs == np.abs(a - b)[finite].max()
    whole = np.linalg.norm(b[np.isfinite(b)])
    assert difference.relative == pytest.approx(np.linalg.norm((a - b)[finite]) / whole, rel=1e-6)
    assert difference.not_finite == ((2, 0), (1, 1))


def test_integers_beyond_float64_differ(tmp_path: Path) -> None:
    (difference,) = compared(tmp_path, {"n": np.array([2**60 + 1, 5])}, {"n": np.array([2**60, 5])}).compared
    assert (difference.unequal, difference.max_abs) == (1, 1.0)


def test_shapes_and_names_that_do_not_fit(tmp_path: Path) -> None:
    result = compared(tmp_path, {"w": normal(3, 4), "x": normal(2)}, {"w": normal(5, 4), "y": normal(7)})
    assert result.shapes == [("w", (3, 4), (5, 4))]
    assert result.only == ([("x", "Float32", (2,))], [("y", "Float32", (7,))])


@pytest.mark.parametrize(("behind", "code"), [(np.zeros((8, 6)), 0), (normal(8, 6), 1), (normal(1, 6), 1)])
def test_a_vocabulary_that_one_side_has_padded(tmp_path: Path, behind: np.ndarray, code: int) -> None:
    """Rows that hold something were cut off in the other side."""
    whole = normal(40, 6)
    longer = np.concatenate([whole, behind.astype(np.float32)])
    (difference,) = (result := compared(tmp_path, {"embed.weight": longer}, {"embed.weight": whole})).compared
    assert difference.padding == behind.shape
    assert (result.exit_code, difference.unequal) == (code, code * behind.size)


def test_tensors_are_compared_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of two waits for the other one."""
    both = threading.Barrier(2, timeout=60)

    def measured(layout: TensorLayout, watch: object) -> str:
        both.wait()
        return layout.target[0]

    monkeypatch.setattr(comparison.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(comparison, "_measured", measured)
    assert compared(tmp_path, {"a": normal(3), "b": normal(4)}, {"a": normal(3), "b": normal(4)}).problems == ["a", "b"]


def test_empty_and_single_elements(tmp_path: Path) -> None:
    state = {"empty": np.empty((0, 3), np.float32), "one": np.array(2.0, np.float32), "true": np.array([True])}
    assert compared(tmp_path, state, state).exit_code == 0
    other = state | {"one": np.array(3.0, np.float32), "true": np.array([False])}
    assert {difference.name for difference in compared(tmp_path, other, state).differing} == {"one", "true"}


@pytest.mark.parametrize("layout", ["same", "grouped", "transposed"])
def test_memory_is_that_of_one_tensor(tmp_path: Path, layout: str) -> None:
    parts = [normal(1 << 10, 1 << 10, seed=seed) for seed in range(3)]
    whole = {"same": np.concatenate(parts), "grouped": grouped(parts, 8), "transposed": np.concatenate(parts).T.copy()}
    golden = {f"l.0.{name}.w": part for name, part in zip("qkv", parts)}
    target = golden if layout == "same" else {"l.0.qkv.w": whole[layout]}
    sides = [read_checkpoint(write(tmp_path / name, state)) for name, state in (("a", target), ("b", golden))]
    largest = max(array.nbytes for array in (*target.values(), *golden.values()))
    tracemalloc.start()
    try:
        assert compare(*sides, lambda done, total: None).exit_code == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= (1.5 * largest if layout == "transposed" else 0.75 * largest + (2 << 20))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = MODEL | {"model.layers.2.mlp.up_proj.weight": MODEL["model.layers.2.mlp.up_proj.weight"] * 2}
    changed |= {f"more.{index}": np.ones(2, np.float32) for index in range(25)}
    files = [str(write(tmp_path / name, state)) for name, state in (("a", changed), ("b", MODEL))]
    assert main(["checkpoints", *files, "--json", str(tmp_path / "report.json")]) == 1
    text = capsys.readouterr().out
    assert "model.layers.2.mlp.up_proj.weight         1" in text
    assert "... and 5 more; --all lists them" in text
    assert text.splitlines()[-2] == "Wrong: 29 tensors equal, 1 differ, 25 only in A"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["exit_code"] == 1
    assert [entry["relative"] for entry in report["differ"]] == [1.0]
    assert len(report["only_in_target"]) == 25
    assert main(["checkpoints", files[1], files[1]]) == 0
    assert main(["checkpoints", files[0], str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"python -m pytest_msprobe: {tmp_path / 'none'}: does not exist\n"
