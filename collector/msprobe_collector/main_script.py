"""Running a training script, or a module, as the main one of this process, for commands that do something beside it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def run_watched(debugger: Any, steps: Any, script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run a script as `run` does, while `steps` look for its steps; what ends it is noted by `debugger`.

    `steps` has `install` and `uninstall`, `debugger` is a `PrecisionDebugger`: this module loads neither.
    """
    steps.install()
    try:
        run(script, arguments, is_module=is_module)
    except BaseException as error:
        debugger.script_error = error
        raise
    finally:
        steps.uninstall()
    debugger.note_empty_run()


def run(script: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run `script` as `python SCRIPT ARGUMENTS` does, or `python -m SCRIPT ARGUMENTS`.

    The module of a file stays `__main__` to the end of the process, as pickle needs it. What the script raises is
    raised, SystemExit included.
    """
    sys.argv[:] = [script, *arguments]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(script)
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.path[0] = str(Path(path).resolve().parent)
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(main))  # noqa: S102  # the user's own script
