"""pytester unloads what an in-process run imported; compiled packages do not survive that, so they are loaded before."""

from __future__ import annotations

import mindspore  # noqa: F401
import ml_dtypes  # noqa: F401
import pytest
import torch  # noqa: F401

import pytest_msprobe.engines.torch_map.adapters
import pytest_msprobe.precheck.check  # noqa: F401


@pytest.fixture(autouse=True)
def _only_our_plugins(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test extra's plugins are no part of a user's run, and importing Hypothesis again would take a second each.

    After `pytester`, which clears this variable.
    """
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:pytest_cov")
