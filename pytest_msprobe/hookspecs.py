"""The hooks that a conftest.py can implement; each docstring is a contract, docs/hooks.md has an example of each.

Write only the parameters that you need. A misspelt name ends the run with pytest's "unknown hook". Every conftest.py
that pytest has loaded is asked, for every dump. A hook that nobody implements costs nothing.

Whatever a hook needs or returns is exported by `pytest_msprobe.api`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from msprobe_collector.dump_format import ApiName, Direction
    from pytest_msprobe.engines.reference import Reference
    from pytest_msprobe.numerics.judgement import Standard
    from pytest_msprobe.verdicts import VerdictRow


@pytest.hookspec(firstresult=True)
def pytest_msprobe_standard(
    config: pytest.Config, api: ApiName, direction: Direction, dtypes: tuple[str, ...], default: Standard
) -> Standard | None:
    """The rule that judges all outputs of one API call in one direction. The first that is not None is used.

    Called after both sides have run, on the process that checks the call.

    Args:
        config: of the run.
        api: name of the call: `str(api)` is "Mint.linalg.inv.0", `api.api` "linalg.inv", `api.short` "inv".
        direction: "forward" or "backward".
        dtypes: dtypes of the tested tensors in the words of dumps ("Float32", "BFloat16"), in the order of the outputs.
        default: the standard that the options chose; `dataclasses.replace(default, max_abs=1e-3)` changes it, where it
            is the default rule. Where outputs have standards of their own by dtype, it asks those.

    Returns:
        A standard: `CosineMaxAbs(cosine=0.999, max_abs=1e-3)`, `Ulp()`, or any object like `Standard`, also one with
        a method `judge_pair(pair)`, which sees the elements; None for `default`.
    """


@pytest.hookspec(firstresult=True)
def pytest_msprobe_reference(config: pytest.Config, api: ApiName) -> Reference | Callable[..., Any] | None:
    """The user's own float64 benchmark of an API; it goes before PyTorch and MindSpore. The first one is used.

    Called once per API call, on the process that checks it. Not asked for calls that are skipped before they run, as
    random and communication APIs are.

    Args:
        config: of the run.
        api: name of the call.

    Returns:
        A `Reference(forward, backward)`, which says what both functions get and return; a function alone is a
        `Reference` without backward, whose gradients are left to PyTorch and MindSpore. None for an API that they
        should compute. What a reference raises is an error of its call: nobody else steps in unseen.
    """


@pytest.hookspec(firstresult=True)
def pytest_msprobe_select(config: pytest.Config, api: ApiName, dump: Path) -> bool | None:
    """Whether an API call is checked, both its directions. The first answer that is not None is used.

    Called once per API call when the dumps are collected. It must answer the same in every worker process. Calls that
    are left out count as deselected, for pytest and in what it prints.

    Args:
        config: of the run.
        api: name of the call.
        dump: absolute path of the dump.json.

    Returns:
        False to leave the call out; True or None to keep it. `-k` and `-m` choose among what is kept.
    """


@pytest.hookspec(firstresult=True)
def pytest_msprobe_outputs(
    config: pytest.Config, api: ApiName, direction: Direction, outputs: list[Any]
) -> list[Any] | None:
    """Look at what the tested side computed, or replace it: fault injection, or a result from elsewhere.

    Called on the process that checks the call, before anything is compared. The first answer that is not None is used.
    A replaced result is marked in all reports: its device reads "..., altered by pytest_msprobe_outputs".

    Args:
        config: of the run.
        api: name of the call.
        direction: "forward" or "backward".
        outputs: forward: every output in order, NumPy arrays (bfloat16 through ml_dtypes), or a plain Python value
            where the API returned one. Backward: the gradients, None where there is none. The arrays are read-only and
            belong to the run: copy what you change or keep.

    Returns:
        A list of the same length, an array or plain value for each entry that is not None; None to leave them alone.
    """


@pytest.hookspec
def pytest_msprobe_verdict(config: pytest.Config, row: VerdictRow) -> None:
    """Receive a verdict, after the reports have it.

    Called for every verdict, skips included, on the one process that writes reports: never in a worker of xdist. The
    order is that in which results arrive. An exception ends this hook, not the run, which then exits with code 3.

    Args:
        config: of the run.
        row: the verdict, immutable, with one `OutputRow` per output.
    """
