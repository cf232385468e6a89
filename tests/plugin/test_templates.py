"""Each template of conftest_templates, copied by the command and run for real."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from dump_builder import DumpBuilder
from hook_dump import A, B, X, hook_dump
from page_reader import page_rows
from report_reader import Reports
from slow_parameters import WORKERS

from pytest_msprobe.__main__ import main
from pytest_msprobe.commands.package_files import find_templates

NAMES = ["ci", "custom_api", "gate", "known_issues", "multi_card", "thresholds"]


@pytest.fixture
def template(request: pytest.FixtureRequest, pytester: pytest.Pytester) -> str:
    name: str = request.param
    assert main(["conftest", name]) == 0
    return name


def run(pytester: pytest.Pytester, workers: str, *arguments: str) -> pytest.RunResult:
    """A run with real workers needs a process of its own; one without is quicker in this one."""
    if workers == "0":
        return pytester.runpytest(*arguments)
    return pytester.runpytest("-n", workers, *arguments)


def test_the_templates_are_these() -> None:
    assert list(find_templates()) == NAMES
    assert all(len(path.read_text().splitlines()) <= 45 for path in find_templates().values())


@pytest.mark.parametrize("template", NAMES, indirect=True)
def test_a_template_is_copied_and_never_over_a_file(
    pytester: pytest.Pytester, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written = Path("conftest.py").read_text()
    assert written == find_templates()[template].read_text()
    Path("conftest.py").write_text("# mine\n")
    assert main(["conftest", template]) == 2
    assert "conftest.py exists and is left as it is" in capsys.readouterr().err
    assert Path("conftest.py").read_text() == "# mine\n"
    assert main(["conftest", template, "-o", "other.py"]) == 0
    assert Path("other.py").read_text() == written


def test_names_are_listed_when_missing_or_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conftest"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == NAMES
    assert main(["conftest", "nonsense"]) == 2
    shown = capsys.readouterr().err
    assert "there is no template 'nonsense'" in shown
    assert all(name in shown for name in NAMES)
    assert main(["conftest", "ci", "-o", "no/such/folder/conftest.py"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_loads_no_framework() -> None:
    check = (
        "import sys; from pytest_msprobe.__main__ import main; main(['conftest']); "
        "print([name for name in ('numpy', 'torch', 'mindspore', 'ml_dtypes') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_documentation_ci_jobs_and_examples_are_copied_into_a_new_folder(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs", "-o", "pages"]) == 0
    assert capsys.readouterr().out == "wrote pages; begin with pages/README.md\n"
    pages = Path("pages")
    for name in ("README.md", "docs/ci.md", "docs/ci/Jenkinsfile", "docs/images/page.png", "extensions/laws/README.md"):
        assert (pages / name).is_file()
    assert (pages / "collector/examples/gpt/train.py").is_file()
    links = re.findall(r"\]\(((?:docs|collector|extensions)/[^)#]+)", (pages / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if not (pages / link).exists()] == []
    assert main(["docs", "-o", "pages"]) == 2
    assert "pages exists and is left as it is" in capsys.readouterr().err


@pytest.mark.parametrize("template", ["multi_card"], indirect=True)
def test_multi_card_gives_each_device_a_worker(
    pytester: pytest.Pytester, template: str, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("conftest.py")
    path.write_text(path.read_text().replace('DEVICES = ""', 'DEVICES = "4,6"'))
    hook_dump(pytester.path).write()
    refused = pytester.runpytest("--msprobe-dump=dump.json")  # a CPU is no device with a number
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["ERROR: --msprobe-device-ids=4,6: nothing is run on a device here; *"])
    # In `repeat` the numbers are those of workers.
    result = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-suite=repeat")
    result.stdout.fnmatch_lines(["msprobe: devices of the workers: gw0: 4, gw1: 6"])
    alone = pytester.runpytest("--msprobe-dump=dump.json", "--msprobe-suite=repeat", "-n", "0", "--msprobe-out=alone")
    assert "devices of the workers" not in alone.stdout.str()


@pytest.mark.parametrize("template", ["ci"], indirect=True)
@WORKERS
def test_ci_leaves_every_report_in_one_folder(pytester: pytest.Pytester, template: str, workers: str) -> None:
    hook_dump(pytester.path).write()
    run(pytester, workers, "--msprobe-dump=dump.json").assert_outcomes(passed=2, failed=1, skipped=2)
    folder = pytester.path / "artifacts"
    assert Reports(folder).results["Mint.exp.0"]["Forward Test Success"] == "error"
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("5", "1")
    assert "Mint.exp.0" in (folder / "report.html").read_text()
    assert page_rows(folder / "page.html")
    (line,) = (folder / "failures.txt").read_text().splitlines()
    assert line.startswith("Mint.exp.0 forward: output.0: Max absolute error 0.00100005 is not below 0.0001")


@pytest.mark.parametrize("template", ["thresholds"], indirect=True)
def test_thresholds_by_api_dtype_and_direction(pytester: pytest.Pytester, template: str) -> None:
    def off(array: np.ndarray, error: float) -> np.ndarray:
        return (array.astype(np.float64) + error).astype(array.dtype)

    small = np.zeros((3, 4), np.float32)
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.matmul.0", [A, B], [off(A @ B, 5e-4)])  # BY_API: below 1e-3
    builder.call("Mint.matmul.1", [A, B], [off(A @ B, 2e-3)])  # above it
    builder.call("Mint.neg.0", [X.astype(ml_dtypes.bfloat16)], [off(-X.astype(ml_dtypes.bfloat16), 0.02)])
    builder.call("Mint.neg.1", [X], [off(-X, 5e-4)])  # default: not below 1e-4
    half = X.astype(np.float16)
    builder.call("Mint.neg.2", [half], [off(-half, 0.007)], incoming=[half], gradients=[off(-half, 0.007)])
    builder.call("Mint.softmax.0", [small, 1], [off(small + 0.25, 1e-5)])
    builder.write()
    result = pytester.runpytest("--msprobe-dump=dump.json", "-rf")
    result.assert_outcomes(passed=3, failed=4)
    failed = [f"Mint.{name}::forward" for name in ("matmul.1", "neg.1", "neg.2", "softmax.0")]
    result.stdout.fnmatch_lines([f"FAILED (*) dump.json::{name}*" for name in failed])


@pytest.mark.parametrize("template", ["custom_api"], indirect=True)
def test_custom_api_is_judged_by_its_own_benchmark(pytester: pytest.Pytester, template: str) -> None:
    import torch

    x, weight = torch.tensor(X, dtype=torch.float64), torch.tensor(X[0], dtype=torch.float64)
    x.requires_grad_()
    weight.requires_grad_()
    y = torch.nn.functional.rms_norm(x, (4,), weight, 1e-6)
    y.backward(torch.tensor(X, dtype=torch.float64))
    right = [array.detach().numpy().astype(np.float32) for array in (x.grad, weight.grad)]
    output = y.detach().numpy().astype(np.float32)
    builder = DumpBuilder(pytester.path)
    builder.call("Custom.rms_norm.0", [X, X[0], 1e-6], [output], incoming=[X], gradients=right)
    builder.call("Custom.rms_norm.1", [X, X[0]], [output * 1.01], incoming=[X], gradients=[right[0], right[1] * 1.01])
    builder.call("Mint.neg.0", [X], [-X])
    builder.write()
    result = pytester.runpytest("--msprobe-dump=dump.json")
    result.assert_outcomes(passed=3, failed=2)
    result.stdout.fnmatch_lines(["benchmark reference rms_norm of pytest_msprobe_reference: 4 judged"])


@pytest.mark.parametrize("template", ["known_issues"], indirect=True)
@WORKERS
def test_known_issues_are_expected_and_stale_ones_are_told(
    pytester: pytest.Pytester, template: str, workers: str
) -> None:
    hook_dump(pytester.path).write()
    arguments = (workers, "--msprobe-dump=dump.json", "-rxX", "-Wdefault")
    run(pytester, *arguments).assert_outcomes(passed=2, failed=1, skipped=2)
    with Path("known_issues.txt").open("a") as file:
        file.write("Mint.exp.0  # CANN-123: tables too coarse\nMint.exp.99 # gone\n")
    result = run(pytester, *arguments)
    result.assert_outcomes(passed=2, xfailed=1, skipped=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*PytestWarning: known_issues.txt: Mint.exp.99 matches no API call of this run",
            "XFAIL dump.json::Mint.exp.0::forward - CANN-123: tables too coarse",
        ]
    )
    part = run(pytester, workers, "dump.json::Mint.matmul.0")
    part.assert_outcomes(passed=2)
    Path("known_issues.txt").write_text("dump.json::Mint.matmul.0::forward  # repaired\n")
    repaired = run(pytester, workers, "--msprobe-dump=dump.json", "-k", "matmul")
    repaired.assert_outcomes(passed=1, failed=1)
    repaired.stdout.fnmatch_lines(["*XPASS(strict)*repaired*"])


@pytest.mark.parametrize("template", ["gate"], indirect=True)
@WORKERS
def test_gate_fails_only_what_rounding_does_not_explain(pytester: pytest.Pytester, template: str, workers: str) -> None:
    half = (1000 * X + 1000).astype(np.float16)
    builder = DumpBuilder(pytester.path)
    builder.call("Mint.sqrt.0", [half], [np.nextafter(np.sqrt(half), np.float16(0))])  # one ulp, 0.03
    builder.call("Mint.exp.0", [X], [np.exp(X.astype(np.float64)).astype(np.float32) * np.float32(1.00005)])
    builder.write()
    arguments = (workers, "--msprobe-dump=dump.json", "-rf")
    result = run(pytester, *arguments)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["msprobe: standard: backward-error", "FAILED (*) dump.json::Mint.exp.0::forward*"])
    other = run(pytester, *arguments, "--msprobe-standard=cosine-maxabs")
    other.stdout.fnmatch_lines(["FAILED (*) dump.json::Mint.sqrt.0::forward*"])
    compared = run(pytester, *arguments, "--msprobe-golden=dump.json")
    assert compared.ret == 0
    rows = pytester.path / "rows.jsonl"
    run(pytester, *arguments, f"--msprobe-jsonl={rows}")
    assert main(["baseline", str(rows), "-o", "baseline.json"]) == 0
    known = run(pytester, *arguments)
    known.assert_outcomes(passed=1, xfailed=1)
    known.stdout.fnmatch_lines(["baseline: 0 new, 0 gone, 1 as before"])


@pytest.mark.parametrize("file", ["pytest.ini", "msprobe.yaml"])
def test_one_line_makes_the_choice_of_gate(pytester: pytest.Pytester, file: str) -> None:
    """Both lines stand in the template."""
    (line,) = (
        line.partition(":  ")[2].strip()
        for line in find_templates()["gate"].read_text().splitlines()
        if line.strip().startswith("The same" if file == "pytest.ini" else "or in")
    )
    Path(file).write_text(f"[pytest]\n{line}\n" if file == "pytest.ini" else f"{line}\n")
    hook_dump(pytester.path).write()
    given = () if file == "pytest.ini" else ("--msprobe-config=msprobe.yaml",)
    result = pytester.runpytest("--msprobe-dump=dump.json", *given)
    result.stdout.fnmatch_lines(["msprobe: standard: backward-error"])
