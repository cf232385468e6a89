"""How the process of a worker ended."""

from __future__ import annotations

import signal
from typing import Any


def exit_code(node: Any) -> int | None:
    """Exit code of a worker on this machine, negative for a signal; None when execnet does not tell."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    try:
        code: int = process.wait(timeout=2)
    except Exception:  # whatever execnet's process object is, this is only for the message
        return None
    return code


def cause_of_death(code: int | None) -> str:
    """`, by SIGABRT` for a process that a signal ended; "" when it is not known."""
    if code is None:
        return ""
    if code >= 0:
        return f", with exit code {code}"
    try:
        return f", by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f", by signal {-code}"
