"""Every command and output in README and docs is executed: here, or where `ELSEWHERE` says; the rest has its reason."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documented import ROOT, Block, Command, blocks, inline_commands
from dump_builder import DumpBuilder
from gradient_runs import write_step

#: What executes a block, by its page and the beginning of its first line.
ELSEWHERE = {
    ("README.md", "python3 -m venv .venv && . .venv"): ".ci/run",
    ("README.md", "python3 -m venv .venv-test"): ".ci/run",
    ("README.md", "pip install './pytest_msprobe-"): ".ci/installed",
    (
        "README.md",
        "python -m msprobe_collector collect",
    ): "tests/plugin/test_documented_commands.py",  # those of the next
    ("docs/ci.md", "#!/bin/bash"): "tests/plugin/test_hosts.py",
    ("docs/ci.md", "pytest --msprobe-dump=step0 --msprobe-shard=1/2"): "tests/plugin/test_hosts.py",
    ("docs/collecting.md", "python -m msprobe_collector collect"): "tests/plugin/test_first_verdict.py",
    ("docs/collecting.md", "msprobe_dump: tensors"): "tests/plugin/test_first_verdict.py",
    ("docs/collecting.md", "cd collector/examples/gpt"): "tests/collector/test_readme_examples.py",
    ("docs/collecting.md", "cd collector/examples/static_graph"): "tests/collector/test_static_graph.py",
    ("docs/extending.md", "scaled_tanh"): "tests/plugin/test_adding_an_operator.py",
    ("docs/extending.md", "[mindspore]"): "tests/plugin/test_adding_an_operator.py",
    ("docs/gradients.md", "$ pytest"): "tests/plugin/test_gradients.py",
    ("docs/hooks.md", "$ pytest"): "tests/plugin/test_hooks.py",
    ("docs/index.md", ". .venv/bin/activate && pip install"): ".ci/run",
    ("docs/new_suite.md", "pip install ."): "tests/plugin/test_new_suite.py",
    ("docs/overflow.md", "$ pytest"): "tests/plugin/test_page_examples.py",
    ("docs/precheck.md", "$ pytest"): "tests/plugin/test_page_examples.py",
    ("docs/repeat.md", "$ pytest --msprobe-dump=tests"): "tests/plugin/test_page_examples.py",
    ("docs/repeat.md", "$ pytest --msprobe-dump=dump"): "tests/plugin/test_batch.py",
    ("docs/sharded.md", "$ pytest"): "tests/plugin/test_sharded_example.py",
    ("docs/standards.md", "$ pytest"): "tests/plugin/test_standards.py",
    (
        "docs/two_runs.md",
        "$ pytest --msprobe-dump=target --msprobe-golden=golden -q",
    ): "tests/plugin/test_page_examples.py",
    ("docs/two_runs.md", "$ pytest --msprobe-dump=silu"): "tests/plugin/test_page_examples.py",
    ("docs/two_runs.md", "$ python train.py"): "tests/plugin/test_page_examples.py",
    ("docs/two_runs.md", "$ python collector/examples"): "tests/plugin/test_page_examples.py",
    (
        "docs/two_runs.md",
        "python -m msprobe_collector collect --exit --dtype",
    ): "tests/everyday/test_exact_run.py",
    (
        "docs/two_runs.md",
        "$ pytest --msprobe-dump=target --msprobe-golden=golden --msprobe-diagnosis",
    ): "tests/plugin/test_sketch_dumps.py",
    (
        "extensions/checkpoints/README.md",
        "$ python -m pytest_msprobe checkpoints",
    ): "extensions/checkpoints/tests/test_checkpoints_docs.py",
    ("extensions/laws/README.md", "python -m msprobe_laws train.py"): "extensions/laws/tests/test_launching.py",
}
#: What cannot be executed, or holds nothing to execute, and why.
NOT_HERE = {
    ("CONTRIBUTING.md", "python3 -m venv .venv"): "an environment of one's own; .ci/run sets itself up like that",
    ("CONTRIBUTING.md", "pip install -c constraints.txt -e ."): "another environment, for a small disk",
    ("CONTRIBUTING.md", ".ci/quick"): "runs the tests that this one is among",
    ("docs/architecture.md", "plugin.py"): "a drawing",
    ("docs/ci.md", "pytest --msprobe-dump=step0 --dist=load"): "two hosts with Ascend NPUs",
    ("docs/ci.md", ". /usr/local/Ascend"): "CANN; test_hosts.py connects two hosts by ssh",
    ("docs/ci.md", "cd /home/me"): "a host with Ascend NPUs",
    ("docs/collecting.md", "python train.py"): "a script of the reader's; the examples below it are executed",
    ("docs/extending.md", "# a comment"): "a grammar",
    ("docs/repeat.md", "output.0 Float32 (8, 8)"): "what a broken device does; test_repeat.py has the same words",
    ("docs/repeat.md", "device 2 differs"): "what a broken device does; test_repeat.py has four",
    ("docs/two_runs.md", "target - golden ="): "a formula",
}
#: Pages with commands in their lines, of which each names what `samples` has.
WITH_INLINE = ("README.md", "docs/index.md")
#: Inline commands of other blocks and of texts.
FRAGMENTS = ("python -m pytest_msprobe diagnose",)

A = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)
SQUARE = (A.astype(np.float64) @ A.T).astype(np.float32)


def named(block: Block, among: Any) -> list[tuple[str, str]]:
    """The keys of `among` that mean a block."""
    return [key for key in among if key[0] == block.page and block.start.startswith(key[1])]


BLOCKS = list(blocks())
HERE = [block for block in BLOCKS if not named(block, ELSEWHERE) and not named(block, NOT_HERE)]
LISTED = [*HERE, *(block for page in WITH_INLINE for block in inline_commands(page) if block.text not in FRAGMENTS)]
#: Outputs that stand below the command of another block.
PAIRED = {
    "msprobe: tests/dumps/gpt_tiny_tensor": "pytest --msprobe-dump=tests/dumps/gpt_tiny_tensor",
    "target: tensors, level L1": "tar xJf",
    "_____": "pytest --msprobe-dump=tests/dumps/gpt_tiny_tensor --msprobe-max-abs",
}


def test_each_block_is_executed_in_one_place() -> None:
    twice = [block.start for block in BLOCKS if len({*named(block, ELSEWHERE), *named(block, NOT_HERE)}) > 1]
    assert twice == []
    keys = {key for block in BLOCKS for key in (*named(block, ELSEWHERE), *named(block, NOT_HERE))}
    assert {*ELSEWHERE, *NOT_HERE} - keys == set(), "entries without a block"
    alone = [f"{block.page}: {block.start}" for block in HERE if not block.commands and not paired(block)]
    assert alone == [], "outputs of no command: give it, as `$ command`"


def test_readme_has_the_commands_of_the_first_verdict() -> None:
    texts = [
        block.text for block in BLOCKS if block.start.startswith("python -m msprobe_collector collect --exit train")
    ]
    assert len(texts) == 2
    assert len(set(texts)) == 1


@pytest.mark.parametrize(("page", "start"), ELSEWHERE, ids=lambda text: text[:30])
def test_what_executes_a_block_elsewhere_reads_its_page(page: str, start: str) -> None:
    text = (ROOT / ELSEWHERE[page, start]).read_text(encoding="utf-8")
    assert Path(page).name in text or Path(page).name.removesuffix(".md") in text
    if ELSEWHERE[page, start].endswith(".py"):
        assert any(
            isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(ast.parse(text))
        )


def paired(block: Block) -> str:
    """The beginning of the command that prints the output `block`; "" for none."""
    return next((command for start, command in PAIRED.items() if block.start.startswith(start)), "")


def step(folder: Path, *, off: float = 0.0, overflow: bool = False) -> None:
    """Two ranks of a step; `off` is added to an output of the first."""
    for rank in (0, 1):
        builder = DumpBuilder(folder / f"rank{rank}", framework="pytorch")
        builder.call("Torch.matmul.0", [A, A.T.copy()], [SQUARE])
        builder.call("Torch.exp.0", [A], [np.exp(A) + np.float32(off if rank == 0 else 0)])
        if overflow:
            builder.call("Torch.neg.0", [A], [np.full_like(A, -np.inf)])
        builder.write()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name."""
    folder = tmp_path_factory.mktemp("samples")
    builder = DumpBuilder(folder)
    builder.call("Mint.matmul.0", [A, A.T.copy()], [SQUARE])
    builder.call("Mint.rsqrt.1", [A], [np.float32(1) / np.sqrt(A)], incoming=[A], gradients=[-A / 2 / A**1.5])
    builder.call("Mint.exp.0", [A], [np.exp(A) + np.float32(1)])
    builder.write()
    for target in ("dump/step0", "target/step0", "npu/step0", "tp2/step0", "parallel_dump/step0", "tp2pp2/step0"):
        step(folder / target, off=1.0)
    for golden in ("golden/step0", "gpu/step0", "single/step0", "single_dump/step0", "tp4/step0"):
        step(folder / golden)
    step(folder / "step0", overflow=True)
    shutil.copytree(folder / "dump", folder / "DUMP")
    shutil.copytree(folder / "golden", folder / "GOLDEN")
    for number in range(4):
        rising = np.arange(1.0, 101.0)
        for run, wrong in (("run_a", number == 2), ("run_b", False)):
            signs = np.where(np.arange(100) < 20, -1.0, 1.0) if wrong else 1.0
            write_step(folder / run, number, {"w": rising * signs, "v": rising})
    shutil.copytree(folder / "run_a", folder / "RUN")
    shutil.copytree(folder / "run_b", folder / "GOLDEN_RUN")
    (folder / "pytest.ini").write_text("[pytest]\n")
    _set_ups_laws_and_checkpoints(folder)
    return folder


def _set_ups_laws_and_checkpoints(folder: Path) -> None:
    """What runs are made of, alike; a law that held in a training; the same tensors in two forms."""
    for run in ("npu", "gpu"):
        (folder / run / "step0" / "rank0" / "run.json").write_text('{"schema": 1, "framework": "pytorch"}')
    for run in ("DUMP", "GOLDEN"):
        shutil.copy(folder / "npu" / "step0" / "rank0" / "run.json", folder / run / "step0" / "rank0")
    laws = folder / "msprobe_laws" / "rank0" / "laws.jsonl"
    laws.parent.mkdir(parents=True)
    described = {"kind": "run", "schema": 1, "pid": 1, "rank": 0, "framework": "pytorch", "version": "2.13.0"}
    checked = {"kind": "checked", "law": "step-counter", "about": "AdamW", "checks": 5, "findings": 0, "unchecked": ""}
    laws.write_text(f"{json.dumps(described)}\n{json.dumps(checked)}\n")
    header = b'{"weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}'
    (folder / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + A.tobytes())
    torch = pytest.importorskip("torch")
    for name in ("b.pt", "A", "B"):
        torch.save({"weight": torch.from_numpy(A)}, folder / name)


def _readme(folder: Path) -> None:
    """The dumps of the repository in their places; README unpacks its pair."""
    for name in ("gpt_perturbed", "gpt_tiny_tensor"):
        shutil.copytree(ROOT / "tests" / "dumps" / name, folder / "tests" / "dumps" / name)
    for name in ("target", "golden"):
        shutil.rmtree(folder / name)


def _precheck(folder: Path) -> None:
    name = "gpt_tiny_tensor"
    shutil.copytree(ROOT / "tests" / "dumps" / name, folder / "tests" / "dumps" / name)


def _baseline(folder: Path) -> None:
    shutil.rmtree(folder / "dump")
    shutil.copytree(ROOT / "tests" / "dumps" / "gpt_tiny_tensor", folder / "dump")


def _two_runs(folder: Path) -> None:
    name = "overflow_attention"
    shutil.copytree(ROOT / "tests" / "dumps" / name, folder / "tests" / "dumps" / name)
    (folder / "docs").mkdir()


#: What a page's folder has besides, or instead.
PREPARED: dict[str, Callable[[Path], None]] = {
    "README.md": _readme,
    "docs/ci.md": _baseline,
    "docs/precheck.md": _precheck,
    "docs/two_runs.md": _two_runs,
}
#: Commands that make what a page's commands name.
BEFORE: dict[str, list[str]] = {
    "docs/page.md": [
        f"pytest --msprobe-dump=dump.json --msprobe-jsonl=shard{part}.jsonl --msprobe-shard={part}/2" for part in (1, 2)
    ],
}
#: Runs the commands of a list of pages in one process: page, folder, words of each.
DRIVER = """
import io, json, os, subprocess, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from pytest_msprobe.__main__ import main

def run(words):
    if "&&" in words:
        place = words.index("&&")
        return run(words[:place]) or run(words[place + 1 :])
    if words[0].endswith("pytest"):
        return int(pytest.main(["2" if word == "8" else word for word in words[1:]]))
    if words[:3] == ["python", "-m", "pytest_msprobe"] and words[3] not in ("baseline", "diagnose"):  # they run pytest
        return main(words[3:])
    try:
        done = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:  # a page of which nothing here knows what executes it
        print(error)
        return 127
    print(done.stdout)
    return done.returncode

results = []
for page, folder, commands in json.loads(Path(sys.argv[1]).read_text()):
    os.chdir(folder)
    for words in commands:
        text = io.StringIO()
        with redirect_stdout(text), redirect_stderr(text):
            try:
                code = run(words)
            except SystemExit as end:
                code = end.code
        results.append([page, words, code, text.getvalue()])
Path(sys.argv[2]).write_text(json.dumps(results))
"""


Results = dict[tuple[str, tuple[str, ...]], list[Any]]


def executed(listed: Sequence[Block], samples: Path, root: Path) -> Results:
    """Run the commands of blocks; [exit code, text] of each. Pages that need nothing else share a folder."""
    places: dict[str, dict[tuple[str, ...], None]] = {}
    for block in listed:
        words = places.setdefault(place_of(block.page), {})
        words.update(dict.fromkeys(command.words for command in block.commands))
    runs = []
    for place, words in places.items():
        folder = root / place.replace("/", "_")
        shutil.copytree(samples, folder)
        PREPARED.get(place, lambda folder: None)(folder)
        before = [shlex.split(command) for command in BEFORE.get(place, ())]
        runs.append((place, str(folder), [*before, *words]))
    (root / "commands.json").write_text(json.dumps(runs))
    quiet = "-p no:hypothesispytest -p no:pytest_cov -p no:randomly"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "100", "PYTEST_ADDOPTS": quiet, "PATH": path}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(root / "commands.json"), str(root / "results.json")],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads((root / "results.json").read_text())
    return {(place, tuple(words)): [code, text] for place, words, code, text in found}


def place_of(page: str) -> str:
    """The folder that the commands of a page run in: its own where it needs something else than the samples."""
    return page if page in PREPARED or page in BEFORE else "samples"


#: README's two commands, which run with the quick tests; all others take minutes.
FIRST = [block for block in HERE if block.page == "README.md"]
REST = [block for block in LISTED if block not in FIRST]


@pytest.fixture(scope="module")
def first_results(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return executed(FIRST, samples, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def results(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return executed(REST, samples, tmp_path_factory.mktemp("rest"))


def commands_of(listed: Sequence[Block]) -> list[tuple[Block, Command]]:
    return [(block, command) for block in listed for command in block.commands]


def name_of(value: Block | Command) -> str:
    return value.page if isinstance(value, Block) else " ".join(value.words)[:70]


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(("block", "command"), commands_of(FIRST), ids=name_of)
def test_the_first_commands_run(first_results: Results, block: Block, command: Command) -> None:
    assert_done(first_results, block, command)


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(("block", "command"), commands_of(REST), ids=name_of)
def test_a_command_runs_and_prints_what_the_page_says(results: Results, block: Block, command: Command) -> None:
    assert_done(results, block, command)


def assert_done(results: Results, block: Block, command: Command) -> None:
    code, text = results[place_of(block.page), command.words]
    is_lawless = code == 5 and "no law speaks of it" in text  # of the sample, which no rank communicates in
    is_not_judged = code in (4, 5) and any(line.startswith("Nothing judged") for line in command.output)
    assert code in (0, 1) or is_lawless or is_not_judged, text[-3000:]
    assert_printed(text, command.output)


def assert_printed(text: str, lines: Sequence[str]) -> None:
    """`text` has these lines, in this order; times and rules may differ, ` ...` ends a line that goes on."""
    printed, *shown = map(without_details, (text, *lines))
    shown = [re.sub(r" \.\.\.$", "*", line) for line in shown]
    pytest.LineMatcher(printed.splitlines()).fnmatch_lines([line.replace("[", "[[]") for line in shown])


def without_details(text: str) -> str:
    return re.sub(r"about \d+ s", "about 5 s", re.sub("[_=]{3,}", "___", text))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("block", [block for block in FIRST if paired(block)], ids=lambda block: block.start[:40])
def test_the_first_outputs_are_those_of_their_commands(first_results: Results, block: Block) -> None:
    assert_paired(first_results, block)


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("block", [block for block in REST if paired(block)], ids=lambda block: block.start[:40])
def test_an_output_is_that_of_its_command(results: Results, block: Block) -> None:
    assert_paired(results, block)


def assert_paired(results: Results, block: Block) -> None:
    (text,) = (
        text
        for (place, words), (_, text) in results.items()
        if place == place_of(block.page) and " ".join(words).startswith(paired(block))
    )
    assert_printed(text, block.text.splitlines())
