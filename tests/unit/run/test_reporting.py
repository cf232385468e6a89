"""What becomes of rows on the process that writes: files, counts, exit code."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fakes.suite import BOTH, FakeSuite, group, row

from pytest_msprobe.reports.jsonl import JsonLines, read_json_lines
from pytest_msprobe.reports.resume import EarlierRun
from pytest_msprobe.run.reporting import ReportPlugin
from pytest_msprobe.verdicts import VerdictRow

DUMP = Path("/d/dump.json")


class Terminal:
    """The lines of a summary."""

    verbosity = 0
    isatty = False
    stats: ClassVar[dict[str, list[object]]] = {}

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(f"== {title}")

    def write_line(self, line: str, **markup: bool) -> None:
        self.lines.append(line)


class Run:
    """One run of the plugin over given rows."""

    def __init__(self, tmp_path: Path, **options: Any) -> None:
        self.told: list[VerdictRow] = []
        self.observer: Any = lambda config, row: self.told.append(row)
        hook = SimpleNamespace(pytest_msprobe_verdict=self)
        self.suite = FakeSuite({DUMP: [group(f"Mint.add.{number}") for number in range(3)]})
        given = {"out": tmp_path / "out", "jsonl": None, "earlier": None, "allows_empty": False, **options}
        config: Any = SimpleNamespace(
            hook=hook,
            stash={},
            invocation_params=SimpleNamespace(args=(), dir=tmp_path),
            option=SimpleNamespace(collectonly=False, verbose=0),
            getoption=lambda name, default=None: default,
            pluginmanager=SimpleNamespace(get_plugin=lambda name: None, hasplugin=lambda name: False),
        )
        others = {
            "page": None,
            "diagnosis": None,
            "sarif": None,
            "baseline": None,
            "shard": None,
            "folders": (),
            "values": {},
            "is_strict": False,
        }
        earlier, settings = given.pop("earlier"), SimpleNamespace(**others, **given)
        self.plugin = ReportPlugin(config, settings, self.suite, lambda: ["header"], earlier)
        self.session: Any = SimpleNamespace(
            config=config, exitstatus=0, shouldstop=False, shouldfail=False, testscollected=0
        )
        self.plugin.pytest_sessionstart(self.session)

    def get_hookimpls(self) -> list[None]:
        return [None]

    def __call__(self, *, config: object, row: VerdictRow) -> None:
        self.observer(config, row)

    def report(self, item: VerdictRow, outcome: str = "passed") -> Any:
        report: Any = SimpleNamespace(msprobe_row=item.to_wire(), outcome=outcome, failed=outcome == "failed")
        self.plugin.pytest_runtest_logreport(report)
        return report

    def end(self, code: int = 0) -> tuple[int, list[str]]:
        self.session.exitstatus = code
        self.plugin.pytest_sessionfinish(self.session)
        terminal: Any = Terminal()
        self.plugin.sum_up(terminal, int(self.session.exitstatus))
        return int(self.session.exitstatus), terminal.lines


def test_a_row_leaves_the_report_and_goes_everywhere_once(tmp_path: Path) -> None:
    run = Run(tmp_path, jsonl=tmp_path / "rows.jsonl")
    report = run.report(row())
    assert not hasattr(report, "msprobe_row")
    code, lines = run.end()
    assert code == 0
    assert "1 passed, 0 failed, 0 skipped (fakes)" in lines
    assert [name for name, _ in read_json_lines(tmp_path / "rows.jsonl")] == ["Mint.add.0"]
    assert run.told == [row()]
    assert run.suite.made_report.calls == [("Mint.add.0", ("forward",))]


def test_a_group_is_written_when_it_is_complete_and_in_its_order(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.report(row(part="backward", selected=BOTH))
    run.report(row("Mint.add.1"))
    assert run.suite.made_report.calls == [("Mint.add.1", ("forward",))]
    run.report(row(part="forward", selected=BOTH))
    run.report(row("Mint.add.2", part="backward", selected=BOTH))
    run.end()
    assert run.suite.made_report.calls[1:] == [("Mint.add.0", BOTH), ("Mint.add.2", ("backward",))]


def test_a_rerun_is_not_a_verdict(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.report(row(status="error"), "rerun")
    run.report(row())
    code, lines = run.end()
    assert code == 0
    assert "1 passed, 0 failed, 0 skipped (fakes)" in lines


@pytest.mark.parametrize(
    ("rows", "given", "code"),
    [
        ([row()], 0, 0),
        ([row(status="error")], 1, 1),
        ([row(status="skip", message="random")], 0, 5),
        ([row(status="skip", message="random"), row("Mint.add.1")], 0, 0),
        ([row(status="error", outcome="xfailed")], 0, 0),
        ([row()], 2, 2),  # Ctrl-C
        ([], 5, 5),
        ([], 0, 0),  # other tests ran
    ],
)
def test_the_exit_code(tmp_path: Path, rows: list[VerdictRow], given: int, code: int) -> None:
    run = Run(tmp_path)
    for item in rows:
        run.report(item)
    assert run.end(given)[0] == code


def test_a_run_that_judged_nothing_may_be_a_success(tmp_path: Path) -> None:
    run = Run(tmp_path, allows_empty=True)
    run.report(row(status="skip", message="random"))
    assert run.end()[0] == 0


def test_a_fault_of_the_suite_is_no_success(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.suite.made_report.sentence = "nothing matched"
    run.report(row())
    code, lines = run.end()
    assert code == 1
    assert "Wrong: nothing matched" in lines


def test_what_could_not_be_written_is_named_and_is_no_success(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.report(row("Mint.add.0"))
    run.suite.made_report.broken = OSError(errno.ENOSPC, "No space left on device")
    run.report(row("Mint.add.1"))
    run.suite.made_report.broken = None  # there is room again: a later row must not hide the gap
    run.report(row("Mint.add.2"))
    code, lines = run.end()
    assert code == 1
    assert run.suite.made_report.calls == [("Mint.add.0", ("forward",))]
    text = "\n".join(lines)
    assert "writing stopped at Mint.add.1: No space left on device; the rows before it are intact" in text
    assert "not written: Mint.add.1 and 1 more; make room and continue with --msprobe-resume=FILE" in text


def test_a_full_disk_under_the_machine_rows_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: JsonLines, name: str, item: VerdictRow) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JsonLines, "write", write)
    run = Run(tmp_path, jsonl=tmp_path / "rows.jsonl")
    run.report(row())
    code, lines = run.end()
    assert code == 1
    assert any(line.startswith(f"--msprobe-jsonl={tmp_path / 'rows.jsonl'}: writing stopped at Mint") for line in lines)


def test_an_observer_that_raises_is_told_of_once(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def observe(config: object, item: VerdictRow) -> None:
        raise ValueError("mine")

    run.observer = observe
    run.report(row())
    run.report(row("Mint.add.1"))
    code, lines = run.end()
    assert code == 3
    assert [line for line in lines if "pytest_msprobe_verdict failed at dump.json::Mint.add.0::forward" in line]
    assert len(run.suite.made_report.calls) == 2


@pytest.mark.parametrize(("earlier", "code"), [("pass", 0), ("error", 1)])
def test_rows_of_an_earlier_run_count(tmp_path: Path, earlier: Any, code: int) -> None:
    """A finished file with failures does not end green because nothing was left to run."""
    before = EarlierRun((("Mint.add.0", row(status=earlier)),), frozenset(), pair=(tmp_path / "d", tmp_path / "r"))
    run = Run(tmp_path, earlier=before)
    assert run.end(5)[0] == code
    assert run.suite.made_report.rows == []  # the pair holds it
    again = Run(tmp_path, earlier=before)
    again.report(row("Mint.add.1"))
    found, lines = again.end(0)
    assert found == code
    assert "resumed: 1 of these verdicts are from the earlier run" in lines


def test_rows_of_an_earlier_jsonl_file_are_appended_to_and_handed_to_the_suite(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = JsonLines(path)
    lines.write("Mint.add.0", row())
    lines.close()
    run = Run(tmp_path, earlier=EarlierRun((("Mint.add.0", row()),), frozenset(), jsonl=path))
    run.report(row("Mint.add.1"))
    assert run.end()[0] == 0
    assert [name for name, _ in read_json_lines(path)] == ["Mint.add.0", "Mint.add.1"]
    assert [name for name, _ in run.suite.made_report.rows] == ["Mint.add.0", "Mint.add.1"]
    assert run.told == [row("Mint.add.1")]


def test_a_folder_that_cannot_be_written_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(pytest.UsageError, match=r"--msprobe-out=.*file is not a folder"):
        Run(tmp_path, out=tmp_path / "file" / "out")
    with pytest.raises(pytest.UsageError, match=r"--msprobe-jsonl=.*file is not a folder"):
        Run(tmp_path, jsonl=tmp_path / "file" / "rows.jsonl")
