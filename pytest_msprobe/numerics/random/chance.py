"""Whether counts of random events fit their probabilities, at a false-alarm rate that holds at every sample size.

Source of the bounds: W. Hoeffding, Probability inequalities for sums of bounded random variables, JASA 58 (1963),
theorem 1. Of n independent events with mean probability p, a share of at least q > p (or at most q < p) occurs with a
probability of at most exp(-n KL(q, p)), KL(q, p) = q ln(q/p) + (1-q) ln((1-q)/(1-p)); single probabilities may differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: How often a correct output is called wrong, at most, over all that is tested of it.
FALSE_ALARM_RATE = 1e-9

#: A lag is tested on the first elements only: repetition shows there, and reading 27 lags of all would cost the most.
_MOST_LAGGED = 1 << 22


@dataclass(frozen=True, slots=True)
class Count:
    """How many of `trials` independent events occurred, each with a probability that lies on average in [low, high].

    Attributes:
        what: which events, to be read after "12 of 20 ": `values are above 0`.
    """

    what: str
    hits: int
    trials: int
    low: float
    high: float

    @property
    def surprise(self) -> float:
        """-ln of the bound on the chance of so extreme a count on that side; 0 when the share is as expected."""
        if not self.trials:
            return 0.0
        share = self.hits / self.trials
        return self.trials * divergence(share, min(max(share, self.low), self.high))

    @property
    def surprise_of_extremes(self) -> float:
        """The surprise of all or of none, whichever is smaller: what this many trials show in any case."""
        return self.trials * min(divergence(1.0, self.high), divergence(0.0, self.low))

    @property
    def sentence(self) -> str:
        """What was counted and what was to be expected."""
        middle = self.trials * (self.low + self.high) / 2
        chance = f"10^{-self.surprise / math.log(10):.0f}"
        return (
            f"{self.hits} of {self.trials} {self.what}, where the law expects about {middle:.6g} "
            f"(a correct output does so with a chance below {chance})."
        )


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What a random output was found to be.

    Attributes:
        reasons: whole sentences on what is wrong; empty for a pass.
        notes: what could not be tested, and why.
    """

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: SampleResult) -> SampleResult:
        return SampleResult(self.reasons + other.reasons, tuple(dict.fromkeys(self.notes + other.notes)))


def divergence(share: float, probability: float) -> float:
    """KL(share, probability) in nats; inf for what has probability 0."""
    total = 0.0
    for q, p in ((share, probability), (1 - share, 1 - probability)):
        if q > 0:
            total += math.inf if p <= 0 else q * math.log(q / p)
    return max(total, 0.0)


def judge_counts(counts: Sequence[Count], law: str, *, false_alarm_rate: float = FALSE_ALARM_RATE) -> SampleResult:
    """The worst of `counts`, if it is so improbable that together they alarm at most at `false_alarm_rate`.

    Half of the rate is left to `judge_runs`; the rest is shared out evenly (union bound over both sides of each count).
    Where not even all or none of the elements would have alarmed, at the place that splits them most evenly, a note
    says that there are too few to test `law`.
    """
    if not counts:
        return SampleResult()
    limit = math.log(4 * len(counts) / false_alarm_rate)
    worst = max(counts, key=lambda count: count.surprise)
    if worst.surprise > limit:
        return SampleResult((worst.sentence,))
    size = max(count.trials for count in counts)
    middle = min((count for count in counts if count.trials == size), key=lambda count: abs(count.low + count.high - 1))
    if middle.surprise_of_extremes <= limit:
        return SampleResult(notes=(too_few(size, law, false_alarm_rate),))
    return SampleResult()


def too_few(size: int, law: str, false_alarm_rate: float = FALSE_ALARM_RATE) -> str:
    """The note on a sample that is too small."""
    elements = "1 element is" if size == 1 else f"{size} elements are"
    return (
        f"{elements} too few to test {law} at a false-alarm rate of {false_alarm_rate:g}: judged by range and form only"
    )


def judge_runs(
    repeats: npt.NDArray[np.bool_], chance: float, what: str, *, false_alarm_rate: float = FALSE_ALARM_RATE
) -> SampleResult:
    """A reason when too many events in a row occurred, each of a probability of at most `chance` given those before.

    The chance of r in a row somewhere among n is at most n * chance^r (union bound). `what` reads after "12 elements
    in a row ". Takes half of the rate and shares it with one more run.
    """
    if not repeats.size or not 0 <= chance < 1:
        return SampleResult()
    length, end = longest_run(repeats)
    longest_likely = math.log(4 * repeats.size / false_alarm_rate) / -math.log(chance) if chance else 0.0
    if length <= longest_likely:
        return SampleResult()
    return SampleResult(
        (f"{length} elements in a row {what}, up to element {end}; chance allows {longest_likely:.0f}.",)
    )


def longest_run(flags: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """(length of the longest run of True, flat index of its last element)."""
    gaps = np.concatenate(([-1], np.flatnonzero(~flags), [flags.size]))
    lengths = np.diff(gaps) - 1
    longest = int(lengths.argmax())
    return int(lengths[longest]), int(gaps[longest + 1]) - 1


def lag_counts(
    flags: npt.NDArray[np.bool_], shape: tuple[int, ...], probability: npt.NDArray[Any] | tuple[float, float]
) -> Iterator[Count]:
    """How often independent `flags` agree with those some places on: at powers of two, rows, planes and so on.

    A generator that repeats itself agrees too often. The pairs of one lag share no element, so they are independent.
    `probability` of True is one per element, or one range for all.
    """
    flags = flags[:_MOST_LAGGED]
    for lag in _lags(flags.size, shape):
        count = flags.size // (2 * lag)
        blocks = flags[: count * 2 * lag].reshape(count, 2, lag)
        agreeing = int(np.count_nonzero(blocks[:, 0] == blocks[:, 1]))
        if isinstance(probability, tuple):
            ends = [p * p + (1 - p) * (1 - p) for p in (*probability, min(max(0.5, probability[0]), probability[1]))]
        else:
            p = probability[: count * 2 * lag].reshape(count, 2, lag)
            ends = [float(np.mean(p[:, 0] * p[:, 1] + (1 - p[:, 0]) * (1 - p[:, 1])))]
        yield Count(f"elements agree with those {lag} places on", agreeing, count * lag, min(ends), max(ends))


def _lags(size: int, shape: tuple[int, ...]) -> list[int]:
    lags = {1 << power for power in range(max(size // 2, 1).bit_length())}
    lags.update(math.prod(shape[axis:]) for axis in range(1, len(shape)))
    return sorted(lag for lag in lags if 0 < lag <= size // 2)
