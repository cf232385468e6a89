"""What to do about a fault: commands first."""

from __future__ import annotations

import shlex

from pytest_msprobe.suites.comparison.accounting.diagnosis import Diagnosis
from pytest_msprobe.suites.comparison.accounting.fault import Fault


def next_steps(diagnosis: Diagnosis, fault: Fault) -> list[str]:
    """Commands and steps, most useful first."""
    call = fault.step.operation.call
    wrong = diagnosis.golden if fault.side == "golden" else diagnosis.target
    dump = shlex.quote(str(wrong.path))
    check = f"pytest --msprobe-dump={dump} -k {shlex.quote(call)}"
    if fault.kind == "first":
        return [
            f'dump both runs again with "task": "tensor", "scope": ["{call}", "{call}"], and compare those dumps',
            f"pytest --msprobe-dump={dump} --msprobe-device=DEVICE -k {shlex.quote(call)}",
            *([] if fault.step.account.is_noise else ["dump the golden run with debugger.perturb: --msprobe-noise"]),
        ]
    if fault.kind == "born":
        return [
            check,
            f"{check} --msprobe-reproducers=reproducers",
            f'dump again with "scope": ["{call}", "{call}"] for this call alone',
        ]
    if fault.kind == "parameter":
        return ["compare the initial values, the checkpoint and the optimizer step that gave this parameter"]
    if fault.kind in ("batch", "constant"):
        return ["compare the data that both runs read at this step: order, augmentation, padding, masks, seeds"]
    if fault.kind == "gradient":
        return ["look for hooks, detached branches and second backwards on this value: gradients are added there"]
    if fault.kind == "another_rank":
        return ["compare the dumps of all ranks (--msprobe-dump=STEP_FOLDER): the cause is in the rank that sent it"]
    if fault.kind == "unrecorded":
        return [
            "look for changes in place before this call; dump with level mix and no scope to see what makes the value"
        ]
    return [f"compare both lines that make the call {call}: arguments, dtypes, configuration of the model"]
