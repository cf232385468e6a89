"""Every test here runs pytest inside pytest."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="session", autouse=True)
def _load_compiled_packages() -> None:
    """pytester unloads what an in-process run imported, which compiled packages do not survive: load them before."""
    frameworks = [name for name in ("mindspore", "torch") if importlib.util.find_spec(name)]
    # torch._dynamo registers operators for the whole process, which works once.
    of_torch = ["torch._dynamo", "pytest_msprobe.engines.adapters"] if "torch" in frameworks else []
    for name in (*frameworks, "ml_dtypes", *of_torch):
        importlib.import_module(name)
    importlib.import_module("pytest_msprobe.suites.precheck.check")


@pytest.fixture(autouse=True)
def _only_our_plugins(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test extra's plugins are not part of a user's run, and importing Hypothesis again would take a second each.

    After `pytester`, which clears this variable.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:pytest_cov")
