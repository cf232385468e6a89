"""What differs between two manifests, in words and in order; nothing in a file may do harm."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.manifest import CompiledCode, Manifest, read_manifest
from pytest_msprobe.manifests import differences
from pytest_msprobe.manifests.alone import facts, suspicions
from pytest_msprobe.manifests.text import lines_of_one, lines_of_two

Run = dict[str, Any]


def a_run() -> Run:
    """A run with a model of four layers and one optimizer of two groups."""
    names = ("emb.weight", "norm.weight", "norm.bias", "head.weight")
    shapes = ([32, 8], [8], [8], [32, 8])
    parameters = [
        {"name": name, "dtype": "float32", "shape": shape, "requires_grad": True, "fingerprint": f"{at:016x}"}
        for at, (name, shape) in enumerate(zip(names, shapes))
    ]
    layers = [
        {"path": "", "class": "Net", "training": True, "settings": {}},
        {"path": "emb", "class": "Embedding", "training": True, "settings": {"num_embeddings": 32}},
        {"path": "norm", "class": "LayerNorm", "training": True, "settings": {"eps": 1e-05}},
        {"path": "drop", "class": "Dropout", "training": True, "settings": {"p": 0.0}},
    ]
    groups = [
        {"settings": {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.1}, "parameters": [names[0], names[3]]},
        {"settings": {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.0}, "parameters": [names[1], names[2]]},
    ]
    batch = [{"name": "input.0", "dtype": "int64", "shape": [4, 8], "fingerprint": "aa"}]
    random = {"seeds": {"torch": 1}, "states": {"torch": "t", "python": "p", "numpy": "n"}}
    return {
        "schema": 1,
        "framework": "pytorch",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "device": {"kind": "cpu"},
        "environment": {},
        "switches": {"deterministic algorithms": False, "threads": 1},
        "script": {"command": ["train.py"], "git": {"revision": "a" * 40}},
        "ranks": None,
        "models": [{"class": "__main__.Net", "parameters": parameters, "buffers": [], "modules": layers}],
        "optimizers": [
            {"class": "torch.optim.adamw.AdamW", "groups": groups, "schedulers": [], "state": {}},
        ],
        "step": {
            "number": 0,
            "random": random,
            "loss_scale": {"scale": 65536.0},
            "autocast": {},
            "forwards": 2,
            "batches": [batch, [{**batch[0], "fingerprint": "bb"}]],
        },
    }


def written(run: object, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(run if isinstance(run, str) else json.dumps(run))
    return path


@pytest.fixture
def sentences(tmp_path: Path) -> Callable[[Run, Run], list[str]]:
    """sentences(target, golden): what differs, in order."""

    def ask(target: Run, golden: Run) -> list[str]:
        pair = [read_manifest(written(run, tmp_path / name)) for run, name in ((target, "a"), (golden, "b"))]
        return [one.sentence for one in differences(*pair)]

    return ask


def put(*path: Any) -> Callable[[Run], None]:
    """Changes the value at `path`, whose last part is the new value."""

    def change(run: Run) -> None:
        place: Any = run
        for key in path[:-2]:
            place = place[key]
        place[path[-2]] = path[-1]

    return change


MODEL, OPTIMIZER = ("models", 0), ("optimizers", 0)
PLANTED = [
    (put("step", "number", 3), "step 3, golden step 0: these are not the same step"),
    (put(*OPTIMIZER, "groups", 0, "settings", "lr", 1e-2), "lr of group 0: 0.01, golden 0.001"),
    (put(*OPTIMIZER, "class", "torch.optim.sgd.SGD"), "optimizer SGD, golden AdamW"),
    (
        put(*OPTIMIZER, "groups", 0, "parameters", ["emb.weight"]),
        "1 parameter of 4 is in no optimizer: head.weight; golden none",
    ),
    (
        put(*OPTIMIZER, "schedulers", [{"class": "x.StepLR", "settings": {}}]),
        "scheduler StepLR, golden none",
    ),
    (put(*MODEL, "modules", 3, "settings", "p", 0.1), "dropout 0.1, golden 0.0 in 1 Module: drop"),
    (put(*MODEL, "modules", 2, "settings", "eps", 1e-6), "eps 1e-06, golden 1e-05 in 1 Module (LayerNorm): norm"),
    (put(*MODEL, "modules", 2, "training", False), "1 Module is in eval, golden in training: norm"),
    (put(*MODEL, "modules", 2, "class", "RMSNorm"), "RMSNorm, golden LayerNorm in 1 Module: norm"),
    (
        put(*MODEL, "parameters", 1, "requires_grad", False),
        "1 parameter of 4 requires no gradient, golden it does: norm.weight",
    ),
    (
        put(*MODEL, "parameters", 1, "dtype", "bfloat16"),
        "dtype of 1 parameter of 4 (norm.weight): bfloat16, golden float32",
    ),
    (put(*MODEL, "parameters", 0, "shape", [64, 8]), "shape of 1 parameter of 4 (emb.weight): [64, 8], golden [32, 8]"),
    (
        put(*MODEL, "parameters", 1, "fingerprint", "other"),
        "another initial state: 1 parameter of 4 differs: norm.weight",
    ),
    (
        put(*MODEL, "parameters", 3, {"name": "head.weight", "tied": "emb.weight"}),
        "parameter head.weight is tied to emb.weight, golden not tied",
    ),
    (put("step", "autocast", {"cuda": "torch.bfloat16"}), "autocast bfloat16, golden off"),
    (put("step", "loss_scale", {"scale": 1024.0}), "loss scale 1024.0, golden 65536.0"),
    (put("step", "loss_scale", None), "loss scale none, golden 65536.0"),
    (put("step", "random", "seeds", "torch", 2), "seed of torch 2, golden 1"),
    (
        put("step", "random", "states", "torch", "u"),
        "the random state of torch differs when step 0 begins: the seed is the same, other numbers were drawn before",
    ),
    (put("switches", "deterministic algorithms", True), "deterministic algorithms on, golden off"),
    (put("environment", "NVIDIA_TF32_OVERRIDE", "1"), "NVIDIA_TF32_OVERRIDE 1, golden not set"),
    (put("versions", "torch", "2.9.0"), "torch 2.9.0, golden 2.13.0"),
    (put("versions", "transformers", "5.0"), "transformers 5.0, golden not imported"),
    (put("device", "kind", "cuda"), "device cuda, golden cpu"),
    (
        put("step", "batches", 1, 0, "fingerprint", "cc"),
        "batch of step 0 differs in forward 1: other values in input.0 (int64 [4, 8])",
    ),
    (
        put("step", "batches", 1, 0, "shape", [8, 8]),
        "batch of step 0 differs in forward 1: input.0 int64 [8, 8], golden int64 [4, 8]",
    ),
    (put("step", "forwards", 4), "4 forwards of the model in step 0, golden 2"),
    (put("ranks", {"rank": 0, "world_size": 2, "groups": {}}), "world size 2, golden 1"),
    (put("script", "git", "revision", "b" * 40), "git revision bbbbbbbbbbbb, golden aaaaaaaaaaaa"),
    (put("script", "command", ["train.py", "--big"]), "command line: --big, golden nothing more"),
]


@pytest.mark.parametrize(("change", "sentence"), PLANTED, ids=[sentence for _, sentence in PLANTED])
def test_one_planted_difference_is_said_in_one_line_both_ways(
    sentences: Callable[[Run, Run], list[str]], change: Callable[[Run], None], sentence: str
) -> None:
    other = a_run()
    change(other)
    assert sentences(other, a_run()) == [sentence]
    assert len(sentences(a_run(), other)) == 1


def test_equal_runs_differ_in_nothing_and_unused_generators_do_not_count(sentences: Any) -> None:
    other = a_run()
    other["step"]["random"]["states"].update(python="q", numpy="m")
    assert sentences(other, a_run()) == []
    other["step"]["batches"][0][0]["fingerprint"] = "cc"
    assert sentences(other, a_run())[-1] == "the random state of python, numpy differs when step 0 begins"


def test_a_cause_stands_before_what_follows_from_it(sentences: Any) -> None:
    other = a_run()
    other["step"]["random"] = {"seeds": {"torch": 2}, "states": {"torch": "u"}}
    other["step"]["batches"][0][0]["fingerprint"] = "cc"
    for one in other["models"][0]["parameters"]:
        one["fingerprint"] += "x"
    other["optimizers"][0]["groups"][0]["settings"].update(lr=1e-2, initial_lr=1e-2)
    other["versions"]["torch"] = "2.9.0"
    other["script"]["command"] = ["train.py", "--lr", "0.01"]
    assert [one.partition(" ")[0] for one in sentences(other, a_run())] == [
        *("lr", "seed", "torch", "batch", "another", "the", "command"),
    ]


def test_groups_are_compared_by_their_parameters_however_they_are_cut(sentences: Any) -> None:
    other = a_run()
    whole = {"settings": {"lr": 1e-3, "betas": [0.9, 0.999], "weight_decay": 0.1}}
    names = [name for group in other["optimizers"][0]["groups"] for name in group["parameters"]]
    other["optimizers"][0]["groups"] = [{**whole, "parameters": names}]
    assert sentences(other, a_run()) == ["weight_decay of group 0 (norm.weight, norm.bias): 0.1, golden 0.0"]


def test_microbatches_in_another_order_are_told_as_that(sentences: Any) -> None:
    other = a_run()
    other["step"]["batches"].reverse()
    assert sentences(other, a_run()) == ["the batches of step 0 are the same in another order"]


def test_fingerprints_of_cpu_and_device_say_nothing_of_each_other(sentences: Any) -> None:
    other = a_run()
    for one in other["models"][0]["parameters"]:
        one["fingerprint"] = f"sum {one['fingerprint']}"
    assert sentences(other, a_run()) == []


def test_names_and_settings_of_both_frameworks_are_matched(sentences: Any) -> None:
    other = a_run()
    other.update(framework="mindspore", versions={"mindspore": "2.10.0"})
    for old, new in (("emb.weight", "emb.embedding_table"), ("norm.weight", "norm.gamma"), ("norm.bias", "norm.beta")):
        text = json.dumps(other).replace(f'"{old}"', f'"{new}"')
        other = json.loads(text)
    group = other["optimizers"][0]["groups"][0]["settings"]
    del group["betas"]
    group.update(beta1=0.9, beta2=0.95)
    found = sentences(other, a_run())
    assert found[:2] == ["betas of group 0: [0.9, 0.95], golden [0.9, 0.999]", "framework mindspore, golden pytorch"]
    assert not any("parameter" in sentence for sentence in found)


def wrapped(run: Run, front: str) -> Run:
    """The run with its model in a wrapper."""
    (model,), (optimizer,) = run["models"], run["optimizers"]
    for one in (*model["parameters"], *model["buffers"]):
        one["name"] = f"{front}.{one['name']}"
    for layer in model["modules"]:
        layer["path"] = f"{front}.{layer['path']}".removesuffix(".")
    wrapper = {"path": "", "class": "Wrapper", "training": True, "settings": {"dim": 0}}
    model.update(modules=[wrapper, *model["modules"]])
    model["class"] = "torch.nn.parallel.distributed.DistributedDataParallel"
    for group in optimizer["groups"]:
        group["parameters"] = [f"{front}.{name}" for name in group["parameters"]]
    return run


def test_what_is_put_around_a_model_to_run_it_is_no_difference(sentences: Any) -> None:
    assert sentences(wrapped(a_run(), "module"), a_run()) == []
    assert sentences(a_run(), wrapped(wrapped(a_run(), "_orig_mod"), "module")) == []
    sharded = a_run()
    sharded["models"][0]["class"] = "torch.distributed.fsdp.FSDPNet"
    sharded["models"][0]["modules"][2]["class"] = "FSDPLayerNorm"
    assert sentences(sharded, a_run()) == []
    other = wrapped(a_run(), "module")
    other["models"][0]["modules"][-1]["settings"]["p"] = 0.1
    other["optimizers"][0]["groups"][0]["parameters"].pop()
    assert sentences(other, a_run()) == [
        "1 parameter of 4 is in no optimizer: head.weight; golden none",
        "dropout 0.1, golden 0.0 in 1 Module: drop",
    ]


HOSTILE = [
    *("[]", "3", '"text"', "null", "", "{", '{"step": ' * 2000, "\x00" * 100),
    '{"models": 3, "optimizers": {"a": 1}, "step": [], "versions": [1], "ranks": "x", "script": {"command": 3}}',
    '{"models": [3, null, {"parameters": [1, {"name": 5}, {"name": "a", "shape": ["x", 1e999], "dtype": []}]}]}',
    '{"models": [{"modules": [{"path": 3, "settings": []}], "buffers": {}}], "step": {"batches": [3, [4]]}}',
    '{"optimizers": [{"groups": [{"settings": 3, "parameters": [3]}], "state": {"step": {"a": 1}}}]}',
    '{"step": {"number": 1e999, "random": {"seeds": [1], "states": 3}, "loss_scale": [], "autocast": 3}}',
    '{"versions": {"torch": {"a": [1, 2]}}, "environment": {"A": [1]}, "switches": {"x": {"y": {}}}}',
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_one_line_or_nothing(tmp_path: Path, text: str) -> None:
    bad, good = written(text, tmp_path / "bad" / "run.json"), written(a_run(), tmp_path / "good" / "run.json")
    for lines, code in (lines_of_two(bad, good), lines_of_two(good, bad), lines_of_one(bad), lines_of_two(bad, bad)):
        assert code in (0, 1, 2)
        assert lines
        assert all(line.isprintable() and len(line) < 2000 for line in lines)


def test_text_of_a_file_cannot_move_the_terminal_or_fill_it(tmp_path: Path) -> None:
    other = a_run()
    other["optimizers"][0]["groups"][0]["settings"]["lr\x1b[2J" + "x" * 10**6] = "\x1b]0;title\x07\u202e" * 1000
    other["versions"]["torch"] = "2.9\n2.10"
    other["models"][0]["modules"][0]["settings"]["p"] = "HUGE"
    other["models"][0]["parameters"] += [{"name": f"p{at}\n" * 100, "dtype": "x"} for at in range(5000)]
    text = json.dumps(other).replace('"HUGE"', "9" * 400)
    lines, code = lines_of_two(written(text, tmp_path / "a.json"), written(a_run(), tmp_path / "b.json"))
    assert code == 1
    assert all(line.isprintable() and len(line) < 600 for line in lines)
    assert len(lines) <= 200


def test_ranks_with_equal_differences_are_told_together(tmp_path: Path) -> None:
    for rank in range(4):
        for name, lr in (("a", 1e-2 if rank < 3 else 1e-3), ("b", 1e-3)):
            run = a_run()
            run["optimizers"][0]["groups"][0]["settings"]["lr"] = lr
            run["versions"]["torch"] = "2.9.0" if name == "a" else "2.13.0"
            run["ranks"] = {"rank": rank, "world_size": 4, "groups": {}}
            written(run, tmp_path / name / "step0" / f"rank{rank}" / "run.json")
    lines, code = lines_of_two(tmp_path / "a", tmp_path / "b")
    assert (lines, code) == (
        [
            "step 0, all 4 ranks:",
            "  torch 2.9.0, golden 2.13.0",
            "step 0, ranks 0-2:",
            "  lr of group 0: 0.01, golden 0.001",
        ],
        1,
    )


def test_what_an_earlier_step_told_is_not_told_again_and_what_is_missing_is(tmp_path: Path) -> None:
    for step in (0, 1, 10):
        for name in ("a", "b"):
            run = a_run()
            run["step"]["number"] = step
            if name == "a":
                run["versions"]["torch"] = "2.9.0"
            if name == "a" and step == 1:
                run["step"]["loss_scale"]["scale"] = 1.0
            if not (name == "b" and step == 10):
                written(run, tmp_path / name / f"step{step}" / "proc0" / "run.json")
    lines, code = lines_of_two(tmp_path / "a", tmp_path / "b")
    assert lines == [
        "step 0:",
        "  torch 2.9.0, golden 2.13.0",
        "step 1:",
        "  loss scale 1.0, golden 65536.0",
        f"not in {tmp_path / 'b'}: step10/proc0",
    ]
    assert code == 1


def test_exit_codes(tmp_path: Path) -> None:
    same = [written(a_run(), tmp_path / name / "run.json") for name in "ab"]
    assert lines_of_two(*same) == ([f"equal: 1 manifest of {same[0]} and {same[1]}"], 0)
    (tmp_path / "empty").mkdir()
    assert lines_of_two(same[0], tmp_path / "empty")[1] == 2
    assert lines_of_two(tmp_path / "nowhere", same[0])[1] == 2
    assert lines_of_one(same[0])[1] == 0


def test_eval_mode_is_a_finding_where_a_layer_computes_otherwise(tmp_path: Path) -> None:
    def eval_of(*layers: dict[str, Any]) -> list[str]:
        run = a_run()
        run["models"][0]["modules"] += layers
        for layer in run["models"][0]["modules"]:
            layer["training"] = False
        return suspicions(read_manifest(written(run, tmp_path / "run.json")))

    found = ["model Net is in eval while an optimizer trains it"]
    attention = {"path": "attention", "class": "Attention", "settings": {}, "reads_mode": True}
    inside = {"path": "attention.drop", "class": "Dropout", "settings": {"p": 0.0}, "reads_mode": True}
    norm = {"path": "batch", "class": "BatchNorm1d", "settings": {"track_running_stats": True}}
    assert eval_of() == []
    assert eval_of(attention) == found
    assert eval_of(attention, inside) == [], "what it asks the mode for drops nothing"
    assert eval_of(attention, {**inside, "settings": {"p": 0.1}}) == found
    assert eval_of(norm) == found
    assert eval_of({**norm, "reads_mode": False}) == []
    assert eval_of({**norm, "reads_mode": True, "settings": {"track_running_stats": False}}) == []


def test_what_a_step_ended_in_and_what_was_compiled(tmp_path: Path) -> None:
    run = a_run()
    run["ended_in"] = {"type": "ZeroDivisionError", "message": "by\n\x1b zero", "file": "/home/me/train.py", "line": 14}
    run["compiled"] = [{"name": "inner", "file": "/home/me/model.py", "line": 7}, {"name": "Block", "path": "blocks.1"}]
    found = read_manifest(written(run, tmp_path / "run.json"))
    assert suspicions(found) == []
    assert str(found.ended_in) == "ZeroDivisionError, train.py:14"
    assert found.ended_in is not None
    assert found.ended_in.message == "by\\n\\x1b zero"
    assert list(map(str, found.compiled)) == ["inner, model.py:7", "blocks.1 (Block)"]
    for broken in ([], "x", {"type": 3}, {"line": "x"}, None):
        run |= {"ended_in": broken, "compiled": broken}
        found = read_manifest(written(run, tmp_path / "run.json"))
        assert found.ended_in is None
        assert found.compiled == ()


def test_which_calls_stand_in_compiled_code() -> None:
    function = CompiledCode("inner", None, "/home/me/model.py", 7)
    inner, forward = ("/home/me/copy.py", 70, "inner"), ("/home/me/model.py", 30, "forward")
    assert function.holds("tanh", [inner, forward], set())
    assert not function.holds("tanh", [forward], {"blocks.0"})
    assert CompiledCode("gelu", None, "", 0).holds("gelu", [forward], set())
    assert not CompiledCode("gelu", None, "", 0).holds("tanh", [forward], set())
    loss = CompiledCode("CrossEntropyLoss", None, "/usr/lib/torch/nn/modules/loss.py", 1390, 1401)
    assert loss.holds("cross_entropy", [("/opt/torch/nn/modules/loss.py", 1395, "")], set())
    assert not loss.holds("cross_entropy", [("/opt/torch/nn/modules/loss.py", 1405, ""), forward], {"head"})
    layer = CompiledCode("Block", "blocks.1", "/home/me/model.py", 9)
    assert layer.holds("linear", [forward], {"blocks.1.up"})
    assert not layer.holds("linear", [forward], {"blocks.10.up"})
    model = CompiledCode("Net", "", "/home/me/model.py", 20)
    assert model.holds("linear", [forward], {"head"})
    assert not model.holds("mse_loss", [("/home/me/train.py", 9, "train_step")], set())


WRONG = [
    (put(*OPTIMIZER, "groups", 0, "parameters", ["emb.weight"]), "1 parameter of 4 is in no optimizer: head.weight"),
    (put(*OPTIMIZER, "groups", 0, "parameters", ["emb.weight", "head.weight", "norm.bias"]), "in several groups"),
    (put(*OPTIMIZER, "groups", 1, "settings", "lr", 0), "lr of AdamW is 0 in group 1"),
    (
        put(*MODEL, "modules", 3, {"path": "drop", "class": "Dropout", "training": False, "settings": {"p": 0.1}}),
        "dropout is in eval in 1 Module",
    ),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_looks_wrong_in_one_run_alone(tmp_path: Path, change: Callable[[Run], None], words: str) -> None:
    run = a_run()
    path = written(run, tmp_path / "run.json")
    assert suspicions(read_manifest(path)) == []
    change(run)
    lines, code = lines_of_one(written(run, path))
    assert code == 1
    (line,) = [line for line in lines if line.startswith("looks wrong: ")]
    assert words in line


WARM_UP = put(*OPTIMIZER, "schedulers", [{"class": "x.LambdaLR", "settings": {}}])
MEANT = {
    "frozen and in an optimizer": [put(*MODEL, "parameters", 1, "requires_grad", False)],
    "lr 0 as a warm-up begins": [put(*OPTIMIZER, "groups", 1, "settings", "lr", 0), WARM_UP],
    "one batch in two forwards": [put("step", "batches", 1, 0, "fingerprint", "aa")],
}


@pytest.mark.parametrize("changes", MEANT.values(), ids=MEANT)
def test_what_people_do_on_purpose_looks_right(tmp_path: Path, changes: list[Callable[[Run], None]]) -> None:
    run = a_run()
    for change in changes:
        change(run)
    assert suspicions(read_manifest(written(run, tmp_path / "run.json"))) == []


def test_facts_of_an_empty_manifest_can_be_told() -> None:
    assert facts(Manifest())[0].startswith("step None of an unknown framework")
    assert suspicions(Manifest()) == []


def test_unknown_keys_are_left_alone(sentences: Any) -> None:
    other = copy.deepcopy(a_run())
    other["new"] = {"anything": [1]}
    other["models"][0]["new"] = 3
    assert sentences(other, a_run()) == []


def test_the_command_loads_no_numpy_and_no_framework(tmp_path: Path) -> None:
    other = a_run()
    other["versions"]["torch"] = "2.9.0"
    paths = [str(written(run, tmp_path / name / "run.json")) for run, name in ((other, "a"), (a_run(), "b"))]
    script = (
        "import sys\nfrom pytest_msprobe.__main__ import main\n"
        f"code = main(['manifest', {paths[0]!r}, {paths[1]!r}])\n"
        "assert not {'numpy', 'torch', 'mindspore'} & sys.modules.keys(), sorted(sys.modules)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "torch 2.9.0, golden 2.13.0\n"), done.stderr
