"""What configuration files of the existing tool say that this collector does not do, and what stands for it.

No key of these files ends a training: what is without effect is named once, with the reason.
"""

from __future__ import annotations

from typing import Any

from msprobe_collector.log import logger

_LATER = "tensors are checked after the training, by pytest --msprobe-dump"
_KERNELS = "it belongs to Ascend's own dump"
_NOT_SENT = "values stay on this machine; copy the dump"

#: Keys without effect, by their section ("" is the top), and why.
_WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "": {
        "risk_level": "all calls are collected; key list names some",
        "custom_op_namespaces": "register_custom_api() names an operator",
        "load": "no dump is loaded into a training",
        "acc_check": _LATER,
        "diff_check": "two dumps are compared by pytest --msprobe-golden",
        "nan_check": "task overflow_check collects calls with NaN and Inf",
        "run_ut": _LATER,
        "free_benchmark": "what rounding does is measured by two runs, with pytest --msprobe-noise",
        "enable_dataloader": "call start(), stop() and step(), or run the script by msprobe_collector collect",
        "acl_config": _KERNELS,
        "xor": "summary_mode names the checksum",
    },
    "statistics": {"file_format": "tensors are .npy", "acl_config": _KERNELS},
    "tensor": {
        "file_format": "tensors are .npy",
        "backward_input": _KERNELS,
        "acl_config": _KERNELS,
        "online_run_ut": _LATER,
        "online_run_ut_recompute": _LATER,
        "nfs_path": _NOT_SENT,
        "host": _NOT_SENT,
        "port": _NOT_SENT,
        "tls_path": _NOT_SENT,
        "rank_list": "key rank stands at the top",
    },
    "structure": {"summary_mode": "a structure has no values"},
    "overflow_check": {"summary_mode": "records have statistics"},
    "exception_dump": {"file_format": _KERNELS, "summary_mode": _KERNELS},
}

#: Tasks that the collector does not have, and what does their work.
_TASKS = {
    "free_benchmark": _WITHOUT_EFFECT[""]["free_benchmark"],
    "run_ut": _LATER,
    "acc_check": _LATER,
    "diff_check": _WITHOUT_EFFECT[""]["diff_check"],
}

#: Keys that only the file of a monitor of a whole training has at its top.
_MONITOR = frozenset(
    "targets print_struct module_ranks ur_distribution mv_distribution xy_distribution mg_direction wg_distribution "
    "param_distribution cc_distribution cc_log_only alert format ops eps ndigits step_interval start_step "
    "collect_times dynamic_on all_xy forward_only backward_only squash_name stack_info append_output monitor_mbs_grad "
    "cc_codeline cc_pre_hook step_count_per_record recording_l2_features monitor_v2 mg_distribution sa_order "
    "framework output_dir monitors stop_step async_write patch_optimizer_step micro_batch_number "
    "grad_acc_steps".split()
)


def translated(content: dict[str, Any], arguments: dict[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a file and the constructor's arguments, without what only the existing tool knows.

    The logger `msprobe_collector` names what is without effect, and why. A task that the collector does not have
    becomes one that collects only what `save` is given.
    """
    content = {name: value for name, value in content.items() if value != "" or name not in ("task", "level")}
    if monitor := sorted(_MONITOR & content.keys()):
        logger.warning(
            "%s: without effect here: %s: this is the file of a monitor of a whole training; "
            "task grad_probe, or PrecisionDebugger.monitor(optimizer), watches gradients",
            place,
            ", ".join(monitor),
        )
        content = {name: value for name, value in content.items() if name not in _MONITOR}
    task = arguments.get("task", content.get("task"))
    if task == "nan_check":
        logger.warning("%s: task nan_check is called overflow_check here, which is taken", place)
        content, arguments = {**content, "task": "overflow_check"}, _without(arguments, "task")
    elif task in _TASKS:
        logger.warning("%s: task %s is without effect here, so nothing is collected: %s", place, task, _TASKS[task])
        content = {**content, "task": "statistics", "level": "debug"}
        arguments = _without(arguments, "task", "level")
    content = _without_idle(content, "", place)
    for name, value in content.items():
        if isinstance(value, dict):
            content[name] = _section(value, name, place)
    return content, arguments


def _section(section: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    content = _without_idle(section, name, place)
    if content.get("summary_mode") == "xor":
        logger.warning("%s: %s.summary_mode: 'fingerprint', another checksum, stands for 'xor'", place, name)
        content["summary_mode"] = "fingerprint"
    return content


def _without_idle(content: dict[str, Any], section: str, place: str) -> dict[str, Any]:
    reasons = _WITHOUT_EFFECT.get(section, {})
    if idle := [name for name in content if name in reasons]:
        prefix = f"{section}." if section else ""
        named = "; ".join(f"{prefix}{name} ({reasons[name]})" for name in idle)
        logger.warning("%s: without effect here: %s", place, named)
    return _without(content, *idle)


def _without(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}
