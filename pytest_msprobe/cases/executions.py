"""What the engines have run for one API call, each forward once, and what they raised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.cases.not_judged import NotJudged
from pytest_msprobe.engines.protocol import Call, Engine, Execution, LeafPath, Unsupported
from pytest_msprobe.faults import place_of, text_of

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Raised:
    """What an API raised, as text: the exception itself would keep its frames, and their tensors, alive."""

    text: str
    place: str


class Executions:
    """Forwards of one API call, kept with their graphs until `clear`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Execution | Unsupported | Raised] = {}

    def ask(
        self,
        engine: Engine,
        call: Call,
        wanted: tuple[LeafPath, ...],
        result: Callable[[Execution], _Result],
        *,
        variant: str = "",
    ) -> _Result | Unsupported | Raised:
        """The result of `engine` running `call`, which it does once per `variant` whatever its outcome."""
        key = engine.label, variant
        if key not in self._kept:
            self._kept[key] = attempt(partial(engine.forward, call, differentiate=wanted))
        execution = self._kept[key]
        if isinstance(execution, (Unsupported, Raised)):
            return execution
        return attempt(partial(result, execution))

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()


def attempt(action: Callable[[], _Result]) -> _Result | Unsupported | Raised:
    """The result of `action`, or what it raised in a form that keeps no frame, and so no tensor, alive.

    Raises:
        NotJudged: a tensor file of the dump is unusable.
    """
    try:
        return action()
    except Unsupported as error:
        return Unsupported(str(error))
    except DumpError as error:
        problem = str(error)
    except Exception as error:
        return Raised(text_of(error), place_of(error))
    raise NotJudged("error", problem)
