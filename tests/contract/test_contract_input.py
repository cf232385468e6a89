"""Whatever a run is given is used, refused, or said to be left out; nothing is dropped in silence.

`WAYS` lists the ways to give input: arguments, ini, YAML, environment, folders and files beside a dump. A new way gets
a line here. Options that have no effect in a suite are in `test_contract_options.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from contract_runs import Run, Workspace
from contract_samples import SAMPLES
from gradient_runs import write_step

DUMPED = ("precheck", "comparison", "overflow", "repeat", "sharded")
ALL = (*DUMPED, "gradients")
#: What names the sample of each suite, without the dumps; all runs are of calls that pass.
RUNS = {
    "precheck": (),
    "comparison": ("--msprobe-golden={golden}", "--msprobe-accounting=off", "--msprobe-accept=unmatched"),
    "overflow": ("--msprobe-suite=overflow",),
    "repeat": ("--msprobe-suite=repeat",),
    "gradients": ("--msprobe-golden={golden}", "--msprobe-gradient-items=parameter"),
    "sharded": ("--msprobe-logical={golden}",),
}
#: Items of a run over both ranks of the sample, calls named neg or gradients of v.
COUNTS = {"precheck": 10, "comparison": 10, "overflow": 10, "repeat": 10, "gradients": 5, "sharded": 8}


@dataclass(frozen=True)
class Way:
    """One way to give input.

    Attributes:
        outcome: `used`: the items are those of the whole sample; `refused`: one line before the run; `fault`: a line,
            and the run is no success; `said`: a line.
        words: in that line; of `used`, none.
        arguments: in place of `{dumps}`, the option and the whole sample.
        suites: that it is given to.
        prepare: what it does to the files in a folder of its own.
    """

    outcome: str
    words: str = ""
    arguments: tuple[str, ...] = ("{dumps}",)
    suites: tuple[str, ...] = DUMPED
    prepare: Callable[[Path], object] = lambda here: None


def write(name: str, text: str) -> Callable[[Path], object]:
    """A file with `text` at `name`, `dump` being the folder of the target's step."""

    def prepare(here: Path) -> None:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    return prepare


def cut(name: str, kept: float = 0.9) -> Callable[[Path], object]:
    """The file at `name` without its end."""

    def prepare(here: Path) -> None:
        text = (here / name).read_bytes()
        (here / name).write_bytes(text[: int(len(text) * kept)])

    return prepare


def hooks(text: str) -> Callable[[Path], object]:
    """The hooks of another plugin, as a conftest.py has them."""

    def prepare(here: Path) -> None:
        path = here / "conftest.py"
        path.write_text(f"{path.read_text(encoding='utf-8')}\nimport pytest\n{text}", encoding="utf-8")

    return prepare


def gradients_at(name: str) -> Callable[[Path], object]:
    """A run of gradients at `name`."""
    return lambda here: write_step(here / name, 0, {"w": [1.0, 2.0]})


INI = "[pytest]\n"
#: An entry per line, as the collector writes it, whose last one lacks its end.
TORN_PARENTS = '{\n"Mint.neg.0.forward": null,\n"Mint.neg.1.forward": nu'
WAYS = {
    # Dumps
    "the option": Way("used"),
    "folders that a shell expands": Way("used", arguments=("--msprobe-dump", "dump/rank0", "dump/rank1")),
    "files that a shell expands": Way(
        "used", arguments=("--msprobe-dump", "dump/rank0/dump.json", "dump/rank1/dump.json")
    ),
    "a plain folder before the option": Way("used", arguments=("dump/rank1", "--msprobe-dump=dump/rank0")),
    "the same folder twice": Way("used", arguments=("dump", "--msprobe-dump=dump")),
    "a folder inside the named one": Way("used", arguments=("dump/rank1", "--msprobe-dump=dump")),
    "a file and a folder, without the option": Way("used", arguments=("dump/rank0/dump.json", "dump/rank1")),
    "an ini file": Way("used", arguments=(), prepare=write("pytest.ini", f"{INI}msprobe_dump = dump\n")),
    "-o": Way("used", arguments=("-o", "msprobe_dump=dump")),
    "YAML": Way("used", arguments=("--msprobe-config=x.yaml",), prepare=write("x.yaml", "dump: dump\n")),
    "a folder that is not there": Way("refused", "there is no such file or folder", ("--msprobe-dump=none",)),
    "a pattern that nobody expands": Way("refused", "there is no such file or folder", ("--msprobe-dump=dump/rank*",)),
    "an empty folder": Way(
        "refused", "holds no dump.json", ("--msprobe-dump=e",), prepare=lambda here: (here / "e").mkdir()
    ),
    "a dump among tests": Way(
        "said",
        "more/d/dump.json in",
        ("{dumps}", "more"),
        prepare=lambda here: (
            write("more/test_more.py", "def test_neg(): pass\n")(here),
            shutil.copytree(here / "dump/rank1", here / "more/d"),
        ),
    ),
    # Ranks and steps
    "a rank without a dump": Way(
        "fault", "rank2: holds no dump.json", prepare=lambda here: (here / "dump/rank2").mkdir()
    ),
    "a step without a dump": Way(
        "fault",
        "step1: holds no dump.json",
        ("--msprobe-dump=steps",),
        ("precheck", "overflow", "repeat"),
        lambda here: ((here / "steps/step1").mkdir(parents=True), (here / "dump").rename(here / "steps/step0")),
    ),
    "a golden rank that the target lacks": Way(
        "fault", "rank1", suites=("comparison",), prepare=lambda here: shutil.rmtree(here / "dump/rank1")
    ),
    # Files of a dump
    "a dump.json without its end": Way(
        "fault", "was truncated while it was written", prepare=cut("dump/rank1/dump.json")
    ),
    "a golden dump.json without its end": Way(
        "fault",
        "golden/rank0/dump.json was truncated while it was written",
        suites=("comparison",),
        prepare=cut("golden/rank0/dump.json", 0.98),
    ),
    "a broken construct.json": Way("fault", "is not valid JSON", prepare=write("dump/rank0/construct.json", "\0" * 9)),
    "a construct.json of another form": Way(
        "fault", "object of parents", prepare=write("dump/rank0/construct.json", "[]")
    ),
    "a construct.json without its end": Way(
        "fault", "construct.json was truncated", prepare=write("dump/rank0/construct.json", TORN_PARENTS)
    ),
    "a broken stack.json": Way("fault", "stack.json cannot be read", prepare=write("dump/rank0/stack.json", "{")),
    # Files of other tasks
    "values of debugger.save": Way("said", "debug.json", prepare=write("dump/rank0/debug.json", "{}")),
    "gradients beside dumps": Way("said", "--msprobe-gradients", prepare=gradients_at("dump/other")),
    "kernels beside dumps": Way("said", "dump of kernels", prepare=write("dump/rank0/kernels/statistic.csv", "")),
    "gradients as a dump": Way("refused", "--msprobe-gradients=", ("--msprobe-dump=g",), prepare=gradients_at("g")),
    "gradients as a plain folder": Way("refused", "g: holds gradients", ("{dumps}", "g"), ALL, gradients_at("g")),
    "kernels as a plain folder": Way(
        "refused", "k: holds a dump of kernels", ("{dumps}", "k"), ALL, write("k/statistic.csv", "")
    ),
    "values of debugger.save as a plain folder": Way(
        "refused", "name the file", ("{dumps}", "s"), ALL, write("s/debug.json", "{}")
    ),
    "runs of gradients that a shell expands": Way(
        "refused", "golden: holds gradients", ("--msprobe-gradients", "dump", "golden"), ("gradients",)
    ),
    "a dump as gradients": Way(
        "refused", "--msprobe-dump=", ("--msprobe-gradients=d",), ("gradients",), write("d/dump.json", "{}")
    ),
    "a dump beside gradients": Way(
        "refused", "judged in separate runs", ("{dumps}", "d"), ("gradients",), write("d/dump.json", "{}")
    ),
    "summaries beside folders of ranks": Way(
        "refused",
        "both itself and in rank<N>",
        suites=("gradients",),
        prepare=lambda here: shutil.copy(here / "dump/rank0/grad_summary_0.csv", here / "dump"),
    ),
    # Settings
    "a misspelt ini key": Way(
        "refused",
        "did you mean 'msprobe_standard'",
        suites=ALL,
        prepare=write("pytest.ini", f"{INI}msprobe_standrad=ulp"),
    ),
    "a misspelt prefix": Way(
        "refused",
        "did you mean 'msprobe_standard'",
        suites=ALL,
        prepare=write("pytest.ini", f"{INI}mspobe_standard=ulp"),
    ),
    "an ini key with another dash": Way(
        "refused", "did you mean 'msprobe_out'", suites=ALL, prepare=write("pytest.ini", f"{INI}msprobe-out=x")
    ),
    "a key of pyproject.toml": Way(
        "refused",
        "did you mean 'msprobe_accept'",
        suites=ALL,
        prepare=write("pyproject.toml", '[tool.pytest.ini_options]\nmsprobe_acept = "dtype"\n'),
    ),
    "a misspelt key of -o": Way("refused", "did you mean 'msprobe_seed'", ("{dumps}", "-o", "msprobe_sead=1"), ALL),
    "a key of YAML in an ini file": Way(
        "refused", "--msprobe-config only", suites=ALL, prepare=write("pytest.ini", f"{INI}msprobe_standards=x")
    ),
    "a misspelt YAML key": Way(
        "refused", "did you mean 'seed'", ("{dumps}", "--msprobe-config=x.yaml"), ALL, write("x.yaml", "sead: 1\n")
    ),
    "YAML with too many values": Way(
        "refused", "values", ("{dumps}", "--msprobe-config=x.yaml"), ALL, write("x.yaml", f"seed: [{'1,' * 300_000}]\n")
    ),
    "a misspelt option": Way(
        "refused",
        "--msprobe-sead: there is no such option; did you mean --msprobe-seed?",
        ("{dumps}", "--msprobe-sead=1"),
        ALL,
    ),
    "arguments that a plugin replaces": Way(
        "fault",
        "has replaced the arguments",
        suites=ALL,
        prepare=hooks("@pytest.hookimpl(trylast=True)\ndef pytest_configure(config):\n    config.args = []\n"),
    ),
    "--forked": Way(
        "refused",
        "--forked: ",
        ("{dumps}", "--forked"),
        ALL,
        hooks("def pytest_addoption(parser):\n    parser.addoption('--forked', action='store_true')\n"),
    ),
}


def arguments_of(way: Way, suite: str, here: Path) -> Iterator[str]:
    """The command line of a run in the folder `here`."""
    option = "--msprobe-gradients" if suite == "gradients" else "--msprobe-dump"
    yield from (text.format(golden="golden") for text in RUNS[suite])
    yield from (text.format(dumps=f"{option}=dump") for text in way.arguments)
    yield from ("-q", "-k", "neg or /v" if suite != "gradients" else "v", f"--rootdir={here}")


def complaint(way: Way, suite: str, run: Run) -> str:
    """What is wrong with the way in which the run took its input; "" for nothing."""
    said = [line for line in run.text.splitlines() if way.words in line]
    if way.outcome == "refused":
        errors = [line for line in run.text.splitlines() if line.startswith("ERROR: ")]
        return "" if run.exit_code == 4 and said and len(errors) == 1 else f"not refused: {run.exit_code}, {run.text}"
    if way.outcome == "used":
        is_whole = run.exit_code == 0 and len(run.rows) == COUNTS[suite]
        return "" if is_whole else f"not used as a whole: {len(run.rows)} rows, {run.text}"
    expected = 1 if way.outcome == "fault" else 0
    return "" if said and run.exit_code == expected else f"not said, or exit code {run.exit_code}: {run.text}"


@pytest.fixture
def places(suite: str, tmp_path: Path) -> dict[str, Path]:
    """A folder for each way that concerns the suite: `dump` and `golden` are the step or run of either side."""
    SAMPLES[suite].build(tmp_path / "sample")
    own = {
        "comparison": ("target/step0", "golden/step0"),
        "gradients": ("a", "b"),
        "sharded": ("target/step0", "logical/step0"),
    }
    sources = own.get(suite, ("step0", "step0"))
    found = {}
    for number, (name, way) in enumerate(WAYS.items()):
        if suite in way.suites:
            here = found[name] = tmp_path / f"way{number}"
            for source, folder in zip(sources, ("dump", "golden")):
                shutil.copytree(tmp_path / "sample" / source, here / folder)
            (here / "conftest.py").write_text(SAMPLES[suite].conftest, encoding="utf-8")
            way.prepare(here)
    return found


def test_input_is_used_refused_or_said_to_be_left_out(places: dict[str, Path], suite: str, tmp_path: Path) -> None:
    workspace = Workspace(replace(SAMPLES[suite], build=lambda folder: None, arguments=()), tmp_path)
    runs = workspace.run_all(
        [tuple(arguments_of(WAYS[name], suite, here)) for name, here in places.items()], folders=list(places.values())
    )
    found = [f"{name}: {text}" for name, run in zip(places, runs) if (text := complaint(WAYS[name], suite, run))]
    assert not found, "\n".join(found)


@pytest.mark.one_suite
def test_an_environment_variable_is_not_taken_for_an_option(
    workspace: Workspace, suite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSPROBE_STANDARD", "ulp")
    monkeypatch.setenv("MSPROBE_SOMETHING_ELSE_ENTIRELY", "x")
    (run,) = workspace.run_all([("--collect-only", "-q")])
    said = [line for line in run.text.splitlines() if "environment variable" in line]
    assert len(said) == 1
    assert "MSPROBE_STANDARD: options are not read from there; see msprobe_standard" in said[0]
