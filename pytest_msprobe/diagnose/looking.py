"""What a path holds that somebody wants a diagnosis of: dumps, gradients, a manifest, or nothing that can be judged.

Manifests alone say what looks wrong in one run, and how two runs are set up differently.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path

from msgspec import structs

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.dump import Slot
from msprobe_collector.dump_format.manifest import read_manifest
from msprobe_collector.dump_format.values import counted, optional
from pytest_msprobe.answers import Answer, ArgumentDifference, Finding, Gap, Place, with_open
from pytest_msprobe.engines.protocol import parse_device
from pytest_msprobe.engines.selection import EngineChoice, Engines
from pytest_msprobe.manifests.alone import suspicions
from pytest_msprobe.manifests.text import ManifestFile, differences_of, manifests_in, paired, sentences_of
from pytest_msprobe.manifests.value import is_of_another_model
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
        return any(map(attrgetter("record_names"), self.dumps))

    @property
    def records(self) -> int:
        """How many records all dumps hold."""
        return sum(map(len, map(attrgetter("record_names"), self.dumps)))

    @property
    def holds_tensors(self) -> bool:
        """Whether any dump holds values of tensors."""
        return any(map(attrgetter("holds_real_data"), self.dumps))

    def has_record(self, is_meant: Callable[[str], bool]) -> bool:
        """Whether there is a record whose name is meant."""
        return any(map(is_meant, chain.from_iterable(map(attrgetter("record_names"), self.dumps))))

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
        return max(map(len, self._steps.values()), default=0)

    @property
    def ranks_differ_in_shapes(self) -> bool:
        """Whether two ranks of a step call the same record with other shapes."""
        # Four ranks of a step stand for all.
        return any(_differ(dumps[:4]) for dumps in self._steps.values() if len(dumps) > 1)

    @property
    def _steps(self) -> dict[tuple[Path, int | None], list[Dump]]:
        steps: dict[tuple[Path, int | None], list[Dump]] = {}
        for dump in self.dumps:
            slot = Slot.of(dump.path)
            if slot.rank is not None:
                steps.setdefault((dump.path.parents[1], slot.step), []).append(dump)
        return steps

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
        return sum(map(_size, self.dumps))

    def __str__(self) -> str:
        """What is there, in a few words: `tensors, level L1, 180 records, 2 ranks`."""
        if not self.is_dump:
            words = {"gradients": self.gradients, "a manifest": self.has_manifest}
            files = sorted(set(map(attrgetter("name"), chain(*self.others.values()))))
            return " and ".join([*filter(words.get, words), *files]) or "nothing that can be judged"
        parts = [self.dumps[0].task]
        if self.holds_tensors:
            parts = ["tensors"]
        elif any(map(attrgetter("holds_sketches"), self.dumps)):
            parts = ["sketches"]
        levels = {dump.level for dump in self.dumps if dump.level}
        if len(levels) == 1:
            parts.append(f"level {levels.pop()}")
        parts.append(counted(self.records, "records"))
        steps = len({step for _, step in self._steps})
        parts += [f"{count} {nouns}" for count, nouns in ((steps, "steps"), (self.ranks, "ranks")) if count > 1]
        return ", ".join(filter(None, parts))


def _differ(dumps: list[Dump]) -> bool:
    first, *others = dumps
    names = set(first.record_names)
    for other in others:
        if any(first.shapes(name) != other.shapes(name) for name in names.intersection(other.record_names)):
            return True
    return False


def _size(dump: Dump) -> int:
    total = dump.path.stat().st_size
    folder = dump.path.parent / "dump_tensor_data"
    if dump.holds_real_data and folder.is_dir():
        total += sum(file.stat().st_size for file in folder.iterdir())
    return total


def look_at(path: Path) -> Holding:
    """What is at `path`: a dump.json or another file, or a folder of dumps or gradients."""
    holding = Holding(path)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        holding.why_nothing, holding.is_usable = f"{error.strerror}", False
        return holding
    if not is_file and not is_folder:
        holding.why_nothing, holding.is_usable = "there is no such file or folder", False
        return holding
    if is_file:
        _look_at_file(holding)
        return holding
    folder = look_through(path)
    if folder.empty_run is not None:
        earlier = folder.empty_run.earlier
        named = optional("; to judge an earlier dump, name it: {}", earlier and earlier.parent)
        holding.why_nothing = f"{folder.empty_run}{named}"
        return holding
    for dump in folder.dumps:
        if dump.name not in FILES:
            _read(holding, dump)
    holding.runs = _gradient_runs(path) if folder.gradients is not None else []
    holding.gradients = len(holding.runs) == 1
    holding.has_manifest = any(path.rglob(MANIFEST))
    for entry in SUITES.values():
        if files := sorted(chain(*map(path.rglob, entry.files))):
            holding.others[entry.name] = files
    if holding.is_dump or holding.gradients or holding.others:
        return holding
    if holding.unreadable:
        holding.why_nothing = next(iter(holding.unreadable.values()))
    elif holding.runs:
        holding.why_nothing = (
            f"holds gradients of {len(holding.runs)} runs; name one of them, and the other as golden run"
        )
    elif holding.dumps:
        holding.why_nothing = f"{holding.dumps[0].path} holds no record; dump a step that runs"
    elif holding.has_manifest:
        holding.why_nothing = "holds a manifest (run.json) and no dump.json; give the manifest of another run beside it"
    else:
        holding.why_nothing = why_no_dump(folder)
    return holding


def _gradient_runs(path: Path) -> list[Path]:
    """The folders at or below `path` that hold ranks with gradients; `path` itself where it is a rank."""
    ranks = set(map(attrgetter("parent"), path.rglob("grad_summary_*.csv")))
    return [path] if path in ranks else sorted(set(map(attrgetter("parent"), ranks)))


def of_one_model(target: Holding, golden: Holding) -> float:
    """Share of the shapes of the smaller one that the other one has as well, from 0 to 1; 1 where there are none."""
    shapes, golden_shapes = _shapes(target), _shapes(golden)
    smaller = min(shapes.total(), golden_shapes.total())
    return (shapes & golden_shapes).total() / smaller if smaller else 1.0


def _shapes(holding: Holding) -> Counter[tuple[int, ...]]:
    """How often each shape of more than one dimension occurs in the first dump of `holding`."""
    shapes: Counter[tuple[int, ...]] = Counter()
    for dump in holding.dumps[:1]:
        for shape in chain.from_iterable(map(dump.shapes, dump.record_names)):
            shapes[shape] += len(shape) > 1
    return +shapes


def _look_at_file(holding: Holding) -> None:
    if holding.path.name == MANIFEST:
        holding.has_manifest = True
        holding.why_nothing = "is a manifest and no dump.json; give the manifest of another run beside it"
    elif holding.path.name in FILES:
        holding.others = {entry.name: [holding.path] for entry in SUITES.values() if holding.path.name in entry.files}
    else:
        holding.has_manifest = holding.path.with_name(MANIFEST).is_file()
        _read(holding, holding.path)
        if holding.unreadable:
            holding.why_nothing, holding.is_usable = holding.unreadable[holding.path], False
        elif not holding.is_dump:
            holding.why_nothing = "holds no record; dump a step that runs"


def _read(holding: Holding, path: Path) -> None:
    try:
        holding.dumps.append(Dump(path))
    except DumpError as error:
        holding.unreadable[path] = str(error)


def looks_wrong(holding: Holding) -> list[Finding]:
    """What looks wrong in the manifests of one run, each thing once."""
    manifests: dict[str, list[ManifestFile]] = {}
    for manifest in manifests_in(holding.path) if holding.has_manifest else []:
        for line in _suspicions(manifest.path):
            manifests.setdefault(line, []).append(manifest)
    causes = []
    for line, (first, *others) in manifests.items():
        steps = tuple(file.step for file in (first, *others) if file.step is not None)
        ranks = () if first.rank is None else (first.rank,)
        place = Place(record="", operation="the set-up", steps=steps, ranks=ranks)
        cause = Finding(id=str(first.path), kind="manifest", confidence="possible", place=place, detail=line)
        causes.append(structs.replace(cause, count=1 + len(others)))
    return causes


def _suspicions(path: Path) -> list[str]:
    """What looks wrong in the manifest at `path`; one that cannot be read tells nothing, and its dump may."""
    try:
        return suspicions(read_manifest(path))
    except DumpError:
        return []


def with_suspicions(answer: Answer, causes: list[Finding]) -> Answer:
    """`answer`, and what looks wrong in the manifest, behind what was shown and before all else."""
    if not causes:
        return answer
    shown = answer.findings if answer.outcome == "wrong" else ()
    return structs.replace(answer, outcome="wrong", findings=(*shown, *causes))


def with_derivatives(answer: Answer, holding: Holding) -> Answer:
    """`answer` of one run, which says that derivatives of scripts' own functions were not judged."""
    frames = [frame for dump in holding.dumps for frame in dump.stacks.written_backwards()]
    if not frames:
        return answer
    first = f"the backward that the script defines itself, at {Path(frames[0].file).name}:{frames[0].line}"
    return with_open(answer, [Gap(kind="derivative", what=first)])


def of_another_model(target: Holding, golden: Holding) -> ArgumentDifference | None:
    """The first parameter, or else the first value of a record, that has another shape in the other run."""
    pairs, _, _ = paired(manifests_in(target.path), manifests_in(golden.path))
    for _, difference in differences_of(pairs)[0]:
        if is_of_another_model(difference) and difference.names:
            return difference.argument
    for dump, golden_dump in zip(target.dumps, golden.dumps):
        for name in filter(golden_dump.__contains__, dump.record_names):
            for shape, golden_shape in zip(dump.shapes(name), golden_dump.shapes(name)):
                if shape != golden_shape:
                    return ArgumentDifference(name, str(list(shape)), str(list(golden_shape)))
    return None


def set_up_differently(target: Holding, golden: Holding | None) -> tuple[str, ...]:
    """How two runs are set up differently, as their manifests say; () where they say nothing."""
    if golden is None or not (target.has_manifest and golden.has_manifest):
        return ()
    pairs, _, _ = paired(manifests_in(target.path), manifests_in(golden.path))
    return tuple(sentences_of(pairs))
