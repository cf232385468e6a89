"""What manifests alone say: what looks wrong in one run, and how two runs are set up differently."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from msprobe_collector.dump_format import DumpError
from msprobe_collector.dump_format.manifest import read_manifest
from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.diagnose.looking import Holding
from pytest_msprobe.diagnosis import AtFault, CannotSay, Diagnosis
from pytest_msprobe.diagnosis.from_rows import headline_of
from pytest_msprobe.manifests.alone import suspicions
from pytest_msprobe.manifests.explanation import is_of_another_model
from pytest_msprobe.manifests.folders import differences_of, manifests_in, paired
from pytest_msprobe.manifests.text import sentences_of


def looks_wrong(holding: Holding) -> list[AtFault]:
    """What looks wrong in the manifests of one run, each thing once."""
    found = manifests_in(holding.path) if holding.has_manifest else []
    causes: dict[str, AtFault] = {}
    for one in found:
        for line in _suspicions(one.path):
            known = causes.get(line)
            steps = () if one.step is None else (one.step,)
            if known is not None:
                causes[line] = structs.replace(known, count=known.count + 1, steps=(*known.steps, *steps))
                continue
            name, colon, values = line.partition(": ")
            causes[line] = AtFault(
                id=str(one.path),
                record=values or name,
                kind="manifest",
                confidence="possible",
                name=line if len(line) < _LONGEST else name,
                sentence=f"run.json says so{f' of {values}' if colon else ''}",
                steps=steps,
                ranks=() if one.rank is None else (one.rank,),
            )
    return list(causes.values())


def _suspicions(path: Path) -> list[str]:
    """What looks wrong in the manifest at `path`; one that cannot be read tells nothing, and its dump may."""
    try:
        return suspicions(read_manifest(path))
    except DumpError:
        return []


#: Sentences up to this length stand whole in the headline.
_LONGEST = 60


def with_suspicions(found: Diagnosis, causes: list[AtFault]) -> Diagnosis:
    """`found`, and what looks wrong in the manifest: nothing is called right before that is looked at."""
    if not causes:
        return found
    at_fault = (*found.at_fault, *causes) if found.outcome == "fault" else (*causes, *found.at_fault)
    if found.outcome == "fault":
        return structs.replace(found, at_fault=at_fault)
    return structs.replace(
        found, outcome="unaccounted", at_fault=at_fault, headline=headline_of("unaccounted", at_fault)
    )


def with_derivatives(found: Diagnosis, holding: Holding) -> Diagnosis:
    """`found` of one run, which says that derivatives of scripts' own functions were not judged."""
    frames = [frame for dump in holding.dumps for frame in dump.stacks.written_backwards()]
    if not frames:
        return found
    first = f"{Path(frames[0].file).name}:{frames[0].line}"
    why = "its calls are judged, not whether they are the derivative; compare with a run without it"
    note = CannotSay(f"the backward that the script defines itself, at {first}", why)
    return structs.replace(found, cannot_say=(note, *found.cannot_say))


def of_another_model(target: Holding, golden: Holding) -> ArgumentDifference | None:
    """The first parameter, or else the first value of a record, that has another shape in the other run."""
    pairs, _, _ = paired(manifests_in(target.path), manifests_in(golden.path))
    for _, difference in differences_of(pairs)[0]:
        if is_of_another_model(difference) and difference.names:
            return difference.argument
    for one, other in zip(target.dumps, golden.dumps):
        for name in filter(other.__contains__, one.record_names):
            shapes = zip(one.shapes(name), other.shapes(name))
            unlike = next(((left, right) for left, right in shapes if left != right), None)
            if unlike is not None:
                return ArgumentDifference(name, *(str(list(shape)) for shape in unlike))
    return None


def set_up_differently(target: Holding, golden: Holding | None) -> tuple[str, ...]:
    """How two runs are set up differently, as their manifests say; () where they say nothing."""
    if golden is None or not (target.has_manifest and golden.has_manifest):
        return ()
    pairs, _, _ = paired(manifests_in(target.path), manifests_in(golden.path))
    return tuple(sentences_of(pairs))
