"""What pytest gets: the fixture `rounding_only`, seeds of drawn inputs, and a table of all assertions of a session.

Nothing here imports NumPy or a framework: pytest loads this module in every project.
"""

from __future__ import annotations

import html
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_msprobe.support import write_whole

if TYPE_CHECKING:
    from pytest_msprobe.own_kernels.judging import Rounding

MARKER = "rounding_seeds(count): run a test once for each of so many seeds of its inputs"
#: The rows of a test that has asserted something.
ROWS = pytest.StashKey[list[dict[str, Any]]]()
_COLUMNS = ("of its tolerance", "status", "kernel", "output", "pattern", "inputs", "seed", "test")
_BEGINNING = "<!doctype html><!-- pytest-msprobe: rounding -->"


def add_options(parser: pytest.Parser) -> None:
    """Declare the options of assertions on kernels."""
    group = parser.getgroup("msprobe-rounding", "assertions on kernels (pytest-msprobe)")
    group.addoption(
        "--rounding-seeds", type=int, metavar="N", help="seeds of tests marked rounding_seeds, in place of their own"
    )
    group.addoption("--rounding-report", metavar="FILE", help="table of all assertions: FILE.html, or rows: FILE.json")


def set_up(config: pytest.Config) -> None:
    """Declare the mark, and write the report that is asked for in the process that hears of all tests.

    Raises:
        pytest.UsageError: an option is wrong.
    """
    config.addinivalue_line("markers", MARKER)
    seeds, report = config.getoption("rounding_seeds"), config.getoption("rounding_report")
    if seeds is not None and seeds < 1:
        raise pytest.UsageError(f"--rounding-seeds: must be at least 1, not {seeds}")
    if report and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RoundingReport(config.invocation_params.dir / report), "msprobe-rounding")


def draw_seeds(metafunc: pytest.Metafunc) -> None:
    """Run a marked test once for each seed.

    Raises:
        pytest.Collector.CollectError: the mark has no number.
    """
    mark = metafunc.definition.get_closest_marker("rounding_seeds")
    if mark is None:
        return
    count = mark.args[0] if mark.args else None
    if type(count) is not int or count < 1:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: write rounding_seeds(20), a number")
    count = metafunc.config.getoption("rounding_seeds") or count
    if "rounding_seed" not in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, "rounding_seed")
    metafunc.parametrize("rounding_seed", range(count), indirect=True, ids=map("seed{}".format, range(count)))


@pytest.fixture
def rounding_seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run of a test: generators of Python, NumPy and PyTorch begin with it."""
    seed = int(getattr(request, "param", 0))
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    return seed


@pytest.fixture
def rounding_only(request: pytest.FixtureRequest, rounding_seed: int) -> Callable[..., Rounding]:
    """`assert_rounding_only`, whose figures go into the reports; it returns them as well."""
    node = request.node

    def assert_rounding_only(actual: Any, reference: Callable[..., Any], /, *inputs: Any, **options: Any) -> Rounding:
        """Return the figures of a kernel.

        Raises:
            AssertionError: it is off by more than rounding.
        """
        __tracebackhide__ = True
        from pytest_msprobe.own_kernels import rounding_of

        rounding = rounding_of(actual, reference, *inputs, **{"seed": rounding_seed, **options})
        row = rounding.row
        node.stash.setdefault(ROWS, []).append({**row, "test": node.nodeid})
        node.user_properties.append((f"rounding of {rounding.kernel}", row["of its tolerance"]))
        if not rounding:
            raise AssertionError(rounding.text)
        return rounding

    return assert_rounding_only


def attach_rows(item: pytest.Item, report: pytest.TestReport) -> None:
    """Send the rows of an item along with its report, and to the page of pytest-html."""
    if report.when != "call":
        return
    rows = item.stash[ROWS]
    report.rounding = rows  # type: ignore[attr-defined]
    if item.config.getoption("htmlpath", None):
        from pytest_html import extras  # type: ignore[import-untyped]

        report.extras = [*getattr(report, "extras", []), extras.html(_table(rows))]  # type: ignore[attr-defined]


class RoundingReport:
    """Writes the table of a session, the assertion that is nearest to its limit first."""

    def __init__(self, path: Path) -> None:
        """A report for `path`.

        Raises:
            pytest.UsageError: something else is there, or nothing can be written there.
        """
        self._path = path
        self._rows: list[dict[str, Any]] = []
        if path.suffix not in (".html", ".json") or not path.parent.is_dir() or path.is_dir():
            raise pytest.UsageError(f"--rounding-report={path}: must be a file.html or file.json in an existing folder")
        if path.suffix == ".html" and path.exists() and not path.read_bytes().startswith(_BEGINNING.encode()):
            raise pytest.UsageError(f"--rounding-report={path}: is there, and no report of this plugin")

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the rows of one test."""
        self._rows += getattr(report, "rounding", [])

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the file, and say which assertion is the nearest."""
        rows = sorted(self._rows, key=lambda row: -_size(row))
        text = _BEGINNING + _PAGE + _table(rows) if self._path.suffix == ".html" else json.dumps(rows, indent=1)
        write_whole(self._path, lambda file: file.write(text.encode()))
        nearest = f", nearest to the limit {rows[0]['kernel']} ({rows[0]['test']})" if rows else ""
        terminalreporter.write_line(f"rounding: {len(rows)} assertions{nearest}: {self._path}")


def _size(row: Mapping[str, Any]) -> float:
    ratio = row["of its tolerance"]
    return float("inf") if ratio is None or row["status"] == "error" else float(ratio)


_PAGE = (
    '<meta charset="utf-8"><title>Assertions on kernels</title><style>body{font:14px sans-serif}'
    "td,th{padding:2px 8px;text-align:left;border-bottom:1px solid #ccc}.error{background:#fdd}</style>"
)


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    def line(row: Mapping[str, Any]) -> str:
        cells = "".join(f"<td>{html.escape(str(row[name]))}</td>" for name in _COLUMNS)
        return f'<tr class="{row["status"]}">{cells}</tr>'

    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return f"<table><tr>{head}</tr>{''.join(map(line, rows))}</table>"
