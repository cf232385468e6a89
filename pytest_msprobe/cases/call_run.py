"""What the engines have run for one API call, each forward once, and what they raised.

The benchmark's result for one API call: the first engine that can give it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.cases.case import Case, NotJudged
from pytest_msprobe.cases.edge_cases import refuse_lack_of_memory
from pytest_msprobe.engines.protocol import Call, Engine, Execution, LeafPath, Unsupported
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import NO_TORCH, EngineChoice
from pytest_msprobe.support import is_installed, place_of, text_of

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class CapturedError:
    """What an API raised, as text: the exception itself would keep its frames, and their tensors, alive."""

    text: str
    place: str


class Executions:
    """Forwards of one API call, kept with their graphs until `clear`."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Execution | Unsupported | CapturedError] = {}

    def ask(
        self,
        engine: Engine,
        call: Call,
        wanted: tuple[LeafPath, ...],
        result: Callable[[Execution], _Result],
        *,
        variant: str = "",
    ) -> _Result | Unsupported | CapturedError:
        """The result of `engine` running `call`, which it does once per `variant` whatever its outcome."""
        key = engine.label, variant
        if key not in self._kept:
            self._kept[key] = attempt(partial(engine.forward, call, differentiate=wanted))
        execution = self._kept[key]
        if isinstance(execution, (Unsupported, CapturedError)):
            return execution
        return attempt(partial(result, execution))

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()


def attempt(action: Callable[[], _Result]) -> _Result | Unsupported | CapturedError:
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
        return CapturedError(text_of(error), place_of(error))
    raise NotJudged("error", problem)


def benchmark_result(
    benches: Iterable[Engine],
    case: Case,
    executions: Executions,
    result: Callable[[Execution], _Result],
    *,
    choice: EngineChoice,
    call: Call | None = None,
    variant: str = "",
) -> tuple[Engine, _Result]:
    """(engine, result) of the first of `benches` that can run the call; one that cannot, or that raises, passes it on.

    `call` stands for the case's own where other inputs are wanted, under the name `variant`.

    Raises:
        NotJudged: a skip when none has such an API, an error when it raised.
    """
    refused, raised = [], []
    for bench in benches:
        reason = bench.refusal(case.api, case.call.framework)
        outcome = (
            Unsupported(reason)
            if reason
            else executions.ask(bench, call or case.call, case.wanted, result, variant=variant)
        )
        if isinstance(outcome, Unsupported):
            refused.append(f"{bench.name}: {outcome}")
        elif isinstance(outcome, CapturedError) and isinstance(bench, ReferenceEngine) and not case.constructed:
            raise NotJudged("error", f"benchmark ({bench.label}): {outcome.text} ({outcome.place})")
        elif isinstance(outcome, CapturedError):
            raised.append(f"benchmark ({bench.label}): {outcome.text}")
        else:
            return bench, outcome
    if raised and case.constructed:
        refuse_lack_of_memory(case, raised[0])
        raise NotJudged("skip", f"only the device accepts the inputs, which were {case.notes[-1]}: {raised[0]}")
    if raised:
        raise NotJudged("error", "; ".join(raised))
    if not is_installed("torch") and choice.bench == "auto":
        refused.append(NO_TORCH)
    raise NotJudged("skip", f"no benchmark: {'; '.join(refused)}")
