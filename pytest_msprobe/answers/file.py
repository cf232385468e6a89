"""The file of an answer, and the dump that it is about: JSON of bounded size, which replaces an earlier answer only."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.manifest import MANIFEST_FILE, read_manifest
from pytest_msprobe.answers.answer import MOST_HEADLINE, About, Answer, Measure, abridged
from pytest_msprobe.answers.finding import Finding, Parted
from pytest_msprobe.answers.words import said

#: Largest size of the JSON, in bytes.
MOST_BYTES = 4096
_BEGINNING = b'{\n "schema": '
#: Of parameters that are named.
_MOST_PARAMETERS = 3
#: Most entries of each list.
_MOST = {"findings": 8, "open": 8, "next": 5, "setup": 8, "about": 4, "steps": 6}
_LONGEST = {"detail": 300, "name": 120, "reason": 240, "text": 260, "what": 160, "tells": 200, "how": 60, "script": 160}
_LONGEST |= {"call": 120, "source": 160}


def check_replaceable(path: Path) -> None:
    """Refuse to write over a file at `path` that this plugin did not write.

    Raises:
        FileExistsError: the file is no answer.
        OSError: it cannot be read.
    """
    if path.exists():
        with path.open("rb") as file:
            beginning = file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(beginning):
            raise FileExistsError(f"{path} holds something else than an answer, and is not replaced")


def write_answer(path: Path, answer: Answer) -> None:
    """Write `answer` into the file at `path`. Raises OSError."""
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb") as file:
        file.write(to_json(answer))


def to_json(answer: Answer) -> bytes:
    """`answer`, with its texts, as JSON of at most `MOST_BYTES` bytes and a newline at its end.

    Lists are cut from their ends, and `cut` counts what is left out.
    """
    answer = _bounded(said(answer))
    while len(text := _encoded(answer)) > MOST_BYTES:
        smaller = _with_less(answer)
        if smaller is None:
            return _encoded(_bare(answer))
        answer = smaller
    return text


#: What is taken away first where the whole is too large: lists in this order, and how many
#: entries of them stay then.
_LEAST = (
    ("open setup", 4),
    ("findings", 5),
    ("next", 3),
    ("about open", 2),
    ("findings", 3),
    ("setup next findings", 2),
    ("open setup next steps findings", 1),
    ("about setup next open steps", 0),
)


def _bounded(answer: Answer) -> Answer:
    """A copy with texts and lists of bounded length, and rounded figures."""
    kept: dict[str, Any] = {name: tuple(getattr(answer, name))[:most] for name, most in _MOST.items()}
    cut = dict(answer.cut)
    for name in _MOST:
        if (surplus := len(getattr(answer, name)) - len(kept[name])) > 0:
            cut[name] = cut.get(name, 0) + surplus
    kept["setup"] = tuple(abridged(sentence, _LONGEST["reason"]) for sentence in kept["setup"])
    for name in _MOST.keys() - {"setup"}:
        kept[name] = tuple(map(_short, kept[name]))
    if answer.exact is not None:
        kept["exact"] = _short(answer.exact)
    if answer.content is not None and (parted := answer.content.parted) is not None:
        kept["content"] = structs.replace(answer.content, parted=_short_parted(parted))
    return structs.replace(answer, **kept, cut=cut, headline=abridged(answer.headline, MOST_HEADLINE))


def _short_parted(parted: Parted) -> Parted:
    """A copy with the first and the last call of each run."""
    sides = {}
    for name in ("target", "golden"):
        calls = getattr(parted, name)
        sides[name] = tuple(map(_short, calls[:1] + calls[1:][-1:]))
    figures = {name: rounded(getattr(parted, name)) for name in ("distance", "factor")}
    return structs.replace(parted, **sides, **figures, parameters=parted.parameters[:_MOST_PARAMETERS])


def _short(entry: msgspec.Struct) -> msgspec.Struct:
    changes: dict[str, Any] = {
        name: abridged(getattr(entry, name), most) for name, most in _LONGEST.items() if hasattr(entry, name)
    }
    if isinstance(entry, Finding):
        place = entry.place
        numbers = {"steps": place.steps[:8], "layers": place.layers[:16], "numbers": place.numbers[:16]}
        source = abridged(place.source, _LONGEST["source"])
        changes["place"] = structs.replace(place, **numbers, ranks=place.ranks[:16], source=source)
        changes["figures"] = {name: rounded(value) for name, value in entry.figures.items()}
        changes["arguments"] = entry.arguments[:4]
    return structs.replace(entry, **changes)


def _with_less(answer: Answer) -> Answer | None:
    """A copy without the entry that is missed least; None where nothing can be taken away."""
    for names, least in _LEAST:
        for name in names.split():
            entries = getattr(answer, name)
            if len(entries) > least:
                cut = {**answer.cut, name: answer.cut.get(name, 0) + 1}
                return structs.replace(answer, **{name: entries[:-1]}, cut=cut)
    if answer.next_collection is not None:
        return structs.replace(answer, next_collection=None)
    return structs.replace(answer, content=None) if answer.content is not None else None


def _bare(answer: Answer) -> Answer:
    """What remains where single entries are too large, as with paths of thousands of characters."""
    cut = {name: answer.cut.get(name, 0) + len(getattr(answer, name)) for name in _MOST}
    cut = {name: count for name, count in cut.items() if count}
    nothing: dict[str, Any] = {**dict.fromkeys(_MOST, ()), **dict.fromkeys(("exact", "next_collection", "content"))}
    reach = structs.replace(answer.reach, last="")
    return structs.replace(answer, **nothing, reach=reach, measure=Measure(), cut=cut)


def _encoded(answer: Answer) -> bytes:
    return msgspec.json.format(msgspec.json.encode(answer), indent=1) + b"\n"


def rounded(value: float | str | None) -> float | int | str | None:
    """A number of four digits; what is not finite as a word, since JSON has none. Words stay as they are."""
    if value is None or isinstance(value, (int, str)):
        return value
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)


def about_of(path: Path, *, side: Literal["target", "golden", "exact"] = "target") -> About:
    """The dump at `path` with the script and time of its first run.json; both are "" where there is none."""
    manifest = _first_manifest(path)
    if manifest is None:
        return About(path=str(path), side=side)
    try:
        facts = read_manifest(manifest)
    except DumpError:
        return About(path=str(path), side=side)
    command = facts.script.get("command")
    script = shlex.join(map(str, command)) if isinstance(command, list) else ""
    return About(path=str(path), side=side, script=script, time=facts.time[:16].replace("T", " "))


def _first_manifest(path: Path) -> Path | None:
    folder = path if path.is_dir() else path.parent
    # A run has steps, and a step has ranks; below these there are only tensors, perhaps a million files.
    patterns = (MANIFEST_FILE, f"*/{MANIFEST_FILE}", f"*/*/{MANIFEST_FILE}") if path.is_dir() else (MANIFEST_FILE,)
    try:
        for pattern in patterns:
            if first := min(folder.glob(pattern), default=None):
                return first
    except OSError:
        return None
    return None
