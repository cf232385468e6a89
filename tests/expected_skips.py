"""A pytest plugin: a skip that EXPECTED does not list fails, so that no test is lost unseen.

Samples of API calls are not skipped: what a framework refuses stands beside the sample.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest

#: Beside PATH: where Debian keeps servers, which PATH of users leaves out.
_FOLDERS = os.pathsep.join(filter(None, [os.environ.get("PATH"), "/usr/sbin"]))


def lacks_module(*names: str) -> Callable[[], bool]:
    """Return a condition: one of these modules is not installed."""
    return lambda: any(importlib.util.find_spec(name) is None for name in names)


def lacks_command(*names: str) -> Callable[[], bool]:
    """Return a condition: one of these commands is not installed."""
    return lambda: any(shutil.which(name, path=_FOLDERS) is None for name in names)


def always() -> bool:
    """Hold on every machine."""
    return True


@dataclass(frozen=True)
class ExpectedSkip:
    """A skip that is no loss.

    Attributes:
        reason: of the skip; `*` stands for any text.
        tests: node ids, `*` as above.
        condition: where it is expected.
    """

    reason: str
    tests: str = "*"
    condition: Callable[[], bool] = always

    def matches(self, node_id: str, reason: str) -> bool:
        """Whether this skip is meant."""
        return self.condition() and fnmatchcase(reason, self.reason) and fnmatchcase(node_id, self.tests)


NO_TORCH, NO_MINDSPORE = lacks_module("torch"), lacks_module("mindspore")
NO_EXISTING_TOOL = "MSPROBE_REFERENCE_PYTHON names no Python with the existing tool"
EXPECTED = (
    # The frameworks are extras.
    ExpectedSkip("could not import 'torch'*", condition=NO_TORCH),
    ExpectedSkip("torch is not installed", condition=NO_TORCH),
    # Trainers of others.
    *(
        ExpectedSkip(f"{name} is not installed", "*test_trainers.py::*", lacks_module(name))
        for name in ("transformers", "lightning", "accelerate")
    ),
    ExpectedSkip("could not import 'pytest_msprobe.engines.torch_engine'*", condition=NO_TORCH),
    ExpectedSkip("could not import 'mindspore'*", condition=NO_MINDSPORE),
    ExpectedSkip("[mM]ind[sS]pore is not installed", condition=NO_MINDSPORE),
    ExpectedSkip("needs mindspore", condition=NO_MINDSPORE),
    # It starts processes without frameworks itself.
    ExpectedSkip("this whole run is one without frameworks", condition=lacks_module("mindspore", "torch")),
    # `pip install '.[torch]'` without the extra test, and the environment of .ci/quick.
    *(
        ExpectedSkip(f"could not import '{name}'*", condition=lacks_module(name))
        for name in ("xlsxwriter", "openpyxl", "check_jsonschema", "tree_sitter", "tree_sitter_groovy")
    ),
    ExpectedSkip("could not import 'transformers'*", "quality/*", condition=lacks_module("transformers")),
    ExpectedSkip("matplotlib is not installed", condition=lacks_module("matplotlib")),
    ExpectedSkip("Triton is not installed", condition=lacks_module("triton")),
    ExpectedSkip("PyTorch's OpInfo database needs expecttest*", condition=lacks_module("expecttest")),
    # Programs beside Python. A package registry can always be out of reach.
    ExpectedSkip("selenium is not installed*", condition=lacks_module("selenium")),
    ExpectedSkip("no chromium and chromedriver here*", condition=lacks_command("chromium", "chromedriver")),
    ExpectedSkip("no npm here, which fetches axe-core", condition=lacks_command("npm")),
    ExpectedSkip("npm cannot fetch axe-core here", "tests/browser/*"),
    ExpectedSkip("sshd, ssh and ssh-keygen are not all *", condition=lacks_command("sshd", "ssh", "ssh-keygen")),
    # The existing tool and the other plugins are for environments of their own.
    ExpectedSkip(NO_EXISTING_TOOL, condition=lambda: not os.environ.get("MSPROBE_REFERENCE_PYTHON")),
    ExpectedSkip(
        "needs the extra test-plugins",
        condition=lacks_module(
            "allure_pytest",
            "pytest_jsonreport",
            "pytest_randomly",
            "pytest_reportlog",
            "pytest_rerunfailures",
            "pytest_timeout",
        ),
    ),
    # Rights: root reads every file, and only root mounts file systems, where the container lets it.
    ExpectedSkip("root reads everything", condition=lambda: os.geteuid() == 0),
    ExpectedSkip("this process may not mount file systems", "tests/plugin/test_full_disk.py::*"),
    ExpectedSkip("long double is float64 here", "tests/unit/numerics/test_kinds.py::*"),
    ExpectedSkip("a compiled function that shows no signature", "tests/unit/apis/test_random.py::*Tensor.new_empty]"),
)


class ExpectedSkips:
    """The plugin, one in each process of a run. It leaves alone what stands in no Python file, such as a dump."""

    def __init__(self, expected: Sequence[ExpectedSkip] = EXPECTED) -> None:
        self._expected = expected

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._judge(report)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        self._judge(report)
        return report

    def _judge(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Make a failure of a skip that is not listed."""
        reason = reason_of_skip(report)
        if reason is None or any(expected.matches(report.nodeid, reason) for expected in self._expected):
            return
        report.outcome = "failed"
        report.longrepr = f"skipped, which tests/expected_skips.py does not expect: {reason.strip()}"


def reason_of_skip(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return why a test or a module was skipped; None when it was not, or by an xfail mark."""
    if not report.skipped or hasattr(report, "wasxfail") or not report.nodeid.partition("::")[0].endswith(".py"):
        return None
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")
