"""A browser without a window, and pages of runs to look at."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder
from planted_cells import planted
from real_dumps import real_dumps
from two_implementations import collected

from pytest_msprobe.__main__ import main
from pytest_msprobe.answers.finding import Parted, SourceCall
from pytest_msprobe.reports.jsonl import JsonLines
from pytest_msprobe.reports.page import write_page
from pytest_msprobe.suites.comparison.content import RecordContent, RowContent
from pytest_msprobe.suites.comparison.report import RecordSummary
from pytest_msprobe.suites.registry import suite_class
from pytest_msprobe.verdicts import Outcome, Status, StepPosition, VerdictRow
from tools.benchmarks.make_rows import compared, rows

A = np.random.default_rng(5).standard_normal((48, 80)).astype(np.float32)
#: Each sets `document.title` if it ever runs.
ATTACKS = (
    "</script><script>document.title='hit'</script>",
    "<img src=x onerror=document.title='hit'>",
    "\"onmouseover=document.title='hit' x=\"",
    "</textarea></style><svg onload=document.title='hit'>",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    # Here and not above: pytest loads this file for every run in this repository, also where selenium is missing.
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1400,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of a state by its name, made once."""
    found: dict[str, Path] = {}

    def page_of(name: str) -> Path:
        if name not in found:
            found[name] = MAKERS[name](tmp_path_factory.mktemp(name))
        return found[name]

    return page_of


def of_rows(folder: Path, count: int, ranks: int, *, passes_only: bool = False) -> Path:
    """The page of rows that no run wrote."""
    lines = JsonLines(folder / "rows.jsonl")
    for row in rows(count, ranks):
        if row.status == "pass" or not passes_only:
            lines.write(row.call, row)
    lines.close()
    write_page(folder / "page.html", [folder / "rows.jsonl"], suite_class)
    return folder / "page.html"


def of_run(folder: Path, *arguments: str) -> Path:
    """The page that a real run of pytest in `folder` writes."""
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir=.", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        [*command, "--msprobe-out=out", "--msprobe-page=page.html"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "page.html").exists(), done.stdout + done.stderr
    return folder / "page.html"


def attacks(folder: Path) -> Path:
    """A pre-check of recorded values: a block of wrong elements, a NaN, and names that want to be markup."""
    builder = DumpBuilder(folder / "step0" / "rank0")
    for number in range(6):
        builder.call(f"Mint.exp.{number}", [A], [np.exp(A.astype(np.float64)).astype(np.float32)])
    wrong = -A
    wrong[:, 64:] *= 2
    builder.call("Mint.neg.0", [A], [wrong])
    wrong = -A
    wrong[3, 5] = np.nan
    builder.call("Mint.neg.1", [A], [wrong])
    builder.stacks["Mint.neg.0.forward"] = [f"File {text}, line 1, in {text}, \n {text}" for text in ATTACKS]
    for text in ATTACKS:
        builder.records[f"Mint.{text}.0.forward"] = {
            "input_args": [{"type": text, "value": text}],
            "input_kwargs": {},
            "output": [],
        }
    builder.write()
    cell = f"Cell.net.{ATTACKS[0]}.Linear.forward.0"
    parents = {"Mint.neg.0.forward": cell, "Mint.neg.1.forward": cell, cell: "Cell.net.Net.forward.0"}
    (builder.folder / "construct.json").write_text(json.dumps(parents), encoding="utf-8")
    return of_run(folder, "--msprobe-dump=step0", "--msprobe-device=recorded")


def comparison(folder: Path) -> Path:
    """Two dumps of a network with its Cells: one operation begins to differ, and each side lacks a call."""
    for side in ("golden", "target"):
        shutil.copytree(real_dumps() / "gpt_tiny_mix", folder / side)
        path = next((folder / side).rglob("dump.json"))
        dump = json.loads(path.read_text(encoding="utf-8").replace('"data_name"', '"was"')) | {"task": "statistics"}
        names = list(dump["data"])
        for name in names[names.index("Mint.rsqrt.1.forward") :] if side == "target" else ():
            _scale(dump["data"][name], "output" if name == "Mint.rsqrt.1.forward" else "")
        gone = "Mint.mean.4" if side == "target" else "Mint.silu.1"
        dump["data"] = {name: record for name, record in dump["data"].items() if not name.startswith(f"{gone}.")}
        path.write_text(json.dumps(dump), encoding="utf-8")
    return of_run(folder, "--msprobe-dump=target", "--msprobe-golden=golden")


def accounted(folder: Path) -> Path:
    """A real step of a GPT whose second softmax is at fault, with tensors and Modules, against a right one."""
    pytest.importorskip("torch")
    planted(folder / "target", "aten::_softmax", "1")
    planted(folder / "golden")
    return of_run(folder, "--msprobe-dump=target", "--msprobe-golden=golden")


def implementations(folder: Path) -> Path:
    """A real step of a network against the same one as another person wrote it, with a factor of 2 in one place."""
    pytest.importorskip("torch")
    collected(folder, "original", "port_doubled")
    return of_run(folder, "--msprobe-dump=port_doubled", "--msprobe-golden=original")


def long_runs(folder: Path) -> Path:
    """Rows of two runs of 160 layers, of three calls here and four there that are equal again, up to layer 90."""
    lines, builder = JsonLines(folder / "rows.jsonl"), Runs()
    for layer in range(160):
        is_found, region = layer < 90, layer if layer < 90 else -1
        if layer == 90:
            builder.call("Torch.rsqrt.0", "target", "first", parted=PARTED)
            builder.call("Functional.rms_norm.0", "golden", "first")
        builder.call(f"Functional.linear.{layer}", "both", "found" if is_found else "parted")
        for number in range(7):
            side, name = ("target", "Torch.pow") if number < 3 else ("golden", "Tensor.mean")
            builder.call(f"{name}.{7 * layer + number}", side, "rejoined" if is_found else "parted", region)
    for row in builder.rows:
        lines.write(row.call, row)
    lines.close()
    write_page(folder / "page.html", [folder / "rows.jsonl"], suite_class)
    return folder / "page.html"


PARTED = Parted(
    target=(SourceCall("Torch.rsqrt.0", source="/home/port/model.py:31"),),
    golden=(SourceCall("Functional.rms_norm.0", source="/home/llama/model.py:77"),),
    factor=2.0,
)


class Runs:
    """Rows of two runs that never were, call by call."""

    def __init__(self) -> None:
        self.rows: list[VerdictRow] = []
        self._orders = {"target": 0, "golden": 0}

    def call(self, call: str, side: str, state: str, region: int = -1, parted: Parted | None = None) -> None:
        """Add the row of a call of one run or of both."""
        record, sides = f"{call}.forward", ("target", "golden") if side == "both" else (side,)
        partner = record if state == "found" else ""
        contents = {
            one: RecordContent(record, self._orders[one], state, int(state == "found"), 1, partner, region)
            for one in sides
        }
        order = self._orders[sides[0]]
        status: Status = "pass" if parted is None else "error"
        summary = RecordSummary(record, order if side != "golden" else 10_000 + order, side, status, {"pass": 1})
        attachment = {"summary": summary.to_wire(), "content": RowContent(**contents, parted=parted).to_wire()}
        place = StepPosition(order=order, side=side, partner=record if side != "target" else "")
        name = f"golden.{call}" if side == "golden" else call
        outcome: Outcome = "passed" if parted is None else "failed"
        row = next(iter(rows(2, 1)))
        self.rows.append(
            replace(
                row,
                call=name,
                suite="comparison",
                status=status,
                outcome=outcome,
                place=place,
                attachment=attachment,
                node_id=f"dump.json::{name}::forward",
            )
        )
        for one in sides:
            self._orders[one] += 1


def unmatched(folder: Path) -> Path:
    """Two real dumps whose Cells have other names: the attention of block 0 matches nothing, on either side."""
    for side in ("golden", "target"):
        shutil.copytree(real_dumps() / "gpt_tiny_mix", folder / side)
        for path in (folder / side).rglob("*.json"):
            text = path.read_text(encoding="utf-8").replace('"data_name"', '"was"')
            if side == "golden":
                text = text.replace(".bs.1.a.", ".bs.1.attention.").replace(".bs.", ".blocks.")
            path.write_text(text.replace('"task": "tensor"', '"task": "statistics"'), encoding="utf-8")
    (folder / "cells.yaml").write_text("TopLayer: {bs: blocks}\nBlock: {a: attention}\n", encoding="utf-8")
    return of_run(folder, "--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-layer-mapping=cells.yaml")


def _scale(value: Any, only: str) -> None:
    """Change the statistics of all tensors in `value`, or of those below its key `only`."""
    if isinstance(value, list):
        for item in value:
            _scale(item, "")
    elif isinstance(value, dict) and "Norm" in value:
        value |= {key: value[key] * 1.01 for key in ("Max", "Min", "Mean", "Norm") if isinstance(value[key], float)}
    elif isinstance(value, dict):
        for key, item in value.items():
            if only in ("", key):
                _scale(item, "")


def overflow(folder: Path) -> Path:
    """A run for NaN and Inf."""
    shutil.copytree(real_dumps() / "overflow_attention" / "step0", folder / "step0")
    return of_run(folder, "--msprobe-suite=overflow", "--msprobe-dump=step0")


def gradients(folder: Path) -> Path:
    """A run on gradients."""
    shutil.copytree(real_dumps() / "gradients", folder / "runs")
    return of_run(folder, "--msprobe-gradients=runs/target", "--msprobe-golden=runs/golden")


def small_dump(folder: Path, *, wrong: bool = False) -> DumpBuilder:
    """Recorded values of a few calls, of which one may be wrong; one of them is off by one unit in the last place."""
    builder = DumpBuilder(folder / "step0" / "rank0")
    exact = np.exp(A.astype(np.float64)).astype(np.float32)
    for number in range(6):
        builder.call(f"Mint.exp.{number}", [A], [np.nextafter(exact, np.float32(9)) if number == 2 else exact])
    builder.call("Mint.neg.0", [A], [-A * (2 if wrong else 1)])
    builder.write()
    return builder


def rounding(folder: Path) -> Path:
    """A run whose passes use their tolerance up, by one unit in the last place."""
    small_dump(folder)
    return of_run(folder, "--msprobe-dump=step0", "--msprobe-device=recorded", "--msprobe-standard=backward-error")


def repeat(folder: Path) -> Path:
    """A device that is the same every time."""
    small_dump(folder)
    return of_run(folder, "--msprobe-dump=step0", "--msprobe-suite=repeat", "--msprobe-repeat-runs=2")


def known(folder: Path) -> Path:
    """A run held to a baseline, which knows one of its two failures."""
    builder = small_dump(folder, wrong=True)
    arguments = ("--msprobe-dump=step0", "--msprobe-device=recorded")
    of_run(folder, *arguments, "--msprobe-jsonl=rows.jsonl")
    assert main(["baseline", str(folder / "rows.jsonl"), "-o", str(folder / "baseline.json")]) == 0
    builder.call("Mint.neg.1", [A], [-A * 2]).write()
    return of_run(folder, *arguments, "--msprobe-baseline=baseline.json")


def sharded(folder: Path) -> Path:
    """Two ranks that have what the logical run has, up to a wrong operation; the rest follows from that."""
    for name, factor in (("single/step0/rank0", 1.0), ("ranks/step0/rank0", 1.5), ("ranks/step0/rank1", 1.5)):
        builder, value = DumpBuilder(folder / name), A
        for number in range(3):
            found = np.exp(-np.abs(value)) * np.float32(factor if number == 1 else 1)
            builder.call(f"Mint.exp.{number}", [value], [found])
            value = found * A
            builder.call(f"Mint.mul.{number}", [found, A], [value])
        builder.write()
    return of_run(folder, "--msprobe-dump=ranks", "--msprobe-logical=single")


def merged(folder: Path) -> Path:
    """One page of two suites."""
    for suite in ("precheck", "comparison"):
        lines, chance = JsonLines(folder / f"{suite}.jsonl"), random.Random(2)
        for row in rows(2400, 1):
            lines.write(row.call, compared(row, chance) if suite == "comparison" else row)
        lines.close()
    write_page(folder / "page.html", [folder / "precheck.jsonl", folder / "comparison.jsonl"], suite_class)
    return folder / "page.html"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "faults": lambda folder: of_rows(folder, 2400, 2),
    "passes": lambda folder: of_rows(folder, 600, 1, passes_only=True),
    "large": lambda folder: of_rows(folder, 10_000, 1),
    "attacks": attacks,
    "comparison": comparison,
    "accounted": accounted,
    "implementations": implementations,
    "long_runs": long_runs,
    "unmatched": unmatched,
    "overflow": overflow,
    "gradients": gradients,
    "rounding": rounding,
    "repeat": repeat,
    "known": known,
    "sharded": sharded,
    "merged": merged,
}
