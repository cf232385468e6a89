"""Our dump of a step beside the one that the existing tool writes of the same script: equal but for what the docs list.

MSPROBE_REFERENCE_PYTHON=.venv-msprobe/bin/python pytest tests/pytorch_collector/test_against_existing_tool.py, with an
environment that holds mindstudio-probe and PyTorch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from msprobe_collector.dump_format.values import CHANGED, GRADIENT_OF, LEAF, MADE_BY, UNINITIALIZED, VIEW

TESTS = Path(__file__).parents[1]
REFERENCE = os.environ.get("MSPROBE_REFERENCE_PYTHON", "")
#: Largest distance of two statistics in parts of the tensor's norm, and the norm below which it no longer shrinks.
TOLERANCE, SMALLEST = 2e-5, 1e-3


def listed() -> dict[str, set[str]]:
    """The list of the docs: kind of difference -> calls that have it."""
    text = (TESTS.parent / "docs" / "collecting.md").read_text(encoding="utf-8")
    items = text.partition("<!-- differences from the existing tool -->")[2].partition("\n\n")[0].split("\n- ")[1:]
    kinds = (item.partition(": `") for item in items)
    return {kind: set(re.findall(r"`([^`]+)`", f"`{calls}")) for kind, _, calls in kinds}


def collected(python: str, package: str, folder: Path) -> dict[str, Any]:
    """The records of the script, by name."""
    script = Path(__file__).with_name("two_collectors.py")
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [python, str(script), package, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (path,) = folder.glob("dump/step0/*/dump.json")
    data: dict[str, Any] = json.loads(path.read_text())["data"]
    return data


def call_of(record: str) -> str:
    """`Torch.relu`, `Module.Linear`."""
    parts = [part for part in record.split(".") if not part.isdigit()]
    parts = [part for part in parts if part not in ("forward", "backward", "parameters_grad")]
    return f"Module.{parts[-1]}" if parts[0] == "Module" else ".".join(parts)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """(place, tensor or plain value) of everything in a record."""
    if isinstance(value, dict) and value.get("type") != "torch.Tensor":
        for key in value:
            yield from leaves(value[key], f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{place}.{number}")
    else:
        yield place, value


def differing(ours: Any, theirs: Any) -> set[str]:
    """The fields in which two leaves differ."""
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return set() if ours == theirs else {"value"}
    scale = max(abs(theirs["Norm"] or ours["Norm"] or 0.0), SMALLEST)
    found = {key for key in ("type", "dtype", "shape", "requires_grad") if ours.get(key) != theirs.get(key)}
    for key in ("Max", "Min", "Mean", "Norm"):
        pair = ours[key], theirs[key]
        if None in pair:
            found |= {key} if pair != (None, None) else set()
        elif ours[key] != pytest.approx(theirs[key], abs=TOLERANCE * scale):
            found.add(key)
    return found


def same_gradients(ours: Any, theirs: Any) -> bool:
    """Whether the same gradients stand in two lists, wherever the empty places are."""
    one, other = ([item for item in items if item is not None] for items in (ours, theirs))
    return len(one) == len(other) and not any(map(differing, one, other))


@pytest.mark.skipif(not REFERENCE, reason="MSPROBE_REFERENCE_PYTHON names no Python with the existing tool")
def test_the_differences_are_those_that_the_docs_list(tmp_path: Path) -> None:
    theirs = collected(REFERENCE, "msprobe.pytorch", tmp_path / "theirs")
    ours = collected(sys.executable, "msprobe_collector.pytorch", tmp_path / "ours")
    found: dict[str, set[str]] = {
        "no record there": {call_of(name) for name in ours.keys() - theirs.keys()},
        "no record here": {call_of(name) for name in theirs.keys() - ours.keys()},
    }
    compared = 0
    for name in ours.keys() & theirs.keys():
        our, their = dict(ours[name]), dict(theirs[name])
        if "backward" in name and not same_gradients(our["output"], their["output"]):
            found.setdefault("backward `output`: other gradients", set()).add(call_of(name))
            our["output"] = their["output"] = []
        elif "backward" in name:
            if len(our["output"]) != len(their["output"]) or any(
                (one is None) != (other is None) for one, other in zip(our["output"], their["output"])
            ):
                found.setdefault("backward `output`: other places", set()).add(call_of(name))
            our["output"] = their["output"] = []
        left, right = dict(leaves(our)), dict(leaves(their))
        for place in left.keys() | right.keys():
            compared += 1
            if fields := differing(left.get(place, "missing"), right.get(place, "missing")):
                is_integer = fields == {"Mean", "Norm"} and "int" in left[place]["dtype"]
                kind = "Mean and Norm of integers" if is_integer else f"{sorted(fields)} of {place}"
                found.setdefault(kind, set()).add(call_of(name))
    assert compared > 400
    assert found == listed()


def without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {key: without(item, names) for key, item in value.items() if key not in names}
    return [without(item, names) for item in value] if isinstance(value, list) else value


@pytest.mark.skipif(not REFERENCE, reason="MSPROBE_REFERENCE_PYTHON names no Python with the existing tool")
def test_its_comparison_passes_over_where_tensors_come_from(tmp_path: Path) -> None:
    """Our dump beside itself gives the same table with and without these fields."""
    collected(sys.executable, "msprobe_collector.pytorch", tmp_path / "ours")
    (path,) = (tmp_path / "ours").glob("dump/step0/*/dump.json")
    text = path.read_text()
    assert f'"{MADE_BY}"' in text
    tables = []
    for name, names in (("with", ()), ("without", (MADE_BY, VIEW, CHANGED, LEAF, GRADIENT_OF, UNINITIALIZED))):
        out = tmp_path / name
        path.write_text(json.dumps(without(json.loads(text), names)))
        command = [str(Path(REFERENCE).with_name("msprobe")), "compare", "-tp", path, "-gp", path, "-o", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        (table,) = out.glob("*.csv")
        tables.append(table.read_text())
    assert tables[0] == tables[1]
    assert len(tables[0].splitlines()) > 100


def test_the_docs_list_what_they_know() -> None:
    assert len(listed()) == 5
    assert all(listed().values())
