"""What a run was given and does not judge: said at its beginning and its end, so that nothing is dropped in silence."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, filterfalse
from operator import attrgetter
from pathlib import Path

import pytest

from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.manifest import CompiledCode, StepError
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.run.dump_folders import DumpFolder
from pytest_msprobe.run.settings import Settings, known_keys, near_key, path_of
from pytest_msprobe.suites.contract import Suite

_MOST_LINES = 10
_WITHOUT_DUMP = "holds no dump.json, and folders beside it do; dump it again, or name only those that have one"
_COMPILED = "calls inside of compiled code are not in the dump"


class Unjudged:
    """What is left out of a run, asked on the process that writes."""

    def __init__(self, config: pytest.Config, settings: Settings, suite: Suite, plain: Sequence[DumpFolder]) -> None:
        """For a run of `suite`; `plain` are the folders among the plain arguments."""
        self._config = config
        self._settings = settings
        self._suite = suite
        self._plain = plain

    @cached_property
    def gaps(self) -> list[str]:
        """What is missing of the dumps, one line each: a run with one is no success."""
        ended = (f"{path}: the step ended in {error}: what would follow it is missing" for path, error in self.ended)
        return [*self.damage, *ended]

    @cached_property
    def damage(self) -> list[str]:
        """What of the dumps is not whole, one line each."""
        lines = [f"{path}: {_WITHOUT_DUMP}" for folder in self._folders for path in folder.without_dump]
        empty = [folder for folder in self._folders if folder.empty_run is not None]
        lines += [f"{folder.path}: {folder.empty_run}; what lies there is of an earlier run" for folder in empty]
        for dump in self._suite.dumps():
            lines += dump.damage()
        return list(dict.fromkeys([*lines, *self._missing_ranks()]))

    def _missing_ranks(self) -> Iterator[str]:
        """Steps in the given folders that lack dumps of ranks; none where the folders of ranks were given."""
        steps: dict[Path, tuple[list[int], set[int | None]]] = {}
        for dump in self._suite.dumps():
            slot, step = Slot.of(dump.path), dump.path.parent.parent
            if slot.rank is not None and any(step.is_relative_to(folder.path) for folder in self._folders):
                steps.setdefault(step, (dump.ranks_of_step(), set()))[1].add(slot.rank)
        for step, (expected, there) in steps.items():
            missing = [rank for rank in expected if rank not in there]
            if missing:
                named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
                yield (
                    f"{counted(len(missing), 'ranks', 'are')} missing of {len(expected)} ({named}) in {step}; to judge "
                    "the others alone, name their folders"
                )

    @cached_property
    def compiled(self) -> dict[Path, tuple[CompiledCode, ...]]:
        """Functions and layers that ran as compiled code, by the dump.json of the step."""
        return {dump.path: dump.compiled for dump in self._suite.dumps() if dump.compiled}

    @cached_property
    def ended(self) -> list[tuple[Path, StepError]]:
        """The exceptions that ended steps, with the dump.json of each step."""
        return [(dump.path, dump.ended_in) for dump in self._suite.dumps() if dump.ended_in is not None]

    @cached_property
    def notes(self) -> list[str]:
        """What belongs to another run, or takes no part, one line each."""
        lines = list(chain.from_iterable(map(DumpFolder.others, self._folders)))
        lines += filter(None, map(attrgetter("lost"), self._suite.dumps()))
        for path, compiled in self.compiled.items():
            names = ", ".join(map(str, compiled))
            lines.append(f"{path}: {_COMPILED}: {names}; to judge them, dump a run without torch.compile")
        return list(dict.fromkeys([*lines, *self._unasked(), *_variables(), *self._hooks()]))

    def header(self) -> Iterator[str]:
        """The lines above a run."""
        yield from map("msprobe: not whole: {}".format, _first(self.gaps))
        yield from map("msprobe: not judged: {}".format, _first(self.notes))

    def fault(self) -> Iterator[str]:
        """Why the run is no success, as lines; none without a gap, and where nothing is run."""
        gaps = [*self.lost(), *self.gaps]
        if gaps and not self._config.option.collectonly:
            yield "not everything that was given could be judged, so this run is not a success:"
            yield from map("  {}".format, _first(gaps))

    @property
    def _folders(self) -> list[DumpFolder]:
        return [*self._settings.folders, *filterfalse(attrgetter("holds_python"), self._plain)]

    def _unasked(self) -> Iterator[str]:
        """Dumps among the tests in a plain folder."""
        for folder in self._plain:
            unasked = [dump for dump in folder.dumps if dump not in self._suite.files]
            if folder.holds_python and unasked:
                others = f" and {counted(len(unasked) - 1, 'more dumps')}" if len(unasked) > 1 else ""
                yield (
                    f"{unasked[0]}{others} in {folder.path}, which "
                    f"holds tests; to judge dumps there, name them with --msprobe-dump=PATH"
                )

    def lost(self) -> Iterator[str]:
        """Dumps that were given and that pytest was told not to collect."""
        paths = [path_of(self._config, argument) for argument in self._config.args]
        for root in self._suite.roots:
            if not any(path.is_relative_to(root) or root.is_relative_to(path) for path in paths):
                yield f"{root}: another plugin has replaced the arguments of pytest; leave out its option"

    def _hooks(self) -> Iterator[str]:
        """A conftest.py in the folder where pytest was started, and which it does not load."""
        path = self._config.invocation_params.dir / "conftest.py"
        is_off = getattr(self._config.known_args_namespace, "noconftest", False)
        if path.is_file() and not is_off and not self._config.pluginmanager.has_plugin(str(path)):
            yield f"{path}: pytest loads only those above its arguments; name the dump with --msprobe-dump=PATH instead"


def _variables() -> Iterator[str]:
    """Environment variables that look like options, which pytest reads from PYTEST_ADDOPTS only."""
    for name in sorted(os.environ):
        plain = name.removeprefix("PYTEST_")
        if plain.startswith("MSPROBE_") and (near := near_key(plain, known_keys(), cutoff=0.85)):
            yield f"environment variable {name}: options are not read from there; see {near} in the ini file"


def _first(lines: Sequence[str]) -> list[str]:
    shown = list(lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        shown.append(f"and {len(lines) - _MOST_LINES} more")
    return shown
