"""What the verdicts of a run amount to: the first problem step, and what to do there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pytest_msprobe.suites.gradients.result import GradientResult
from pytest_msprobe.suites.gradients.run import number_ranges
from pytest_msprobe.suites.gradients.signs import SignAgreement

_MOST_NAMED = 10


@dataclass(slots=True)
class Findings:
    """Verdicts taken in any order; a few figures are kept of each, and the verdicts themselves of problems.

    Attributes:
        agreements: by rank, then parameter, then step.
        problems: gradients that broke a rule.
    """

    agreements: dict[int, dict[str, dict[int, SignAgreement]]] = field(default_factory=dict)
    problems: list[GradientResult] = field(default_factory=list)
    _orders: dict[str, int] = field(default_factory=dict)
    _kinds: Counter[str] = field(default_factory=Counter)
    _parameters: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, verdict: GradientResult) -> None:
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
        return sorted({step for steps in self.agreements.get(rank, {}).values() for step in steps})

    def overall(self, rank: int, step: int) -> SignAgreement:
        """The agreement of all gradients of one step together, weighted by their numbers of elements."""
        found = [steps[step] for steps in self.agreements[rank].values() if step in steps]
        return SignAgreement(sum(one.agreeing for one in found), sum(one.size for one in found))

    def lines(self) -> Iterator[str]:
        """The findings, most important first."""
        if self.problems:
            yield from self._problem_lines()
        elif self._kinds["unreadable"] + self._kinds["unmatched"]:
            yield "no problem step among the gradients that could be judged"
        elif self._kinds[""]:
            yield "no problem step: every gradient that was judged is within the rules"
        else:
            yield "no gradient was judged"
        overall = [(self.overall(rank, step), step, rank) for rank in self.agreements for step in self.steps(rank)]
        if overall := [entry for entry in overall if entry[0].size]:
            worst, step, rank = min(overall, key=lambda entry: (entry[0].similarity, *entry[1:]))
            yield f"all gradients together: lowest similarity {worst.similarity:.4f}, at step {step} of rank {rank}"
        if unjudged := self._kinds["unreadable"] + self._kinds["unmatched"]:
            yield f"{unjudged} gradients could not be read or compared, and fail"

    def _problem_lines(self) -> Iterator[str]:
        step, rank = min((problem.step, problem.rank) for problem in self.problems)
        first = [problem for problem in self.problems if (problem.step, problem.rank) == (step, rank)]
        first.sort(key=lambda problem: (_similarity(problem), problem.order))
        nearest = max(first, key=lambda problem: problem.order)
        yield f"first problem step: {step}, rank {rank}: {len(first)} of {self._parameters[step, rank]} gradients"
        yield from (f"  {problem.parameter}: {problem.message}" for problem in first[:_MOST_NAMED])
        if len(first) > _MOST_NAMED:
            yield f"  and {len(first) - _MOST_NAMED} more"
        yield (
            f"nearest the loss: {nearest.parameter}; look between it and the loss first: "
            f"dump step {step} of rank {rank} (level mix) in both runs and compare"
        )
        for other in sorted({problem.rank for problem in self.problems}):
            steps = {problem.step for problem in self.problems if problem.rank == other}
            yield f"problem steps of rank {other}: {number_ranges(steps)}"


def _similarity(problem: GradientResult) -> float:
    return problem.agreement.similarity if problem.agreement is not None else -1.0
