"""The file of --msprobe-diagnosis; docs/accounting.md documents it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_msprobe.suites.comparison.accounting.account import Account
from pytest_msprobe.suites.comparison.accounting.diagnosis import OUTCOMES, Diagnosis, is_suspect
from pytest_msprobe.suites.comparison.accounting.fault import Fault
from pytest_msprobe.suites.comparison.accounting.next_steps import next_steps
from pytest_msprobe.suites.comparison.accounting.observed_text import first_bits
from pytest_msprobe.suites.comparison.cells import CellDifference

_VERSION = 1

#: What differences do in Cells, by their records.
Cells = Mapping[str, CellDifference]


def write_diagnosis(path: Path, diagnoses: Sequence[tuple[Diagnosis, Cells]]) -> None:
    """Write the answer of a run. Raises OSError when the file cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content(diagnoses)), indent=1) + b"\n")


def content(found: Sequence[tuple[Diagnosis, Cells]]) -> dict[str, Any]:
    """What the file says, in builtin types."""
    diagnoses = [diagnosis for diagnosis, _ in found]
    outcomes = [diagnosis.outcome for diagnosis in diagnoses]
    return {
        "version": _VERSION,
        "outcome": next((outcome for outcome in OUTCOMES if outcome in outcomes), "equal"),
        "text": "\n".join(diagnosis.text for diagnosis in diagnoses),
        "at_fault": [
            _fault(diagnosis, fault)
            for diagnosis in diagnoses
            if diagnosis.basis == "tensors"
            for fault in diagnosis.faults
        ],
        "dumps": [_dump(diagnosis, cells) for diagnosis, cells in found],
    }


def _dump(diagnosis: Diagnosis, cells: Cells) -> dict[str, Any]:
    last = diagnosis.last
    is_known = diagnosis.basis == "tensors"
    bits = first_bits(diagnosis.steps)
    return {
        "target": str(diagnosis.target.path),
        "golden": str(diagnosis.golden.path),
        "outcome": diagnosis.outcome,
        "text": diagnosis.text,
        "basis": diagnosis.basis,
        "origins": [] if is_known else [_fault(diagnosis, fault) for fault in diagnosis.faults],
        "first_bits": None if bits is None else {"record": bits[0].record, "value": bits[1]},
        "counts": dict(diagnosis.counts),
        "growth": [{"record": record, "growth": growth} for record, growth in diagnosis.growths()],
        "last": None if last is None else {"record": last[0].record, "value": last[1], "distance": _number(last[2])},
        "cells": [
            {
                "record": record,
                "inherited": cell.inherits,
                "born_inside": list(cell.born),
                "passed_on": cell.passes_on,
                "level": cell.level,
            }
            for record, cell in cells.items()
        ],
        "unaccounted": [
            {
                "record": step.record,
                "reason": step.account.reason,
                "distance": _distance(step.account),
                "is_suspect": is_suspect(step),
            }
            for step in diagnosis.unaccounted
        ],
    }


def _fault(diagnosis: Diagnosis, fault: Fault) -> dict[str, Any]:
    frame = diagnosis.frame(fault)
    growth = next(iter(diagnosis.growths(fault.reached)), None)
    return {
        "dump": str(diagnosis.target.path),
        "record": fault.records[0] if fault.records else fault.step.record,
        "records": fault.records,
        "partner": fault.step.account.partner or None,
        "cells": list(fault.step.cells),
        "side": fault.side,
        "kind": fault.kind,
        "value": fault.value,
        "name": fault.name,
        "sentence": fault.sentence,
        "size": _number(fault.size),
        "share": _number(fault.share),
        "worst": None if fault.worst is None else list(fault.worst),
        "source": None
        if frame is None
        else {"file": frame.file, "line": frame.line, "function": frame.function, "code": frame.source},
        "after": fault.after or None,
        "inheriting": len(fault.reached),
        "last": fault.reached[-1].record if fault.reached else None,
        "growth": None if growth is None else {"record": growth[0], "growth": growth[1]},
        "next": next_steps(diagnosis, fault),
    }


def _distance(account: Account) -> float | None:
    found = [key.distance for key in account.keys if key.is_output and key.distance is not None]
    return _number(max(found, default=None))


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
