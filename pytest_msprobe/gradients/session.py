"""What the items of one run over gradients share in one process."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_msprobe.gradients.options import GradientSettings
from pytest_msprobe.gradients.run import RunPair
from pytest_msprobe.node_names import file_id

if TYPE_CHECKING:
    from pytest_msprobe.gradients.check import GradientCheck


class GradientSession:
    """The run that is judged.

    Attributes:
        pair: its files, and those of the golden run.
        settings: how it is judged.
    """

    def __init__(self, root: Path, pair: RunPair, settings: GradientSettings) -> None:
        """Over `pair`; `root` is pytest's rootdir."""
        self.pair = pair
        self.settings = settings
        self._root = root

    @cached_property
    def check(self) -> GradientCheck:
        """Who gives the verdicts."""
        from pytest_msprobe.gradients.check import GradientCheck

        return GradientCheck(self.pair, self.settings)

    def node_id(self, path: Path) -> str:
        """Id of a file or folder: relative to rootdir inside it, else absolute."""
        return file_id(path, self._root)
