"""What is found about one gradient, and what the gradients of a run amount to: the first problem step.

Files of signs are read without trusting them; large ones are mapped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from msprobe_collector.dump_format import FieldPath, TensorFolder, TensorValue, find_dtype
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.answers import Answer, Confidence, Finding, NextStep, Place, Reach, RunRows
from pytest_msprobe.suites.contract import RowSummary
from pytest_msprobe.suites.gradients.run import GradientRow, StepSummary, number_ranges
from pytest_msprobe.verdicts import Status, VerdictRow, Wire


@dataclass(frozen=True, slots=True)
class SignAgreement:
    """Elements of two gradients that are above 0 in both, or in neither, and elements in all."""

    agreeing: int
    size: int

    @property
    def similarity(self) -> float:
        """Share of the elements that agree; 0 where there are none, as in the existing tool."""
        return self.agreeing / self.size if self.size else 0.0

    def __add__(self, other: SignAgreement) -> SignAgreement:
        return SignAgreement(self.agreeing + other.agreeing, self.size + other.size)


_NONE = SignAgreement(0, 0)


def compare_signs(row: GradientRow, target: StepSummary, golden: StepSummary) -> SignAgreement:
    """The agreement of the signs of one gradient, which has the same shape on both sides.

    Raises:
        DumpError: a file is missing, torn, or not bool values of that shape.
    """
    import numpy as np

    from pytest_msprobe.numerics.measurement import chunks

    tested, reference = _signs(row, target), _signs(row, golden)
    agreeing = 0
    for _, (part, expected) in chunks(tested, reference, elements=1 << 20):
        agreeing += int(np.count_nonzero(part == expected))
    return SignAgreement(agreeing, row.size)


def _signs(row: GradientRow, summary: StepSummary) -> Any:
    folder, name, place = signs_folder(summary.path), f"{row.name}.npy", FieldPath(str(summary.path), row.name, "signs")
    if not (folder / name).exists():
        raise place.fault(f"{name} is not in {folder}; copy that folder as well")
    value = TensorValue(find_dtype("Bool"), row.shape, None, None, None, None, data_name=name)
    return TensorFolder(folder).load(value, place)


def signs_folder(summary: Path) -> Path:
    """The folder `step{step}` that belongs to a summary file."""
    return summary.with_name(f"step{summary.stem.rpartition('_')[2]}")


#: What a rule finds. A gradient that could not be judged (`unmatched`, `unreadable`) is an error of another kind.
PROBLEMS = ("similarity", "bits", "nonfinite", "zero", "turbulence", "collapse")
Kind = Literal[
    "", "similarity", "bits", "nonfinite", "zero", "turbulence", "collapse", "unmatched", "unreadable", "unjudged"
]


@dataclass(frozen=True, slots=True)
class GradientResult(Wire):
    """The verdict on one gradient.

    Attributes:
        rank, step, parameter: which gradient.
        order: place of the parameter in the optimizer, from 0; the last one stands nearest the loss.
        status: `pass`, `error` or `skip`.
        kind: what rule was broken, or why it was not judged; "" for a pass.
        message: one line; for a pass the figures.
        shape: of the gradient.
        agreement: of its signs with those of the golden run; None where they were not compared.
        norm: of the gradient; None where it could not be read.
        details: more lines for a person who reads about a failure.
    """

    rank: int
    step: int
    parameter: str
    order: int
    status: Status
    kind: Kind = ""
    message: str = ""
    shape: tuple[int, ...] = ()
    agreement: SignAgreement | None = None
    norm: float | None = None
    details: tuple[str, ...] = ()

    @property
    def is_problem(self) -> bool:
        """Whether a rule on gradients was broken."""
        return self.kind in PROBLEMS and self.status == "error"


#: How sure a broken rule is without a golden run, where it is not "likely".
_SURE: dict[str, Confidence] = {"nonfinite": "proved"}
_MOST_NAMED = 10


@dataclass(slots=True)
class Findings(RowSummary):
    """Verdicts taken in any order; a few figures are kept of each, and the verdicts themselves of problems.

    Attributes:
        agreements: by rank, then parameter, then step.
        problems: gradients that broke a rule.
    """

    agreements: dict[int, dict[str, dict[int, SignAgreement]]] = field(default_factory=dict)
    problems: list[GradientResult] = field(default_factory=list)
    _orders: dict[str, int] = field(default_factory=dict)
    _ids: dict[tuple[int, int, str], str] = field(default_factory=dict)
    _kinds: Counter[str] = field(default_factory=Counter)
    _parameters: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, row: VerdictRow) -> None:
        """Count the verdicts behind a row."""
        for wire in (row.attachment or {}).get("verdicts", ()):
            verdict = GradientResult.from_wire(wire)
            self.count(verdict)
            if verdict.is_problem:
                self._ids[verdict.rank, verdict.step, verdict.parameter] = row.node_id

    def count(self, verdict: GradientResult) -> None:
        """Count one verdict."""
        self._kinds[verdict.kind] += 1
        self._parameters[verdict.step, verdict.rank] += 1
        self._orders.setdefault(verdict.parameter, verdict.order)
        if verdict.agreement is not None:
            steps = self.agreements.setdefault(verdict.rank, {}).setdefault(verdict.parameter, {})
            steps[verdict.step] = verdict.agreement
        if verdict.is_problem:
            self.problems.append(verdict)

    def parameters(self, rank: int) -> list[str]:
        """The compared parameters of `rank` in the order of the optimizer."""
        return sorted(self.agreements.get(rank, ()), key=lambda name: (self._orders[name], name))

    def steps(self, rank: int) -> list[int]:
        """The compared steps of `rank` in order."""
        return sorted(set().union(*self.agreements.get(rank, {}).values()))

    def row(self, rank: int, name: str, steps: Sequence[int]) -> list[float | None]:
        """The similarity of one parameter in each of these steps; None where it was not compared."""
        agreements = self.agreements[rank][name]
        return [agreements[step].similarity if step in agreements else None for step in steps]

    def overall(self, rank: int, step: int) -> SignAgreement:
        """The agreement of all gradients of one step together, weighted by their numbers of elements."""
        return sum((steps.get(step, _NONE) for steps in self.agreements[rank].values()), _NONE)

    def lines(self) -> Iterator[str]:
        """The findings, most important first."""
        unjudged = self._kinds["unreadable"] + self._kinds["unmatched"]
        if self.problems:
            yield from self._problem_lines()
        elif unjudged:
            yield "no problem step among the gradients that could be judged"
        elif self._kinds[""]:
            yield "no problem step: every gradient that was judged is within the rules"
        else:
            yield "no gradient was judged"
        yield from self.facts()

    def facts(self) -> Iterator[str]:
        """Over all gradients: the steps with problems, the lowest similarity, what could not be judged."""
        steps: dict[int, set[int]] = defaultdict(set)
        for problem in self.problems:
            steps[problem.rank].add(problem.step)
        for rank in sorted(steps):
            yield f"problem steps of rank {rank}: {number_ranges(steps[rank])}"
        unjudged = self._kinds["unreadable"] + self._kinds["unmatched"]
        overall = [(self.overall(rank, step), step, rank) for rank in self.agreements for step in self.steps(rank)]
        if overall := [entry for entry in overall if entry[0].size]:
            worst, step, rank = min(overall, key=lambda entry: (entry[0].similarity, *entry[1:]))
            yield f"all gradients together: lowest similarity {worst.similarity:.4f}, at step {step} of rank {rank}"
        if unjudged:
            yield f"{counted(unjudged, 'gradients', 'fail')}, which could not be read or compared"

    def answer(self, rows: RunRows) -> Answer:
        """The first problem step, the gradient nearest to the loss first; of two equal runs that they are equal.

        What breaks a rule in later steps follows from it.
        """
        problems = [problem for problem in self.problems if not rows.is_expected(self._id_of(problem))]
        if not problems:
            total = sum((self.overall(rank, step) for rank in self.agreements for step in self.steps(rank)), _NONE)
            is_equal = bool(self.agreements) and total.agreeing == total.size
            return rows.made(rows.findings(by_order=True), measure=rows.measure("signs" if is_equal else "rules"))
        step, rank, first = _first(problems)
        later = [problem for problem in problems if problem.step > step]
        rows.following |= set(map(self._id_of, later))
        nearest = max(first, key=lambda problem: problem.order)
        others = [problem for problem in first if problem is not nearest]
        findings = [self._finding(group) for group in ([nearest], others) if group]
        where = f"step {step} of rank {rank}"
        answer = rows.made(findings, next_steps=[NextStep("gradients", subject=where)])
        return structs.replace(answer, reach=Reach(len(later)))

    def _id_of(self, problem: GradientResult) -> str:
        return self._ids[problem.rank, problem.step, problem.parameter]

    def _finding(self, problems: list[GradientResult]) -> Finding:
        worst = min(problems, key=_similarity)
        figures: dict[str, float | int | str] = {"of": self._parameters[worst.step, worst.rank]}
        if worst.agreement is not None:
            figures["similarity"] = worst.agreement.similarity
        if worst.norm is not None:
            figures["norm"] = worst.norm
        detail = f"{worst.parameter}: {worst.message}" if len(problems) > 1 else worst.message
        return Finding(
            id=self._id_of(worst),
            kind=worst.kind,
            confidence=_SURE.get(worst.kind, "likely") if worst.agreement is None else "first difference only",
            place=Place(
                record=f"{worst.parameter}.step{worst.step}",
                operation=f"gradient of {worst.parameter} at step {worst.step}",
                calls=len(problems),
                ranks=(worst.rank,),
                steps=(worst.step,),
            ),
            figures=figures,
            count=len(problems),
            detail=detail,
        )

    def _problem_lines(self) -> Iterator[str]:
        step, rank, first = _first(self.problems)
        first.sort(key=lambda problem: (_similarity(problem), problem.order))
        nearest = max(first, key=lambda problem: problem.order)
        total = counted(self._parameters[step, rank], "gradients")
        yield f"first problem step: {step}, rank {rank}: {len(first)} of {total}"
        for problem in first[:_MOST_NAMED]:
            yield f"  {problem.parameter}: {problem.message}"
        if len(first) > _MOST_NAMED:
            yield f"  and {len(first) - _MOST_NAMED} more"
        yield (
            f"nearest the loss: {nearest.parameter}; look between it and the loss first: "
            f"dump step {step} of rank {rank} (level mix) in both runs and compare"
        )


def _first(problems: Sequence[GradientResult]) -> tuple[int, int, list[GradientResult]]:
    """The first step with problems, the first of its ranks that has any, and these."""
    place = attrgetter("step", "rank")
    step, rank = min(map(place, problems))
    return step, rank, [problem for problem in problems if place(problem) == (step, rank)]


def _similarity(problem: GradientResult) -> float:
    """How similar the signs are; -1 where they were not compared."""
    return -1.0 if problem.agreement is None else problem.agreement.similarity
