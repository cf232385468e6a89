"""What is planted, and what has to be said of it first.

The entries of `SEEN` were written before the order of the differences was tuned; those of `HELD_OUT` after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """A change of one thing.

    Attributes:
        name: of the entry.
        framework: `torch` or `mindspore`.
        changes: of the training that is compared, as its module takes them.
        expected: regular expression that the first difference has to match.
        golden: changes of the golden training.
        environment: variables of the training that is compared.
    """

    name: str
    framework: str
    changes: dict
    expected: str
    golden: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)


SEEN = [
    Entry("lr", "torch", {"lr": 1e-2}, r"^lr .*0\.01, golden 0\.001"),
    Entry("decay of a group", "torch", {"decay": 0.01}, r"^weight_decay of group 0.*0\.01, golden 0\.1"),
    Entry("betas", "torch", {"betas": [0.9, 0.95]}, r"^betas .*0\.95.*golden .*0\.999"),
    Entry("eps of the optimizer", "torch", {"eps": 1e-6}, r"^eps .*1e-06, golden 1e-08"),
    Entry("optimizer", "torch", {"optimizer": "Adam"}, r"optimizer.*Adam, golden AdamW"),
    Entry("head is not optimized", "torch", {"left_out": "head"}, r"^2 parameters of \d+ are in no optimizer.*head"),
    Entry("frozen", "torch", {"frozen": "words"}, r"requires no gradient.*words\.weight|words\.weight.*requires no gr"),
    Entry("dropout", "torch", {"dropout": 0.1}, r"^dropout 0\.1, golden 0\.0 in 4 Modules"),
    Entry("eval", "torch", {"eval": True}, r"eval.*golden.*train"),
    Entry("eps of norms", "torch", {"norm_eps": 1e-6}, r"^eps 1e-06, golden 1e-05 in 2 Modules.*LayerNorm"),
    Entry("seed", "torch", {"seed": 2}, r"^seed of torch 2, golden 1"),
    Entry(
        "weights of one layer", "torch", {"moved": "blocks.0.inner"}, r"initial.*2 parameters of \d+.*blocks\.0\.inner"
    ),
    Entry("batch", "torch", {"batch_seed": 8}, r"^batch of step 0 differs"),
    Entry("dtype", "torch", {"dtype": "bfloat16"}, r"bfloat16, golden.*float32"),
    Entry("autocast", "torch", {"autocast": True}, r"^autocast.*bfloat16, golden.*off"),
    Entry(
        "loss scale", "torch", {"loss_scale": 1024.0}, r"^loss scale 1024.*golden 65536", golden={"loss_scale": 65536.0}
    ),
    Entry("deterministic", "torch", {"deterministic": True}, r"deterministic.*on, golden off"),
    Entry("precision", "torch", {"precision": "medium"}, r"matmul.*precision.*medium, golden highest"),
    Entry("version", "torch", {"version": "2.9.0"}, r"^torch 2\.9\.0, golden 2\.13"),
    Entry(
        "variable", "torch", {}, r"NVIDIA_TF32_OVERRIDE.*1, golden not set", environment={"NVIDIA_TF32_OVERRIDE": "1"}
    ),
    Entry("other step", "torch", {"step": 1}, r"step 1.*golden.*step 0"),
    Entry("lr", "mindspore", {"lr": 0.01}, r"^lr .*0\.01, golden 0\.1"),
    Entry("momentum", "mindspore", {"momentum": 0.5}, r"^momentum .*0\.5, golden 0\.9"),
    Entry("decay", "mindspore", {"decay": 0.01}, r"^weight_decay of group 0.*0\.01, golden 0"),
    Entry("loss scale", "mindspore", {"loss_scale": 1024.0}, r"loss.scale.*1024(\.0)?, golden 1"),
    Entry("schedule", "mindspore", {"decay_rate": 0.5}, r"decay_rate.*0\.5, golden 0\.9", golden={"decay_rate": 0.9}),
    Entry(
        "head is not optimized", "mindspore", {"left_out": "second"}, r"^2 parameters of 6 are in no optimizer.*second"
    ),
    Entry("dropout", "mindspore", {"dropout": 0.1}, r"^dropout 0\.1, golden 0\.0 in 1 Cell"),
    Entry("seed", "mindspore", {"seed": 2}, r"^seed of mindspore 2, golden 1"),
    Entry("batch", "mindspore", {"batch_seed": 8}, r"^batch of step 0 differs"),
    Entry("deterministic", "mindspore", {"deterministic": True}, r"deterministic.*ON, golden OFF"),
]

HELD_OUT = [
    Entry("accumulation", "torch", {"forwards": 4}, r"^4 forwards.*step 0, golden 2", golden={"forwards": 2}),
    Entry("scheduler", "torch", {"gamma": 0.9}, r"^gamma of StepLR.*0\.9, golden 0\.5"),
    Entry("no bias", "torch", {"bias": False}, r"parameter is not in this model: head\.bias"),
    Entry("tied weights", "torch", {"tied": True}, r"head\.weight is tied to words\.weight, golden not tied"),
    Entry("one block more", "torch", {"blocks": 3}, r"6 parameters are not in the golden model: blocks\.2"),
    Entry("other buffer", "torch", {"scale": 2.0}, r"1 buffer of 1 differs: scale"),
    Entry(
        "eval of one block", "torch", {"eval_of": "blocks.1"}, r"^6 Modules are in eval, golden in training: blocks\.1"
    ),
    Entry(
        "SGD with momentum",
        "torch",
        {"optimizer": "SGD", "settings": {"momentum": 0.9}},
        r"^momentum .*0\.9, golden 0",
        golden={"optimizer": "SGD"},
    ),
    Entry("fused", "torch", {"settings": {"fused": True}}, r"^fused .*True, golden None"),
    Entry("draws before the step", "torch", {"draws": 3}, r"random state of torch differs.*the seed is the same"),
    Entry(
        "larger batch",
        "torch",
        {"batch": 8},
        r"^batch of step 0 differs: input\.0 int64 \[8, 8\], golden int64 \[4, 8\]",
    ),
    Entry("threads", "torch", {"threads": 2}, r"^threads 2, golden 1"),
    Entry(
        "no model given",
        "torch",
        {"given": False, "level": "L1", "lr": 1e-2},
        r"^lr .*0\.01, golden 0\.001",
        golden={"given": False, "level": "L1"},
    ),
    Entry(
        "mint betas",
        "mindspore",
        {"optimizer": "mint.AdamW", "betas": [0.9, 0.95]},
        r"^betas .*0\.95\], golden .*0\.999",
        golden={"optimizer": "mint.AdamW"},
    ),
    Entry("frozen", "mindspore", {"frozen": "first"}, r"^2 parameters of 6 require no gradient, golden they do: first"),
    Entry("half precision", "mindspore", {"dtype": "float16"}, r"fp16 True, golden|float16.*golden"),
    Entry("eval", "mindspore", {"eval": True}, r"in eval, golden in training"),
    Entry("weights", "mindspore", {"moved": "second"}, r"initial state.*2 parameters of 6.*second"),
    Entry("nesterov", "mindspore", {"nesterov": True}, r"^use_nesterov .*True, golden False"),
    Entry("graph mode", "mindspore", {"mode": "graph"}, r"^mode GRAPH_MODE, golden PYNATIVE_MODE"),
]
