"""Which of the collected records a run judges: shard, hook, and what an interrupted run has done. By whole groups."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from pytest_msprobe.faults import place_of
from pytest_msprobe.reports.names import CallNames
from pytest_msprobe.run.nodes import GroupNode, RecordItem, records_among
from pytest_msprobe.run.shard import split_by_cost
from pytest_msprobe.suites.contract import Group, Suite

_Key = tuple[Path, str, str]


def names_of(suite: Suite) -> CallNames:
    """How reports call the groups of `suite`; what a resumed run has done is known by these names."""
    return CallNames(suite.files, tell_files=suite.calls_tell_files)


def deselect_other_shards(
    config: pytest.Config, suite: Suite, items: list[pytest.Item], shard: tuple[int, int] | None
) -> None:
    """Leave out the groups that belong to other shards than `shard`, as (number, count)."""
    if shard is None:
        return
    number, count = shard
    groups = {_key(item): item for item in records_among(items)}
    costs = [suite.cost(item.path, item.group) for item in groups.values()]
    own = {key for key, found in zip(groups, split_by_cost(costs, count)) if found == number}
    _keep(config, items, lambda item: _key(item) in own)


def deselect_by_hook(config: pytest.Config, suite: Suite, items: list[pytest.Item]) -> None:
    """Leave out the groups that `pytest_msprobe_select` does not want, each asked once.

    Raises:
        pytest.UsageError: the hook raises.
    """
    hook = config.hook.pytest_msprobe_select
    if not hook.get_hookimpls():
        return
    answers: dict[_Key, bool] = {}

    def is_wanted(item: RecordItem) -> bool:
        """Whether the hook wants the group of `item`; asked once for each group.

        Raises:
            pytest.UsageError: the hook raises.
        """
        key = _key(item)
        if key not in answers:
            api = suite.api(item.record)
            try:
                answer = None if api is None else hook(config=config, api=api, dump=item.path)
            except Exception as error:
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                raise pytest.UsageError(
                    f"pytest_msprobe_select failed for {item.group.call} of {item.path}: {text} ({place_of(error)})"
                ) from None
            answers[key] = answer is None or bool(answer)
        return answers[key]

    _keep(config, items, is_wanted)


def deselect_done(config: pytest.Config, items: list[pytest.Item], names: CallNames, done: Collection[str]) -> None:
    """Leave out the groups whose name in reports is in `done`."""
    if done:
        _keep(config, items, lambda item: names.of(str(item.path), item.group.call) not in done)


def mark_selected(items: list[pytest.Item]) -> None:
    """Tell every group which of its records were selected, so that it knows what to keep and what to await."""
    for item in records_among(items):
        if isinstance(item.parent, GroupNode):
            item.parent.selected += (item.name,)


def _keep(config: pytest.Config, items: list[pytest.Item], is_kept: Callable[[RecordItem], bool]) -> None:
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (kept if not isinstance(item, RecordItem) or is_kept(item) else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def _key(item: RecordItem) -> _Key:
    """The group of an item: records that form no group are each their own."""
    group: Group = item.group
    return item.path, group.scope, group.call
