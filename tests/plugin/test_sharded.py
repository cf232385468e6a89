"""Runs of several ranks judged by a run of the whole model, through real pytest runs."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from page_reader import page_content

from msprobe_collector.dump_format.records import Operation
from pytest_msprobe.suites.sharded import ShardedSettings
from pytest_msprobe.suites.sharded.session import ShardedSession
from tools.benchmarks import make_ranks

F32 = np.float32
RNG = np.random.default_rng(0)
X, FIRST, SECOND, GRADIENT = (RNG.standard_normal(shape).astype(F32) for shape in ((5, 4), (6, 4), (4, 6), (5, 4)))
SCALE = np.linspace(0.5, 1.5, 4).astype(F32)
Arrays = dict[str, np.ndarray[Any, Any]]
RANKS = 2
#: How each value is split over two ranks: along which dimension, or not at all.
SPLITS = {"hidden": 1, "first": 0, "second": 1, "d_hidden": 1, "d_first": 0, "d_second": 1}


def whole() -> Arrays:
    """The values of one step: a product split by columns, one by rows, and a scale."""
    hidden = X @ FIRST.T
    out = hidden @ SECOND.T
    d_out = GRADIENT * SCALE
    d_hidden = d_out @ SECOND
    return {
        "x": X,
        "first": FIRST,
        "hidden": hidden,
        "second": SECOND,
        "out": out,
        "scale": SCALE,
        "y": out * SCALE,
        "d_y": GRADIENT,
        "d_out": d_out,
        "d_hidden": d_hidden,
        "d_x": d_hidden @ FIRST,
        "d_first": d_hidden.T @ X,
        "d_second": d_out.T @ hidden,
        "d_scale": (GRADIENT * out).sum(0),
    }


def parts(rank: int, count: int = RANKS) -> Arrays:
    """What a right rank holds; the input's gradient is summed behind the layer that is split by columns."""
    found = {
        name: np.split(value, count, SPLITS[name])[rank] if name in SPLITS else value for name, value in whole().items()
    }
    return {**found, "d_x": found["d_hidden"] @ found["first"]}


def write(folder: Path, values: Arrays, ranks: dict[str, Any] | None = None, *, real: bool = True) -> DumpBuilder:
    """The dump of one rank, or of the logical run."""
    builder = DumpBuilder(folder, real=real)
    if ranks is not None:
        builder.header["ranks"] = ranks

    def record(name: str, **fields: Any) -> None:
        builder.records[name] = {field: builder.value(value, f"{name}.{field}") for field, value in fields.items()}
        for field, value in fields.items():
            if isinstance(value, dict):
                built = {key: builder.value(item, f"{name}.{field}.{key}") for key, item in value.items()}
                builder.records[name][field] = built

    v = values
    layers = (
        ("up.Up", "x", "first", "hidden"),
        ("down.Down", "hidden", "second", "out"),
        ("norm.Norm", "out", "scale", "y"),
    )
    for name, given, weight, made in layers:
        record(
            f"Module.{name}.forward.0",
            input_args=[v[given]],
            input_kwargs={},
            output=[v[made]],
            parameters={"weight": v[weight]},
        )
    for name, given, weight, made in reversed(layers):
        record(f"Module.{name}.backward.0", input=[v[f"d_{made}"]], output=[v[f"d_{given}"]])
        builder.records[f"Module.{name}.parameters_grad.0"] = {
            "weight": [builder.tensor(v[f"d_{weight}"], f"{name}.grad.npy")]
        }
    names = {"up.weight": "first", "down.weight": "second", "norm.weight": "scale"}
    before = {f"parameters.{name}": v[key] for name, key in names.items()}
    gradients = {f"gradients.{name}": v.get(f"at_{key}", v[f"d_{key}"]) for name, key in names.items()}
    after = {f"parameters.{name}": v[key] - F32(0.1) * v.get(f"at_{key}", v[f"d_{key}"]) for name, key in names.items()}
    if "copy" in v:  # of a parameter, which another rank has by the name that it has in the logical run
        before |= {"parameters.tail.weight": v["copy"]}
        gradients |= {"gradients.tail.weight": v["d_scale"]}
        after |= {"parameters.tail.weight": v["copy"] - F32(0.1) * v.get("at_copy", v["d_scale"])}
    name = "Optimizer.SGD.0.forward"
    record(name, input_args=[], input_kwargs={**before, **gradients})
    builder.records[name]["output"] = [{key: builder.value(item, f"{name}.out.{key}") for key, item in after.items()}]
    builder.write()
    return builder


def rows_of(rank: int) -> Arrays:
    """What a right rank holds of rows of the batch; its loss is the mean over them."""
    names = ("x", "hidden", "out", "y", "d_y", "d_out", "d_hidden", "d_x")
    v = {name: np.array_split(value, RANKS)[rank] if name in names else value for name, value in whole().items()}
    v |= {name: v[name] * RANKS for name in names if name.startswith("d_")}
    v |= {f"at_{name}": whole()[f"d_{name}"] for name in ("first", "second", "scale")}
    return v | {
        "d_first": v["d_hidden"].T @ v["x"],
        "d_second": v["d_out"].T @ v["hidden"],
        "d_scale": (v["d_y"] * v["out"]).sum(0),
    }


def membership(rank: int, count: int = RANKS, name: str = "tp", **others: Any) -> dict[str, Any]:
    group = {"ranks": list(range(count)), "index": rank}
    return {"world_size": count, "rank": rank, "groups": {"world": group, name: group}, **others}


def sharded(folder: Path, change: Callable[[list[Arrays]], None] = lambda ranks: None, *, real: bool = True) -> None:
    """A step of two ranks, changed by `change`, and the logical run."""
    ranks = [parts(rank) for rank in range(RANKS)]
    change(ranks)
    for rank, values in enumerate(ranks):
        write(folder / "tp2" / "step0" / f"rank{rank}", values, membership(rank), real=real)
    write(folder / "single" / "step0" / "rank0", whole(), real=real)


def logical(folder: Path, name: str, *, real: bool = True) -> None:
    """A logical run of three ranks (`tp3`), or of two that have rows of the batch (`dp2`)."""
    count = int(name[-1])
    for rank in range(count):
        values = rows_of(rank) if name == "dp2" else parts(rank, count)
        write(folder / name / "step0" / f"rank{rank}", values, membership(rank, count, name[:-1]), real=real)


ARGUMENTS = ("--msprobe-dump=tp2", "--msprobe-logical=single", "-v")
ITEMS = 10


def table(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    (path,) = folder.glob("sharded_result_*.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {(row["record"], row["value"]): row for row in csv.DictReader(file)}


def edited(path: Path, **header: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **header}), encoding="utf-8")


@pytest.mark.parametrize("real", [True, False], ids=["tensors", "statistics"])
def test_a_right_run(pytester: pytest.Pytester, real: bool) -> None:
    sharded(pytester.path, real=real)
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*step0: 2 ranks, judged by the logical run single/step0/rank0/dump.json"])
    found = table(pytester.path)
    assert {row["state"] for row in found.values()} == {"placed"}
    placements = {key: row["placement"] for key, row in found.items()}
    assert placements["Module.up.Up.forward.0", "output.0"] == "S(1) over tp"
    assert placements["Module.up.Up.forward.0", "parameters.weight"] == "S(0) over tp"
    assert placements["Module.down.Down.forward.0", "output.0"] == "R over tp"
    assert placements["Module.up.Up.backward.0", "output.0"] == "P(sum) over tp"
    assert placements["Optimizer.SGD.0.forward", "input.gradients.down.weight"] == "S(1) over tp"
    result.stdout.fnmatch_lines(["the 2 ranks hold what the logical run holds: * of * values are placed"])


def _no_reduction(ranks: list[Arrays]) -> None:
    for v in ranks:
        v["out"] = v["hidden"] @ v["second"].T
        v["y"] = v["out"] * SCALE


def _reduced_twice(ranks: list[Arrays]) -> None:
    for v in ranks:
        v["d_hidden"] = 2 * v["d_hidden"]


def _gradient_of_the_norm(ranks: list[Arrays]) -> None:
    ranks[0]["d_scale"], ranks[1]["d_scale"] = (
        (GRADIENT * whole()["out"])[rows].sum(0) for rows in (slice(2), slice(2, 5))
    )


def _other_parameters(ranks: list[Arrays]) -> None:
    ranks[1]["first"] = ranks[1]["first"] + F32(1)


def _wrong_update(ranks: list[Arrays]) -> None:
    for v in ranks:
        v["at_scale"] = 3 * v["d_scale"]


@pytest.mark.parametrize("by", ["single", "tp3", "dp2"])
@pytest.mark.parametrize(
    ("change", "record", "words"),
    [
        (
            _no_reduction,
            "forward: Module.down.Down.forward.0",
            "output.0 *terms of a sum that nothing has added: P(sum) over tp*; Module.norm.Norm.forward.0 goes wrong*",
        ),
        (_reduced_twice, "backward: Module.down.Down.backward.0", "output.0 *2 x what the logical run has: tp is 2"),
        (_gradient_of_the_norm, "optimizer: Optimizer.SGD.0.forward", "input.gradients.norm.weight *P(sum) over tp*"),
        (_other_parameters, "forward: Module.up.Up.forward.0", "parameters.weight *the nearest is S(0) over tp*"),
        (
            _wrong_update,
            "optimizer: Optimizer.SGD.0.forward",
            "input.gradients.norm.weight *3 x what the logical run has",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_first_wrong_place_is_at_fault(
    pytester: pytest.Pytester, change: Callable[[list[Arrays]], None], record: str, words: str, by: str
) -> None:
    sharded(pytester.path, change)
    if by != "single":
        logical(pytester.path, by)
    arguments = "--msprobe-dump=tp2", f"--msprobe-logical={by}", "-v"
    result = pytester.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"At fault in the {record}", f"  {words}"])
    strict = pytester.runpytest(*arguments, "--msprobe-sharded-inherited=fail", "--msprobe-out=strict").parseoutcomes()
    assert strict["failed"] == 1 + result.parseoutcomes().get("xfailed", 0)


def _said(result: pytest.RunResult) -> tuple[list[str], str]:
    """The lines on failures, and the headline."""
    (headline,) = (line for line in result.outlines if line.startswith("Wrong: "))
    return [line for line in result.outlines if line.startswith("FAILED ")], headline


@pytest.mark.parametrize("verbose", [(), ("-v",)], ids=["", "verbose"])
def test_how_far_off_is_not_said_of_a_sum_that_fits(pytester: pytest.Pytester, verbose: tuple[str, ...]) -> None:
    sharded(pytester.path, _no_reduction)
    (failed,), headline = _said(pytester.runpytest(*ARGUMENTS[:2], *verbose))
    assert failed.startswith("FAILED (the ranks hold terms of a sum that nothing has added: P(s")
    assert headline == "Wrong: Module.down.Down.0, ranks 0 to 1"


@pytest.mark.parametrize("verbose", [(), ("-v",)], ids=["", "verbose"])
def test_a_dump_without_an_optimizer_says_so(pytester: pytest.Pytester, verbose: tuple[str, ...]) -> None:
    sharded(pytester.path)
    for path in pytester.path.rglob("dump.json"):
        data = json.loads(path.read_text(encoding="utf-8"))["data"]
        edited(path, data={name: record for name, record in data.items() if not name.startswith("Optimizer.")})
    result = pytester.runpytest(*ARGUMENTS[:2], *verbose)
    result.assert_outcomes(passed=ITEMS - 1)
    words = "what the optimizer got and left is not in the dump of the logical run, so it was not judged"
    assert result.outlines.count(words) == 1


def _copy(ranks: list[Arrays]) -> None:
    ranks[1]["copy"] = SCALE


def _copy_updated_otherwise(ranks: list[Arrays]) -> None:
    ranks[1] |= {"copy": SCALE, "at_copy": 2 * ranks[1]["d_scale"]}


def _no_copy(ranks: list[Arrays]) -> None:
    ranks[1]["copy"] = SCALE + F32(1)


def test_a_parameter_that_only_ranks_have_is_judged_as_the_copy_that_it_is(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _copy)
    pytester.runpytest(*ARGUMENTS).assert_outcomes(passed=ITEMS)
    row = table(pytester.path)["Optimizer.SGD.0.forward", "output.0.parameters.tail.weight"]
    assert (row["state"], row["placement"]) == ("placed", "R, a copy of norm.weight")


def test_a_copy_that_was_updated_otherwise_is_at_fault(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _copy_updated_otherwise)
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS - 1, failed=1)
    result.stdout.fnmatch_lines(["*output.0.parameters.tail.weight *a copy of norm.weight: nothing that the ranks*"])


def test_what_only_ranks_have_is_counted_as_not_judged(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _no_copy)
    path = pytester.path / "tp2/step0/rank0/dump.json"
    records = json.loads(path.read_text(encoding="utf-8"))["data"]
    edited(path, data={**records, "Module.more.More.forward.0": records["Module.up.Up.forward.0"]})
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*holds: 27 of 30 values are placed",
            "3 values were not judged (3: only ranks hold it, and no parameter has the same values in the logical run)",
            "1 record of ranks was not judged: the logical run has no such call or layer",
        ]
    )


@pytest.mark.slow
def test_workers_say_the_same(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _reduced_twice)
    one, two = (pytester.runpytest(*ARGUMENTS, *more).parseoutcomes() for more in ((), ("-n2",)))
    assert {key: one.get(key) for key in ("failed", "passed", "xfailed")} == {
        key: two.get(key) for key in ("failed", "passed", "xfailed")
    }


def _missing(path: Path) -> None:
    shutil.rmtree(path / "tp2/step0/rank1")


def _doubled(path: Path) -> None:
    shutil.copytree(path / "tp2/step0/rank1", path / "tp2/step0/proc77")


def _torn(path: Path) -> None:
    file = path / "tp2/step0/rank1/dump.json"
    file.write_bytes(file.read_bytes()[:-400])


def _another_world(path: Path) -> None:
    edited(path / "tp2/step0/rank1/dump.json", ranks=membership(1, world_size=4))


def _another_rank(path: Path) -> None:
    edited(path / "tp2/step0/rank1/dump.json", ranks=membership(3))


def _no_header(path: Path) -> None:
    edited(path / "tp2/step0/rank1/dump.json", ranks=[1])


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_missing, "*1 of 2 ranks are missing (1): only what the others hold whole is judged"),
        (_doubled, "*rank1/dump.json: is rank 1 as *proc77/dump.json is, which is judged; remove one"),
        (_torn, "*rank1/dump.json was truncated while it was written*"),
        (_another_world, "*the ranks do not agree on the world size: rank 0 2, rank 1 4"),
        (_another_rank, "*rank1/dump.json: its header says rank 3, its folder rank 1"),
        (_no_header, "*rank1/dump.json: its header `ranks` is not an object; its process groups are not known"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_step_that_is_not_whole_is_no_success_and_nothing_is_at_fault(
    pytester: pytest.Pytester, spoil: Callable[[Path], None], line: str
) -> None:
    sharded(pytester.path)
    spoil(pytester.path)
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([line])
    assert "failed" not in result.parseoutcomes()
    assert result.parseoutcomes()["passed"] >= 3


def test_a_missing_rank_leaves_what_is_split_unjudged(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    _missing(pytester.path)
    pytester.runpytest(*ARGUMENTS)
    found = table(pytester.path)
    assert found["Module.up.Up.forward.0", "output.0"]["state"] == "missing"
    assert found["Module.up.Up.forward.0", "input.0"]["state"] == "placed"


def test_a_logical_run_of_another_model_judges_nothing(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    DumpBuilder(pytester.path / "other/rank0").call("Mint.neg.0", [X], [-X]).write()
    result = pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=other")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(
        ["       1  no rank has such a record", "no value was judged", "Nothing judged: no rank has such a record"]
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--msprobe-suite=sharded",), "*needs --msprobe-dump=PATH*"),
        (("--msprobe-logical=single",), "*--msprobe-logical needs --msprobe-dump=PATH*"),
        (("--msprobe-dump=tp2", "--msprobe-logical=none"), "*none: there is no such file or folder"),
        (("--msprobe-dump=tp2", "--msprobe-logical=empty"), "*empty: holds no dump.json*"),
    ],
)
def test_what_a_run_needs(pytester: pytest.Pytester, arguments: tuple[str, ...], line: str) -> None:
    sharded(pytester.path)
    (pytester.path / "empty").mkdir()
    result = pytester.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line])


@pytest.mark.parametrize("real", [True, False], ids=["tensors", "statistics"])
def test_a_logical_run_that_is_sharded_otherwise(pytester: pytest.Pytester, real: bool) -> None:
    sharded(pytester.path, real=real)
    logical(pytester.path, "tp3", real=real)
    result = pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=tp3")
    result.assert_outcomes(passed=ITEMS)
    found = table(pytester.path)
    right, unjudged = "placed", {key for key, row in found.items() if row["state"] == "unjudged"}
    assert {row["state"] for key, row in found.items() if key not in unjudged} == {right}
    assert unjudged == (set() if real else {("Module.up.Up.backward.0", "output.0")})  # terms of a sum on both sides
    placements = {key: row["placement"] for key, row in found.items()}
    assert placements["Module.up.Up.forward.0", "output.0"] == "S(1) over tp; logical run: S(1) over tp of 3"
    assert placements["Module.down.Down.forward.0", "output.0"] == "R over tp; logical run: R over tp of 3"
    terms = "P(sum) over tp; logical run: P(sum) over tp of 3" if real else ""
    assert placements["Module.up.Up.backward.0", "output.0"] == terms


def test_a_logical_run_of_parts_of_the_batch_has_larger_gradients(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    logical(pytester.path, "dp2")
    pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=dp2").assert_outcomes(passed=ITEMS)
    found = table(pytester.path)
    assert {row["state"] for row in found.values()} == {"placed"}
    words = found["Module.up.Up.backward.0", "input.0"]["placement"]
    assert words == "S(1) over tp; logical run: S(0) over dp of 2"


def test_a_logical_run_that_is_sharded_the_same_way(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=tp2").assert_outcomes(passed=ITEMS)
    found = table(pytester.path)
    assert {row["state"] for row in found.values()} == {"placed"}
    assert found["Module.up.Up.forward.0", "output.0"]["placement"] == "any"


def _parts_added(ranks: list[Arrays]) -> None:
    for v in ranks:
        v["hidden"] = np.sum([parts(rank)["hidden"] for rank in range(RANKS)], axis=0)


def test_a_sum_of_parts_is_not_taken_for_a_sum_of_terms(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _parts_added)
    logical(pytester.path, "mp2")
    pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=mp2")
    row = table(pytester.path)["Module.up.Up.forward.0", "output.0"]
    assert row["state"] == "unjudged"
    assert row["message"] == "only the sum of what ranks of the logical run hold gives it, and they may be parts"


def test_a_loss_of_parts_of_the_batch_is_a_mean(pytester: pytest.Pytester) -> None:
    losses = np.array([0.5, 0.75], F32)

    def with_loss(folder: str, values: tuple[float, ...]) -> None:
        for rank, loss in enumerate(values):
            path = pytester.path / folder / f"step0/rank{rank}/dump.json"
            builder = DumpBuilder(path.parent)
            value = builder.value(np.asarray(loss, F32), "Module.loss.Loss.forward.0.output.0")
            records = json.loads(path.read_text(encoding="utf-8"))["data"]
            record = {"Module.loss.Loss.forward.0": {"input_args": [], "input_kwargs": {}, "output": [value]}}
            edited(path, data={**record, **records})

    sharded(pytester.path)
    logical(pytester.path, "dp2")
    with_loss("dp2", tuple(losses))
    with_loss("tp2", (losses.mean(),) * RANKS)
    arguments = "--msprobe-dump=tp2", "--msprobe-logical=dp2", "-v"
    pytester.runpytest(*arguments).assert_outcomes(passed=ITEMS + 1)
    with_loss("tp2", (losses.sum(),) * RANKS)
    result = pytester.runpytest(*arguments)
    result.assert_outcomes(passed=ITEMS, failed=1)
    result.stdout.fnmatch_lines(["At fault in the forward: Module.loss.Loss.forward.0"])


def test_flat_shards_of_a_logical_run_are_not_judged(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    for rank in range(3):
        flat = {name: np.split(whole()[name].ravel(), 3)[rank] for name in ("first", "d_first")}
        write(pytester.path / f"fsdp/step0/rank{rank}", {**parts(rank, 3), **flat}, membership(rank, 3))
    pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=fsdp").assert_outcomes(passed=ITEMS - 1, skipped=1)
    found = table(pytester.path)
    row = found["Module.up.Up.forward.0", "parameters.weight"]
    assert (row["state"], row["message"]) == (
        "unjudged",
        "the logical run holds flat shards of it, which tell no shape",
    )


def _stages(path: Path) -> None:
    for rank in range(3):
        edited(path / f"tp3/step0/rank{rank}/dump.json", ranks=membership(rank, 3, "pp"))


def _another_layer(path: Path) -> None:
    file = path / "tp3/step0/rank2/dump.json"
    file.write_text(file.read_text(encoding="utf-8").replace("Module.norm.", "Module.tail."), encoding="utf-8")


def _lost(path: Path) -> None:
    shutil.rmtree(path / "tp3/step0/rank1")


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (_stages, "*tp3/step0: the ranks of the logical run are stages of a pipeline (group pp); give a logical run*"),
        (_another_layer, "*tp3/step0: rank 2 of the logical run has no layer 'norm', rank 0 has; give a logical run*"),
        (_lost, "*the logical run is not whole: *tp3/step0: 1 of 3 ranks are missing (1)*"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_logical_run_whose_ranks_have_other_layers_is_refused(
    pytester: pytest.Pytester, spoil: Callable[[Path], None], line: str
) -> None:
    sharded(pytester.path)
    logical(pytester.path, "tp3")
    spoil(pytester.path)
    result = pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=tp3")
    assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines([line])


def test_what_only_other_ranks_of_the_logical_run_have_is_said(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    logical(pytester.path, "tp3")
    path = pytester.path / "tp3/step0/rank1/dump.json"
    records = json.loads(path.read_text(encoding="utf-8"))["data"]
    call = {"input_args": [], "input_kwargs": {}, "output": []}
    edited(path, data={**records, "Functional.neg.0.forward": call})
    result = pytester.runpytest("--msprobe-dump=tp2", "--msprobe-logical=tp3")
    result.assert_outcomes(passed=ITEMS)
    result.stdout.fnmatch_lines(
        [
            "msprobe: tp2/step0: 2 ranks, judged by the logical run tp3/step0/rank0/dump.json and 2 other ranks",
            "msprobe: 1 record of its other ranks is not judged: the first one has no such call",
        ]
    )


@pytest.mark.parametrize(("said", "failed"), [("S(1)", 0), ("R", 1), ("S(0)", 1), ("_StridedShard(dim=1)", 0)])
def test_what_a_dtensor_says_of_itself_is_checked(pytester: pytest.Pytester, said: str, failed: int) -> None:
    sharded(pytester.path)
    for rank in range(RANKS):
        path = pytester.path / f"tp2/step0/rank{rank}/dump.json"
        records = json.loads(path.read_text(encoding="utf-8"))["data"]
        stated = {"placements": [said], "mesh": [0, 1], "mesh_dim_names": ["tp"], "global_shape": [5, 6]}
        records["Module.up.Up.forward.0"]["output"][0]["dtensor"] = stated
        edited(path, data=records)
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS - failed, failed=failed)
    if failed:
        result.stdout.fnmatch_lines([f"  output.0 *its DTensor says {said} over tp, and its values are S(1) over tp"])


def test_ranks_are_lanes_on_the_page(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _reduced_twice)
    pytester.runpytest(*ARGUMENTS, "--html=page.html", "--msprobe-page=rows.html")
    (section,) = page_content(pytester.path / "rows.html")["sections"]
    for page in ((pytester.path / "page.html").read_text(encoding="utf-8"), section["markup"]):
        assert page.count("<rect ") >= RANKS
        assert "first wrong place: Module.down.Down.backward.0</p>" in page


def test_the_load_of_the_benchmark_is_a_right_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["make_ranks", str(pytester.path / "load"), "--ranks", "16", "--records", "6", "--tensors", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    make_ranks.main()
    result = pytester.runpytest("--msprobe-dump=load/ranks", "--msprobe-logical=load/logical")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["the 16 ranks hold what the logical run holds: 12 of 12 values are placed"])


def test_steps_are_paired_by_their_numbers(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    shutil.copytree(pytester.path / "tp2/step0", pytester.path / "tp2/step7")
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS, errors=1)
    result.stdout.fnmatch_lines(["*the logical run has no dump of step 7*"])


def test_a_tensor_file_that_is_missing_is_an_error_of_its_record(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    (pytester.path / "tp2/step0/rank1/dump_tensor_data/Module.up.Up.forward.0.output.0.npy").unlink()
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS - 1, failed=1)
    result.stdout.fnmatch_lines(["*Module.up.Up.forward.0.output.0.npy' is not in*"])


def test_without_headers_ranks_are_told_by_their_folders(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    for rank in range(RANKS):
        edited(pytester.path / f"tp2/step0/rank{rank}/dump.json", ranks=None)
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=ITEMS)
    assert table(pytester.path)["Module.up.Up.forward.0", "output.0"]["placement"] == "S(1) over 2 ranks"


def test_a_plain_comparison_with_the_whole_model_names_the_option(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    for rank, path in enumerate((pytester.path / "tp2/step0").glob("rank*/dump.json")):
        text = path.read_text(encoding="utf-8").replace("Module.", f"Module.r{rank}.")
        more = {**json.loads(path.read_text(encoding="utf-8"))["data"], **json.loads(text)["data"]}
        edited(path, data=more)
    path = pytester.path / "single/step0/rank0/dump.json"
    more = {}
    for rank in range(RANKS):
        more |= json.loads(path.read_text(encoding="utf-8").replace("Module.", f"Module.r{rank}."))["data"]
    edited(path, data={**json.loads(path.read_text(encoding="utf-8"))["data"], **more})
    result = pytester.runpytest("--msprobe-dump=tp2/step0/rank1", "--msprobe-golden=single")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*4 parameters are 1/2 of those of the golden dump*judge all its ranks with --msprobe-logical=*"]
    )


def _another_loss(ranks: list[Arrays]) -> None:
    for values in ranks:
        values["d_y"] = GRADIENT * SCALE[::-1]


def test_a_gradient_that_comes_in_wrong_is_not_said_to_go_wrong_in_the_layer(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _another_loss)
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "At fault in the backward: Module.norm.Norm.backward.0",
            "*what goes into it is wrong already: it is made by what no record shows",
        ]
    )
    result.stdout.no_fnmatch_line("*it goes wrong in here*")


def _rows_in_another_order(ranks: list[Arrays]) -> None:
    for values in ranks:
        values["d_y"] = GRADIENT[[2, 0, 1, 4, 3]]
        values["d_scale"] = (values["d_y"] * values["out"]).sum(0)


def test_a_gradient_in_another_order_than_its_forward_is_at_fault(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _rows_in_another_order)
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["Wrong: Module.norm.Norm.0 backward*", "*input.0: its rows are in another order*"])


def _findings(folder: Path, order: Callable[[list[Operation]], list[Operation]]) -> dict[str, Any]:
    """What is found of each record, asked in this order, and once more."""
    settings = ShardedSettings(logical=folder / "single", data_dir=(), inherited="pass")
    paths = sorted((folder / "tp2").rglob("dump.json"))
    session = ShardedSession(settings, paths, list((folder / "single").rglob("dump.json")))
    blame = session.blame(paths[0])
    operations = order(blame.outline.items)
    findings = {operation.record: blame.judged(operation) for operation in operations}
    assert findings == {operation.record: blame.judged(operation) for operation in reversed(operations)}
    return findings


@pytest.mark.parametrize("change", [_no_reduction, _rows_in_another_order])
def test_verdicts_do_not_depend_on_who_asks_first(tmp_path: Path, change: Callable[[list[Arrays]], None]) -> None:
    sharded(tmp_path, change)
    findings = _findings(tmp_path, lambda operations: operations)
    assert len(findings) == ITEMS
    assert findings == _findings(tmp_path, lambda operations: operations[::-1])
    assert findings == _findings(tmp_path, lambda operations: operations[1::2] + operations[::2])
