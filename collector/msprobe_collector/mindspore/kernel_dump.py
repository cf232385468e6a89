"""MindSpore's own kernel dump, configured and switched.

- The JSON file that MindSpore's kernel dump reads (`MINDSPORE_DUMP_CONFIG`).
- Keys and values: "Using Dump in the Graph Mode" of MindSpore's documentation; file names are those of msProbe.
- Level L2: configuration files for MindSpore's own kernel dump, and its switch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from msprobe_collector import logger
from msprobe_collector.configuration import Configuration, ConfigurationError, NumberRanges

#: Devices of one host, of which MindSpore takes those that exist.
_DEVICES = range(8)
_DEFAULT_CATEGORIES = ("max", "min", "avg", "l2norm")
_RENAMED_CATEGORIES = {"mean": "avg"}
_OVERFLOW_MODES = {"aicore": 1, "atomic": 2, "all": 3}
_EXCEPTION_MODE = 4
#: Numbers of parts of records; 2 for all others.
_INPUT_OUTPUT = {frozenset(("input", "output")): 0, frozenset(("input",)): 1}

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
        "dump_mode": int(bool(configuration.selection.names)),
        "path": str(configuration.dump_path),
        "net_name": "Net",
        "iteration": _iterations(configuration),
        "saved_data": "statistic" if configuration.task == "statistics" else "tensor",
        "input_output": _INPUT_OUTPUT.get(frozenset(configuration.selection.parts), 2),
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
    return str(configuration.steps).replace(", ", "|")


def _numbers(ranges: NumberRanges) -> list[int]:
    return [number for first, last in ranges.ranges for number in range(first, last + 1)]


def _categories(configuration: Configuration, mindspore_version: str) -> list[str]:
    if configuration.task != "statistics":
        return []
    release = tuple(int(part) for part in mindspore_version.split(".")[:3] if part.isdigit())
    checksum = "md5" if release <= (2, 7, 0) else "hash:md5"
    if configuration.summary == "md5":
        return [checksum]
    names = configuration.kernel.categories or _DEFAULT_CATEGORIES
    renamed = {**_RENAMED_CATEGORIES, "md5": checksum}
    return [renamed.get(name, name) for name in names]


DUMP_SETTINGS = "MINDSPORE_DUMP_CONFIG"
#: A configuration of the ACL dump, beside which MindSpore's would not be read.
_ACL_SETTINGS = "MS_ACL_DUMP_CFG_PATH"


class MindSporeKernelDump:
    """Has MindSpore dump kernels between start and stop, in dynamic and static graphs.

    MindSpore reads the file when its runtime begins, so it is to be made before the first operator runs. The dump lies
    at `{dump_path}/rank_{r}/Net/{graph}/{iteration}`. A CPU writes tensors of static graphs only, and no statistics.
    Not run so far on an Ascend device, which writes the rest.

    Attributes:
        file: the settings, in dump_path.
    """

    def __init__(self, configuration: Configuration) -> None:
        """Write the settings and point MindSpore to them.

        Raises:
            ConfigurationError: the file cannot be written, or graphs are compiled with jit_level O2.
        """
        import mindspore

        _refuse_whole_graphs(configuration)
        self._configuration = configuration
        self.file = configuration.dump_path / FILE_NAMES[configuration.task]
        settings = kernel_settings(configuration, mindspore_version=mindspore.__version__)
        _write(self.file, settings)
        if configuration.task == "exception_dump" and configuration.steps.ranges:
            logger.warning("%s: step has no effect on task exception_dump", configuration.file)
        os.environ[DUMP_SETTINGS] = str(self.file)
        if os.environ.pop(_ACL_SETTINGS, None) is not None:
            logger.warning("%s is taken out of the environment: MindSpore would dump as it says", _ACL_SETTINGS)
        # Absent where MindSpore was built without its dump.
        self._switch = mindspore._c_expression
        self._tell("_dump_set_dynamic")

    def start(self) -> None:
        """Dump kernels from here on. Raises ConfigurationError when graphs are compiled with jit_level O2 by now."""
        _refuse_whole_graphs(self._configuration)
        self._tell("_dump_start")

    def stop(self) -> None:
        """Dump no more until the next start."""
        self._tell("_dump_stop")

    def step(self) -> None:
        """The next iteration begins."""
        self._tell("_dump_step", 1)

    def _tell(self, name: str, *arguments: Any) -> None:
        function = getattr(self._switch, name, None)
        if function is not None:
            function(*arguments)


def _refuse_whole_graphs(configuration: Configuration) -> None:
    import mindspore

    if mindspore.get_context("jit_level") == "O2":
        raise ConfigurationError(
            "L2 needs kernels that run one by one; with jit_level O2 the device runs whole graphs: choose O0 or O1",
            place=str(configuration.file),
            field="level",
        )


def _write(file: Path, settings: dict[str, Any]) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump(settings, stream, indent=4)
    except OSError as error:
        problem = f"{str(file)!r} cannot be written: {error.strerror}"
        raise ConfigurationError(problem, place="PrecisionDebugger", field="dump_path") from None
