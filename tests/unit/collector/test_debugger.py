"""What a script may ask of the class before it makes a debugger."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_collector.debugger import DebuggerError
from msprobe_collector.mindspore.framework import PrecisionDebugger as OfMindSpore
from msprobe_collector.pytorch.framework import PrecisionDebugger as OfTorch


@pytest.mark.parametrize("debugger", [OfMindSpore, OfTorch], ids=["MindSpore", "PyTorch"])
def test_the_class_has_its_methods_before_there_is_an_instance(debugger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger, "_instance", None)
    assert all(hasattr(debugger, name) for name in ("start", "stop", "step", "save", "monitor"))
    assert not hasattr(debugger, "begin")
    with pytest.raises(DebuggerError, match="there is no PrecisionDebugger yet; make one first"):
        debugger.start()
