"""Runs of several ranks judged by laws, without a logical run, through real pytest runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from slow_parameters import WITH_WORKERS
from test_sharded import GRADIENT, Arrays, _said, membership, sharded, table, whole

F32 = np.float32
ARGUMENTS = ("--msprobe-dump=tp2", "--msprobe-suite=sharded", "-v")
RNG = np.random.default_rng(1)
FIRST, SECOND = (RNG.standard_normal((4, 3)).astype(F32) for _ in range(2))
NOTHING = np.zeros((4, 3), F32)
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "a"}


def communicated(folder: Path, name: str, given: list[list[Any]], made: list[list[Any]], **keywords: Any) -> None:
    """A step of two ranks that hold one collective."""
    for rank in range(2):
        builder = DumpBuilder(folder / "tp2" / "step0" / f"rank{rank}", framework="pytorch")
        builder.header["ranks"] = membership(rank)
        builder.call(f"Distributed.{name}.0", given[rank], made[rank], keywords=keywords)
        record = builder.records[f"Distributed.{name}.0.forward"]
        record["input_kwargs"]["group"] = GROUP
        builder.write()


BOTH = np.concatenate([FIRST, SECOND])
HALVES = [np.concatenate([one[:2] for one in (FIRST, SECOND)]), np.concatenate([one[2:] for one in (FIRST, SECOND)])]
SUM = FIRST + SECOND
COLLECTIVES: dict[str, tuple[list[list[Any]], list[list[Any]], dict[str, Any]]] = {
    "all_reduce": ([[FIRST], [SECOND]], [[SUM], [SUM]], {}),
    "reduce_scatter_tensor": ([[NOTHING, FIRST], [NOTHING, SECOND]], [[SUM[:2]], [SUM[2:]]], {}),
    "reduce_scatter": (
        [[NOTHING, [FIRST, SECOND]], [NOTHING, [SECOND, FIRST]]],
        [[SUM], [SUM]],
        {},
    ),
    "all_gather_into_tensor": ([[NOTHING, FIRST], [NOTHING, SECOND]], [[BOTH], [BOTH]], {}),
    "all_gather_single": (
        [[FIRST], [SECOND]],
        [[np.concatenate([FIRST, SECOND], 1)]] * 2,
        {"gather_dim": 1},
    ),
    "reduce_scatter_single": (
        [[np.concatenate([FIRST, SECOND], 1), "sum", 1], [np.concatenate([SECOND, FIRST], 1), "sum", 1]],
        [[SUM], [SUM]],
        {},
    ),
    "all_to_all_single": ([[NOTHING, FIRST], [NOTHING, SECOND]], [[HALVES[0]], [HALVES[1]]], {}),
    "all_to_all": (
        [[[NOTHING], [FIRST, SECOND]], [[NOTHING], [SECOND, SUM]]],
        [[[FIRST, SECOND]], [[SECOND, SUM]]],
        {},
    ),
    "broadcast": ([[FIRST, 0], [NOTHING, 0]], [[FIRST], [FIRST]], {}),
}


def _is_exact(name: str) -> bool:
    """Whether a collective adds nothing, so that what comes out must be equal."""
    return "reduce" not in name


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_comes_out_of_a_collective_is_what_went_in(pytester: pytest.Pytester, name: str) -> None:
    given, made, keywords = COLLECTIVES[name]
    communicated(pytester.path, name, given, made, **keywords)
    result = pytester.runpytest(*ARGUMENTS)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    spoilt = [
        made[0],
        [[one + F32(0.01) for one in made[1][0]]] if isinstance(made[1][0], list) else [made[1][0] + F32(0.01)],
    ]
    communicated(pytester.path, name, given, spoilt, **keywords)
    result = pytester.runpytest(*ARGUMENTS, "--msprobe-out=spoilt")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            f"At fault in the forward: Distributed.{name}.0.forward",
            "*what came out on rank 1 is not what went in on ranks 0, 1: *",
        ]
    )
    (failed,), headline = _said(result)
    assert failed.startswith("FAILED (off by 0.01" if _is_exact(name) else "FAILED (1"), "all is finite"
    assert " x its tolerance) " in failed or " of its size) " in failed
    assert re.search(r", [01]\.\d+ % off, ", headline)


def test_a_dimension_is_told_by_its_place_as_well(pytester: pytest.Pytester) -> None:
    joined = np.concatenate([FIRST, SECOND], 1)
    communicated(pytester.path, "all_gather_single", [[FIRST, 1], [SECOND, 1]], [[joined], [joined]])
    pytester.runpytest(*ARGUMENTS).assert_outcomes(passed=1)


def test_an_asynchronous_result_in_no_record_is_not_judged(pytester: pytest.Pytester) -> None:
    communicated(pytester.path, "all_reduce", [[FIRST], [SECOND]], [[], []])
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["no value was judged"])


@pytest.mark.parametrize("tags", [(0, 0), (0, 1)])
def test_messages_are_in_the_order_of_their_calls_and_have_tags(
    pytester: pytest.Pytester, tags: tuple[int, int]
) -> None:
    """What does not wait is recorded where it ends, here the last one first."""
    for rank, name in enumerate(("isend", "irecv")):
        builder = DumpBuilder(pytester.path / "tp2" / "step0" / f"rank{rank}", framework="pytorch")
        builder.header["ranks"] = membership(rank)
        received = (0, 1) if tags[0] == tags[1] else (1, 0)
        for place in (1, 0) if rank == 0 else received:
            value = (FIRST, SECOND)[place]
            number = place if rank == 0 else received.index(place)
            inputs = [value if rank == 0 else NOTHING, 1 - rank]
            builder.call(f"Distributed.{name}.{number}", inputs, [value], keywords={"tag": tags[place]})
        builder.write()
    assert pytester.runpytest(*ARGUMENTS).parseoutcomes() == {"passed": 2, "skipped": 2}


@pytest.mark.parametrize("fault", [0.0, 1.0])
def test_what_a_rank_receives_is_what_the_other_one_sent(pytester: pytest.Pytester, fault: float) -> None:
    for rank, (name, made) in enumerate((("send", FIRST), ("recv", FIRST + F32(fault)))):
        builder = DumpBuilder(pytester.path / "tp2" / "step0" / f"rank{rank}", framework="pytorch")
        builder.header["ranks"] = membership(rank)
        builder.call(f"Distributed.{name}.0", [FIRST if rank == 0 else NOTHING, 1 - rank], [made]).write()
    result = pytester.runpytest(*ARGUMENTS)
    assert result.parseoutcomes() == {"failed" if fault else "passed": 1, "skipped": 1}
    if fault:
        result.stdout.fnmatch_lines(["*is not what rank 0 sent in its 1. message to here"])


@pytest.mark.parametrize("real", [True, False], ids=["tensors", "statistics"])
def test_a_right_run_obeys_all_laws_and_what_no_law_speaks_of_is_said(pytester: pytest.Pytester, real: bool) -> None:
    sharded(pytester.path, real=real)
    result = pytester.runpytest(*ARGUMENTS)
    outcomes = result.parseoutcomes()
    assert result.ret == 0
    assert outcomes["passed"] >= 1
    assert set(outcomes) == {"passed", "skipped"}
    found = table(pytester.path)
    gradients = found["Optimizer.SGD.0.forward", "input.gradients.norm.weight"]
    assert (gradients["state"], gradients["placement"]) == ("placed", "R over ranks 0, 1")
    assert found["Module.up.Up.forward.0", "input.0"]["message"].endswith("R over tp")
    assert found["Module.up.Up.forward.0", "parameters.weight"]["message"].endswith("S over tp")
    assert found["Module.up.Up.forward.0", "output.0"]["message"].endswith("S or P over tp")
    result.stdout.fnmatch_lines(
        [
            "*step0: 2 ranks, judged by laws, without a logical run",
            "*tp: ranks 0, 1, which share not all parameters",
            "* values of the 2 ranks obey the laws that they are judged by; there was no logical run",
            "* values are of no law and may be wrong",
        ]
    )


def _gradient_of_the_norm(ranks: list[Arrays]) -> None:
    ranks[0]["d_scale"], ranks[1]["d_scale"] = (
        (GRADIENT * whole()["out"])[rows].sum(0) for rows in (slice(2), slice(2, 5))
    )


@WITH_WORKERS
@pytest.mark.parametrize("real", [True, False], ids=["tensors", "statistics"])
def test_copies_of_a_parameter_get_one_gradient(
    pytester: pytest.Pytester, real: bool, workers: tuple[str, ...]
) -> None:
    sharded(pytester.path, _gradient_of_the_norm, real=real)
    result = pytester.runpytest(*ARGUMENTS, *workers)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            "At fault in the optimizer: Optimizer.SGD.0.forward",
            "  input.gradients.norm.weight *rank 1 has a copy of this parameter, which gets another gradient there: *",
            "  output.0.parameters.norm.weight *which is another one there after the step",
        ]
    )


def _changed(folder: Path, rank: int, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / f"tp2/step0/rank{rank}/dump.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["data"])
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_copy_without_a_gradient_is_found(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    _changed(
        pytester.path, 1, lambda data: data["Optimizer.SGD.0.forward"]["input_kwargs"].pop("gradients.norm.weight")
    )
    result = pytester.runpytest(*ARGUMENTS)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*rank 1 has a copy of this parameter, and no gradient of it"])


def _norm(ranks: tuple[float, float]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for rank, norm in enumerate(ranks):
            builder = DumpBuilder(folder / f"clip{rank}")
            value = builder.tensor(np.array(norm, F32), f"norm{rank}.npy")
            (folder / f"clip{rank}/dump_tensor_data/norm{rank}.npy").replace(
                folder / f"tp2/step0/rank{rank}/dump_tensor_data/norm{rank}.npy"
            )

            def add(data: dict[str, Any], value: Any = value) -> None:
                step = data["Optimizer.SGD.0.forward"]["input_kwargs"]
                given = {name: one for name, one in step.items() if name.startswith("gradients.")}
                clip = {"input_args": [], "input_kwargs": given, "output": [value]}
                data["Optimizer.clip_grad_norm.0.forward"] = clip

            _changed(folder, rank, add)

    return write


WHOLE_NORM = float(
    np.sqrt(sum((whole()[f"d_{name}"].astype(float) ** 2).sum() for name in ("first", "second", "scale")))
)


@pytest.mark.parametrize(
    ("norms", "line"),
    [
        ((WHOLE_NORM, WHOLE_NORM), ""),
        (
            (1.1 * WHOLE_NORM, 1.1 * WHOLE_NORM),
            "*gradients are clipped by the norm *; with copies counted once they have *",
        ),
        ((WHOLE_NORM, 0.5 * WHOLE_NORM), "*clips by the norm *; rank 1 by another one, *"),
    ],
    ids=["right", "copies counted", "own shard"],
)
def test_the_norm_of_clipping_is_that_of_all_gradients(
    pytester: pytest.Pytester, norms: tuple[float, float], line: str
) -> None:
    sharded(pytester.path)
    _norm(norms)(pytester.path)
    result = pytester.runpytest(*ARGUMENTS)
    assert result.parseoutcomes().get("failed", 0) == (1 if line else 0)
    if line:
        result.stdout.fnmatch_lines(["At fault in the optimizer: Optimizer.clip_grad_norm.0.forward", line])


def test_the_dump_of_one_rank_is_refused(pytester: pytest.Pytester) -> None:
    sharded(pytester.path)
    result = pytester.runpytest("--msprobe-dump=single", "--msprobe-suite=sharded")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*one rank has no other to be judged by*--msprobe-logical*"])


def test_a_missing_rank_is_no_success(pytester: pytest.Pytester) -> None:
    communicated(pytester.path, "all_reduce", *COLLECTIVES["all_reduce"][:2])
    for rank in range(2):
        path = pytester.path / f"tp2/step0/rank{rank}/dump.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["ranks"]["world_size"] = 3
        content["ranks"]["groups"] = {}
        path.write_text(
            json.dumps(content).replace('"group_ranks": [0, 1]', '"group_ranks": [0, 1, 2]'), encoding="utf-8"
        )
    result = pytester.runpytest(*ARGUMENTS)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*1 of 3 ranks are missing (2)*", "1 value not every rank has"])


Calls = list[tuple[str, list[Any], list[Any]]]
TOKENS = np.array([[0, 3], [1, 2]], np.int64)
ROWS = RNG.standard_normal((2, 2, 4)).astype(F32)
IS_OWN = np.array([[[1], [0]], [[1], [0]]], F32)
BIAS = np.array([0.5, -1.0, 2.0], F32)
WEIGHTS = [RNG.standard_normal((3, 3)).astype(F32) for _ in range(2)]


def of_a_model(folder: Path, calls: Callable[[int], Calls]) -> None:
    """A step of two ranks that have other parts of a parameter and make these calls."""
    for rank in range(2):
        builder = DumpBuilder(folder / "tp2" / "step0" / f"rank{rank}", framework="pytorch")
        builder.header["ranks"] = membership(rank)
        for name, given, made in calls(rank):
            if name.startswith("Module."):
                fields = {"input_args": given, "output": made}
                builder.records[name] = {
                    field: [builder.value(item, f"{name}.{field}.{at}") for at, item in enumerate(items)]
                    for field, items in fields.items()
                }
            else:
                builder.call(name, given, made)
        parameter = builder.value(WEIGHTS[rank], "parameter")
        record = {"input_args": [], "input_kwargs": {"parameters.w": parameter}, "output": []}
        builder.records["Optimizer.SGD.0.forward"] = record
        builder.write()


def _random(is_right: bool) -> Callable[[int], Calls]:
    return lambda rank: [("Functional.dropout.0", [FIRST], [FIRST if is_right or not rank else SECOND])]


def _loss(is_right: bool) -> Callable[[int], Calls]:
    losses = [np.array(1.0, F32), np.array(1.0 if is_right else 1.5, F32)]
    return lambda rank: [("Module.loss.Loss.forward.0", [(FIRST, SECOND)[rank], TOKENS], [losses[rank]])]


def _sum_of_copies(is_right: bool) -> Callable[[int], Calls]:
    """A sum of copies is right as a mean."""
    divided = [("Tensor.div.0", [2 * FIRST, 2], [FIRST])]
    return lambda rank: [("Distributed.all_reduce.0", [FIRST], [2 * FIRST]), *(divided if is_right else [])]


def _bias(is_right: bool) -> Callable[[int], Calls]:
    terms = [one @ weight.T for one, weight in zip((FIRST, SECOND), WEIGHTS)]
    terms = terms if is_right else [one + BIAS for one in terms]
    more = [] if is_right else [BIAS]
    return lambda rank: [
        ("Functional.linear.0", [(FIRST, SECOND)[rank], WEIGHTS[rank], *more], [terms[rank]]),
        ("Distributed.all_reduce.0", [terms[rank]], [terms[0] + terms[1]]),
    ]


def _rows(is_right: bool) -> Callable[[int], Calls]:
    rows = [ROWS * IS_OWN, ROWS * (1 - IS_OWN)] if is_right else [ROWS, 2 * ROWS]
    return lambda rank: [
        ("Functional.embedding.0", [TOKENS, WEIGHTS[rank]], [rows[rank]]),
        ("Distributed.all_reduce.0", [rows[rank]], [rows[0] + rows[1]]),
    ]


@pytest.mark.parametrize(
    ("calls", "record", "words"),
    [
        (_random, "Functional.dropout.0.forward", "they draw other random numbers for it"),
        (_loss, "Module.loss.Loss.forward.0", "is not the same on tp: ranks 0, 1, which have the same labels*"),
        (_sum_of_copies, "Distributed.all_reduce.0.forward", "it is summed over them: 2 x what it is"),
        (_bias, "Functional.linear.0.forward", "adds it to its terms of the sum: it is counted 2 times"),
        (_rows, "Functional.embedding.0.forward", "4 of 4 rows come from several ranks of *"),
    ],
)
def test_a_value_of_one_kind_used_as_another(
    pytester: pytest.Pytester, calls: Callable[[bool], Callable[[int], Calls]], record: str, words: str
) -> None:
    of_a_model(pytester.path, calls(True))
    assert "failed" not in pytester.runpytest(*ARGUMENTS).parseoutcomes()
    of_a_model(pytester.path, calls(False))
    result = pytester.runpytest(*ARGUMENTS, "--msprobe-out=wrong")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"At fault in the forward: {record}", f"*{words}"])


def test_an_interrupted_run_is_resumed(pytester: pytest.Pytester) -> None:
    sharded(pytester.path, _gradient_of_the_norm)
    pytester.runpytest(*ARGUMENTS, "--msprobe-jsonl=rows.jsonl", "-k", "Optimizer")
    result = pytester.runpytest(*ARGUMENTS, "--msprobe-resume=rows.jsonl")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["At fault in the optimizer: Optimizer.SGD.0.forward"])


def test_what_is_not_finite_obeys_no_law(pytester: pytest.Pytester) -> None:
    def change(ranks: list[Arrays]) -> None:
        for values in ranks:
            values["d_scale"] = values["d_scale"] * F32(np.nan)

    sharded(pytester.path, change)
    pytester.runpytest(*ARGUMENTS)
    row = table(pytester.path)["Optimizer.SGD.0.forward", "input.gradients.norm.weight"]
    assert (row["state"], row["message"]) == (
        "unjudged",
        "whether copies of its parameter agree is not known: they are only near, not finite, or no numbers",
    )


NAN = np.full((4, 3), np.nan, F32)


@pytest.mark.parametrize(
    ("name", "given", "made"),
    [
        ("all_reduce", [[NAN], [NAN]], [[FIRST], [FIRST]]),
        ("all_reduce", [[FIRST], [FIRST[:2]]], [[FIRST], [FIRST]]),
        ("all_to_all", [[[NOTHING], [FIRST]], [[NOTHING], [FIRST]]], [[[FIRST]], [[FIRST]]]),
        ("broadcast", [[FIRST, 7], [FIRST, 7]], [[FIRST], [FIRST]]),
    ],
    ids=["not finite", "other shapes", "too few", "source outside"],
)
def test_a_collective_of_which_nothing_can_be_told_is_not_judged(
    pytester: pytest.Pytester, name: str, given: list[list[Any]], made: list[list[Any]]
) -> None:
    communicated(pytester.path, name, given, made)
    result = pytester.runpytest(*ARGUMENTS)
    assert set(result.parseoutcomes()) == {"skipped"}


def test_a_rank_outside_of_the_group_that_it_names(pytester: pytest.Pytester) -> None:
    communicated(pytester.path, "all_reduce", *COLLECTIVES["all_reduce"][:2])
    for rank in range(2):
        path = pytester.path / f"tp2/step0/rank{rank}/dump.json"
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        content["data"]["Distributed.all_reduce.0.forward"]["input_kwargs"]["group"]["group_ranks"] = [5, 6]
        path.write_text(json.dumps(content), encoding="utf-8")
    result = pytester.runpytest(*ARGUMENTS)
    assert set(result.parseoutcomes()) == {"skipped"}
    result.stdout.fnmatch_lines(["1 value not every rank has"])
