"""pytest's log capture, left out where it costs as much as a check."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_PLUGIN = "logging-plugin"
_LOG_OPTIONS = ("log_level", "log_cli_level", "log_file", "log_file_level")


@contextmanager
def without_log_capture(session: pytest.Session, item_type: type[pytest.Item]) -> Iterator[None]:
    """Run the items of `session` without log capture, if they are all of `item_type` and no option asks for logs.

    pytest attaches handlers to every logger that does not propagate, in each phase of each item, and importing PyTorch
    makes 43 of those: 0.4 ms per item. Our items log nothing of their own; what MindSpore logs goes to stderr anyway.
    """
    config = session.config
    wants_logs = any(config.getoption(name, None) for name in _LOG_OPTIONS)
    wants_logs = wants_logs or config.getini("log_cli") or config.getini("log_file") or config.getini("log_level")
    plugin = config.pluginmanager.get_plugin(_PLUGIN)
    if plugin is None or wants_logs or not all(isinstance(item, item_type) for item in session.items):
        yield
        return
    config.pluginmanager.unregister(plugin)
    try:
        yield
    finally:
        # Back in its place for the hooks that end the session, which close what it has open.
        config.pluginmanager.register(plugin, _PLUGIN)
