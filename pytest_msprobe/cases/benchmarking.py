"""The benchmark's result for one API call: the first engine that can give it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pytest_msprobe.cases.case import Case
from pytest_msprobe.cases.edge_cases import refuse_lack_of_memory
from pytest_msprobe.cases.executions import Executions, Raised
from pytest_msprobe.cases.not_judged import NotJudged
from pytest_msprobe.engines.protocol import Call, Engine, Execution, Unsupported
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import NO_TORCH, EngineChoice
from pytest_msprobe.installing import is_installed

_Result = TypeVar("_Result")


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
        elif isinstance(outcome, Raised) and isinstance(bench, ReferenceEngine) and not case.constructed:
            raise NotJudged("error", f"benchmark ({bench.label}): {outcome.text} ({outcome.place})")
        elif isinstance(outcome, Raised):
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
