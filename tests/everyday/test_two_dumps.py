"""What is said of two dumps, in the situations of everyday."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from situations import WRONG, Answered, Runner, Situation, Training, check, line_of, on_cuda, row, rows

TRAINING = Training("training")


def training(*arguments: str) -> Training:
    return Training("training", arguments)


PICTURES, ROUTER = Training("pictures"), Training("counted_router")


def statistics(*arguments: str) -> Training:
    return Training("counted_router", arguments, ("--exit", "--task=statistics"))


def mask(kind: str) -> Training:
    return Training("causal_mask", (kind,))


def called_otherwise(number: str, kind: str, call: str, *words: str) -> Situation:
    """The row of a call that gets a tensor in the golden run alone."""
    return Situation(
        f"case 06 {number}",
        Training("called_otherwise", (kind, "without")),
        Training("called_otherwise", (kind, "with")),
        outcome=WRONG,
        first_line=(call,),
        text=(*words, "called_otherwise.py"),
        failing=(f"Functional.{call}.0.forward",),
    )


def mask_written_otherwise(number: str, target: str, golden: str, call: str) -> Situation:
    """The row of a mask that is written otherwise in one run."""
    return Situation(
        f"case 23 {number}",
        mask(target),
        mask(golden),
        outcome=WRONG,
        first_line=(call,),
        absent=("is rounding", "Rounding only"),
        failing=(call,),
    )


ORIGINAL = Training("port", ("original",))


def port_with(bug: str, *words: str, failing: str = "") -> Situation:
    """A port of a decoder with a bug, which is found in tensors: words of the first line, and the item that fails."""
    return Situation(
        f"25 {bug}",
        Training("port", ("port", bug)),
        ORIGINAL,
        outcome=WRONG,
        first_line=words,
        failing=(failing or words[0],),
    )


@rows(
    Situation("24", Training("port", ("port",)), ORIGINAL, first_line=("agree up to rounding", "in other steps")),
    Situation("24 eager", Training("port", ("original", "eager")), ORIGINAL, first_line=("agree up to rounding",)),
    Situation(
        "24 statistics",
        Training("port", ("port",), ("--exit", "--task=statistics")),
        Training("port", ("original",), ("--exit", "--task=statistics")),
        first_line=("agree up to rounding", "in other steps"),
    ),
    port_with("eps", "Functional.rms_norm.0"),
    port_with("theta", "Tensor.__rpow__.0"),
    port_with("interleaved", "Torch.polar.0", "port.py"),
    port_with("repeat", "Torch.einsum.0"),
    port_with("scale", "Torch.einsum.0"),
    port_with("gelu", "Functional.gelu.0", "golden Functional.silu.0"),
    port_with("tied", "2 parameters (words, head), another gradient", failing="Optimizer.AdamW.0"),
    port_with("half", "Tensor.half.0", "another dtype"),
    Situation("27", Training("port", ("original", "bfloat16")), ORIGINAL, first_line=("agree up to rounding",)),
    Situation("28", Training("port", ("original", "checkpointed")), ORIGINAL, first_line=("equal",)),
    Situation(
        "20",
        TRAINING,
        training("--seed=1"),
        outcome=WRONG,
        first_line=("seed 0, golden 1",),
        absent=("nternal error",),
        failing=("",),
    ),
    Situation(
        "20 dropout",
        training("--dropout=0.1"),
        training("--dropout=0.1", "--seed=1"),
        outcome=WRONG,
        first_line=("seed 0, golden 1",),
        absent=("Functional.dropout",),
        failing=("",),
    ),
    Situation(
        "21 AdamW",
        training("--lr=0.01"),
        TRAINING,
        outcome=WRONG,
        first_line=("lr 0.01, golden 0.001",),
        failing=("",),
    ),
    Situation(
        "21 SGD",
        training("--optimizer=SGD", "--lr=0.01"),
        training("--optimizer=SGD"),
        outcome=WRONG,
        first_line=("lr 0.01, golden 0.001",),
        failing=("",),
    ),
    Situation(
        "22 model",
        training("--vocabulary=64", "--width=32"),
        TRAINING,
        outcome=WRONG,
        first_line=("two different models", "[64, 32] against [32, 16]"),
        failing=("",),
    ),
    Situation(
        "22 batch",
        training("--batch=8"),
        TRAINING,
        outcome=WRONG,
        first_line=("batch", "[8, 6] against [4, 6]"),
        failing=("",),
    ),
    Situation(
        "23",
        Training("devices", ("rounding",), edit=on_cuda),
        Training("devices"),
        first_line=("rounding",),
        absent=("not finite", "arange"),
    ),
    Situation(
        "23 swapped",
        Training("devices"),
        Training("devices", ("rounding",), edit=on_cuda),
        first_line=("rounding",),
        absent=("not finite", "arange"),
    ),
    Situation("30", TRAINING, Training("training", options=("--exit", "--step=0")), first_line=("bit",)),
    Situation("67", PICTURES, Training("pictures", options=("--exit", "--step=0")), first_line=("bit by bit",)),
    Situation(
        "68",
        Training("pictures", ("betas",)),
        PICTURES,
        outcome=WRONG,
        first_line=("betas [0.9, 0.95], golden [0.9, 0.999]",),
        failing=("Tensor.mul_.0.forward",),
    ),
    Situation(
        "69",
        Training("pictures", ("eval",)),
        PICTURES,
        outcome=WRONG,
        first_line=("mode eval, golden training",),
        failing=("Functional.batch_norm.0.forward",),
    ),
    Situation(
        "70",
        Training("pictures", ("tile",)),
        PICTURES,
        outcome=WRONG,
        first_line=("second.Conv2d", "1.01 x too large", line_of("pictures", "self.second(")),
        failing=("Functional.conv2d.1.forward",),
    ),
    *(
        Situation(
            number,
            target,
            golden,
            outcome=WRONG,
            first_line=("Tensor.__truediv__.0", line_of("counted_router", "@ self.key(")),
            absent=("more)\nruns differ",),
            failing=("Tensor.__truediv__.0.forward",),
        )
        for number, target, golden in (
            ("71", Training("counted_router", ("scale",)), ROUTER),
            ("71 statistics", statistics("scale"), statistics()),
        )
    ),
    Situation(
        "72 MindSpore",
        Training("five_lines", ("rate",), has_debugger=True, framework="mindspore"),
        Training("five_lines", has_debugger=True, framework="mindspore"),
        outcome=WRONG,
        first_line=("lr 0.2, golden 0.1",),  # which no item shows: the dumps end before the update
    ),
    Situation(
        "case 01",
        Training("layers", ("1",)),
        Training("layers", ("0",)),
        outcome=WRONG,
        first_line=("seed 1, golden 0",),
        text=("10 of 10 parameters",),
        failing=("",),
    ),
    Situation(
        "case 01 steps",
        Training("layers", ("0",), ("--exit", "--step=0-1", "--task=statistics"), part="step1"),
        Training("layers", ("0",), ("--exit", "--step=0-1", "--task=statistics"), part="step0"),
        outcome=WRONG,
        first_line=("10 of 10 parameters",),
        failing=("",),
    ),
    called_otherwise("causal", "causal", "scaled_dot_product_attention", "is_causal", "attn_mask"),
    called_otherwise("mask", "mask", "scaled_dot_product_attention", "attn_mask"),
    called_otherwise("cross_entropy", "cross_entropy", "cross_entropy", "weight"),
    called_otherwise("layer_norm", "layer_norm", "layer_norm", "weight"),
    Situation(
        "case 06 linear",
        Training("called_otherwise", ("linear", "without")),
        Training("called_otherwise", ("linear", "with")),
        outcome=WRONG,
        first_line=("linear",),
        text=("input.2", "called_otherwise.py"),
        failing=("Functional.linear.1.forward",),
    ),
    Situation(
        "case 07",
        Training("loss_mask", ("wrong",)),
        Training("loss_mask"),
        outcome=WRONG,
        text=("before the collection",),
        absent=("batch, proved",),
        failing=("Tensor.__mul__.0.forward",),
    ),
    Situation(
        "case 08",
        Training("compiled_weight", ("wrong",)),
        Training("compiled_weight"),
        outcome=WRONG,
        first_line=("weight",),
        text=("Tensor.copy_", line_of("compiled_weight", "buffer.copy_")),
        failing=("",),
    ),
    mask_written_otherwise("full", "add_1e4", "add", "full"),
    mask_written_otherwise("fill", "fill_1e4", "fill", "masked_fill"),
    mask_written_otherwise("finfo", "fill_finfo", "fill", "masked_fill"),
    mask_written_otherwise("diagonal", "add_diagonal", "add", "triu"),
    mask_written_otherwise("filled diagonal", "fill_diagonal", "fill", "triu"),
    mask_written_otherwise("fill, where", "fill_1e4", "where", "masked_fill"),
    mask_written_otherwise("finfo, where", "fill_finfo", "where", "masked_fill"),
    Situation(
        "case 24 weight",
        Training("leaf", ("weight",)),
        Training("leaf"),
        outcome=WRONG,
        first_line=("parameter 2.weight",),
        failing=("Functional.linear.1.forward",),
    ),
    Situation(
        "case 24 batch",
        Training("leaf", ("batch",)),
        Training("leaf"),
        outcome=WRONG,
        first_line=("batch",),
        failing=("Functional.linear.0.forward",),
    ),
)
def test_answer(situation: Situation, answer: Callable[[Situation], Answered]) -> None:
    check(situation, answer(situation))


@row("29")
def test_each_answer_names_both_runs(runner: Runner, answer: Callable[[Situation], Answered]) -> None:
    wrong, right = Training("gelu", ("wrong",)), Training("gelu")
    for target, golden in ((wrong, right), (right, wrong)):
        answered = answer(Situation("29", target, golden, outcome=WRONG))
        said = " ".join(answered.text.split(answered.first_line)[1].split())
        for dump in (target, golden):
            assert re.search(rf"\b{dump.name}\b.*gelu\.py.*\d\d:\d\d", said), said


def group_dump(folder: Path, framework: str, tensor: dict[str, object], group: object) -> Path:
    """A dump of one all_reduce, with the group as a framework records it."""
    record = {"input_args": [tensor], "input_kwargs": {"group": group}, "output": [tensor, None]}
    head = {"task": "statistics", "level": "L1", "framework": framework, "dump_data_dir": None}
    folder.mkdir()
    path = folder / "dump.json"
    path.write_text(json.dumps({**head, "data": {"Distributed.all_reduce.0.forward": record}}), encoding="utf-8")
    return path


@row("case 05")
def test_groups_of_another_name_are_no_difference(answer: Callable[[Situation], Answered], tmp_path: Path) -> None:
    statistics = {"shape": [2, 3], "Max": 1.5, "Min": -1.0, "Mean": 0.25, "Norm": 2.5}
    tensor = {"type": "mindspore.Tensor", "dtype": "Float32", **statistics}
    target = group_dump(tmp_path / "target", "mindspore", tensor, {"type": "str", "value": "tp-0-1"})
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", **statistics}
    golden = group_dump(tmp_path / "golden", "pytorch", tensor, None)
    situation = Situation("case 05", target, golden, absent=("not finite on one side",))
    check(situation, answer(situation))
