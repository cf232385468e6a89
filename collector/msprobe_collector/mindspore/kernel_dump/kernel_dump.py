"""MindSpore's own kernel dump, configured and switched."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from msprobe_collector.configuration import Configuration, ConfigurationError
from msprobe_collector.mindspore.kernel_dump.settings import FILE_NAMES, kernel_settings

logger = logging.getLogger("msprobe_collector")

DUMP_SETTINGS = "MINDSPORE_DUMP_CONFIG"
#: A configuration of the ACL dump, beside which MindSpore's would not be read.
_ACL_SETTINGS = "MS_ACL_DUMP_CFG_PATH"


class KernelDump:
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
