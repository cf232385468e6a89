"""Similarities, pictures and findings of a run over gradients, on the one process that writes."""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from pytest_msprobe.reports.csv_pair import neutral
from pytest_msprobe.reports.html import text
from pytest_msprobe.suites.contract import SuiteReport, escape
from pytest_msprobe.suites.gradients.findings import Findings
from pytest_msprobe.suites.gradients.pictures import HEAT_MAP, MOST_PARAMETERS, Picture, SimilarityPictures
from pytest_msprobe.suites.gradients.run import RunPair
from pytest_msprobe.support import how_to_install, is_installed
from pytest_msprobe.verdicts import VerdictRow


def reserve_folder(out: Path) -> Path:
    """A new folder `gradients_{time}` in `out`, for this run alone. Raises OSError."""
    out.mkdir(mode=0o750, parents=True, exist_ok=True)
    moment = datetime.now()
    while True:
        folder = out / f"gradients_{moment:%Y%m%d%H%M%S}"
        try:
            folder.mkdir(mode=0o750)
        except FileExistsError:
            moment += timedelta(seconds=1)  # another run of the same second
        else:
            return folder


def write_similarities(folder: Path, findings: Findings, rank: int) -> Path:
    """Write `similarities.csv` of `rank` into `folder`; its path.

    It has the form of the existing tool: a row per parameter, a column per step, `summary` last. A cell is empty where
    nothing was compared.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(mode=0o750, exist_ok=True)
    path, steps, found = folder / "similarities.csv", findings.steps(rank), findings.agreements[rank]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *steps])
        for name in findings.parameters(rank):
            cells = [found[name][step].similarity if step in found[name] else "" for step in steps]
            writer.writerow([neutral(name), *cells])
        writer.writerow(["summary", *(findings.overall(rank, step).similarity for step in steps)])
    return path


_LONGEST_STEM = 200


class GradientReport(SuiteReport):
    """Collects verdicts, and writes and says at the end what they amount to."""

    def __init__(self, pair: RunPair, out: Path, *, has_page: bool) -> None:
        """A report on `pair` into a new folder in `out`; with `has_page` the pictures are kept for the HTML page."""
        self._pair = pair
        self._out = out
        self._has_page = has_page
        self._findings = Findings()
        self._files: list[Path] = []
        self._pictures: list[Picture] = []
        self._notes: list[str] = []

    def receive(self, name: str, row: VerdictRow) -> None:
        self._findings.add(row)

    def finish(self) -> None:
        if not self._findings.agreements:
            return
        folder = reserve_folder(self._out)
        for rank in sorted(self._findings.agreements):
            own = folder if self._pair.target.is_one_rank else folder / f"rank{rank}"
            self._files.append(write_similarities(own, self._findings, rank))
            self._draw(own / "similarities_picture", rank)

    def findings(self) -> Iterator[str]:
        yield from self._findings.lines()
        yield from (f"not compared: {line}" for line in self._pair.all_unpaired())
        yield from self._notes

    def files(self) -> Iterator[tuple[str, Path]]:
        yield from (("pictures" if path.is_dir() else "similarities", path) for path in self._files)

    def fault(self) -> str:
        return "not every step has a partner, so this run is not a success" if self._pair.all_unpaired() else ""

    def markup(self) -> str:
        heat_maps = "".join(_image(picture) for picture in self._pictures if picture.stem == HEAT_MAP)
        curves = "".join(_image(picture) for picture in self._pictures if picture.stem != HEAT_MAP)
        parts = [f'<div class="msprobe-summary">{heat_maps}</div>'] if heat_maps else []
        if curves:
            summary = "<summary>Similarity over steps, by parameter</summary>"
            parts.append(f'<div class="msprobe-summary"><details>{summary}<div>{curves}</div></details></div>')
        return "".join(parts)

    def _draw(self, folder: Path, rank: int) -> None:
        if not is_installed("matplotlib"):
            self._note(f"no pictures: {how_to_install('matplotlib')}")
            return
        pictures = SimilarityPictures(self._findings, rank)
        folder.mkdir(mode=0o750)
        try:
            for picture in chain([pictures.heat_map()], pictures.lines()):
                path = folder / f"{escape(picture.stem)[:_LONGEST_STEM]}.png"
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o640), "wb") as file:
                    file.write(picture.png)
                if self._has_page:
                    self._pictures.append(picture)
        except (ValueError, TypeError, ImportError, AttributeError) as error:
            self._note(f"not all pictures could be drawn: {type(error).__name__}: {error}")
        self._files.append(folder)
        if (left := len(self._findings.parameters(rank)) - len(pictures.shown)) > 0:
            self._note(
                f"pictures of {MOST_PARAMETERS} parameters per rank, those with a problem first; {left} have none"
            )

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


def _image(picture: Picture) -> str:
    content = base64.b64encode(picture.png).decode("ascii")
    return f'<img alt="{text(picture.title)}" src="data:image/png;base64,{content}">'
