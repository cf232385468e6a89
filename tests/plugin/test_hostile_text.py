"""Text of a dump that is written against terminals, tables, pages and scripts, through every suite and every output."""

from __future__ import annotations

import ast
import csv
import html
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from dump_builder import DumpBuilder
from gradient_runs import write_step
from slow_parameters import slow

A = np.arange(6, dtype=np.float32).reshape(2, 3)
INF = np.full((2, 3), np.inf, np.float32)
#: A title for the window, a line that looks like pytest's, an 8-bit command, a reversal, markup, code, a formula of
#: Matplotlib.
EVIL = (
    "\x1b]0;title\x07\x1b[2J\nFAILED forged::Mint.add.0 - line\r\x9b2J\u202eesrever\u2066\ufeff\u2028"
    "<img src=x onerror=alert(1)>]]>&'\"\"\"\nimport os; os.system('touch canary')\n$\\frac{1}$"
)
#: What begins a cell that a spreadsheet runs.
STARTS = ("=1+", "+", "-", "@", " =", "\t=", "\r=", "\n=", "\ufeff=", "\uff1d")
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20 \t\r\n\ufeff")
NUMBER = re.compile(r"[+-]?(?:\d[\d.]*(?:e[+-]?\d+)?%?|inf|nan)", re.IGNORECASE)


def hostile_dump(folder: Path, *, output: np.ndarray[Any, Any]) -> None:
    builder = DumpBuilder(folder)
    builder.call("Mint.neg.0", [A], [output])
    for start in STARTS:
        for name in (f"{start}Mint.neg.0", f"Mint.neg{start}.0"):
            builder.records[f"{name}.forward"] = builder.records["Mint.neg.0.forward"]
    tensor = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 3], "Max": 1, "Min": 0, "Mean": 0, "Norm": 1}
    for number, wrong in enumerate(
        (
            {"dtype": EVIL},
            {"data_name": EVIL},
            {"type": EVIL},
            {"shape": [EVIL]},
            {"Max": EVIL, "Mean": EVIL},
            {"md5": EVIL, EVIL: EVIL},
        )
    ):
        builder.records[f"Mint.abs.{number}.forward"] = {
            "input_args": [{**tensor, **wrong}],
            "input_kwargs": {EVIL: {"type": "str", "value": EVIL}},
            "output": [{**tensor, **wrong}],
        }
    builder.records[f"Mint.neg{EVIL}.0.forward"] = builder.records["Mint.neg.0.forward"]
    builder.records[f"Cell.{EVIL}.{EVIL}.forward.0"] = builder.records["Mint.neg.0.forward"]
    builder.records[f"no record{EVIL}"] = {EVIL: EVIL}
    builder.records["Mint.einsum.0.forward"] = {
        "input_args": [{"type": "str", "value": EVIL}, tensor],
        "input_kwargs": {EVIL: tensor},
        "output": [EVIL],
    }
    builder.stacks = {name: [f"File /a{EVIL}.py, line 3, in f{EVIL}, \n x = '{EVIL}'"] * 2 for name in builder.records}
    builder.write()
    construct = dict.fromkeys(builder.records, f"Cell.{EVIL}.{EVIL}.forward.0")
    (folder / "construct.json").write_text(json.dumps(construct))


def dumps(folder: Path) -> None:
    hostile_dump(folder / "target", output=A)
    hostile_dump(folder / "golden", output=-A)


def overflowing(folder: Path) -> None:
    hostile_dump(folder / "target", output=INF)


def gradients(folder: Path) -> None:
    """Parameters whose names and cells are hostile; the names of their files cannot be."""
    names = [f"{start}w" for start in STARTS] + [EVIL, "w"]
    for run, sign in (("target", 1), ("golden", -1)):
        for step in range(3):
            summary = write_step(folder / run, step, {"w": np.full(6, sign)})
            header, line = csv.reader(io.StringIO(summary.read_text()))
            for name in names[:-1]:
                source = summary.parent / f"step{step}" / "w.npy"
                if "/" not in name and len(name) < 60:
                    (source.parent / f"{name}.npy").write_bytes(source.read_bytes())
            with summary.open("w", newline="", encoding="utf-8") as file:
                rows = [[name, *line[1:]] for name in names]
                csv.writer(file).writerows([header, *rows, ["cells", *[EVIL] * (len(line) - 1)]])


SUITES: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "precheck": (
        dumps,
        [
            "--msprobe-dump=target",
            "--msprobe-device=recorded",
            "--msprobe-error-data=auto",
            "--msprobe-reproducers=out/r",
        ],
    ),
    "comparison": (dumps, ["--msprobe-dump=target", "--msprobe-golden=golden"]),
    "overflow": (overflowing, ["--msprobe-dump=target", "--msprobe-suite=overflow"]),
    "gradients": (gradients, ["--msprobe-gradients=target", "--msprobe-golden=golden"]),
    "repeat": (dumps, ["--msprobe-dump=target", "--msprobe-suite=repeat", "--msprobe-repeat-runs=2"]),
}


@pytest.fixture(
    scope="module",
    params=["precheck", *slow(*(name for name in SUITES if name != "precheck"))],
)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[bytes]]:
    build, options = SUITES[request.param]
    folder = tmp_path_factory.mktemp("run")
    build(folder)
    command = [sys.executable, "-m", "pytest", "-v", "-rA", "--color=no", "-p", "no:cacheprovider", "--rootdir=."]
    files = ["--msprobe-out=out", "--msprobe-jsonl=out/rows.jsonl", "--junitxml=out/junit.xml"]
    page = ["--html=out/page.html", "--self-contained-html", "--msprobe-error-data=out/e"]
    page = page if request.param == "precheck" else page[:2]
    done = subprocess.run(
        [*command, *files, *page, *options], cwd=folder, capture_output=True, check=False, timeout=300
    )
    assert done.returncode == 1, done.stdout.decode() + done.stderr.decode()
    return folder, done


Run = tuple[Path, "subprocess.CompletedProcess[bytes]"]


def clean(text: str) -> str:
    """`text`, which holds nothing that a terminal or an editor would obey."""
    found = CONTROL.search(text)
    assert found is None, repr(text[max(0, found.start() - 200) : found.start() + 60])
    return text


def files(folder: Path, *endings: str) -> Iterator[Path]:
    yield from (path for path in sorted((folder / "out").rglob("*")) if path.suffix in endings)


def test_the_terminal_gets_no_command(run: Run) -> None:
    for stream in (run[1].stdout, run[1].stderr):
        text = clean(stream.decode("utf-8"))
        assert "INTERNALERROR" not in text
        assert not [line for line in text.splitlines() if line.startswith(("FAILED forged", "import os"))]
    assert "\\x1b]0;title" in run[1].stdout.decode()


def test_no_cell_of_a_table_is_a_formula_or_a_command(run: Run) -> None:
    tables = [*files(run[0], ".csv")]
    for path in tables:
        text = path.read_bytes().decode("utf-8-sig")
        for row in csv.reader(io.StringIO(text, newline="")):
            for cell in row:
                clean(cell.replace("\t", "\x1b"))
                assert NUMBER.fullmatch(cell) or not cell.startswith(FORMULA), (path, cell)


def test_junit_is_well_formed_and_clean(run: Run) -> None:
    tree = ElementTree.parse(run[0] / "out" / "junit.xml")
    cases = [*tree.iter("testcase")]
    assert cases
    for element in tree.iter():
        for text in (element.text or "", element.tail or "", *element.attrib.values()):
            clean(text)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def test_the_page_holds_no_markup_of_the_dump(run: Run) -> None:
    text = (run[0] / "out" / "page.html").read_text(encoding="utf-8")
    assert "<img src=x" not in text
    (blob,) = re.findall(r'data-jsonblob="([^"]*)"', text)
    clean(html.unescape(blob))
    shown = [*strings(json.loads(html.unescape(blob))["tests"])]
    assert shown
    assert not [part for part in shown if "<img src=x" in part]
    for part in shown:
        clean(part)


def test_lines_for_programs_are_whole(run: Run) -> None:
    lines = (run[0] / "out" / "rows.jsonl").read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    for line in lines:
        clean(line)
        json.loads(line)


def test_scripts_and_notes_of_failures_do_nothing_else(run: Run) -> None:
    scripts = [*files(run[0], ".py")]
    for path in scripts:
        tree = ast.parse(clean(path.read_text(encoding="utf-8")))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not [alias for node in imports for alias in node.names if alias.name == "os"]
    for path in files(run[0], ".json", ".md", ".txt"):
        clean(path.read_text(encoding="utf-8"))
    assert not [path for path in run[0].rglob("*") if CONTROL.search(path.name) and "out" in path.parts]
    assert not [*run[0].rglob("canary")]
    if (run[0] / "out" / "r").exists():
        assert scripts
