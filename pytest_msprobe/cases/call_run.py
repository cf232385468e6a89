"""One API call and what engines made of it: its inputs once, each engine's forward once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TypeVar

from msprobe_collector.dump_format import Direction, Dump, DumpError
from pytest_msprobe.cases.case import Case, read_case, read_incoming
from pytest_msprobe.cases.edge_cases import edge_case as constructed, refuse_lack_of_memory
from pytest_msprobe.cases.inputs import InputSource
from pytest_msprobe.cases.local_calls import is_of_parts
from pytest_msprobe.engines.protocol import Array, Call, Engine, Execution, NotJudged, Output, Unsupported, arrays_in
from pytest_msprobe.engines.recorded import RecordedEngine
from pytest_msprobe.engines.reference import ReferenceEngine
from pytest_msprobe.engines.selection import NO_TORCH, Engines
from pytest_msprobe.support import is_installed, place_of, text_of

_Result = TypeVar("_Result")
Incoming = tuple["Array | None", ...]
#: Takes the forward outputs from an execution.
OUTPUTS: Callable[[Execution], tuple[Output, ...]] = attrgetter("outputs")
#: Bytes of the tensors of a call from which on the forward of a variant runs again rather than stays until `close`.
_LARGE = 1 << 22


@dataclass(frozen=True, slots=True)
class CapturedError:
    """What an API raised, as text: the exception itself would keep its frames, and their tensors, alive."""

    text: str
    place: str

    def __str__(self) -> str:
        return self.text


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
    raise NotJudged("error", problem, is_unreadable=True)


def result_or_none(outcome: _Result | Unsupported | CapturedError) -> _Result | None:
    """What `attempt` gives, where it is no failure; else None."""
    return None if isinstance(outcome, (Unsupported, CapturedError)) else outcome


class CallRun:
    """One API call of a dump: holds its inputs, and the forwards of engines with their graphs, until `close`.

    Attributes:
        case: the call.
    """

    def __init__(
        self,
        dump: Dump,
        name: str,
        *,
        with_backward: bool,
        max_memory_bytes: int,
        seed: int = 0,
        edge_case: str = "",
    ) -> None:
        """The call `name` of `dump`, or the edge case of this name made from it; `seed` is that of random inputs.

        Raises:
            NotJudged: it cannot or need not be run, or may need more memory.
        """
        self._dump = dump
        self._source = InputSource(str(dump.path), dump.tensors, seed)
        case = read_case(dump, name, self._source, with_backward=with_backward, max_memory_bytes=max_memory_bytes)
        self.case: Case = constructed(case, edge_case, max_memory_bytes) if edge_case else case
        self._forwards: dict[tuple[str, str], Execution | Unsupported | CapturedError] = {}

    @classmethod
    def of_case(cls, case: Case) -> CallRun:
        """A run of a call that stands in no dump."""
        made = cls.__new__(cls)
        made.case, made._forwards = case, {}
        return made

    def close(self) -> None:
        """Release all graphs and what they computed."""
        self._forwards.clear()

    def with_call(self, call: Call) -> CallRun:
        """A run of another call of the same API, of which nothing has run and no output is recorded."""
        other = copy(self)
        other.case = replace(self.case, call=call, forward=replace(self.case.forward, outputs=None))
        other._forwards = {}
        return other

    def incoming(self, direction: Direction) -> Incoming:
        """Recorded incoming gradients, read once, each in the shape of its output; () for a forward.

        Raises:
            NotJudged: the dump lacks them.
        """
        return self._incoming if direction == "backward" else ()

    @cached_property
    def _incoming(self) -> Incoming:
        return read_incoming(self.case, self._source)

    @cached_property
    def recorded(self) -> RecordedEngine:
        """The values of the dump as an engine."""
        case, dump, drawn = self.case, self._dump, self._source.drawn
        ended = "" if dump.ended_in is None else str(dump.ended_in)
        return RecordedEngine(
            case.forward, case.backward, case.pairing, dump.tensors, str(dump.path), drawn=drawn, ended=ended
        )

    def ask(
        self, engine: Engine, result: Callable[[Execution], _Result], *, call: Call | None = None, variant: str = ""
    ) -> _Result | Unsupported | CapturedError:
        """The `result` of the forward of `engine`, which runs once per `variant`, whatever its outcome.

        `call` stands for the case's own where other inputs are wanted, under the name `variant`. Of a large call only
        the forward of the case itself is kept: that of a variant, with its graph, takes as much memory again.

        Raises:
            NotJudged: a tensor file of the dump is unusable.
        """
        key = engine.label, variant
        execution = self._forwards.get(key)
        if execution is None:
            execution = attempt(partial(engine.forward, call or self.case.call, differentiate=self.case.wanted))
            if not variant or sum(array.nbytes for array in arrays_in(self.case.call).values()) < _LARGE:
                self._forwards[key] = execution
        if isinstance(execution, (Unsupported, CapturedError)):
            return execution
        return attempt(partial(result, execution))

    def outcomes(
        self,
        engines: Sequence[Engine],
        result: Callable[[Execution], _Result],
        *,
        call: Call | None = None,
        variant: str = "",
    ) -> Iterator[tuple[Engine, _Result | Unsupported | CapturedError]]:
        """What `ask` gives of each engine, which is run only when the caller comes to it, and not where it refuses."""
        for engine in engines:
            reason = engine.refusal(self.case.api, self.case.call.framework)
            yield engine, Unsupported(reason) if reason else self.ask(engine, result, call=call, variant=variant)

    def benchmark(
        self,
        engines: Engines,
        result: Callable[[Execution], _Result],
        *,
        benches: Sequence[Engine] | None = None,
        call: Call | None = None,
        variant: str = "",
    ) -> tuple[Engine, _Result]:
        """(engine, result) of the first benchmark that can run the call; one that cannot, or that raises, passes it on.

        The benchmarks are those of `engines`, or `benches` in their place; the rest is as for `ask`.

        Raises:
            NotJudged: a skip when none has such an API, an error when it raised.
        """
        case, refused, raised = self.case, [], []
        benches = engines.benchmarks if benches is None else benches
        for bench, outcome in self.outcomes(benches, result, call=call, variant=variant):
            if isinstance(outcome, Unsupported):
                refused.append(f"{bench.name}: {outcome}")
            elif not isinstance(outcome, CapturedError):
                return bench, outcome
            elif isinstance(bench, ReferenceEngine) and not case.constructed:
                raise NotJudged("error", f"benchmark ({bench.label}): {outcome} ({outcome.place})")
            else:
                raised.append(f"benchmark ({bench.label}): {outcome}")
        if raised and case.constructed:
            refuse_lack_of_memory(case, raised[0])
            raise NotJudged("skip", f"only the device accepts the inputs, which were {case.notes[-1]}: {raised[0]}")
        if raised and case.is_of_parts and is_of_parts(case.forward):
            raise NotJudged("skip", f"its arguments are not those of an operation on parts of tensors: {raised[0]}")
        if raised:
            raise NotJudged("error", "; ".join(raised))
        if not is_installed("torch") and engines.choice.bench == "auto":
            refused.append(NO_TORCH)
        raise NotJudged("skip", f"no benchmark: {'; '.join(refused)}")
