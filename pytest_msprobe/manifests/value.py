"""A difference of two manifests."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    section: str
    what: str
    target: str
    golden: str
    sentence: str
    likelihood: float


class Make:
    """Makes differences of one section, with the sentence `WORDS TARGET, golden GOLDEN`."""

    def __init__(self, section: str) -> None:
        self._section = section

    def __call__(
        self, words: str, target: object, golden: object, likelihood: float, *, what: str = ""
    ) -> ManifestDifference:
        """The difference; all texts are printable."""
        left, right = str(target), str(golden)
        sentence = f"{words} {left}, golden {right}"
        return ManifestDifference(self._section, what or words.removesuffix(":"), left, right, sentence, likelihood)
