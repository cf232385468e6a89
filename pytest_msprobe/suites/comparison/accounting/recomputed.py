"""Calls that a checkpoint computed again in the backward, with another result in one of the runs only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_msprobe.suites.comparison.accounting.account import AccountStep
from pytest_msprobe.suites.comparison.accounting.flow import DataFlow


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The first of such calls.

    Attributes:
        step: its backward.
        side: `target` or `golden`: where its two results differ.
        reached: its backward and those of the calls that got its result: they were made of values that no record holds.
    """

    step: AccountStep
    side: str
    reached: list[AccountStep]

    @property
    def run(self) -> str:
        """`side` in words."""
        return "golden run" if self.side == "golden" else self.side


def recomputed_otherwise(flow: DataFlow) -> Iterator[Recomputed]:
    """The first calls of each side, in the order of execution of the forward.

    Where both runs have other results the second time, nothing tells which of them the other one should have.
    """
    for side, name in enumerate(("target", "golden")):
        recomputed = (step for step in flow.steps.values() if step.account.recomputed == (side == 0, side == 1))
        marked = {step.operation.call: step for step in recomputed if flow.forward_of(step) is not None}
        first: dict[str, set[str]] = {}
        reached: dict[str, list[AccountStep]] = {}
        for call in [step.operation.call for step in flow.forwards if step.operation.call in marked]:
            before = [first[maker] for maker in _makers(flow, side, call) if maker in first]
            first[call] = set().union(*before) or {call}
            for earliest in first[call]:
                reached.setdefault(earliest, []).append(marked[call])
        for call, steps in reached.items():
            yield Recomputed(marked[call], name, steps)


def _makers(flow: DataFlow, side: int, call: str) -> Iterator[str]:
    """The calls whose results `call` gets, also through calls that have no gradient."""
    waiting, calls = [flow.steps[f"{call}.forward"]], {call}
    while waiting:
        step = waiting.pop()
        for maker in [maker for key in step.inputs for maker in flow.sides[side].source(step, key).makers]:
            name = maker.step.operation.call
            if name not in calls and maker.step.operation.phase == "forward":
                calls.add(name)
                yield name
                if f"{name}.backward" not in flow.steps:
                    waiting.append(maker.step)
