"""Items of a run without a session: what the hooks of `run` read of one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_msprobe.run.nodes import GroupNode, RecordItem
from pytest_msprobe.run.settings import RUN, SUITE
from pytest_msprobe.suites.contract import Group, Suite


class FakeItem(RecordItem):
    """An item that was never collected.

    Attributes:
        nodeid: as the collection would have it.
    """

    nodeid: str = ""  # type: ignore[assignment]  # a property in pytest


def config_of(suite: Suite, **hooks: Any) -> Any:
    """A config whose stash holds the run of `suite`, and whose hooks are `hooks`."""
    config = SimpleNamespace(stash=pytest.Stash(), hook=SimpleNamespace(**hooks), rootpath=Path("/project"))
    config.stash[SUITE] = suite
    config.stash[RUN] = SimpleNamespace(
        suite=suite, settings=SimpleNamespace(suite=suite.name, values={"seed": 7}, timeout_seconds=None)
    )
    return config


def items_of(suite: Suite, config: Any) -> list[RecordItem]:
    """One item per record of `suite`, as the collection would make them, without their constructors."""
    found = []
    for file in suite.files:
        for group in suite.groups(file):
            parent = _group_node(group)
            found += [_item(config, file, group, part, parent) for part in group.parts]
    return found


def _group_node(group: Group) -> GroupNode:
    node: GroupNode = GroupNode.__new__(GroupNode)
    node.group, node.selected = group, ()
    return node


def _item(config: Any, file: Path, group: Group, part: str, parent: GroupNode) -> RecordItem:
    item: FakeItem = FakeItem.__new__(FakeItem)
    item.name, item.path, item.group, item.config, item.parent = part, file, group, config, parent
    item.nodeid = f"{file.as_posix()}::{group.scope}::{part}"
    item.stash, item.part = pytest.Stash(), part
    return item
