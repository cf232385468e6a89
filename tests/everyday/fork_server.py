"""Run programs of Python in processes that already have the frameworks: `python fork_server.py MODULE ...`.

Each line of the input is a job as JSON: `argv` (a script and its arguments, or `-m`, a module and its arguments),
`folder`, `environment`, `output` (a file for stdout) and `errors` (one for stderr). A process that has imported the
modules, where they are, runs it. Each line of the output is the exit code of a job.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any


def _next_job() -> dict[str, Any]:
    """Return a job, in a new process: this one waits for it, and answers."""
    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        process = os.fork()
        if process == 0:
            job: dict[str, Any] = json.loads(line)
            return job
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}\n")
        answers.flush()
    sys.exit()


def _enter(job: dict[str, Any]) -> None:
    """Make this process what a shell makes of one that it starts."""
    for descriptor, path in enumerate(("/dev/null", job["output"], job["errors"])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(job["folder"])
    os.environ.update(job["environment"], PWD=job["folder"])


def _run(argv: list[str]) -> int:
    """Run a script or a module as Python does, up to the functions that it calls at the end; the exit code.

    What Python does behind them, taking every module apart, takes longer than most of the jobs.
    """
    is_module = argv[0] == "-m"
    sys.argv = argv[is_module:]
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(argv[0]))
    code: object = 0
    try:
        if is_module:
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with suppress(ImportError):  # which only saves time
            import_module(name)
    gc.freeze()  # what was imported is not looked at by each process again
    todo = _next_job()
    _enter(todo)
    os._exit(_run(todo["argv"]))
