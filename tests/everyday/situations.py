"""Ask about everyday situations as their authors do: collect a script, `diagnose`, and run pytest on the dump.

A situation is one row of a table; `Runner.answer` gives what the product says of it, and `check` holds that to the row.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
RIGHT, AS_FAR, WRONG, NOTHING = "Right", "Right as far as judged", "Wrong", "Nothing judged"
#: The outcomes, by the first words of an answer, and their exit codes in every suite and command.
EXIT_CODES = {RIGHT: 0, AS_FAR: 0, WRONG: 1, NOTHING: 5}
#: Situations that are not yet answered rightly. Whoever mends one takes it out: it would fail otherwise.
OPEN: set[str] = set()
#: Situations that take more than two seconds, for their frameworks or their number of runs.
SLOW = {
    "1",
    "4",
    "14",
    "16 statistics",
    "20",
    "20 dropout",
    "23",
    "40",
    "40 options",
    "42",
    "46",
    "48",
    "case 03",
    "case 04",
    "case 08",
    "case 11",
}
#: What is imported once, and not by each run again.
_PRELOADED = (
    *("numpy", "torch", "torch._dynamo", "mindspore", "ml_dtypes", "jinja2"),
    *("pytest", "_pytest.unittest", "xdist.plugin", "pytest_html.plugin", "pytest_cov.plugin"),
    *("_hypothesis_pytestplugin", "msprobe_collector.pytorch.unedited_scripts", "msprobe_collector.mindspore"),
    *("pytest_msprobe.plugin", "pytest_msprobe.commands", "pytest_msprobe.engines.torch_engine"),
    *("pytest_msprobe.suites.precheck.suite", "pytest_msprobe.suites.comparison.suite", "msprobe_laws.suite.suite"),
    "pytest_msprobe.suites.comparison.accounting.accountant",
)


@dataclass(frozen=True)
class Training:
    """A script that is collected.

    Attributes:
        script: name of a file in scripts, without its ending.
        arguments: of the script.
        options: of `collect`.
        has_debugger: whether the script collects by itself, in the folder that its first argument names.
        part: folder inside of the dump that is asked about.
        edit: what is changed in the dump afterwards, to make it one of another machine.
        framework: what the script needs.
    """

    script: str
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--exit",)
    has_debugger: bool = False
    part: str = ""
    edit: Callable[[Path], None] | None = None
    framework: str = "torch"

    @property
    def name(self) -> str:
        """The name of its dump."""
        edited = [] if self.edit is None else [self.edit.__name__]
        return re.sub(r"[^\w.]+", "-", "-".join((self.script, *self.arguments, *self.options[1:], *edited)))


@dataclass(frozen=True)
class Situation:
    """One row: a dump, or two, and the answer that is right.

    Attributes:
        number: of the row, and which of several.
        target: what is asked about: a script, or a dump.
        golden: what it is held to.
        outcome: one of `EXIT_CODES`.
        also: other outcomes that are right as well.
        first_line: words that the first line of the answer has.
        text: words that stand anywhere in the answer.
        absent: words that the answer does not have.
        failing: of each item that pytest reports as failed, a part of its name: one for each cause.
        options: of the run of pytest, such as its suite.
        has_suite: whether a run of pytest asks the same question as `diagnose`.
    """

    number: str
    target: Training | Path
    golden: Training | Path | None = None
    outcome: str = RIGHT
    also: tuple[str, ...] = ()
    first_line: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    has_suite: bool = True

    @property
    def asked(self) -> str:
        """What is asked about, in a few words."""
        sides = (side for side in (self.target, self.golden) if side is not None)
        return " against ".join(side.name for side in sides)

    @property
    def needed(self) -> list[pytest.MarkDecorator]:
        """The marks of the framework without which the dump cannot be made."""
        sides = (side for side in (self.target, self.golden) if isinstance(side, Training))
        return [pytest.mark.needs(side.framework) for side in sides]


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    output: str
    errors: str


@dataclass(frozen=True)
class Answered:
    """What the product says of a situation.

    Attributes:
        outcome: the first words of the answer of `diagnose`; "" where they are none of `EXIT_CODES`.
        exit_code: of `diagnose`.
        first_line: of its answer.
        text: all that it writes.
        run: pytest on the same dumps; None where it does not ask the same question.
        failures: names of the items that it reports as failed in JUnit's file.
    """

    outcome: str
    exit_code: int
    first_line: str
    text: str
    run: Ended | None
    failures: tuple[str, ...]


class Runner:
    """Runs scripts, commands and pytest in `folder`, each in a process of its own, and each script once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "fork_server.py"), *_PRELOADED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            text=True,
        )
        self.dump = cache(self._dump)
        self.answer = cache(self._answer)

    def close(self) -> None:
        """End the server."""
        self._server.communicate(timeout=30)

    def run(self, *arguments: object, folder: Path | None = None, **environment: str) -> Ended:
        """Run Python with arguments, in `folder` or the one of all dumps, in an environment that has more variables."""
        self._count += 1
        output, errors = (self.folder / f"{kind}{self._count}.txt" for kind in ("output", "errors"))
        argv = [str(argument) for argument in arguments]
        job = {"argv": argv, "folder": str(folder or self.folder), "output": str(output), "errors": str(errors)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{json.dumps({**job, 'environment': environment})}\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return Ended(code, *(path.read_text(encoding="utf-8", errors="replace") for path in (output, errors)))

    def collect(self, training: Training, name: str) -> Ended:
        """Run a training, whose dump is the folder `name`."""
        script = SCRIPTS / f"{training.script}.py"
        if training.has_debugger:
            return self.run(script, name, *training.arguments)
        command = ("-m", "msprobe_collector", "collect", f"--dump-path={name}", *training.options)
        return self.run(*command, script, *training.arguments)

    def _dump(self, source: Training | Path) -> Path:
        """The dump of a training, or a given one, as a path from the folder of all runs."""
        if isinstance(source, Path):
            return source
        name = Path(source.name)
        if not (self.folder / name).exists():
            self.collect(source, source.name)
            if source.edit is not None and (self.folder / name).exists():
                source.edit(self.folder / name)
        return name / source.part

    def diagnose(self, *sources: Training | Path | None, options: tuple[str, ...] = ()) -> Ended:
        """Run `diagnose` on a dump, or on two."""
        dumps = [self.dump(source) for source in sources if source is not None]
        return self.run("-m", "pytest_msprobe", "diagnose", *dumps, *options)

    def pytest(self, target: Training | Path, golden: Training | Path | None, *options: str, **kept: Path) -> Ended:
        """Run pytest on a dump, or on a pair; `kept` are the folders of its result files and of its cache."""
        held_to = [] if golden is None else [f"--msprobe-golden={self.dump(golden)}"]
        out = kept.get("out", self.folder / f"out{self._count}")
        cache_options = ["-p", "no:cacheprovider"] if "cache" not in kept else ["-o", f"cache_dir={kept['cache']}"]
        usual = (f"--msprobe-out={out}", "--tb=no", "-q", *cache_options)
        return self.run("-m", "pytest", f"--msprobe-dump={self.dump(target)}", *held_to, *usual, *options)

    def junit(self, target: Training | Path, golden: Training | Path | None, *options: str) -> tuple[Ended, list[str]]:
        """Run pytest on a dump, or on a pair, and read the names of the failed items in JUnit's file."""
        report = self.folder / f"junit{self._count}.xml"
        run = self.pytest(target, golden, f"--junitxml={report}", *options)
        return run, failed_items(report)

    def _answer(self, situation: Situation) -> Answered:
        said = self.diagnose(situation.target, situation.golden)
        outcome, first_line = first_line_of(said.output)
        run: Ended | None = None
        failures: list[str] = []
        if situation.has_suite:
            run, failures = self.junit(situation.target, situation.golden, *situation.options)
        return Answered(outcome, said.code, first_line, said.output + said.errors, run, tuple(failures))


def first_line_of(output: str) -> tuple[str, str]:
    """The outcome and the first line of an answer: the line that begins with an outcome, or the one behind a gap."""
    lines = output.splitlines()
    for line in lines:
        for outcome in EXIT_CODES:
            if line.startswith(f"{outcome}:"):
                return outcome, line
    behind_gaps = [line for gap, line in pairwise(lines) if not gap.strip() and line.strip()]
    return "", next(iter(behind_gaps or lines), "")


def failed_items(report: Path) -> list[str]:
    """The items that a file of JUnit reports as failed or broken."""
    if not report.is_file():
        return ["pytest wrote no JUnit file"]
    cases = ET.parse(report).getroot().iter("testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return [f"{case.get('classname')}::{case.get('name')}" for case in failed]


def check(situation: Situation, answered: Answered) -> None:
    """Hold an answer to its row."""
    assert answered.outcome in (situation.outcome, *situation.also), answered.text
    assert answered.exit_code == EXIT_CODES[answered.outcome], answered.text
    for words in situation.first_line:
        assert words in answered.first_line
    for words in situation.text:
        assert words in answered.text
    for words in situation.absent:
        assert words not in answered.text
    if answered.run is not None:
        assert answered.run.code == answered.exit_code, answered.run.output
        check_failures(situation.failing, answered.failures)


def check_failures(expected: tuple[str, ...], failures: tuple[str, ...] | list[str]) -> None:
    """Hold the failed items to what is expected: one for each part of a name."""
    assert len(failures) == len(expected), failures
    for words, name in zip(sorted(expected), sorted(failures)):
        assert words in name


def marks(number: str) -> list[pytest.MarkDecorator]:
    """The marks of a row: whether it is open, and whether it is slow."""
    is_open = [pytest.mark.xfail(raises=AssertionError, strict=True, reason="not answered rightly yet")]
    return [*(is_open if number in OPEN else []), *([pytest.mark.slow] if number in SLOW else [])]


def rows(*situations: Situation) -> pytest.MarkDecorator:
    """Ask one test about several situations."""
    cases = [pytest.param(row, id=row.number, marks=[*marks(row.number), *row.needed]) for row in situations]
    return pytest.mark.parametrize("situation", cases)


def row(number: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test of a row that has no other form."""

    def marked(test: Callable[..., None]) -> Callable[..., None]:
        parameter = pytest.param(number, id=number, marks=marks(number))
        test = pytest.mark.parametrize("number", [parameter], indirect=True)(test)
        return pytest.mark.usefixtures("number")(test)

    return marked


def row_of_cases(number: str, cases: Sequence[tuple[str, ...]]) -> pytest.MarkDecorator:
    """Ask a test of a row that has no other form about several `case`s."""
    named = {f"{number} {' '.join(case)}": case for case in cases}
    parameters = [pytest.param(case, id=name, marks=marks(name)) for name, case in named.items()]
    return pytest.mark.parametrize("case", parameters)


def line_of(script: str, words: str) -> str:
    """The file and line of a script that has these words, as answers name it."""
    lines = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if words in line]
    assert len(numbers) == 1, (script, words, numbers)
    return f"{script}.py:{numbers[0]}"


def on_cuda(dump: Path) -> None:
    """Make a dump of the CPU one of a GPU: what it says of its device is all that tells it."""
    for path in dump.rglob("dump.json"):
        path.write_text(
            path.read_text(encoding="utf-8").replace('"value": "cpu"', '"value": "cuda:0"'), encoding="utf-8"
        )
    for path in dump.rglob("run.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"kind":"cpu"', '"kind":"cuda","name":"NVIDIA H100 80GB HBM3"'), encoding="utf-8")


def without_last_rank(dump: Path) -> None:
    """Take the dump of the last rank away."""
    *_, last = sorted(dump.glob("step*/rank*"))
    shutil.rmtree(last)
