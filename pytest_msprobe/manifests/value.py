"""A difference of two manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_msprobe.answers.finding import ArgumentDifference

#: What differs where a model trains in one run and is in eval in the other.
MODE = "mode"


@dataclass(frozen=True, slots=True)
class ManifestDifference:
    """One thing in which two runs differ.

    Attributes:
        section: `step`, `ranks`, `optimizer`, `model`, `precision`, `random`, `switches`, `environment`, `versions`,
            `device`, `batch`, `initial state` or `script`.
        what: of it differs.
        target, golden: the two values as text; "" where they say nothing.
        sentence: the difference in one line.
        likelihood: how likely it explains other numbers, from 0 to 1, for the order.
        names: of the parameters, layers or generators that are meant; () where it is one thing.
    """

    section: str
    what: str
    target: str
    golden: str
    sentence: str
    likelihood: float
    names: tuple[str, ...] = ()

    @property
    def argument(self) -> ArgumentDifference:
        """The difference as findings hold it: of several parameters by the first of them."""
        is_of_one = self.section == "model" and self.what in ("shape", "dtype") and self.names
        return ArgumentDifference(self.names[0] if is_of_one else self.what, self.target, self.golden)


def of_other_step(target: str, golden: str) -> ManifestDifference:
    """The difference of two dumps that are of the steps of these numbers."""
    sentence = f"step {target}, golden step {golden}: these are not the same step"
    return ManifestDifference("step", "step", target, golden, sentence, 1.0)


def difference_of(
    section: str,
    words: str,
    target: object,
    golden: object,
    likelihood: float,
    *,
    what: str = "",
    names: Sequence[str] = (),
) -> ManifestDifference:
    """The difference with the sentence `WORDS TARGET, golden GOLDEN`; all texts are printable."""
    sentence = f"{words} {target}, golden {golden}"
    what = what or words.removesuffix(":")
    return ManifestDifference(section, what, str(target), str(golden), sentence, likelihood, tuple(names))
