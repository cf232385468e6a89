"""The tables of networks of other packages, of the form that their program writes; no package is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quality.architectures.networks import ARCHITECTURES
from quality.architectures.table import network_table, reason_table, summary

FOUND: dict[str, Any] = {
    "is_identical": True,
    "records": 9,
    "nulls": {},
    "null_types": ["package.cache.Cache"],
    "faults": [],
    "calls": 7,
    "calls_lost": {"copy_": 1},
    "layers": 4,
    "layers_lost": ["Module.a.0.Net.backward.0"],
    "verdicts": [
        ["passed", "Torch.cat.0 forward", ""],
        ["skipped", "Torch._f.1 forward", "torch: not known | here; the hook does; mindspore: none"],
        ["alarm", "Functional.linear.2 backward", "output.1 is off"],
    ],
}
PYTORCH, MINDSPORE = (
    next(item for item in ARCHITECTURES if item.framework == name) for name in ("pytorch", "mindspore")
)


def test_there_are_enough_networks_of_each_framework_and_no_name_twice() -> None:
    frameworks = [item.framework for item in ARCHITECTURES]
    assert frameworks.count("pytorch") >= 40
    assert frameworks.count("mindspore") >= 10
    assert len({item.name for item in ARCHITECTURES}) == len(ARCHITECTURES)


def test_a_row_says_what_was_found() -> None:
    (row,) = network_table([(PYTORCH, FOUND)]).rows
    assert row == (PYTORCH.name, PYTORCH.package, "same", "7", "85.7 %", "4", "75.0 %", "Cache", "2", "1", "1", "0")
    without_log = {name: value for name, value in FOUND.items() if not name.startswith("calls")}
    assert network_table([(MINDSPORE, {**without_log, "is_identical": False})]).rows[0][2:5] == ("other", "", "")


def test_what_is_missing_is_named_with_its_reason() -> None:
    found = [(PYTORCH, FOUND), (MINDSPORE, {"failure": "no such module"})]
    of_pytorch, missing, failed = summary(found)
    assert of_pytorch.startswith("PyTorch: 1 of 1 trainings bit-identical; 6 of 7 forward calls recorded (85.7 %)")
    assert missing == "Calls without a record: copy_ 1. Layers without a backward record: Net 1."
    assert failed == f"Without a result: {MINDSPORE.name}."
    assert set(reason_table(found).rows) == {
        ("skipped", "Torch._f forward", "1", "torch: not known | here"),
        ("alarm", "Functional.linear backward", "1", ""),
    }


def test_calls_that_compute_are_seen_and_those_without_a_record_are_lost(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from quality.architectures.watching import CallLog

    log, x = CallLog(tmp_path), torch.ones(3)
    with log:
        x.view(-1), x.detach(), torch.zeros_like(x), x.clone(), torch.arange(3), x.sum().item()
        x.add_(1)
        (tmp_path / "dump.json").write_text("", encoding="utf-8")
        written = torch.cat([x, x])
        with (tmp_path / "dump.json").open("a", encoding="utf-8") as file:
            file.write("a record that nobody wrote during a call")
        torch.stack([written])
    assert dict(log.seen) == {"sum": 1, "add_": 1, "cat": 1, "stack": 1}
    assert log.lost == log.seen


def test_modules_are_seen_that_gradients_flow_through() -> None:
    torch = pytest.importorskip("torch")
    from quality.architectures.watching import ModuleLog

    class Wrapped(torch.nn.Module):  # type: ignore[name-defined, misc]
        def forward(self, value: Any) -> Any:
            return {"deep": [value * 2]}

    net = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(2, 2), "same": torch.nn.Identity(), "unused": torch.nn.Linear(2, 2), "b": Wrapped()}
    )
    log = ModuleLog(net)
    remove = log.watch()
    net["unused"](torch.ones(2))
    net["b"](net["same"](net["a"](net["a"](torch.ones(2)))))["deep"][0].sum().backward()
    remove()
    net["a"](torch.ones(2)).sum().backward()
    assert sorted(log.names) == [
        "Module.a.Linear.backward.0",
        "Module.a.Linear.backward.1",
        "Module.b.Wrapped.backward.0",
    ]
