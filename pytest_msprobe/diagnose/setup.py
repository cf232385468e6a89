"""What manifests alone say: what looks wrong in one run, and how two runs are set up differently."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.manifest import read_manifest
from pytest_msprobe.answers import Answer, ArgumentDifference, Finding, Gap, Place, with_open
from pytest_msprobe.diagnose.looking import Holding
from pytest_msprobe.manifests.alone import suspicions
from pytest_msprobe.manifests.explanation import is_of_another_model
from pytest_msprobe.manifests.folders import ManifestFile, differences_of, manifests_in, paired
from pytest_msprobe.manifests.text import sentences_of


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
