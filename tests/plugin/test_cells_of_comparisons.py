"""What a difference does in the Cells of real dumps: where it is arises inside, and who inherits it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from planted_cells import planted
from real_dumps import real_dumps

FAULTS = {"golden": (), "softmax": ("aten::_softmax", "1"), "gelu_backward": ("aten::gelu_backward", "1")}


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with mix dumps of one step of a GPT: a right one, and two with a kernel at fault in block 1."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("planted")
    for name, fault in FAULTS.items():
        planted(folder / name, *fault)
    return folder


def compared(pytester: pytest.Pytester, target: Path, golden: Path, *options: str) -> dict[tuple[str, str], str]:
    """The words on each Cell by (name without the number of the call, direction), from the last row on it."""
    arguments = (f"--msprobe-dump={target}", f"--msprobe-golden={golden}", "--msprobe-jsonl=rows.jsonl", *options)
    pytester.runpytest(*arguments, "-q", "-p", "no:cacheprovider")
    found = {}
    for line in (pytester.path / "rows.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind, _, name = row["call"].partition(".")
        if kind in ("Module", "Cell") and row["direction"]:
            found[name.rpartition(".")[0], row["direction"]] = dict(row["properties"]).get("level", "")
    return found


def born(levels: dict[tuple[str, str], str]) -> set[tuple[str, str]]:
    return {cell for cell, level in levels.items() if level.startswith("arises inside")}


def changed(folder: Path, dump: Path, change: Any) -> Path:
    """A copy of a dump with `change` applied to its dump.json."""
    shutil.copytree(dump, folder)
    for path in folder.rglob("dump.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def without_calls(content: dict[str, Any]) -> None:
    """What level L0 holds: Modules alone."""
    content["data"] = {name: record for name, record in content["data"].items() if name.startswith("Module.")}


def without_tensors(value: Any) -> None:
    """What a dump of statistics holds."""
    if isinstance(value, list):
        for item in value:
            without_tensors(item)
    elif isinstance(value, dict):
        value.pop("data_name", None)
        if "task" in value:
            value["task"] = "statistics"
        for item in value.values():
            without_tensors(item)


@pytest.mark.slow
def test_the_modules_around_a_wrong_softmax_and_no_others_are_where_it_is_born(
    pytester: pytest.Pytester, dumps: Path
) -> None:
    levels = compared(pytester, dumps / "softmax", dumps / "golden", "--msprobe-diagnosis=diagnosis.json")
    around = {"blocks.1.a.Attention", "blocks.1.Block"}
    assert born(levels) == {(cell, part) for cell in around for part in ("forward", "backward")}
    before = ["words.Embedding", "blocks.0.Block", "blocks.0.a.Attention", "blocks.1.n1.Norm", "blocks.1.a.q.Linear"]
    assert [levels[cell, "forward"] for cell in before] == [""] * len(before)
    after = ["blocks.1.a.o.Linear", "blocks.1.n2.Norm", "blocks.2.Block", "blocks.2.a.Attention", "head.Linear"]
    assert {levels[cell, "forward"] for cell in after} == {"inherited, passed on"}
    assert levels["blocks.0.Block", "backward"] == "inherited, passed on"

    diagnosis = json.loads((pytester.path / "diagnosis.json").read_text(encoding="utf-8"))
    (fault,) = diagnosis["findings"]
    assert fault["place"]["cell"] == "blocks.1.a.Attention"
    assert diagnosis["headline"].startswith("Wrong: Functional.softmax.1, 1.03 x too large, ")


def test_a_wrong_gradient_is_born_in_the_backward_of_its_module(pytester: pytest.Pytester, dumps: Path) -> None:
    levels = compared(pytester, dumps / "gelu_backward", dumps / "golden")
    assert born(levels) == {("blocks.1.Block", "backward")}
    assert not any(level for (_, part), level in levels.items() if part == "forward")
    assert [levels[cell, "backward"] for cell in ("blocks.2.Block", "blocks.1.down.Linear")] == ["", ""]
    after = ["blocks.1.up.Linear", "blocks.1.a.Attention", "blocks.0.Block", "blocks.0.a.v.Linear"]
    assert {levels[cell, "backward"] for cell in after} == {"inherited, passed on"}


@pytest.mark.parametrize("kind", ["L0", "statistics", "L0 statistics"])
def test_what_the_modules_alone_or_statistics_tell(pytester: pytest.Pytester, dumps: Path, kind: str) -> None:
    def change(content: dict[str, Any]) -> None:
        if "L0" in kind:
            without_calls(content)
        if "statistics" in kind:
            without_tensors(content)

    sides = [changed(pytester.path / name, dumps / name, change) for name in ("softmax", "golden")]
    levels = compared(pytester, *sides)
    assert born(levels) == {("blocks.1.a.Attention", "forward"), ("blocks.1.Block", "forward")}
    assert levels["blocks.0.Block", "forward"] == ""
    assert levels["blocks.2.Block", "forward"] == levels["blocks.1.Block", "backward"] == "inherited, passed on"
    # Inputs agree and outputs do not: that is known without the calls. Nothing passes for it.
    result = pytester.runpytest(f"--msprobe-dump={sides[0]}", f"--msprobe-golden={sides[1]}", "-q")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    first = "blocks.1.a.Attention" if "L0" in kind else "Functional.softmax.1"
    result.stdout.fnmatch_lines([f"Wrong: differs first in *{first}*"])


def test_two_equal_runs_say_nothing_of_their_modules(pytester: pytest.Pytester, dumps: Path) -> None:
    assert not any(compared(pytester, dumps / "golden", dumps / "golden").values())


@pytest.mark.slow
def test_shards_together_say_what_one_run_says(pytester: pytest.Pytester, dumps: Path) -> None:
    from page_reader import page_content

    levels = {}
    for shard in ("1/2", "2/2"):
        levels[shard] = compared(pytester, dumps / "softmax", dumps / "golden", f"--msprobe-shard={shard}")
        (pytester.path / "rows.jsonl").rename(pytester.path / f"{shard[0]}.jsonl")
    pytester.run(sys.executable, "-m", "pytest_msprobe", "page", "1.jsonl", "2.jsonl", "-o", "page.html")
    (section,) = page_content(pytester.path / "page.html")["sections"]
    texts, rows = section["texts"], section["rows"]
    found = {
        (texts[call], texts[part])
        for call, part, level in zip(rows["call"], rows["part"], rows["level"])
        if texts[level].startswith("arises inside")
    }
    cells = "Module.blocks.1.a.Attention.0", "Module.blocks.1.Block.0"
    assert found == {(cell, part) for cell in cells for part in ("forward", "backward")}


def test_cells_of_mindspore(pytester: pytest.Pytester) -> None:
    """A real dump, in which all statistics after one output are 1 % larger in the target."""
    where = "Mint.rsqrt.1.forward"

    def scaled(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                scaled(item)
        elif isinstance(value, dict):
            value |= {
                key: value[key] * 1.01 for key in ("Max", "Min", "Mean", "Norm") if isinstance(value.get(key), float)
            }
            for item in value.values():
                scaled(item)

    def change(content: dict[str, Any]) -> None:
        without_tensors(content)
        names = list(content["data"])
        scaled(content["data"][where]["output"])
        for name in names[names.index(where) + 1 :]:
            scaled(content["data"][name])
        for cell, group in (("Cell.bs.0.n2.RMS.forward.0", "output"), ("Cell.bs.0.Block.forward.0", "output")):
            if names.index(cell) < names.index(where):
                scaled(content["data"][cell][group])

    dump = real_dumps() / "gpt_tiny_mix"
    golden = changed(pytester.path / "golden", dump, without_tensors)
    levels = compared(pytester, changed(pytester.path / "target", dump, change), golden)
    assert born(levels) == {("bs.0.n2.RMS", "forward"), ("bs.0.Block", "forward")}
    assert levels["bs.0.a.Attn", "forward"] == ""
    assert levels["bs.1.Block", "forward"] == "inherited, passed on"
