"""The JSON file that MindSpore's kernel dump reads (`MINDSPORE_DUMP_CONFIG`).

Keys and values: "Using Dump in the Graph Mode" of MindSpore's documentation; file names are those of msProbe.
"""

from __future__ import annotations

from typing import Any

from msprobe_collector.configuration import Configuration
from msprobe_collector.configuration.number_ranges import NumberRanges

#: Devices of one host, of which MindSpore takes those that exist.
_DEVICES = range(8)
_DEFAULT_CATEGORIES = ("max", "min", "avg", "l2norm")
_RENAMED_CATEGORIES = {"mean": "avg"}
_OVERFLOW_MODES = {"aicore": 1, "atomic": 2, "all": 3}
_EXCEPTION_MODE = 4

FILE_NAMES = {
    "statistics": "kernel_kbyk_dump.json",
    "tensor": "kernel_kbyk_dump.json",
    "overflow_check": "kernel_graph_overflow_check.json",
    "exception_dump": "kernel_graph_exception_check.json",
}


def kernel_settings(configuration: Configuration, *, mindspore_version: str) -> dict[str, Any]:
    """Settings of MindSpore's kernel dump, as the content of its JSON file.

    Args:
        configuration: of level L2; its task is one of `FILE_NAMES`.
        mindspore_version: `2.7.0`, which decides how a checksum is called.
    """
    common: dict[str, Any] = {
        "dump_mode": 1 if configuration.selection.names else 0,
        "path": str(configuration.dump_path),
        "net_name": "Net",
        "iteration": _iterations(configuration),
        "saved_data": "statistic" if configuration.task == "statistics" else "tensor",
        "input_output": _input_output(configuration),
        "kernels": list(configuration.selection.names),
        "support_device": _numbers(configuration.ranks) or list(_DEVICES),
        "statistic_category": _categories(configuration, mindspore_version),
    }
    if configuration.task in ("overflow_check", "exception_dump"):
        is_exception = configuration.task == "exception_dump"
        common["op_debug_mode"] = _EXCEPTION_MODE if is_exception else _OVERFLOW_MODES[configuration.kernel.check_mode]
        common["file_format"] = "npy"
    whole: dict[str, Any] = {"enable": not configuration.async_dump, "trans_flag": True}
    if configuration.task == "statistics":
        whole["stat_calc_mode"] = configuration.kernel.device
        whole["device_stat_precision_mode"] = configuration.kernel.precision
    return {"common_dump_settings": common, "e2e_dump_settings": whole}


def _iterations(configuration: Configuration) -> str:
    # An exception ends the run, in whichever step it comes.
    steps = configuration.steps.ranges
    if not steps or configuration.task == "exception_dump":
        return "all"
    return "|".join(f"{first}-{last}" if last > first else str(first) for first, last in steps)


def _input_output(configuration: Configuration) -> int:
    parts = configuration.selection.parts
    return 0 if len(parts) == 2 else 1 if "input" in parts else 2


def _numbers(ranges: NumberRanges) -> list[int]:
    return [number for first, last in ranges.ranges for number in range(first, last + 1)]


def _categories(configuration: Configuration, mindspore_version: str) -> list[str]:
    if configuration.task != "statistics":
        return []
    checksum = "md5" if _release(mindspore_version) <= (2, 7, 0) else "hash:md5"
    if configuration.summary == "md5":
        return [checksum]
    names = configuration.kernel.categories or _DEFAULT_CATEGORIES
    return [checksum if name == "md5" else _RENAMED_CATEGORIES.get(name, name) for name in names]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
