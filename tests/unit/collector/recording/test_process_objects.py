"""Objects of the process are found however they are made, and looked for only where there may be another one."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest

from msprobe_collector.recording.manifest import ProcessObjects


class Optimizer:
    """A kind that is looked for."""


class Special(Optimizer):
    """A kind of it."""


class Scheduler:
    """Another kind."""


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each look through all objects."""
    found: list[None] = []
    look = gc.get_objects

    def counted() -> list[Any]:
        found.append(None)
        return look()

    monkeypatch.setattr(gc, "get_objects", counted)
    return found


def test_nothing_is_looked_for_again_while_there_can_be_nothing_new(looks: list[None]) -> None:
    objects = ProcessObjects({"optimizers": Optimizer, "schedulers": Scheduler})
    first, second, scheduler = Optimizer(), Special(), Scheduler()
    for _ in range(3):
        assert objects.now() == {"optimizers": [first, second], "schedulers": [scheduler]}
    assert len(looks) == 1


def test_no_code_of_the_objects_runs(looks: list[None]) -> None:
    class Incomparable(Optimizer):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was compared")

        __hash__ = Optimizer.__hash__

    objects, held = ProcessObjects({"optimizers": Optimizer}), Incomparable()
    for _ in range(2):
        assert objects.now()["optimizers"][0] is held
    assert len(looks) == 1


def test_what_is_made_without_its_constructor_or_of_a_new_class_is_found(looks: list[None]) -> None:
    objects = ProcessObjects({"optimizers": Optimizer})
    held: list[Any] = [Optimizer()]
    assert objects.now() == {"optimizers": held}
    held.append(copy.copy(held[0]))
    assert objects.now()["optimizers"] == held
    held.append(type("Other", (Special,), {})())
    assert objects.now()["optimizers"] == held
    held[0] = Optimizer()  # as many as before
    assert set(objects.now()["optimizers"]) == set(held)
    assert len(looks) == 4


def test_nothing_is_kept_alive(looks: list[None]) -> None:
    objects = ProcessObjects({"optimizers": Optimizer})
    alone = Optimizer()
    assert objects.now() == {"optimizers": [alone]}
    held = weakref.ref(alone)
    del alone
    assert held() is None
    assert objects.now() == {"optimizers": []}


def test_a_class_without_weak_references_is_looked_for_each_time(looks: list[None]) -> None:
    class Slotted:
        __slots__ = ()

    objects = ProcessObjects({"slotted": Slotted, "optimizers": Optimizer})
    held = [Slotted()]
    assert [objects.now()["slotted"] == held for _ in range(2)] == [True, True]
    assert len(looks) == 2
