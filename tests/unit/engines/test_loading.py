"""What importing a framework leaves behind."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from pytest_msprobe.engines.process import load_framework

#: Leaves an exception that is in a cycle with the frame which caught it, as the imports of both frameworks do.
_MODULE = """
def attempt():
    try:
        import there_is_no_such_module
    except ImportError as error:
        kept = error
attempt()
"""


def test_tensors_of_the_caller_do_not_outlive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_framework.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def first_call() -> weakref.ref[np.ndarray]:
        array = np.zeros(3)
        load_framework("some_framework")
        return weakref.ref(array)

    try:
        assert first_call()() is None
    finally:
        gc.unfreeze()
        sys.modules.pop("some_framework", None)
