"""What a path holds that somebody wants a diagnosis of: dumps, gradients, a manifest, or nothing that can be judged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.run.dump_folders import look_through, why_no_dump
from pytest_msprobe.suites.grouping import estimate_cost
from pytest_msprobe.suites.registry import FILES, SUITES

#: Statistics that are NaN or infinite, in a dump.json.
_NOT_FINITE = re.compile(rb'"(?:Max|Min|Mean|Norm)"\s*:\s*"?-?(?:nan|inf|infinity)', re.IGNORECASE)
#: What a run writes of itself.
MANIFEST = "run.json"


@dataclass(slots=True)
class Holding:
    """What is at a path.

    Attributes:
        path: that was named.
        dumps: those that can be read, in the order in which they are judged.
        unreadable: why a dump.json cannot be read, by its path.
        why_nothing: why nothing here can be judged, and what to do; "" where something can.
        gradients: whether there are gradients of a monitor, of one run.
        runs: folders of runs with gradients.
        has_manifest: whether a run says what it was made of.
        others: files that a suite judges and that are no dump, by the name of the suite.
        is_usable: False where the path is no dump and no folder at all.
    """

    path: Path
    dumps: list[Dump] = field(default_factory=list)
    unreadable: dict[Path, str] = field(default_factory=dict)
    why_nothing: str = ""
    gradients: bool = False
    runs: list[Path] = field(default_factory=list)
    has_manifest: bool = False
    others: dict[str, list[Path]] = field(default_factory=dict)
    is_usable: bool = True

    @property
    def is_dump(self) -> bool:
        """Whether there is a dump.json with records."""
        return any(dump.record_names for dump in self.dumps)

    @property
    def records(self) -> int:
        """How many records all dumps hold."""
        return sum(len(dump.record_names) for dump in self.dumps)

    @property
    def holds_tensors(self) -> bool:
        """Whether any dump holds values of tensors."""
        return any(dump.holds_real_data for dump in self.dumps)

    def has_record(self, is_meant: Callable[[str], bool]) -> bool:
        """Whether there is a record whose name is meant."""
        return any(is_meant(name) for dump in self.dumps for name in dump.record_names)

    @property
    def not_finite(self) -> bool:
        """Whether a statistic of a tensor is NaN or infinite."""
        return any(_NOT_FINITE.search(dump.path.read_bytes()) for dump in self.dumps)

    @property
    def has_following_steps(self) -> bool:
        """Whether one step of the training follows on another, as the folders of the dumps say."""
        steps = {step for dump in self.dumps if (step := Slot.of(dump.path).step) is not None}
        return any(step + 1 in steps for step in steps)

    @property
    def ranks(self) -> int:
        """Most ranks of one step."""
        return max((len(dumps) for dumps in self._steps.values()), default=0)

    @property
    def ranks_differ_in_shapes(self) -> bool:
        """Whether two ranks of a step call the same record with other shapes."""
        # Four ranks of a step stand for all.
        return any(_differ(dumps[:4]) for dumps in self._steps.values() if len(dumps) > 1)

    @property
    def _steps(self) -> dict[tuple[Path, int | None], list[Dump]]:
        found: dict[tuple[Path, int | None], list[Dump]] = {}
        for dump in self.dumps:
            slot = Slot.of(dump.path)
            if slot.rank is not None:
                found.setdefault((dump.path.parents[1], slot.step), []).append(dump)
        return found

    @property
    def cost(self) -> float:
        """What it costs to run all calls, in elements."""
        calls = ((dump, name.rpartition(".")[0]) for dump in self.dumps for name in dump.record_names)
        return sum(estimate_cost(dump, call) for dump, call in dict.fromkeys(calls) if f"{call}.forward" in dump)

    @property
    def tests_no_device(self) -> bool:
        """Whether a pre-check would compare the CPU of PyTorch with itself in every dump."""
        engines = Engines(EngineChoice(parse_device("auto"), "auto", None))
        return all(map(engines.tests_no_device, self.dumps))

    @property
    def bytes(self) -> int:
        """Size of the files that are read: dump.json and tensors."""
        return sum(_size(dump) for dump in self.dumps)

    def __str__(self) -> str:
        """What is there, in a few words: `tensors, level L1, 180 records, 2 ranks`."""
        if not self.is_dump:
            words = ["gradients"] if self.gradients else []
            words += ["a manifest"] if self.has_manifest else []
            words += sorted({file.name for files in self.others.values() for file in files})
            return " and ".join(words) or "nothing that can be judged"
        holds_sketches = any(dump.holds_sketches for dump in self.dumps)
        form = "tensors" if self.holds_tensors else "sketches" if holds_sketches else self.dumps[0].task
        levels = sorted({dump.level for dump in self.dumps if dump.level})
        steps = len({step for _, step in self._steps})
        parts = [form, f"level {levels[0]}" if len(levels) == 1 else "", counted(self.records, "records")]
        parts += [f"{steps} steps" if steps > 1 else "", f"{self.ranks} ranks" if self.ranks > 1 else ""]
        return ", ".join(filter(None, parts))


def _differ(dumps: list[Dump]) -> bool:
    first, *others = dumps
    names = set(first.record_names)
    return any(
        first.shapes(name) != other.shapes(name) for other in others for name in other.record_names if name in names
    )


def _size(dump: Dump) -> int:
    total = dump.path.stat().st_size
    folder = dump.path.parent / "dump_tensor_data"
    if dump.holds_real_data and folder.is_dir():
        with_size = (file.stat().st_size for file in folder.iterdir())
        total += sum(with_size)
    return total


def look_at(path: Path) -> Holding:
    """What is at `path`: a dump.json or another file, or a folder of dumps or gradients."""
    found = Holding(path)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        found.why_nothing, found.is_usable = f"{error.strerror}", False
        return found
    if not is_file and not is_folder:
        found.why_nothing, found.is_usable = "there is no such file or folder", False
        return found
    if is_file:
        _look_at_file(found)
        return found
    folder = look_through(path)
    if folder.empty_run is not None:
        earlier = folder.empty_run.earlier
        named = f"; to judge an earlier dump, name it: {earlier.parent}" if earlier is not None else ""
        found.why_nothing = f"{folder.empty_run}{named}"
        return found
    for dump in folder.dumps:
        if dump.name not in FILES:
            _read(found, dump)
    found.runs = _gradient_runs(path) if folder.gradients is not None else []
    found.gradients = len(found.runs) == 1
    found.has_manifest = any(path.rglob(MANIFEST))
    files = {entry.name: sorted(file for name in entry.files for file in path.rglob(name)) for entry in SUITES.values()}
    found.others = {suite: judged for suite, judged in files.items() if judged}
    if found.is_dump or found.gradients or found.others:
        return found
    if found.unreadable:
        found.why_nothing = next(iter(found.unreadable.values()))
    elif found.runs:
        found.why_nothing = f"holds gradients of {len(found.runs)} runs; name one of them, and the other as golden run"
    elif found.dumps:
        found.why_nothing = f"{found.dumps[0].path} holds no record; dump a step that runs"
    elif found.has_manifest:
        found.why_nothing = "holds a manifest (run.json) and no dump.json; give the manifest of another run beside it"
    else:
        found.why_nothing = why_no_dump(folder)
    return found


def _gradient_runs(path: Path) -> list[Path]:
    """The folders at or below `path` that hold ranks with gradients; `path` itself where it is a rank."""
    ranks = {file.parent for file in path.rglob("grad_summary_*.csv")}
    return [path] if path in ranks else sorted({rank.parent for rank in ranks})


def of_one_model(one: Holding, other: Holding) -> float:
    """Share of the shapes in the smaller one that the other one has as well, from 0 to 1; 1 where there are none."""
    shapes = [_shapes(holding) for holding in (one, other)]
    smaller = min(found.total() for found in shapes)
    return (shapes[0] & shapes[1]).total() / smaller if smaller else 1.0


def _shapes(holding: Holding) -> Counter[tuple[int, ...]]:
    """How often each shape of more than one dimension occurs in the first dump of `holding`."""
    found: Counter[tuple[int, ...]] = Counter()
    for dump in holding.dumps[:1]:
        for name in dump.record_names:
            found.update(shape for shape in dump.shapes(name) if len(shape) > 1)
    return found


def _look_at_file(found: Holding) -> None:
    if found.path.name == MANIFEST:
        found.has_manifest = True
        found.why_nothing = "is a manifest and no dump.json; give the manifest of another run beside it"
    elif found.path.name in FILES:
        found.others = {entry.name: [found.path] for entry in SUITES.values() if found.path.name in entry.files}
    else:
        found.has_manifest = found.path.with_name(MANIFEST).is_file()
        _read(found, found.path)
        if found.unreadable:
            found.why_nothing, found.is_usable = found.unreadable[found.path], False
        elif not found.is_dump:
            found.why_nothing = "holds no record; dump a step that runs"


def _read(found: Holding, path: Path) -> None:
    try:
        found.dumps.append(Dump(path))
    except DumpError as error:
        found.unreadable[path] = str(error)
