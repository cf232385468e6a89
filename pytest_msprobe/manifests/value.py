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

    @property
    def makes_leaves(self) -> bool:
        """Whether it can be why parameters, the batch or constants differ, which no recorded operation made.

        How operations compute cannot, such as oneDNN, TF32, autocast or the number of threads. That leaves or states
        of generators differ is no reason, but the same difference.
        """
        if self.section in _NO_REASONS:
            return self.what in _REASONS_AMONG_THEM
        return self.what != "state"


#: Sections of how operations compute, of what the leaves are, and of the command line, which names the dump's folder.
_NO_REASONS = ("switches", "environment", "precision", "initial state", "batch", "script")
_REASONS_AMONG_THEM = ("default dtype", "default device", "fill uninitialized memory", "PYTHONHASHSEED", "git revision")


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
