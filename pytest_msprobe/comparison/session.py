"""What the items of one comparison share in one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_msprobe.comparison.dump_comparison import DumpComparison
from pytest_msprobe.comparison.dump_pairs import DumpPairs
from pytest_msprobe.node_names import file_id
from pytest_msprobe.settings import Settings


class ComparisonSession:
    """The dumps of a run and their partners.

    Attributes:
        settings: what the run was asked to do.
        pairs: which dump is compared with which.
    """

    def __init__(self, config: pytest.Config, settings: Settings, pairs: DumpPairs) -> None:
        self.settings = settings
        self.pairs = pairs
        self._root = config.rootpath
        self._comparisons: dict[Path, DumpComparison] = {}

    def comparison(self, target: Path) -> DumpComparison:
        """The comparison of the dump at `target`, read once.

        Raises:
            DumpError: it has no partner, or a dump cannot be read.
            MappingError: a mapping file is not what it should be.
        """
        if target not in self._comparisons:
            golden = self.pairs.golden[target]
            assert golden is not None  # the node has seen to it
            self._comparisons[target] = DumpComparison(target, golden, self.settings.comparison)
        return self._comparisons[target]

    def node_id(self, path: Path) -> str:
        """Id of a dump file: relative to rootdir inside it, else absolute."""
        return file_id(path, self._root)
