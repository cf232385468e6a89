"""Standards chosen by name, by dtype and by API call, in runs of pytest; the examples of docs/standards.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from report_reader import Reports

PAGE = (Path(__file__).parents[2] / "docs" / "standards.md").read_text(encoding="utf-8")
EXAMPLE = re.search(r"```yaml\n(.*?)```\n\n```console\n\$ pytest (.*?)\n(.*?)```", PAGE, re.DOTALL)
CONFTEST = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
A = np.random.default_rng(5).standard_normal((2, 3)).astype(np.float32)
BRAIN = A.astype(ml_dtypes.bfloat16)
SQUARE = (A.astype(np.float64) @ A.T).astype(np.float32)


def next_after(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Every element replaced by its neighbour away from 0."""
    bits = array.view({2: np.uint16, 4: np.uint32}[array.itemsize])
    return (bits + 1).view(array.dtype)


def build(folder: Path) -> DumpBuilder:
    """A right matmul and sum, an exp off by 0.001, a bfloat16 neg one ULP off, a transpose with one element off."""
    builder = DumpBuilder(folder)
    builder.call("Mint.matmul.0", [A, A.T.copy()], [next_after(SQUARE)])
    builder.call("Mint.exp.0", [A], [np.exp(A) + np.float32(1e-3)])
    builder.call("Mint.neg.0", [BRAIN], [next_after(-BRAIN)])
    moved = A.T.copy()
    moved[1, 1] = np.nextafter(moved[1, 1], np.float32(9))
    builder.call("Mint.transpose.0", [A, 0, 1], [moved])
    builder.call("Tensor.sum.1", [A], [np.array(A.sum(dtype=np.float64), np.float32)])
    return builder


def run(pytester: pytest.Pytester, content: str = "", *arguments: str) -> pytest.RunResult:
    build(pytester.path).write()
    (pytester.path / "msprobe.yaml").write_text(content, encoding="utf-8")
    return pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=msprobe.yaml", *arguments)


def failing(reports: Reports) -> str:
    """The APIs with errors; the others must have passed."""
    found = {name.split(".")[1]: row["Forward Test Success"] for name, row in reports.results.items()}
    assert set(found.values()) == {"pass", "error"}
    return " ".join(api for api, status in found.items() if status == "error")


def test_the_example_of_the_page_does_what_it_says(pytester: pytest.Pytester) -> None:
    assert EXAMPLE is not None
    content, command, shown = EXAMPLE.groups()
    assert command.split() == ["--msprobe-dump=dump.json", "--msprobe-config=msprobe.yaml"]
    run(pytester, content).stdout.fnmatch_lines([line.replace("[", "[[]") for line in shown.splitlines()])


def test_the_hook_of_the_page_has_the_last_word(pytester: pytest.Pytester, reports: Reports) -> None:
    assert CONFTEST is not None
    pytester.makeconftest(CONFTEST[1])
    run(pytester, "standard: binary")
    assert failing(reports) == "matmul neg transpose"


BY_NAME = {
    "cosine-maxabs": "exp neg",
    "backward-error": "exp",
    "fused": "exp",
    "absolute-threshold": "exp neg",
    "benchmark": "exp",
    "ulp": "exp",
    "binary": "matmul exp neg transpose",
    "thousandth": "exp neg",
    "accumulative-error": "exp",
    "mere-mare": "exp",
    "mixed-tolerance": "exp",
    "msprobe": "exp neg transpose",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_each_standard_has_its_own_verdicts(pytester: pytest.Pytester, reports: Reports, name: str) -> None:
    build(pytester.path).write()
    pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-standard={name}", "--msprobe-jsonl=rows.jsonl")
    assert failing(reports) == BY_NAME[name]
    rows = map(json.loads, (pytester.path / "rows.jsonl").read_text().splitlines())
    judges = {row["call"].split(".")[1]: row["outputs"][0]["standard"] for row in rows}
    if name == "msprobe":
        named = ("ulp", "benchmark", "binary", "binary", "benchmark")
        assert judges == dict(zip(("matmul", "exp", "neg", "transpose", "sum"), named))
    else:
        assert set(judges.values()) == {"" if name == "cosine-maxabs" else name}


def test_there_is_a_test_for_every_standard() -> None:
    from pytest_msprobe.suites.precheck.options import STANDARDS

    assert list(BY_NAME) == list(STANDARDS)
    assert all(f"| `{name}`" in PAGE for name in STANDARDS)


@pytest.mark.slow
def test_workers_choose_the_same(pytester: pytest.Pytester, reports: Reports) -> None:
    build(pytester.path).write()
    (pytester.path / "msprobe.yaml").write_text("standard: ulp\nstandards: {dtypes: {bfloat16: binary}}\n")
    pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=msprobe.yaml", "-n1")
    assert failing(reports) == "exp neg"


def test_outputs_of_one_call_are_judged_by_their_own_dtypes(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path)
    double = A.astype(np.float64)
    ones = [np.ones_like(A), np.ones_like(double)]
    gradients = [next_after(np.ones_like(A)), np.nextafter(np.ones_like(double), 2)]
    builder.call("Mint.add.0", [A, double], [A + double], incoming=[ones[1]], gradients=gradients)
    builder.write()
    (pytester.path / "msprobe.yaml").write_text("standard: binary\nstandards: {dtypes: {Float32: ulp}}\n")
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-config=msprobe.yaml")
    result.assert_outcomes(passed=1, failed=1)
    assert [row["Status"] for name, row in reports.details.items() if "backward" in name] == ["pass", "error"]
    result.stdout.fnmatch_lines(["*; standard: ulp, binary"])


def test_a_call_without_a_second_opinion_is_a_skip(pytester: pytest.Pytester, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path)
    # PyTorch does not know this API: the benchmark is the user's own.
    builder.call("Fused.twice.0", [A], [next_after(A * 2)])
    builder.call("Fused.twice.1", [A], [A * 2])
    builder.write()
    pytester.makeconftest("def pytest_msprobe_reference(api):\n    return lambda x: x * 2\n")
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-standard=benchmark", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*There is no second opinion*choose another standard for this API."])
    assert reports.results["Fused.twice.0"]["Forward Test Success"] == "SKIP"
    assert reports.details["Fused.twice.0.forward.output.0"]["Status"] == "SKIP"


@pytest.mark.parametrize("standard", ["cosine-maxabs", "backward-error", "ulp", "binary"])
def test_int8_results_of_quantising_may_be_off_by_one(
    pytester: pytest.Pytester, reports: Reports, standard: str
) -> None:
    builder = DumpBuilder(pytester.path)
    codes = np.array([[1, 2, 3], [4, 5, 126]], np.int8)
    builder.call("Primitive.quant.QuantV2.0", [A], [codes + np.int8(1)])
    builder.call("Primitive.quant.QuantV2.1", [A], [codes - np.int8(2)])
    builder.call("Fused.codes.0", [A], [codes + np.int8(1)])
    builder.write()
    pytester.makeconftest(
        "import numpy as np\n"
        "def pytest_msprobe_reference(api):\n"
        "    return lambda x: np.array([[1, 2, 3], [4, 5, 126]], np.int8)\n"
    )
    pytester.runpytest("--msprobe-dump=dump.json", f"--msprobe-standard={standard}")
    found = {name: row["Forward Test Success"] for name, row in reports.results.items()}
    assert list(found.values()) == ["pass", "error", "error"]
    assert reports.details["Primitive.quant.QuantV2.0.forward.output.0"]["MaxAbsErr"] == "1.0"


def test_the_page_of_html_names_the_standard(pytester: pytest.Pytester) -> None:
    run(pytester, "standard: binary", "--html=report.html", "--self-contained-html")
    page = (pytester.path / "report.html").read_text(encoding="utf-8")
    assert "error by binary" in page
    assert "standard: binary" in page


MISTAKES = {
    "standard: binry": "--msprobe-config=msprobe.yaml: key 'standard': 'binry' is not a standard; did you mean binary?",
    "standards: 3": "standards: expected names with values, found 3",
    "standards: {default: ulp}": "standards: unknown key 'default'; the default is the key 'standard'",
    "standards: {dtype: {}}": "standards: unknown key 'dtype'; did you mean dtypes?",
    "standards: {dtypes: [Float16]}": "standards: dtypes: expected names with values, found ['Float16']",
    "standards: {dtypes: {Float17: ulp}}": "standards: dtypes: 'Float17': is not a dtype",
    "standards: {dtypes: {Int8: ulp}}": "standards: dtypes: 'Int8': Int8 outputs must be equal under every standard",
    "standards: {dtypes: {half: ulp, Float16: ulp}}": "dtypes: 'Float16': means the same as 'half'; keep one",
    "standards: {apis: {Mint.exp: upl}}": "standards: apis: 'Mint.exp': 'upl' is not a standard; did you mean ulp?",
    "standards: {apis: {Mint.exp: }}": "standards: apis: 'Mint.exp': 'None' is not a standard",
    "standards: {apis: {Mint.exp: {max_abs: 1}}}": "standards: apis: 'Mint.exp': lacks the key 'standard'",
    "standards: {apis: {Mint.exp: {standard: ulp, ulps: 1}}}": (
        "standards: apis: 'Mint.exp': lacks 'share', 'mean'; give all bounds of ulp, or none"
    ),
    "standards: {apis: {Mint.exp: {standard: thousandth, relativ: 1, share: 1}}}": (
        "standards: apis: 'Mint.exp': thousandth has no bound 'relativ'; did you mean relative?"
    ),
    "standards: {apis: {Mint.exp: {standard: binary, share: 1}}}": "binary has no bounds, found 'share'",
    "standards: {bounds: {thousandth: {relative: many, share: 1}}}": (
        "standards: bounds: 'thousandth': relative: 'many' is not a number"
    ),
    "standards: {bounds: {thousandth: {relative: [1], share: 1}}}": "relative: [1] is not a number",
    "standards: {bounds: {thousandth: {relative: .nan, share: 1}}}": "relative: nan is not a number from 0 on",
    "standards: {bounds: {thousandth: {relative: -1, share: 1}}}": "relative: -1 is not a number from 0 on",
    "standards: {bounds: {cosine-maxabs: {cosine: 0.9, max_abs: 1}}}": "write them as the keys 'cosine' and 'max_abs'",
    "standards: {bounds: {msprobe: {a: 1}}}": "standards: bounds: 'msprobe': is not a standard with bounds",
    "standards: {apis: {Mint.exp: {standard: cosine-maxabs, cosine: 2, max_abs: 1}}}": (
        "cosine: 2 is not a number from -1 up to, but not, 1"
    ),
}


@pytest.mark.parametrize("content", MISTAKES)
def test_a_mistake_in_the_file_is_one_sentence_before_the_run(pytester: pytest.Pytester, content: str) -> None:
    result = run(pytester, content)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR")]
    assert MISTAKES[content] in line
    assert "msprobe.yaml: " in line


def test_a_pattern_that_matches_nothing_is_a_warning_or_ends_the_run(pytester: pytest.Pytester) -> None:
    content = "standards: {apis: {Mint.matmull*: ulp, Mint.matmul: ulp, Mint.matmul.1: ulp}}"
    result = run(pytester, content, "-q")
    result.assert_outcomes(passed=3, failed=2, warnings=2)
    text = "--msprobe-config=msprobe.yaml: standards: apis: 'Mint.matmull[*]': ulp: matches no API call of the dumps"
    result.stdout.fnmatch_lines([f"*{text}", "*'Mint.matmul.1': ulp: matches no API call of the dumps"])
    result = run(pytester, content, "-W", "error::pytest.PytestWarning")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {text}"])


HALF_WARNING = "msprobe: 1 of 2 API calls holds float16 or bfloat16: *--msprobe-standard=backward-error*"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_header_warns_where_fixed_limits_judge_half_dtypes(pytester: pytest.Pytester, dtype: Any) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.neg.0", [A.astype(dtype)], [(-A).astype(dtype)])
    builder.call("Mint.neg.1", [A], [-A])
    builder.write()
    pytester.runpytest("--msprobe-dump=dump.json").stdout.fnmatch_lines([HALF_WARNING])
    chosen = (
        ("--msprobe-standard=backward-error",),
        ("--msprobe-max-abs=0.1",),
        ("-k", "nothing", "--msprobe-config=c.yaml"),
    )
    (pytester.path / "c.yaml").write_text("standards: {dtypes: {Float16: ulp, BFloat16: ulp}}")
    for arguments in chosen:
        pytester.runpytest("--msprobe-dump=dump.json", *arguments).stdout.no_fnmatch_line("*hold float16*")


def test_no_warning_without_half_dtypes(pytester: pytest.Pytester) -> None:
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.neg.1", [A], [-A])
    builder.write()
    pytester.runpytest("--msprobe-dump=dump.json").stdout.no_fnmatch_line("*hold float16*")
