"""NaN and Inf that a step takes out again: no loss and no gradient is computed from them.

log(0) in the position buckets of T5 is -Inf in the places that a `where` fills from elsewhere. Whether a value is taken
out shows in the flow: all that is computed from it is finite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import chain

from msprobe_collector.dump_format import parse_api_name
from pytest_msprobe.apis import facts
from pytest_msprobe.suites.overflow.values import ObservedValue

#: What a value is known by in dumps that do not say who made it.
_Look = tuple[object, ...]


class Use:
    """What a record does with the values that are not finite.

    Attributes:
        record: its name.
        bad: its values that are not finite.
        is_inspection: whether all that comes out is true or false: nothing is computed from the value.
    """

    def __init__(self, record: str, bad: Sequence[ObservedValue], *, is_inspection: bool) -> None:
        self.record = record
        self.bad = bad
        self.is_inspection = is_inspection

    @property
    def inputs(self) -> list[ObservedValue]:
        """The values that went in."""
        return [value for value in self.bad if value.is_input]

    @property
    def outputs(self) -> list[ObservedValue]:
        """The values that came out."""
        return [value for value in self.bad if not value.is_input]


def discarding(uses: Mapping[str, Use], framework: str) -> dict[str, bool]:
    """Return the records whose NaN and Inf are all taken out again, and whether selections do so.

    A selection leaves an element whatever it holds. A division by Inf gives 0 where the exact value would give another
    number.

    Args:
        uses: of the calls of a dump that hold any, by name in the order of execution.
        framework: of the dump.
    """
    users = _users(uses)
    discarded: dict[str, bool] = {}
    for name, use in reversed(list(uses.items())):
        takers = [users[f"{name}.{value.path}"] for value in use.outputs]
        pairs = zip(takers, use.outputs, strict=True)
        if takers and all(_is_taken_out(of_value, value, discarded, framework) for of_value, value in pairs):
            selects = []
            for taker in chain.from_iterable(takers):
                if taker.outputs:
                    selects.append(taker.is_inspection or discarded.get(taker.record, False))
                else:
                    selects.append(taker.is_inspection or _is(taker.record, "selections", framework))
            discarded[name] = all(selects)
    return discarded


def _users(uses: Mapping[str, Use]) -> dict[str, list[Use]]:
    """Which records use a value, by `Torch.log.0.forward.output.0`; a backward uses what its forward held."""
    users: dict[str, list[Use]] = defaultdict(list)
    alike: dict[_Look, str] = {}
    for name, use in uses.items():
        call, _, phase = name.rpartition(".")
        backwards = []
        if phase == "forward" and f"{call}.backward" in uses and uses[f"{call}.backward"].outputs:
            backwards = [uses[f"{call}.backward"]]
        for value in use.inputs:
            users[value.made_by or alike.get(_look(value), "")] += [use, *backwards]
        for value in use.outputs:
            alike[_look(value)] = f"{name}.{value.path}"
            users[f"{name}.{value.path}"] += backwards
    return users


def _look(value: ObservedValue) -> _Look:
    return value.dtype, value.shape, value.finiteness, value.statistics


def _is_taken_out(users: Sequence[Use], value: ObservedValue, discarded: Container[str], framework: str) -> bool:
    """Whether a value has users, and none of them makes more of it than what is discarded."""
    users = [use for use in users if not use.is_inspection]
    for use in users:
        if use.outputs and use.record not in discarded:
            return False
        # A NaN among what is sorted or searched makes any index.
        if value.finiteness.has_nan and _is(use.record, "index_outputs", framework):
            return False
    return bool(users)


def _is(record: str, topic: str, framework: str) -> bool:
    api = parse_api_name(record.rpartition(".")[0])
    return facts(topic).of(api, framework) is not None
