"""Whether gradients arrive in the steps that a dump holds, as far as records of optimizers tell.

A gradient that is 0 in every element may be meant: behind a weight that is still 0, in an expert that no token chose,
in a part of which the loss does not count yet. It is no finding, and is named where no 0 in the step explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msprobe_laws.law import Checked, Unchecked, listed


def arrive(steps: Sequence[Mapping[str, bool]], ends: Callable[[str], Sequence[str] | None]) -> Checked:
    """Return what the law says of the parameters of an optimizer in all of its steps that are known.

    Args:
        steps: of each, whether the gradient is 0 in every element, by parameter. One with no other gradients tells
            nothing.
        ends: calls in which the gradient of a parameter becomes 0 and that got no 0; None where they are not known.
    """
    telling = [step for step in steps if not all(step.values())]
    if not telling:
        return Unchecked("no gradient is known that is not 0", is_moot=True)
    names = dict.fromkeys(name for step in telling for name in step)
    calls = {name: ends(name) for name in names if all(step.get(name, True) for step in telling)}
    zero = tuple(name for name, ends_in in calls.items() if ends_in is None or ends_in)
    if not zero:
        return []
    last = dict.fromkeys(call for name in zero for call in calls[name] or ())
    where = f"; {listed(last)} gets another one and gives it back as 0" if last else ""
    when = "in the only step that is known" if len(telling) == 1 else f"in each of {len(telling)} steps"
    return Unchecked(f"the gradient is 0 in every element, {when}{where}", parameters=zero)
