"""What the items of one run share in one process."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from msprobe_collector.dump_format import Dump
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.settings import Settings

if TYPE_CHECKING:
    from pytest_msprobe.precheck.check import CheckSettings


class CheckSession:
    """Settings, engines and the dumps that were read.

    Attributes:
        settings: what the run was asked to do.
        engines: who executes.
    """

    def __init__(self, settings: Settings, config: pytest.Config) -> None:
        self.settings = settings
        self.engines = Engines(EngineChoice(settings.device, settings.bench, settings.bench_python))
        self._config = config
        self._dumps: dict[Path, Dump] = {}
        self._marks: dict[str, pytest.Mark] = {}

    def wants(self, path: Path, parent: pytest.Collector) -> bool:
        """Whether `path` is a dump that an option named, or a dump.json that stands as a plain argument."""
        return path in self.settings.dumps or (path.name == "dump.json" and parent.session.isinitpath(path))

    def dump(self, path: Path) -> Dump:
        """The dump at `path`, read once. Raises DumpError."""
        if path not in self._dumps:
            self._dumps[path] = Dump(path)
        return self._dumps[path]

    def forget_dumps(self) -> None:
        """Drop what was read, on a process that only needed the names."""
        self._dumps.clear()

    def node_id(self, path: Path) -> str:
        """Id of a dump file: relative to rootdir inside it, else absolute; pytest's own would be empty outside."""
        root = self._config.rootpath
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()

    def mark(self, name: str) -> pytest.Mark:
        """The marker `name`, one object for all items: 100,000 of them need no 200,000 marks."""
        if name not in self._marks:
            # A custom prefix (register_custom_api) is an API type that `activation` could not know.
            self._config.addinivalue_line("markers", f"{name}: API call in a dump")
            self._marks[name] = getattr(pytest.mark, name if name.isidentifier() else "custom").mark
        return self._marks[name]

    @cached_property
    def check_settings(self) -> CheckSettings:
        """The part of the settings that checking a call needs. Imports NumPy."""
        from pytest_msprobe.numerics import CosineMaxAbs
        from pytest_msprobe.precheck.check import CheckSettings

        return CheckSettings(
            seed=self.settings.seed,
            max_memory_bytes=self.settings.max_memory_bytes,
            standard=CosineMaxAbs(self.settings.cosine, self.settings.max_abs),
        )

    def close(self) -> None:
        """End what the engines hold outside this process."""
        self.engines.close()
