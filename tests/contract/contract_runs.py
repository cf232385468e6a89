"""Real pytest runs over a suite's sample, and what they left behind, read without the plugin's help."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from contract_samples import Sample

from pytest_msprobe.answers import EXIT_CODES
from pytest_msprobe.answers.answer import SCHEMA_FILE

HERE = Path(__file__).parent
#: The test extra's own plugins are not part of a user's run.
QUIET = ("-p", "no:hypothesispytest", "-p", "no:pytest_cov", "-p", "contract_witness", "--tb=short")
LONGEST_SECONDS = 20 if os.environ.get("CONTRACT_BREAK") else 600
#: As long as a run without new rows counts as settled.
SETTLING_SECONDS = 0.5

Row = dict[str, Any]

#: Wraps the judge of the suite: `act` sees every record that `TARGETS` names before it is judged.
JUDGE = """
import os, signal, sys, time
from pathlib import Path
import pytest
from pytest_msprobe.run.settings import SUITE

TARGETS = {targets!r}

def act(record):
    {act}

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    suite = config.stash[SUITE]
    judge = suite.judge

    def judge_or_act(record):
        file = Path(record.file).relative_to(config.rootpath).as_posix()
        if (file, record.call, record.part) in TARGETS:
            act(record)
        return judge(record)

    suite.judge = judge_or_act
"""


def judge_that(act: str, *rows: Row) -> str:
    """A conftest.py in which judging the records of `rows` begins with the statement `act`."""
    targets = [(row["node_id"].partition("::")[0], row["call"], row["part"]) for row in rows]
    return JUDGE.format(targets=targets, act=act)


@dataclass(frozen=True)
class Run:
    """One finished run.

    Attributes:
        folder: in which pytest ran.
        out: folder of the results.
        exit_code: of pytest.
        text: what it printed.
    """

    folder: Path
    out: Path
    exit_code: int
    text: str

    @cached_property
    def rows(self) -> list[Row]:
        """The machine rows, in the order of the file."""
        return read_rows(self.out / "rows.jsonl")

    @property
    def by_id(self) -> dict[str, Row]:
        """The machine rows by node id."""
        return {row["node_id"]: row for row in self.rows}

    @cached_property
    def _witness(self) -> dict[str, Any]:
        path = self.out.with_suffix(".witness")
        assert path.exists(), f"pytest ended without a summary:\n{self.text}"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    @property
    def outcomes(self) -> dict[str, str]:
        """What pytest says of each item that ran, by node id; an item counted twice is an error."""
        listed = self._witness["outcomes"]
        found = {node_id: category for category, node_id in listed}
        assert len(found) == len(listed), f"counted twice by pytest: {listed}"
        return found

    @property
    def deselected(self) -> set[str]:
        """Node ids that were left out."""
        return set(self._witness["deselected"])

    @property
    def frameworks(self) -> list[str]:
        """Frameworks that the run imported."""
        found: list[str] = self._witness["frameworks"]
        return found

    @property
    def ids(self) -> dict[str, list[str]]:
        """Node ids by outcome, in the order of the rows."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            found.setdefault(row["outcome"], []).append(row["node_id"])
        return found

    @property
    def summary(self) -> dict[str, int]:
        """The figures of the terminal's line on all records."""
        found = re.search(r"^\d+ passed, \d+ failed, \d+ skipped.*$", self.text, re.MULTILINE)
        assert found, f"no summary line:\n{self.text}"
        words = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z][a-z ]+[a-z])", found.group())}
        return {
            "passed": words["passed"] + words.get("unexpected passes", 0),
            "failed": words["failed"],
            "skipped": words["skipped"],
            "xfailed": words.get("expected failures", 0),
        }

    @property
    def test_cases(self) -> list[tuple[str, dict[str, str], list[str]]]:
        """(name, properties, tags of the result) of each JUnit test case."""
        cases = ElementTree.parse(self.out / "junit.xml").iter("testcase")
        return [
            (
                str(case.get("name")),
                {str(entry.get("name")): str(entry.get("value")) for entry in case.iter("property")},
                [child.tag for child in case if child.tag in ("failure", "error", "skipped")],
            )
            for case in cases
        ]

    @cached_property
    def answer(self) -> dict[str, Any]:
        """The answer of the run, held to its JSON Schema."""
        encoded = (self.out / "diagnosis.json").read_bytes()
        assert len(encoded) <= 4096
        found: dict[str, Any] = json.loads(encoded)
        import jsonschema  # here: pytest loads this folder's conftest where only the plugin is installed

        jsonschema.validate(found, json.loads(SCHEMA_FILE.read_text(encoding="utf-8")))
        return found

    @property
    def page(self) -> tuple[dict[str, int], dict[str, int]]:
        """Counts of the HTML page by lower-case word: those of its head, and those of its table."""
        text = (self.out / "page.html").read_text(encoding="utf-8")
        (blob,) = re.findall(r'data-jsonblob="([^"]*)"', text)
        listed = [test for group in json.loads(html.unescape(blob))["tests"].values() for test in group]
        head = {word: int(number) for number, word in re.findall(r'<span class="\w+">(\d+) ([\w ]+),?</span>', text)}
        table = Counter(test["result"].lower() for test in listed)
        return {word.lower(): number for word, number in head.items() if number}, dict(table)


class Workspace:
    """A folder with the sample of a suite, in which pytest runs as a process of its own."""

    def __init__(self, sample: Sample, folder: Path) -> None:
        self.folder = folder
        self.sample = sample
        sample.build(folder)
        self._runs = 0

    def run(self, *arguments: str, conftest: str = "", reports: bool = False, out: str = "") -> Run:
        """One run to its end, in a process of its own."""
        process, folder = self._start(arguments, conftest, reports, out)
        with _ended(process):
            text = process.communicate(timeout=LONGEST_SECONDS)[0]
        return Run(self.folder, folder, process.returncode, text)

    def run_all(self, runs: Iterable[Sequence[str]], *, conftest: str = "", folders: Sequence[Path] = ()) -> list[Run]:
        """Several runs, one after the other in one process; each in its own of `folders`, where there are any."""
        self._write_conftest(conftest)
        listed: list[dict[str, Any]] = []
        for arguments in runs:
            out = self._new_out("")
            listed.append({"arguments": self._arguments(arguments, out, reports=False), "witness": _witness(out)})
        for entry, folder in zip(listed, folders):
            entry["folder"] = str(folder)
        (self.folder / "runs.json").write_text(json.dumps(listed), encoding="utf-8")
        command = [sys.executable, str(HERE / "contract_driver.py"), "runs.json", "results.json"]
        ended = subprocess.run(
            command, cwd=self.folder, env=self._environment(None), capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        results = json.loads((self.folder / "results.json").read_text(encoding="utf-8"))
        return [
            Run(self.folder, Path(run["witness"]).with_suffix(""), result["exit_code"], result["text"])
            for run, result in zip(listed, results)
        ]

    def run_command(self, command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """A command line of ours as a reader types it, in `folder`."""
        words = command[1:] if command[0] == "python" else ["-m", *command]
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=self._environment(folder / "next"),
            capture_output=True,
            text=True,
            check=False,
        )

    def run_until(
        self,
        reached: str,
        *arguments: str,
        conftest: str,
        send: signal.Signals,
        rows: int = 1,
        is_settled: bool = False,
    ) -> Run:
        """A run to which a signal is sent, to all its processes, once file `reached` and so many rows are there.

        With `is_settled` also no row has come for a while: the signal then falls into no report, of which one
        observer would have been told and the next one not.
        """
        process, out = self._start(arguments, conftest, False, "")
        written = out / "rows.jsonl"
        latest = time.monotonic() + LONGEST_SECONDS
        with _ended(process):
            while not (self.folder / reached).exists() or not written.exists() or len(read_rows(written)) < rows:
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < latest, f"{reached} or {rows} rows are not there"
                time.sleep(0.02)
            seen = -1
            while is_settled and seen < len(read_rows(written)):
                seen = len(read_rows(written))
                time.sleep(SETTLING_SECONDS)
            os.killpg(process.pid, send)
            text = process.communicate(timeout=LONGEST_SECONDS)[0]
        return Run(self.folder, out, process.returncode, text)

    def tables(self, out: Path) -> dict[str, list[str]]:
        """The sorted lines of the newest result file of each kind, without the name of this folder."""
        found = {}
        for pattern in self.sample.tables:
            paths = sorted(out.rglob(pattern.removeprefix("**/")))
            assert paths, f"{out} holds no {pattern}"
            text = paths[-1].read_text(encoding="utf-8-sig").replace(str(self.folder), "")
            found[pattern] = sorted(text.splitlines())
        return found

    def _start(
        self, arguments: Sequence[str], conftest: str, reports: bool, out: str
    ) -> tuple[subprocess.Popen[str], Path]:
        self._write_conftest(conftest)
        folder = self._new_out(out)
        command = [sys.executable, "-m", "pytest", *self._arguments(arguments, folder, reports=reports)]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A job in the background of a script ignores SIGINT, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return process, folder

    def _new_out(self, name: str) -> Path:
        self._runs += 1
        return self.folder / (name or f"out{self._runs}")

    def _write_conftest(self, conftest: str) -> None:
        (self.folder / "conftest.py").write_text(f"{self.sample.conftest}\n{conftest}", encoding="utf-8")

    def _arguments(self, arguments: Sequence[str], out: Path, *, reports: bool) -> list[str]:
        own = [f"--msprobe-out={out}"]
        if not any(argument.startswith(("--msprobe-jsonl", "--msprobe-resume")) for argument in arguments):
            own.append(f"--msprobe-jsonl={out}/rows.jsonl")
        if not any(argument.startswith(("--msprobe-diagnosis", "--collect-only")) for argument in arguments):
            own.append(f"--msprobe-diagnosis={out}/diagnosis.json")
        if reports:
            own += [f"--junitxml={out}/junit.xml", f"--html={out}/page.html", "--self-contained-html"]
            own.append(f"--msprobe-page={out}/own_page.html")
        is_broken = ("-p", "contract_breaks") if os.environ.get("CONTRACT_BREAK") else ()
        return [*QUIET, *is_broken, "--rootdir=.", *self.sample.arguments, *own, *arguments]

    def _environment(self, out: Path | None) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
        environment.pop("PYTEST_ADDOPTS", None)
        environment["CONTRACT_WITNESS"] = _witness(out) if out else ""
        return environment


@contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no process behind, workers included."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _witness(out: Path) -> str:
    return str(out.with_suffix(".witness"))


def read_rows(path: Path) -> list[Row]:
    """Complete lines of a JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if "\n" in line]


def comparable(rows: Iterable[Row], folder: Path) -> dict[str, Row]:
    """Rows by node id without what differs from run to run and from folder to folder."""
    found = {}
    for row in rows:
        text = json.dumps({key: value for key, value in row.items() if key not in ("seconds", "run")}).replace(
            str(folder), ""
        )
        found[row["node_id"]] = json.loads(text)
        # What the whole run amounts to goes with its last row.
        for key in ("answer", "covers", "run_faults", "partial"):
            (found[row["node_id"]]["attachment"] or {}).pop(key, None)
        found[row["node_id"]]["attachment"] = found[row["node_id"]]["attachment"] or None
    return found


def assert_whole(run: Run, ids: Iterable[str]) -> None:
    """Rows, pytest's own counts, the summary and the exit code of `run` agree, and are on exactly the items `ids`."""
    outcomes = run.outcomes
    assert sorted(row["node_id"] for row in run.rows) == sorted(ids)
    assert {row["node_id"]: row["outcome"] for row in run.rows} == outcomes
    counts = Counter(outcomes.values())
    assert run.summary == {
        "passed": counts["passed"] + counts["xpassed"],
        "failed": counts["failed"] + counts["error"],
        "skipped": counts["skipped"],
        "xfailed": counts["xfailed"],
    }
    (last,) = re.findall(r"^=+ (.*) in [\d.]+s.*=+$", run.text, re.MULTILINE)
    shown = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed|xpassed)", last)}
    assert shown == {word: number for word, number in counts.items() if number}
    if counts["failed"] or counts["error"]:
        assert run.exit_code == 1, run.text
    assert_told(run)


def assert_told(run: Run) -> None:
    """The answer of `run` says what its rows say, and its exit code is the one of its outcome."""
    answer, outcomes = run.answer, [row["outcome"] for row in run.rows]
    assert answer["counts"] == dict(Counter(outcomes))
    assert "run" not in [finding["kind"] for finding in answer["findings"]], answer["findings"]
    if all(row["status"] == "skip" for row in run.rows) and not answer["findings"]:
        assert answer["outcome"] == "nothing judged"
    if "failed" in outcomes:
        assert (answer["outcome"], bool(answer["findings"])) == ("wrong", True)
    if answer["outcome"] == "right":
        assert "failed" not in outcomes
    for finding in answer["findings"]:
        # With --lf the first origin of NaN may not be an item of this run.
        files = {node_id.partition("::")[0] for node_id in run.by_id}
        assert not finding["id"] or finding["id"].partition("::")[0] in files
        if finding["id"] in run.by_id:
            assert run.by_id[finding["id"]]["outcome"] == "failed", "the item of a cause fails"
    if skipped := [row for row in run.rows if row["status"] == "skip"]:
        assert answer["open"] or answer["suite"] == "overflow", skipped
    is_accepted = answer["outcome"] == "nothing judged" and run.exit_code == 0  # by --msprobe-allow-empty
    if run.exit_code in EXIT_CODES.values() and not is_accepted:
        assert run.exit_code == EXIT_CODES[answer["outcome"]], run.text


def comparable_answer(run: Run) -> dict[str, Any]:
    """The answer of a run without its folder and its command line."""
    text = json.dumps({key: value for key, value in run.answer.items() if key not in ("next", "about")})
    found: dict[str, Any] = json.loads(text.replace(str(run.folder), ""))
    return found
