"""What the catalogue is made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, eq=False)
class Entry:
    """A sharded run and the run on one rank that it ought to equal.

    Attributes:
        name: in the catalogue.
        kind: "hand-made", "plain" (PyTorch's own means), "mindspore" or "outside" (`quality.sharded.outside`).
        sizes: how many ranks along each dimension of the mesh.
        settings: of the training, the same on one rank; keywords of `Settings` or `PlainSettings`.
        ways: keywords of the sharded training alone, such as `sp`.
        change: what plants the bug; None in a right run.
        source, link: where the bug was reported.
        wrong: what is wrong, in a sentence.
        direction: where it shows: "forward", "backward" or "optimizer".
        is_held_out: whether the suite may not be mended on it.
        expected: records of the logical run, or of its optimizer, that may be named first (`quality.sharded.answers`).
        steps: how many steps are dumped; the last one is asked about.
        says: the setting that may be named first in place of a record, as a pattern of the first line of the answer.
        place: the function that has the wrong line.
        is_lawless: whether the ranks contradict each other, so that the bug can be seen without the run on one rank.
    """

    name: str
    kind: str
    sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    ways: dict[str, Any] = field(default_factory=dict)
    change: Callable[[], AbstractContextManager[Any]] | None = None
    source: str = ""
    link: str = ""
    wrong: str = ""
    direction: str = ""
    expected: tuple[str, ...] = ()
    is_held_out: bool = False
    steps: int = 1
    says: str = ""
    place: Callable[..., Any] | None = None
    is_lawless: bool = False

    @property
    def world(self) -> int:
        """How many ranks."""
        world = 1
        for size in self.sizes.values():
            world *= size
        return world

    @property
    def folder(self) -> str:
        """Of its dumps."""
        return re.sub(r"[^A-Za-z0-9]+", "_", self.name).strip("_")

    @property
    def single(self) -> str:
        """What makes two entries have the same run on one rank."""
        return f"{self.kind} {self.steps} {sorted(self._settings(is_single=True).items(), key=str)}"

    def made(self, *, is_single: bool) -> Any:
        """The training, ready for its step, sharded or on one rank."""
        sizes, ways = ({}, {}) if is_single else (self.sizes, self.ways)
        if self.kind == "plain":
            from quality.sharded.plain_training import PlainSettings, PlainTraining

            return PlainTraining(PlainSettings(**self._settings(is_single=is_single)), sizes, **ways)
        if self.kind == "outside":
            from quality.sharded.outside import RUNS

            settings = dict(self.settings)
            return RUNS[settings.pop("run")](sizes, **settings, **ways)
        from quality.sharded.training import Settings, Training

        return Training(Settings(**self._settings(is_single=is_single)), sizes, **ways)

    def _settings(self, *, is_single: bool) -> dict[str, Any]:
        """Of the training; on one rank the batch goes through a pipeline's layers in one pass."""
        if is_single and "pp" in self.sizes and self.kind != "outside":
            return {name: value for name, value in self.settings.items() if name not in ("microbatches", "local_names")}
        return self.settings

    def bug(self, name: str, change: Callable[[], AbstractContextManager[Any]], **facts: Any) -> Entry:
        """This right run with a bug in it."""
        return replace(self, name=name, change=change, **facts)
