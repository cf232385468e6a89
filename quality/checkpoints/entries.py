"""What the catalogue is made of: a checkpoint, its conversion, and what is to be said of the pair."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from quality.checkpoints.files import torch_file


@dataclass(frozen=True, eq=False)
class Entry:
    """A pair of checkpoints: B is golden, A is a conversion of it.

    Attributes:
        name: in the catalogue.
        golden: makes the content of B.
        convert: makes the content of A, rightly.
        broken: makes the content of A, wrongly; None in a right pair.
        write, write_golden: write A and B; the path is that of a new file without suffix, or of a new folder.
        outcome: "equal" (exit code 0), "said" (not equal, but right: every element of A follows from B, or the other
            way round; the exit code is 0 or 1, and the answer has to say what it is) or "different" (exit code 1).
        at: regular expressions that an answer must match, each of them: what names the layer and the parameter.
        says: as `at`, what the answer should say that it is ("exchanged", "cast"). In an entry that is "said" it must.
        wrong: what is wrong, in a sentence.
    """

    name: str
    golden: Callable[[], Any]
    convert: Callable[[Any], Any]
    write: Callable[[Path, Any], Path] = torch_file
    write_golden: Callable[[Path, Any], Path] = torch_file
    broken: Callable[[Any], Any] | None = None
    outcome: str = "equal"
    at: tuple[str, ...] = ()
    says: str = ""
    wrong: str = ""

    @property
    def folder(self) -> str:
        """Where its pair is written."""
        return re.sub(r"[^A-Za-z0-9]+", "_", self.name).strip("_")

    def written(self, folder: Path) -> tuple[Path, Path]:
        """Write A and B into a new folder."""
        folder.mkdir(parents=True)
        golden = self.golden()
        made = (self.broken or self.convert)(golden)
        return self.write(folder / "converted", made), self.write_golden(folder / "golden", golden)


def catalogue() -> list[Entry]:
    """All entries, the right ones first."""
    from quality.checkpoints import right, wrong

    entries = [*right.ENTRIES, *wrong.ENTRIES]
    assert len({entry.folder for entry in entries}) == len(entries)
    return entries


def tensors(content: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a content with its name; parts of ranks begin with their number."""
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, Sequence) and not isinstance(content, str):
        for number, value in enumerate(content):
            yield from tensors(value, f"{name}.{number}" if name else f"{number}")


def layer(number: int, *parts: str) -> str:
    """A regular expression for a line that names a layer by its number, and one of these parts of it."""
    return rf"(?i)(layers?|blocks?|\bh)\W{{0,3}}{number}\b.*?({'|'.join(parts)})"
