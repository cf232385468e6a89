"""The table of networks of other packages: complete, and of the form that its program writes; no package is needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quality.architectures.networks import ARCHITECTURES
from quality.architectures.page import BEGIN, END, HEAD, PAGE, put, row_of, table

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


def rows_of(text: str) -> list[list[str]]:
    """Cells of each row of the table of networks."""
    _, _, rest = text.partition("\n".join(HEAD) + "\n")
    lines = rest.partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_page_has_each_network_as_the_program_writes_it() -> None:
    page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows, known = rows_of(page), {item.name: item for item in ARCHITECTURES}
    (missing,) = re.findall(r"^Without a result: (.*)\.$", page, re.MULTILINE) or [""]
    assert sorted([*(row[0] for row in rows), *filter(None, missing.split(", "))]) == sorted(known)
    assert [row[0] for row in rows if row[1] != known[row[0]].package] == []
    frameworks = [known[row[0]].framework for row in rows]
    assert frameworks.count("pytorch") >= 40
    assert frameworks.count("mindspore") >= 10
    assert {len(row) for row in rows} == {len(HEAD[0].split("|")) - 2}
    numbers = [cell for row in rows for cell in (row[5], *row[8:])]
    assert [number for number in numbers if not number.isdecimal()] == []


def test_there_are_enough_networks_of_each_framework_and_no_name_twice() -> None:
    frameworks = [item.framework for item in ARCHITECTURES]
    assert frameworks.count("pytorch") >= 40
    assert frameworks.count("mindspore") >= 10
    assert len({item.name for item in ARCHITECTURES}) == len(ARCHITECTURES)


def test_every_training_is_bit_identical() -> None:
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    assert {row[2] for row in rows} == {"same"}


def test_a_row_says_what_was_found() -> None:
    (row,) = rows_of(table([(PYTORCH, FOUND)]))
    assert row == [PYTORCH.name, PYTORCH.package, "same", "7", "85.7 %", "4", "75.0 %", "Cache", "2", "1", "1", "0"]
    without_log = {name: value for name, value in FOUND.items() if not name.startswith("calls")}
    assert row_of(MINDSPORE, {**without_log, "is_identical": False}).split("|")[3:6] == [" **other** ", "  ", "  "]


def test_what_is_missing_is_named_with_its_reason() -> None:
    text = table([(PYTORCH, FOUND), (MINDSPORE, {"failure": "no such module"})])
    assert "- PyTorch: 1 of 1 trainings bit-identical; 6 of 7 forward calls recorded (85.7 %)" in text
    assert "Calls without a record: `copy_` 1. Layers without a backward record: `Net` 1." in text
    assert r"| skipped | `Torch._f` forward | 1 | torch: not known \| here |" in text
    assert "| alarm | `Functional.linear` backward | 1 |  |" in text
    assert f"Without a result: {MINDSPORE.name}." in text


def test_what_stands_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n", encoding="utf-8")
    put("new\n", page)
    put("newer\n", page)
    assert page.read_text(encoding="utf-8") == f"before\n{BEGIN}newer\n{END}after\n"


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
