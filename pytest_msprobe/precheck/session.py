"""What the items of one run share in one process."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from msprobe_collector.dump_format import Dump
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.node_names import file_id
from pytest_msprobe.precheck.hooks import Hooks
from pytest_msprobe.settings import Settings

if TYPE_CHECKING:
    from pytest_msprobe.precheck.check import CheckSettings
    from pytest_msprobe.precheck.failure_evidence import FailureKeeper
    from pytest_msprobe.reports.evidence import EvidenceWriter


class CheckSession:
    """Settings, engines and the dumps that were read.

    Attributes:
        settings: what the run was asked to do.
        engines: who executes.
        hooks: what conftest.py files want otherwise.
        named_dumps: every dump of the run, the same in all its processes.
    """

    def __init__(self, settings: Settings, config: pytest.Config) -> None:
        self.settings = settings
        self.engines = Engines(EngineChoice(settings.device, settings.bench, settings.bench_python))
        self.hooks = Hooks(config)
        #: Report names of API calls that a resumed run has done already; workers get them from the controller.
        self.done: frozenset[str] = frozenset(getattr(config, "workerinput", {}).get("msprobe_done", ()))
        self._config = config
        self.named_dumps: tuple[Path, ...] = ()
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

    def node_id(self, path: Path) -> str:
        """Id of a dump file: relative to rootdir inside it, else absolute; pytest's own would be empty outside."""
        return file_id(path, self._config.rootpath)

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
        from pytest_msprobe.precheck.check import CheckSettings
        from pytest_msprobe.precheck.error_plot import ErrorPlotter
        from pytest_msprobe.precheck.standard_choice import NamedStandard
        from pytest_msprobe.precheck.standards import Standards

        settings = self.settings
        return CheckSettings(
            seed=self.settings.seed,
            max_memory_bytes=self.settings.max_memory_bytes // _worker_count(self._config),
            standard=Standards(
                NamedStandard(settings.standard),
                settings.standards,
                cosine=settings.cosine,
                max_abs=settings.max_abs,
            ),
            hooks=self.hooks,
            plotter=ErrorPlotter.if_possible() if self._config.getoption("htmlpath", None) else None,
            keeper=self._keeper(),
        )

    def _keeper(self) -> FailureKeeper | None:
        """Who keeps what failing calls computed; None when nothing of it was asked for."""
        settings = self.settings
        if not (settings.error_data or settings.reproducers):
            return None
        from pytest_msprobe.precheck.failure_evidence import FailureKeeper
        from pytest_msprobe.reports.error_data import ErrorData
        from pytest_msprobe.reports.evidence_folder import EvidenceFolder
        from pytest_msprobe.reports.reproducer import Reproducers

        limit = settings.error_data_limit_bytes
        writers: list[EvidenceWriter] = []
        if settings.error_data:
            writers.append(ErrorData(EvidenceFolder(settings.error_data, limit), self.named_dumps))
        if settings.reproducers:
            writers.append(Reproducers(EvidenceFolder(settings.reproducers, limit), self.named_dumps))
        return FailureKeeper(tuple(writers), settings.seed)

    def close(self) -> None:
        """End what the engines hold outside this process."""
        self.engines.close()


def _worker_count(config: pytest.Config) -> int:
    """How many processes share this machine's memory."""
    count: int = getattr(config, "workerinput", {}).get("msprobe_sharers", 1)
    return count
