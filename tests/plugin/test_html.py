"""The HTML page and the JUnit properties: what they hold, for whom, and what never gets through unescaped."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from dump_builder import DumpBuilder
from slow_parameters import WORKERS

A = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)
HOSTILE = "<script>alert(1)</script>"


class Page:
    """A page as pytest-html wrote it."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        (blob,) = re.findall(r'data-jsonblob="([^"]*)"', self.text)
        tests = json.loads(html.unescape(blob))["tests"]
        self.tests: list[dict[str, Any]] = [test for group in tests.values() for test in group]
        totals = re.findall(r'<span class="\w+">(\d+) (\w+),?</span>', self.text)
        self.counts = {word: int(number) for number, word in totals if number != "0"}

    def row(self, api: str, direction: str = "forward") -> dict[str, Any]:
        (found,) = [test for test in self.tests if plain(test["testId"]) == api and test["direction"] == direction]
        return found

    def columns(self) -> list[str]:
        return re.findall(r"<th[^>]*>([^<]*)</th>", self.text.partition("results-table-head")[2])


def plain(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<!--.*?-->", "", markup)))


def builder_of_each_verdict(folder: Path) -> DumpBuilder:
    builder = DumpBuilder(folder)
    builder.call("Mint.neg.0", [A], [-A], incoming=[A], gradients=[-A])
    builder.call("Mint.neg.1", [A], [A + np.float32(0.5)])
    builder.call("Mint.chunk.0", [A, 2, 1], [A[:, :4], A[:, 4:] + np.float32(0.25)])
    builder.call("Functional.gamma.0", [[4, 8], A, A], [A])
    builder.stacks["Mint.neg.1.forward"].append("File /home/train/main.py, line 70, in <module>, \n loss = net(x)")
    return builder


def run(pytester: pytest.Pytester, builder: DumpBuilder, *arguments: str) -> Page:
    pytester.runpytest(f"--msprobe-dump={builder.write()}", "--html=page.html", "--self-contained-html", *arguments)
    return Page(pytester.path / "page.html")


@WORKERS
def test_the_page_shows_figures_and_unfolds_to_the_explanation(pytester: pytest.Pytester, workers: str) -> None:
    path = builder_of_each_verdict(pytester.path).write()
    arguments = (f"--msprobe-dump={path}", "--html=page.html", "--self-contained-html", "-n", workers)
    pytester.runpytest(*arguments).assert_outcomes(passed=2, failed=2, skipped=1)
    page = Page(pytester.path / "page.html")
    own = ["API", "Direction", "Dtype", "Shape", "Cosine", "Max abs", "Error/tol", "Device"]
    assert page.columns() == ["Result", *own, "Duration", "Links"]
    assert page.counts == {"Failed": 2, "Passed": 2, "Skipped": 1}
    failed = page.row("Mint.neg.1")
    cells = [plain(failed[name]) for name in ("result", "dtype", "shape", "max_abs")]
    assert cells == ["Failed", "Float32", "(4, 8)", f"{np.abs(2 * A + np.float32(0.5)).max():.3g}"]
    assert plain(failed["device"]).startswith("recorded values")
    log = failed["log"]
    assert "output.0 Float32 (4, 8): Cosine" in log
    assert "/home/train/net.py:7, in construct<code>y = Mint.neg.1(x)</code>" in log
    assert "/home/train/main.py:70, in &lt;module&gt;<code>loss = net(x)</code>" in log
    assert "Where output.0 is off: 4 x 8 elements, the darker the more; grey is equal<" in log
    assert '<svg role="img" width="176" height="88" viewBox="0 -.5 8 4"><path class="mark-' in log
    assert "<tr><td>equal<td><i" in log
    assert "<svg" not in page.row("Mint.neg.0")["log"]
    assert "random by nature" in page.row("Functional.gamma.0")["log"]


def test_the_worst_of_several_outputs_stands_in_the_row_and_all_below(pytester: pytest.Pytester) -> None:
    failed = run(pytester, builder_of_each_verdict(pytester.path)).row("Mint.chunk.0")
    assert plain(failed["max_abs"]) == "0.25"
    assert '<tr class="pass"><td>output.0<td>Float32<td>Float64<td>(4, 4)' in failed["log"]
    assert '<tr class="error"><td>output.1' in failed["log"]


def test_the_summary_counts_by_api_and_says_what_was_tested(pytester: pytest.Pytester) -> None:
    page = run(pytester, builder_of_each_verdict(pytester.path))
    summary = page.text.partition('class="msprobe-summary"')[2]
    assert "<li>dump.json: 4 API calls, recorded values against PyTorch" in summary
    assert '<tr class="error"><td>Mint.neg<td>1<td>2<td><td>' in summary
    assert re.search(r'<tr class="error"><td>Mint\.chunk<td>1<td><td><td>0\.9\d{8}<td>0\.25', summary)
    assert '<tr class="skip"><td>Functional.gamma<td><td><td>1<td>-<td>-' in summary
    assert '<span class="error"><b>2</b> failed</span>' in summary
    assert not re.search(r'(?:src|href)="(?!data:|https://pypi)[^"]', page.text)


@pytest.mark.parametrize("passes", ["omit", "fold", "show"])
def test_passes_may_be_left_out_and_are_counted_all_the_same(pytester: pytest.Pytester, passes: str) -> None:
    page = run(pytester, builder_of_each_verdict(pytester.path), f"--msprobe-html-passes={passes}")
    assert page.counts == {"Failed": 2, "Passed": 2, "Skipped": 1}
    assert [test["result"] for test in page.tests].count("Passed") == (0 if passes == "omit" else 2)
    assert f'data-passes="{passes}"' in page.text
    assert "<b>2</b> passed" in page.text


def test_an_ini_twin_and_a_wrong_value(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmsprobe_html_passes = omit\n")
    builder = builder_of_each_verdict(pytester.path)
    assert len(run(pytester, builder).tests) == 3
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-html-passes=hide")
    result.stderr.fnmatch_lines(["ERROR: --msprobe-html-passes: 'hide' is none of fold, omit, show"])


def test_no_text_of_a_dump_gets_through_unescaped(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path / "<script>alert(2)<")
    builder.call(f"Mint.{HOSTILE}.0", [1.5], [2.5])
    builder.call("Mint.--><script>alert(1)<.0", [A], [A])
    builder.call("Mint.neg.0", [A], [A])
    builder.stacks["Mint.neg.0.forward"] = [f"File {HOSTILE}.py, line 7, in {HOSTILE}, \n {HOSTILE}"]
    builder.call("Mint.neg.1", [A], [-A])
    builder.records["Mint.neg.1.forward"]["input_args"][0]["dtype"] = HOSTILE
    builder.records[HOSTILE] = {"input_args": [], "input_kwargs": {}, "output": []}
    builder.records["Mint.neg.2.forward"] = HOSTILE
    page = run(pytester, builder)
    assert len(page.tests) == 6
    markup = page.text.replace(f"{Path(__file__)}", "")
    # Into the document it may come in the blob only, which is one attribute; out of it, only as text.
    assert "<script>alert" not in markup
    assert "<script>alert" not in json.dumps(page.tests)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.row(f"Mint.{HOSTILE}.0")["testId"]
    assert "<code>&lt;script&gt;" in page.row("Mint.neg.0")["log"]


def test_other_tests_collection_errors_and_skips_share_the_page(pytester: pytest.Pytester) -> None:
    builder_of_each_verdict(pytester.path).write()
    pytester.path.joinpath("broken").mkdir()
    pytester.path.joinpath("broken", "dump.json").write_text("{")
    pytester.makepyfile(
        test_other="""
        import pytest
        @pytest.mark.parametrize("text", ["<b>bold"])
        def test_plain(text): pass
        @pytest.fixture
        def broken(): yield; raise OSError
        def test_teardown(broken): pass
        @pytest.mark.skip
        def test_skipped(): pass
        """
    )
    pytester.makeconftest(
        """
        import pytest
        def pytest_collection_modifyitems(items):
            items[0].add_marker(pytest.mark.skip(reason="not today"))
        """
    )
    result = pytester.runpytest("dump.json", "broken/dump.json", "test_other.py", "--html=page.html", "-p", "no:xdist")
    result.assert_outcomes(passed=3, failed=2, skipped=3, errors=2)
    page = Page(pytester.path / "page.html")
    assert page.counts == {"Errors": 2, "Failed": 2, "Passed": 3, "Skipped": 3}
    assert all(len(re.findall("<td", "".join(test["resultsTableRow"]))) == 11 for test in page.tests)
    assert "<b>bold" not in json.dumps(page.tests)
    assert plain(page.row("Mint.neg.0")["result"]) == "Skipped"


def test_several_dumps_are_told_apart(pytester: pytest.Pytester) -> None:
    for rank in ("rank0", "rank1"):
        DumpBuilder(pytester.path / rank).call("Mint.neg.0", [A], [-A]).write()
    pytester.runpytest("--msprobe-dump=.", "--html=page.html")
    names = [plain(test["testId"]) for test in Page(pytester.path / "page.html").tests]
    assert names == ["rank0/Mint.neg.0", "rank1/Mint.neg.0"]


@WORKERS
def test_junit_has_a_few_short_properties(pytester: pytest.Pytester, workers: str) -> None:
    path = builder_of_each_verdict(pytester.path).write()
    pytester.runpytest(f"--msprobe-dump={path}", "--junitxml=junit.xml", "-n", workers)
    tree = ElementTree.parse(pytester.path / "junit.xml")
    found = {
        (case.attrib["classname"], case.attrib["name"]): {
            entry.attrib["name"]: entry.attrib["value"] for entry in case.iter("property")
        }
        for case in tree.iter("testcase")
    }
    failed = found["dump.json", "Mint.chunk.0.forward"]
    assert failed.pop("device").startswith("recorded values")
    assert float(failed.pop("cosine")) < 1
    assert float(failed.pop("max_rel")) > 0
    assert float(failed.pop("max_ulp")) > 0
    assert float(failed.pop("excess")) > 1
    assert failed.pop("rounding").startswith("not explained by rounding (")
    assert (failed.pop("ratio"), failed.pop("pattern")) == ("2500.0", "0.25 added")
    assert failed == {
        "api": "Mint.chunk.0",
        "direction": "forward",
        "dump": str(path),
        "benchmark": "torch CPU float64",
        "called_from": "/home/train/net.py:7",
        "dtype": "Float32",
        "shape": "(4, 4)",
        "max_abs": "0.25",
        "verdict": "error",
    }
    skipped = found["dump.json", "Functional.gamma.0.forward"]
    assert skipped == {
        "api": "Functional.gamma.0",
        "direction": "forward",
        "dump": str(path),
        "verdict": "skip",
    }
    assert all(properties for properties in found.values())
