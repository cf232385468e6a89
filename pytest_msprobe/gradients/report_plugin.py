"""Similarities, pictures and findings of a run over gradients, on the one process that writes."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_msprobe.gradients.findings import Findings
from pytest_msprobe.gradients.pictures import MOST_PARAMETERS, Picture, SimilarityPictures
from pytest_msprobe.gradients.run import number_ranges
from pytest_msprobe.gradients.session import GradientSession
from pytest_msprobe.gradients.similarity_files import reserve_folder, write_similarities
from pytest_msprobe.gradients.verdict import GradientVerdict
from pytest_msprobe.node_names import escape
from pytest_msprobe.reports.html_cells import number_text, sort_key, text

_LONGEST_STEM = 200


class GradientReport:
    """Takes the verdicts off the reports, and writes and says at the end what they amount to."""

    def __init__(self, session: GradientSession, out: Path, *, has_page: bool) -> None:
        """A report into a new folder in `out`; with `has_page` the pictures are kept for the HTML page."""
        self._session = session
        self._out = out
        self._has_page = has_page
        self._findings = Findings()
        self._shown: dict[str, GradientVerdict] = {}
        self._files: list[Path] = []
        self._heat_maps: list[Picture] = []
        self._lines: list[Picture] = []
        self._notes: list[str] = []
        self._problem = ""

    def header(self) -> list[str]:
        """The lines above the run."""
        target, golden = self._session.pair.target, self._session.pair.golden
        steps = sum(len(self._session.pair.steps(rank)) for rank in target.ranks)
        size = f"ranks {number_ranges(target.ranks)}, {steps} steps in all"
        against = f"compared with {golden.root}" if golden is not None else "one run, compared with nothing"
        lines = [f"msprobe: gradients of {target.root}: {size}; {against}"]
        return [*lines, *(f"msprobe: not compared: {line}" for line in self._session.pair.all_unpaired())]

    def page_lines(self) -> list[str]:
        """The first lines of the HTML page: what was found, then what was compared."""
        return [*self._findings.lines(), *self.header()]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Take the verdicts off the report, so that they are not kept for the whole run."""
        wires = report.__dict__.pop("msprobe_gradients", ())
        found = [GradientVerdict.from_wire(wire) for wire in wires]
        for verdict in found:
            self._findings.add(verdict)
        if found and self._has_page:
            self._shown[report.nodeid] = min(found, key=_similarity)  # until the page has made its cells
        result = yield
        if report.when == "teardown":
            self._shown.pop(report.nodeid, None)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the files. A run that could not write or compare everything is no success."""
        try:
            self._write()
        except OSError as error:
            self._problem = f"--msprobe-out={self._out}: the files are not complete: {error}"
        is_wrong = self._problem or self._session.pair.all_unpaired()
        if is_wrong and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The findings, before the tally that all suites have."""
        terminalreporter.section("msprobe gradients")
        for line in self._findings.lines():
            terminalreporter.write_line(line)
        for line in self._session.pair.all_unpaired():
            terminalreporter.write_line(f"not compared: {line}")
        for path in self._files:
            terminalreporter.write_line(f"{'pictures' if path.is_dir() else 'similarities'}: {path}")
        for note in self._notes:
            terminalreporter.write_line(note)
        if self._problem:
            terminalreporter.write_line(self._problem, red=True)

    @pytest.hookimpl(trylast=True, optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        """Signs have no cosine: its column is that of the similarity."""
        cells[:] = [cell.replace(">Cosine<", ">Similarity<") for cell in cells]

    @pytest.hookimpl(trylast=True, optionalhook=True)
    def pytest_html_results_table_row(self, report: pytest.TestReport, cells: list[str]) -> None:
        """Shape and similarity of an item, of the gradient with the lowest where it has several."""
        verdict = self._shown.get(report.nodeid)
        if verdict is None:
            return
        own = {"shape": f"<!--{math.prod(verdict.shape):016d}-->{text(list(verdict.shape))}"}
        if verdict.agreement is not None:
            value = verdict.agreement.similarity
            own["cosine"] = f"<!--{sort_key(value)}-->{number_text(value, '.6f')}"
        for column, content in own.items():
            start = f'<td class="col-{column}"'
            cells[:] = [f"{start}>{content}</td>" if cell.startswith(start) else cell for cell in cells]

    @pytest.hookimpl(trylast=True, optionalhook=True)
    def pytest_html_results_summary(self, prefix: list[str]) -> None:
        """Pictures between the summary and the table."""
        if self._heat_maps:
            prefix.append(f'<div class="msprobe-summary">{"".join(map(_image, self._heat_maps))}</div>')
        if self._lines:
            images = "".join(map(_image, self._lines))
            prefix.append(
                '<div class="msprobe-summary"><details><summary>Similarity over steps, by parameter</summary>'
                f"<div>{images}</div></details></div>"
            )

    def _write(self) -> None:
        if not self._findings.agreements:
            return
        folder = reserve_folder(self._out)
        for rank in sorted(self._findings.agreements):
            own = folder if self._session.pair.target.is_one_rank else folder / f"rank{rank}"
            self._files.append(write_similarities(own, self._findings, rank))
            self._draw(own / "similarities_picture", rank)

    def _draw(self, folder: Path, rank: int) -> None:
        if find_spec("matplotlib") is None:
            self._note("no pictures: they need Matplotlib (pip install 'pytest-msprobe[plot]')")
            return
        pictures = SimilarityPictures(self._findings, rank)
        folder.mkdir(mode=0o750)
        try:
            for picture in self._drawn(pictures):
                path = folder / f"{escape(picture.stem)[:_LONGEST_STEM]}.png"
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o640), "wb") as file:
                    file.write(picture.png)
        except (ValueError, TypeError, ImportError, AttributeError) as error:
            self._note(f"not all pictures could be drawn: {type(error).__name__}: {error}")
        self._files.append(folder)
        if (left := len(self._findings.parameters(rank)) - len(pictures.shown)) > 0:
            self._note(
                f"pictures of {MOST_PARAMETERS} parameters per rank, those with a problem first; {left} have none"
            )

    def _drawn(self, pictures: SimilarityPictures) -> Iterator[Picture]:
        heat_map = pictures.heat_map()
        yield heat_map
        if self._has_page:
            self._heat_maps.append(heat_map)
        for picture in pictures.lines():
            yield picture
            if self._has_page:
                self._lines.append(picture)

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


def _similarity(verdict: GradientVerdict) -> float:
    return verdict.agreement.similarity if verdict.agreement is not None else math.inf


def _image(picture: Picture) -> str:
    content = base64.b64encode(picture.png).decode("ascii")
    return f'<img alt="{text(picture.title)}" src="data:image/png;base64,{content}">'
