"""dump_enable, which may be edited while training runs."""

from __future__ import annotations

import json
import logging
import os

from msprobe_collector.configuration.configuration import Configuration

logger = logging.getLogger("msprobe_collector")


class DumpSwitch:
    """Whether collection is wanted now. Without `dump_enable` in config.json it is, always, and no file is watched.

    Ask it once per step: it costs one `stat`, and reads the file only when it has changed.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._file = configuration.file
        self._is_watched = configuration.dump_enable is not None
        self._is_on = configuration.dump_enable is not False
        self._stamp: tuple[int, ...] = ()

    def is_on(self) -> bool:
        """The switch as the file has it now; as it was before while the file is gone or half written."""
        if self._is_watched and (stamp := self._current_stamp()) != self._stamp:
            self._stamp = stamp
            self._read()
        return self._is_on

    def _current_stamp(self) -> tuple[int, ...]:
        try:
            status = os.stat(self._file)
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> None:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            value = content["dump_enable"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("%s: dump_enable cannot be read (%r); collection stays as it was", self._file, error)
            return
        if not isinstance(value, bool):
            logger.warning("%s: dump_enable: %r is neither true nor false; it stays as it was", self._file, value)
            return
        self._is_on = value
