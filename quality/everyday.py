"""How many everyday situations are answered rightly.

    python -m quality.everyday [-k TEXT] [--write-results]

Runs tests/everyday, those included that are known to be open, and lists each situation with what was said of it.
--write-results writes results/everyday.tsv: what was said when a situation was first asked about stays, what is said
now is new, and situations that were not asked about stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from quality.results import FOLDER, Table, how, read

TESTS = Path(__file__).parents[1] / "tests" / "everyday"
_NAME = "everyday"
_SAID = ("answer", "exit code", "first line")
HEAD = ("situation", "asked", *(f"{when}: {what}" for when in ("first", "now") for what in _SAID))


class Listing:
    """A plugin of pytest that keeps what was said of each situation.

    Attributes:
        said: by situation: what was asked, whether the answer is right, the exit code and the first line.
    """

    def __init__(self) -> None:
        self.said: dict[str, tuple[str, ...]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Take a test that has run: what it asserts is the answer, and all else that it raises an error of its own."""
        report = yield
        if report.when == "call" or report.failed:
            is_wrong = call.excinfo is not None and call.excinfo.errisinstance(AssertionError)
            self._take(report, "right" if report.passed else "wrong" if is_wrong else "error")
        return report

    def _take(self, report: pytest.TestReport, answer: str) -> None:
        properties = dict(report.user_properties)
        test, _, name = report.nodeid.rpartition("::")[2].removesuffix("]").partition("[")
        asked = properties.get("asked", test.removeprefix("test_").replace("_", " "))
        code, line = (properties.get(key, "") for key in ("exit_code", "first_line"))
        self.said[name] = (str(asked), answer, str(code), str(line))


def table_of(said: dict[str, tuple[str, ...]]) -> Table:
    """Return the table: what was first said is that of the file, where it has it."""
    before = {row["situation"]: row for row in read(_NAME)} if (FOLDER / f"{_NAME}.tsv").is_file() else {}
    rows = {name: tuple(row[column] for column in HEAD) for name, row in before.items()}
    for name, (asked, *now) in said.items():
        first = rows[name][2:5] if name in rows else now
        rows[name] = (name, asked, *first, *now)
    return Table.of(_NAME, HEAD, rows.values())


def row_of(situation: str) -> str:
    """Return the row of the list of situations that a situation belongs to: `15`, or `case 06`."""
    words = situation.split()
    return " ".join(words[: 1 + (words[0] == "case")])


def main() -> int:
    """Ask, list, and write; the exit code is 0 where every situation is answered rightly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", metavar="TEXT", dest="chosen", help="situations as pytest -k chooses them")
    parser.add_argument("--write-results", action="store_true", help="write quality/results/everyday.tsv")
    options = parser.parse_args()
    listing = Listing()
    command = ["--runxfail", "-m", "", "-q", "--tb=no", "--no-summary", "-k", options.chosen]
    pytest.main([str(TESTS), *command], plugins=[listing])
    for name, (_, answer, code, line) in listing.said.items():
        sys.stdout.write(f"{answer:6} {name:40} {code:>2} {line}\n")
    wrong = [name for name, (_, answer, *_) in listing.said.items() if answer != "right"]
    asked, open_rows = (len(set(map(row_of, names))) for names in (listing.said, wrong))
    sys.stdout.write(f"{len(listing.said) - len(wrong)} of {len(listing.said)} situations are answered rightly, ")
    sys.stdout.write(f"and {asked - open_rows} of {asked} rows in each of theirs\n")
    if options.write_results:
        table_of(listing.said).write(how("quality.everyday --write-results", "torch", "mindspore"))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
