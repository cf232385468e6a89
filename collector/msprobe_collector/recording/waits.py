"""Communication whose results are there only after the training has waited for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from msprobe_collector.dump_format.writing.framework_values import ComputationFailed
from msprobe_collector.recording.activity import Activity
from msprobe_collector.recording.faults import FaultLog


class _Open(NamedTuple):
    """A call whose result is not there yet; it keeps its handle, so that the handle's id stays its own."""

    handle: Any
    take_outputs: Callable[[], None]
    give_up: Callable[[], None]


class WaitedCalls:
    """Asynchronous calls whose handle the script has not waited on. The collector itself never waits."""

    def __init__(self, activity: Activity, faults: FaultLog) -> None:
        self._activity = activity
        self._faults = faults
        self._open: dict[int, _Open] = {}

    def expect(self, handle: Any, *, take_outputs: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Call `take_outputs` after the training's `handle.wait()`, or `give_up` when the step ends before."""
        self._open[id(handle)] = _Open(handle, take_outputs, give_up)

    def give_up(self) -> None:
        """End what nobody has waited for; its values may still be on their way."""
        waiting, self._open = list(self._open.values()), {}
        for call in waiting:
            call.give_up()

    def seen_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of the method `wait` of handles."""

        @functools.wraps(original)
        def wait(handle: Any, *args: Any, **kwargs: Any) -> Any:
            """Wait as the script asked for, then take the results of the call.

            Raises:
                Exception: the error of the script's own computation, where reading a value brought it up.
            """
            result = original(handle, *args, **kwargs)
            call = self._open.pop(id(handle), None)
            if call is not None:
                with self._activity.own_work():
                    try:
                        call.take_outputs()
                    except ComputationFailed as failure:
                        raise failure.error from None
                    except Exception as error:  # the border between the collector and the user's training
                        self._faults.note("taking what was waited for", error)
            return result

        return wait
