"""What the laws said of a training, and whether it is what the catalogue expects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quality.laws.entries import Entry

#: Names of the product's laws by the laws of the catalogue.
NAMES = {
    "formula": ("update-formula",),
    "step": ("step-counter",),
    "moments": ("moments-formula", "state-continues"),
    "decay": ("decay-as-declared",),
    "shared state": ("own-state",),
    "no optimizer": ("in-an-optimizer",),
    "two optimizers": ("in-one-optimizer",),
    "frozen": ("stays-trainable", "training-mode"),
    "stale gradient": ("gradients-are-fresh",),
    "no gradient": ("gradients-arrive",),
    "lost updates": ("updates-arrive",),
    "clip norm": ("clip-norm",),
    "unscaled": ("scale-removed",),
    "tied": ("ties-kept",),
    "dtype": ("storage-kept", "buffers-kept"),
    "storage": ("storage-kept",),
    "replicas": ("replicas-agree",),
    "EMA": ("ema-decay",),
    "dropout in eval": ("dropout-off-in-eval",),
    "dropout layers": ("dropout-independent",),
    "dropout ranks": ("ranks-draw-differently",),
    "recomputation": ("recomputation-repeats",),
    "data workers": ("batches-differ",),
    "same batch": ("batches-differ",),
    "labels": ("labels-aligned",),
    "resume": ("resume-continues",),
    "schedule": ("schedules-advance",),
    "hyper-parameters": ("hyper-parameters",),
    "no update": ("something-updated",),
    "accumulation": ("gradients-are-fresh",),
    "rank data": (),
    "target": (),
}


@dataclass(frozen=True)
class Told:
    """One finding."""

    law: str
    names: tuple[str, ...]
    message: str
    step: int
    rank: int

    def __str__(self) -> str:
        shown = ", ".join(self.names[:3]) + (f" and {len(self.names) - 3} more" if len(self.names) > 3 else "")
        return f"{self.law}: {shown}: {self.message} (step {self.step}, rank {self.rank})"


@dataclass(frozen=True)
class Answer:
    """What was said of one entry.

    Attributes:
        entry: the training.
        told: all findings, in the order in which they were written, rank by rank.
        failure: why there is no answer.
        seconds: that the training took.
        checked: number of laws that were checked.
    """

    entry: Entry
    told: tuple[Told, ...] = ()
    failure: str = ""
    seconds: float = 0.0
    checked: int = 0

    @property
    def verdict(self) -> str:
        """`right`, `innocent named too`, `wrong name`, `wrong law`, `missed`; `clean` or `alarm`; `no answer`."""
        if self.failure:
            return "no answer"
        if self.entry.is_clean:
            return "alarm" if self.told else "clean"
        if not self.told:
            return "missed"
        laws = {name for law in self.entry.laws for name in NAMES[law]}
        of_law = [one for one in self.told if one.law in laws]
        if not of_law:
            return "wrong law"
        if not any(self._names(one) for one in of_law):
            return "wrong name"
        is_all_right = all(one.law in laws and self._names(one) for one in self.told)
        return "right" if is_all_right else "innocent named too"

    def _names(self, told: Told) -> bool:
        """Whether all that a finding names is at fault."""
        text = told.message
        return all(_is_at(name, self.entry.at) for name in told.names) or any(part in text for part in self.entry.at)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.entry.name} ({self.seconds:.1f} s, {self.checked} laws checked)"]
        lines += [f"    {one}" for one in _distinct(self.told)]
        return "\n".join([*lines, *([f"    {self.failure}"] if self.failure else [])])


def _is_at(name: str, at: Sequence[str]) -> bool:
    """Whether a name is one of those at fault, or within a layer or a part that is."""
    plain = name.removeprefix("module.")
    return any(plain == one or plain.startswith(f"{one}.") or one.lower() in plain.lower() for one in at)


def _distinct(told: Sequence[Told]) -> Iterator[Told]:
    seen = set()
    for one in told:
        key = (one.law, one.names)
        if key not in seen:
            seen.add(key)
            yield one


def read(entry: Entry, folder: Path, *, failure: str = "", seconds: float = 0.0) -> Answer:
    """The answer in the files that the laws wrote below `folder`."""
    told, checked = [], set()
    for file in sorted(folder.glob("msprobe_laws/rank*/laws.jsonl")):
        rank = 0
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["kind"] == "run":
                rank = row["rank"]
            elif row["kind"] == "finding":
                names = (row["parameter"], *row["others"])
                told.append(Told(row["law"], names, row["message"], row["step"], rank))
            elif row["kind"] == "checked" and row["checks"]:
                checked.add(row["law"])
    told += _of_ranks(folder) if entry.ranks > 1 else []
    if not checked and not failure:
        failure = "no law was checked"
    return Answer(entry, tuple(told), failure, seconds, len(checked))


def _of_ranks(folder: Path) -> list[Told]:
    """What the suite `laws` says of all ranks together."""
    from msprobe_laws.suite.live import read_laws
    from msprobe_laws.suite.ranks import judge_draws, judge_replicas

    files = [read_laws(file) for file in sorted(folder.glob("msprobe_laws/rank*/laws.jsonl"))]
    found = []
    for law, judge in (("replicas-agree", judge_replicas), ("ranks-draw-differently", judge_draws)):
        verdict = judge(files)
        if verdict.status == "error":
            names = tuple(row.label for row in verdict.outputs)
            found.append(Told(law, names, verdict.message, -1, -1))
    return found


def summary(answers: Sequence[Answer]) -> Iterator[str]:
    """The counts."""
    for what, is_clean in (("violations", False), ("clean trainings", True)):
        for held, is_held_out in (("", False), (", held out", True)):
            own = [one for one in answers if one.entry.is_clean is is_clean and one.entry.is_held_out is is_held_out]
            for framework in sorted({one.entry.framework for one in own}):
                of = [one for one in own if one.entry.framework == framework]
                counts = Counter(one.verdict for one in of)
                text = "; ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
                yield f"{what}{held}, {framework}: {len(of)}: {text}"
