"""Node ids stay as they are: CI history, `--lf` and `--deselect` of users depend on every character.

node_ids.txt was written by the version before all suites had one frame. After a change that is meant, and in the
changelog: `PYTHONPATH=tests python tests/contract/test_contract_node_ids.py`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from contract_runs import Run, Workspace
from contract_samples import SAMPLES, Sample
from real_dumps import real_dumps

LISTING = Path(__file__).parent / "node_ids.txt"


def listed() -> dict[str, list[str]]:
    """Node ids by the headline above them."""
    found: dict[str, list[str]] = {}
    for line in LISTING.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            found[line[2:]] = ids = []
        elif line:
            ids.append(line)
    return found


def collected(run: Run) -> list[str]:
    """Node ids that `--collect-only -q` printed."""
    return [line for line in run.text.splitlines() if "::" in line]


def real_runs(folder: Path) -> dict[str, tuple[str, ...]]:
    """Command lines over real dumps below `folder`, by headline."""
    for name in ("gpt_tiny_mix", "gradients"):
        shutil.copytree(real_dumps() / name, folder / name, ignore=shutil.ignore_patterns("*.npy"))
    SAMPLES["comparison"].build(folder)
    dump = "--msprobe-dump=gpt_tiny_mix"
    return {
        "precheck, gpt_tiny_mix": (dump,),
        "comparison, gpt_tiny_mix": (dump, "--msprobe-golden=gpt_tiny_mix"),
        "comparison, unmatched records of the golden dump": ("--msprobe-dump=golden", "--msprobe-golden=target"),
        "overflow, gpt_tiny_mix": (dump, "--msprobe-suite=overflow"),
        "gradients, gradients/target": ("--msprobe-gradients=gradients/target", "--msprobe-golden=gradients/golden"),
        "gradients, by step": ("--msprobe-gradients=gradients/target", "--msprobe-gradient-items=step"),
    }


def test_of_the_sample(plain: Run, suite: str) -> None:
    """A suite that is newer than the listing has no history yet."""
    ids = [row["node_id"] for row in plain.rows]
    assert ids == listed().get(suite, ids)


def test_of_real_dumps(tmp_path: Path) -> None:
    assert real_listing(tmp_path) == {key: ids for key, ids in listed().items() if key not in SAMPLES}


def real_listing(folder: Path) -> dict[str, list[str]]:
    runs = real_runs(folder)
    nothing = Sample(lambda _: None, (), lambda _: 0, ())
    found = Workspace(nothing, folder).run_all(["--collect-only", "-q", *arguments] for arguments in runs.values())
    return {key: collected(run) for key, run in zip(runs, found)}


if __name__ == "__main__":
    LISTING.write_text("")
    with tempfile.TemporaryDirectory() as name, LISTING.open("w", encoding="utf-8") as file:
        listing = {}
        for suite in SAMPLES:
            (Path(name) / suite).mkdir()
            (run,) = Workspace(SAMPLES[suite], Path(name) / suite).run_all([["--collect-only", "-q"]])
            listing[suite] = collected(run)
        (real := Path(name) / "real").mkdir()
        for key, ids in {**listing, **real_listing(real)}.items():
            print(f"# {key}", *ids, "", sep="\n", file=file)
    print(sum(map(len, listing.values())), file=sys.stderr)
