"""The suite `laws`: one item per law and record of an optimizer, or per law and thing that was watched in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format import ApiName, Dump, DumpError, Frame
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.values import printable
from msprobe_laws.extension import MEANT_KEY, meant_in
from msprobe_laws.suite import FILE
from msprobe_laws.suite.backwards import Backwards, Vanishing
from msprobe_laws.suite.live import Checked, Described, LawsFile, read_laws
from msprobe_laws.suite.report import LawsReport, LawsSummary, law_of
from msprobe_laws.suite.steps import CLIP, NotRecordedError, StepSequence, names
from msprobe_laws.training import GRADIENTS_ARRIVE, RANKS_DRAW, REPLICAS
from pytest_msprobe.suites.contract import Context, Group, ItemRecord, Suite, SuiteError, SuiteReport, escape, place_in
from pytest_msprobe.verdicts import MOOT, Figure, OutputRow, StepPosition, Verdict

if TYPE_CHECKING:
    from msprobe_collector.dump_format.leaves import Leaf
    from msprobe_laws.formula_check import FormulaCheck
    from msprobe_laws.law import Checked as Result
    from msprobe_laws.observation import Update
    from msprobe_laws.suite.freshness import Passes

#: Laws on a record of an optimizer, and on one of clipping; those that look at a `FormulaCheck` first.
_OF_FORMULA = ("update-formula", "moments-formula", "decay-as-declared", "updates-arrive")
_OF_UPDATE = ("step-counter", "something-updated", "hyper-parameters")
#: Laws from one step to the next.
_CONTINUES, _FRESH = "state-continues", "gradients-are-fresh"
_OF_CLIPPING = ("clip-norm",)
#: On a record of an optimizer; gradients arrive in all of its steps that the run judges, which the first answers for.
_OF_STEP = (*_OF_FORMULA, *_OF_UPDATE, _CONTINUES, _FRESH, GRADIENTS_ARRIVE)
#: The thing whose laws are about all ranks, and its laws.
RANKS = "ranks"
_OF_RANKS = (REPLICAS, RANKS_DRAW)
_ONE_RANK = "the run has one rank"
_MOST_ROWS = 20
#: Ranks whose gradients are averaged, and dumps whose backward passes are kept: of these ranks in two steps.
_MOST_RANKS, _MOST_KEPT = 8, 16


@dataclass(slots=True)
class _Read:
    """A record of an optimizer, read once for all of its laws."""

    of: tuple[Path, str]
    update: Update | None = None
    formula: FormulaCheck | None = None
    before: Update | None = None
    problem: str = ""
    is_fault: bool = False


class LawsSuite(Suite):
    """Checks laws of training."""

    name = "laws"
    title = "Laws of training"
    item_noun = "laws of optimizers' steps and of the training"
    group_noun = "optimizers and other parts"
    figures = (Figure("ratio", "Size/tolerance", ".3g"),)
    passing = "hold"
    summary = LawsSummary

    @classmethod
    def make(cls, context: Context) -> LawsSuite:
        """Return the suite for one process of a run.

        Raises:
            SuiteError: there is neither a dump nor a file of laws.
        """
        if not context.dumps:
            raise SuiteError(
                "--msprobe-suite=laws needs --msprobe-dump=PATH: a dump, or a folder that MSPROBE_LAWS has written"
            )
        return cls(context)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._laws: dict[Path, LawsFile] = {}
        self._read: _Read | None = None
        self._steps = StepSequence(self.dump, self.files)
        self._backwards: dict[Path, Backwards] = {}

    def groups(self, file: Path) -> Iterator[Group]:
        """Return the records of optimizers in a dump; what was watched in a file of laws, then all ranks.

        Raises:
            SuiteError: the file says nothing of optimizers, or cannot be read.
        """
        if file.name != FILE:
            records = list(names(self.dump(file)))
            if not records and not self._has_optimizers(Slot.of(file).rank):  # else it is a part of a step
                raise SuiteError(
                    f"{file}: holds no record of an optimizer; dump steps with start() before and stop() after "
                    "optimizer.step(), or check laws in training with MSPROBE_LAWS=1"
                )
            for record in records:
                call = record.rpartition(".")[0] or record
                parts = _OF_STEP if not record.startswith(CLIP) else _OF_CLIPPING
                yield from (_group(call, law, record) for law in parts)
            return
        laws = self._file(file)
        if not laws.things:
            raise SuiteError(f"{file}: says of no law that it was checked; the process ended before its first step")
        for about, things in laws.things.items():
            for law in things:
                yield _group(about, law, (about, law))
        if file == self._of_run(file)[0]:
            yield from (_group(RANKS, law, None) for law in _OF_RANKS)

    def _has_optimizers(self, rank: int | None) -> bool:
        """Return whether any dump of a rank holds records of optimizers."""
        for path in self.files:
            with suppress(DumpError):
                if path.name != FILE and Slot.of(path).rank == rank and any(names(self.dump(path))):
                    return True
        return False

    def judge(self, record: ItemRecord) -> Verdict:
        verdict = self._judge_live(record) if record.file.name == FILE else self._judge_recorded(record)
        if verdict.status != "error":
            return verdict
        if (reason := self._meant(record.file).get(law_of(record.call))) is not None:
            return replace(
                verdict,
                status="pass",
                message=f"meant: {printable(reason)}; {verdict.message}",
                outputs=(),
                explanation="",
                properties=((MEANT_KEY, printable(reason)), *verdict.properties),
            )
        return replace(verdict, properties=(("kind", law_of(record.call)), *verdict.properties))

    def headline(self, record: ItemRecord) -> str:
        return record.call

    def api(self, record: ItemRecord) -> ApiName:
        """Return type `Law` and what the law is about, so that hooks choose by it."""
        return ApiName("Law", record.call, 0)

    def marks(self, record: ItemRecord) -> tuple[str, ...]:
        return (law_of(record.call).replace("-", "_"), "Law")

    def place(self, record: ItemRecord) -> StepPosition:
        if record.file.name != FILE:
            return place_in(self.dump(record.file), record.payload)
        item = None if record.payload is None else self._checked(record)
        rank = None if record.payload is None else self._file(record.file).rank
        if item is None or not item.described:
            return StepPosition(rank=rank, step=None, source="")
        return StepPosition(rank=rank, step=item.described[0].step, source=item.described[0].source)

    def frames(self, record: ItemRecord) -> Sequence[Frame]:
        return () if record.file.name == FILE else self.dump(record.file).stacks.frames(record.payload)

    def header(self) -> list[str]:
        return [f"msprobe: {self._shown_files('files')}: laws of training, from what optimizers get and leave"]

    def dumps(self) -> Iterator[Dump]:
        for path in self.files:
            with suppress(DumpError):
                if path.name != FILE:
                    yield self.dump(path)

    def warnings(self) -> Iterator[str]:
        for path in self.files:
            with suppress(SuiteError):
                if path.name == FILE:
                    laws = self._file(path)
                    yield from filter(None, (laws.problem, f"{path}: {laws.fault}" if laws.fault else ""))

    def report(self, continued: tuple[Path, Path] | None) -> SuiteReport:
        return LawsReport(self._context.out)

    def advice_when_empty(self) -> str:
        return "no law could be checked: the reasons say what is missing"

    # Recorded

    def _judge_recorded(self, record: ItemRecord) -> Verdict:
        dump, name, asked = self.dump(record.file), record.payload, law_of(record.call)
        try:
            if asked in _OF_CLIPPING:
                from msprobe_laws.signals import ClipNorm
                from msprobe_laws.suite import recorded

                clipping = recorded.clipping_of(dump, name)
                return _verdict(ClipNorm().check(clipping), len(clipping.names), "gradients", clipping.source)
            if asked == GRADIENTS_ARRIVE:
                return self._judge_arrival(record)
        except NotRecordedError as error:
            return Verdict("skip", str(error))
        except DumpError as error:
            return Verdict("error", printable(str(error)))
        read = self._read_of(record)
        if read.update is None or read.formula is None:
            return Verdict("error" if read.is_fault else "skip", read.problem)
        if asked in (_CONTINUES, _FRESH):
            try:
                result = self._judge_across(record, read.update, read.before, is_fresh=asked == _FRESH)
            except DumpError as error:  # a tensor of a backward pass
                return Verdict("error", printable(str(error)))
        else:
            result = _law(asked).check(read.formula if asked in _OF_FORMULA else read.update)
        return _verdict(result, len(read.update.parameters), "parameters", read.update.source)

    def _judge_arrival(self, record: ItemRecord) -> Verdict:
        from msprobe_laws.law import Unchecked
        from msprobe_laws.suite.freshness import arrive
        from msprobe_laws.suite.recorded import zero_gradients_of

        steps = list(self._steps.all_of(record.file, record.payload))
        if steps[0] != (record.file, record.payload):
            return _verdict(Unchecked("the first step of the optimizer is judged for all", is_moot=True), 0, "", "")
        zeros = [zero_gradients_of(self.dump(path), name) for path, name in steps]
        # Where a parameter is trained later, nothing is asked of the first step.
        ends = Vanishing(self.dump(steps[-1][0])).unexplained
        return _verdict(arrive(zeros, ends), max(map(len, zeros)), "parameters", "")

    def _judge_across(self, record: ItemRecord, update: Update, before: Update | None, *, is_fresh: bool) -> Result:
        """Return what a law from one step to the next says.

        Of the first step nothing is left open that a later one shows.
        """
        from msprobe_laws.law import Unchecked
        from msprobe_laws.suite.freshness import fresh
        from msprobe_laws.updates import StateContinues

        if is_fresh:
            result = fresh(update, before, partial(self._passes, record.file, record.payload))
        else:
            law = StateContinues()
            if before is not None:
                law.check(before)
            result = law.check(update)
        if before is not None or not isinstance(result, Unchecked) or result.is_moot:
            return result
        if self._steps.is_followed(record.file, record.payload):
            return Unchecked("it is the first step that the dump holds of this optimizer; the next one is judged", True)
        why = result.reason if is_fresh else "the step before it is not in the dump"
        return Unchecked(f"{why}; collect {'' if self._steps.has_several else 'two '}steps one after another")

    def _passes(self, file: Path, record: str, name: str) -> Iterator[Passes]:
        """Return what backward passes since the step before gave to the parameter `name`: here, then over all ranks."""
        from msprobe_laws.suite.freshness import mean_of

        yield self._passes_of_rank(file, record, name)
        ranks = [path for path in self.files if path.parent.parent == file.parent.parent and path.name == file.name]
        if 1 < len(ranks) <= _MOST_RANKS and all(record in self.dump(path) for path in ranks):
            mean = mean_of([self._passes_of_rank(path, record, name) for path in ranks])
            if mean is not None:
                yield mean

    def _passes_of_rank(self, file: Path, record: str, name: str) -> Passes:
        from msprobe_laws.suite.freshness import Passes
        from msprobe_laws.suite.recorded import dtype_of, elements_of

        since = self._steps.since(file, record)
        leaves: list[tuple[Path, Leaf]] = []
        for path, places in since.parts:
            leaves += [(path, leaf) for place, leaf in self._backwards_in(path).to(name) if place in places]
        late = [(file, leaf) for place, leaf in self._backwards_in(file).to(name) if place in since.later]
        arrays = [elements_of(self.dump(path), leaf, name) for path, leaf in (*leaves, *late)]
        dtypes = [dtype_of(leaf) for _, leaf in (*leaves, *late)]
        had_some = since.before is not None and bool(self._backwards_in(since.before[0]).to(name))
        return Passes(arrays[: len(leaves)], arrays[len(leaves) :], dtypes, had_some)

    def _backwards_in(self, path: Path) -> Backwards:
        if path not in self._backwards:
            if len(self._backwards) >= _MOST_KEPT:
                self._backwards.clear()
            self._backwards[path] = Backwards(self.dump(path))
        return self._backwards[path]

    def _read_of(self, record: ItemRecord) -> _Read:
        if self._read is None or self._read.of != (record.file, record.payload):
            self._read = read = _Read((record.file, record.payload))
            dump = self.dump(record.file)
            try:
                from msprobe_laws.formula_check import FormulaCheck
                from msprobe_laws.suite.recorded import update_of

                read.update = update_of(dump, record.payload, 1)
                read.formula = FormulaCheck(read.update)
                if (before := self._steps.since(record.file, record.payload).before) is not None:
                    path, name = before
                    with suppress(DumpError, NotRecordedError):
                        read.before = update_of(self.dump(path), name, 0)
            except NotRecordedError as error:
                read.problem = str(error)
            except DumpError as error:
                read.problem, read.is_fault = printable(str(error)), True
        return self._read

    # Live

    def _judge_live(self, record: ItemRecord) -> Verdict:
        if record.payload is None:
            return self._judge_ranks(record)
        item = self._checked(record)
        if item is None:
            return Verdict("error", "the file says no more of this law; it was changed while it was read")
        more = f" (in {item.findings} of {item.checks} checks)" if item.checks >= item.findings > 0 else ""
        if item.described:
            return _broken(item.described, more)
        if item.findings:
            return Verdict("error", f"it does not hold; the findings are not in the file{more}")
        if item.checks:
            return Verdict("pass", f"checked {item.checks} times")
        reason = item.reason or "it was not checked"
        return Verdict("skip", reason, properties=((MOOT, reason),) if item.is_moot else ())

    def _judge_ranks(self, record: ItemRecord) -> Verdict:
        from msprobe_laws.suite.ranks import judge_draws, judge_replicas

        if self._file(record.file).run.get("world") == 1:
            return Verdict("skip", _ONE_RANK, properties=((MOOT, _ONE_RANK),))
        files = []
        for path in self._of_run(record.file):
            with suppress(SuiteError):
                files.append(self._file(path))
        return judge_replicas(files) if law_of(record.call) == _OF_RANKS[0] else judge_draws(files)

    def _checked(self, record: ItemRecord) -> Checked | None:
        about, law = record.payload
        return self._file(record.file).things.get(about, {}).get(law)

    def _meant(self, file: Path) -> Mapping[str, str]:
        """Return why findings are no fault, by their law: as the run says, or a run.json beside or above its files."""
        declared = {**meant_in(file.parents[1] / "run.json"), **meant_in(file.parent / "run.json")}
        declared_there = self._file(file).run.get("meant") if file.name == FILE else None
        return {**declared, **(declared_there if isinstance(declared_there, dict) else {})}

    def _of_run(self, file: Path) -> list[Path]:
        """Return the files of the ranks of one run: those in folders beside each other."""
        return [path for path in self.files if path.name == FILE and path.parent.parent == file.parent.parent]

    def _file(self, path: Path) -> LawsFile:
        if path not in self._laws:
            self._laws[path] = read_laws(path)
        return self._laws[path]


def _law(name: str) -> Any:
    from msprobe_laws import updates

    if name == updates.UpdatesArrive.name:
        return updates.UpdatesArrive(patience=1)  # in a dump of one step no patience helps
    kinds: tuple[Any, ...] = (*updates.OF_FORMULA, *updates.OF_UPDATE)
    return next(kind for kind in kinds if kind.name == name)()


def _group(subject: str, law: str, payload: object) -> Group:
    """Return one law asked of one thing: a call of its own, so that JUnit and lost workers name it."""
    call = f"{subject}.{law}"
    return Group("", printable(call), (escape(call),), payload)


def _verdict(result: Result, count: int, what: str, source: str) -> Verdict:
    from msprobe_laws.law import Unchecked, listed
    from msprobe_laws.updates import summed_up

    if isinstance(result, Unchecked):
        properties = ((MOOT, result.reason),) if result.is_moot else ()
        rows = tuple(OutputRow(printable(name), "", "", (), "skip", result.reason) for name in result.parameters)
        labels = [row.label for row in rows]
        reason = f"{listed(labels)}: {result.reason}" if rows else result.reason
        return Verdict("skip", reason, rows, properties=properties)
    if not result:
        return Verdict("pass", f"holds for {count} {what}")
    described = []
    for item in summed_up(result):
        name, message, place = printable(item.parameter), printable(item.message), printable(source)
        described.append(Described(name, len(item.others), message, item.size, None, place))
    return _broken(described)


def _broken(described: Sequence[Described], more: str = "") -> Verdict:
    """Return what an item of a law that does not hold is; `more` stands behind the first finding."""
    rows = tuple(item.row for item in described[:_MOST_ROWS])
    sources = [item.source.partition(",")[0] for item in described if item.source]
    properties = (("called_from", sources[0]),) if sources else ()
    return Verdict(
        "error", f"{described[0]}{more}", rows, explanation="\n".join(map(str, described)), properties=properties
    )
