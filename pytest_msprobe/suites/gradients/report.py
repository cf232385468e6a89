"""Similarities, pictures and findings of a run over gradients, on the one process that writes.

Pictures of how similar two runs' gradients are over the steps. Matplotlib is optional (extra `plot`).
"""

from __future__ import annotations

import base64
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any

from pytest_msprobe.answers import Answer, Gap, RunRows, with_open
from pytest_msprobe.reports.csv_pair import neutral
from pytest_msprobe.reports.html import text
from pytest_msprobe.suites.contract import SuiteReport, escape
from pytest_msprobe.suites.gradients.findings import Findings
from pytest_msprobe.suites.gradients.run import RunPair
from pytest_msprobe.support import how_to_install, is_installed

#: Parameters with a picture of their own, per rank; those with a problem first.
MOST_PARAMETERS = 100
#: Stem of the picture of all parameters.
HEAT_MAP = "heat_map"
#: Rows of a heat map that have room for their names.
_MOST_NAMES = 60
_LONGEST_NAME = 40
_RED, _GREY = "#c62828", "#57606a"
_TEXT = {"parse_math": False, "fontsize": 8}


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG.

    Attributes:
        title: what it shows.
        stem: of its file name.
        png: its content.
    """

    title: str
    stem: str
    png: bytes


class SimilarityPictures:
    """Draws the similarities of one rank."""

    def __init__(self, findings: Findings, rank: int) -> None:
        self._findings = findings
        self._rank = rank
        self._steps = findings.steps(rank)
        self._problems = {(problem.parameter, problem.step) for problem in findings.problems if problem.rank == rank}

    @property
    def shown(self) -> list[str]:
        """The parameters that get a picture of their own, in the order of the optimizer."""
        names = self._findings.parameters(self._rank)
        bad = {name for name, _ in self._problems}
        chosen = set(sorted(names, key=lambda name: name not in bad)[:MOST_PARAMETERS])
        return [name for name in names if name in chosen]

    def heat_map(self) -> Picture:
        """Parameter x step; a cross marks a problem, grey what was not compared."""
        import numpy as np

        names = self._findings.parameters(self._rank)
        values = np.array([self._findings.row(self._rank, name, self._steps) for name in names], np.float64)
        height = max(1.2 + 0.18 * min(len(names), _MOST_NAMES), 2.2)
        figure = _figure(9, height)
        axes = figure.subplots(gridspec_kw={"left": 0.25, "right": 1, "bottom": 0.5 / height, "top": 1 - 0.3 / height})
        image = axes.imshow(values, aspect="auto", vmin=0.5, vmax=1, cmap="RdYlGn", interpolation="nearest")
        axes.set_facecolor("#d0d7de")
        if len(names) <= _MOST_NAMES:
            axes.set_yticks(range(len(names)), [_short(name) for name in names], parse_math=False)
        every = 1 + len(self._steps) // 20
        axes.set_xticks(range(0, len(self._steps), every), self._steps[::every])
        rows, columns = dict(zip(names, count())), dict(zip(self._steps, count()))
        marks = [(columns[step], rows[name]) for name, step in self._problems if name in rows and step in columns]
        axes.plot(*np.reshape(sorted(marks), (-1, 2)).T, "kx", markersize=4)
        axes.tick_params(labelsize=7)
        axes.set_xlabel("step", fontsize=8)
        title = f"rank {self._rank}: similarity of gradient signs by parameter and step"
        axes.set_title(f"{title}; x: problem", loc="left", **_TEXT)
        figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, extend="min").ax.tick_params(labelsize=7)
        return Picture(title, HEAT_MAP, _png(figure))

    def lines(self) -> Iterator[Picture]:
        """All gradients together, then each parameter of `shown`: similarity over steps."""
        lines = _LinePicture()
        title = f"rank {self._rank}"
        overall = {step: self._findings.overall(self._rank, step).similarity for step in self._steps}
        yield lines.draw(f"{title}: summary", "summary_similarities", overall, ())
        for name in self.shown:
            agreements = self._findings.agreements[self._rank][name]
            values = {step: agreements[step].similarity for step in sorted(agreements)}
            bad = [step for step in values if (name, step) in self._problems]
            yield lines.draw(f"{title}: {name}", f"{name}_similarities", values, bad)


class _LinePicture:
    """One figure for all pictures of similarity over steps: making its parts anew would take most of the time."""

    def __init__(self) -> None:
        self._figure = _figure(6, 2)
        self._axes = self._figure.add_axes((0.09, 0.22, 0.89, 0.63))
        self._line = self._axes.plot((), (), ".-", color=_GREY, linewidth=1, markersize=4)[0]
        self._bad = self._axes.plot((), (), "o", color=_RED, markersize=5)[0]
        self._axes.tick_params(labelsize=7)
        self._axes.xaxis.get_major_locator().set_params(integer=True)
        self._axes.set_xlabel("step", fontsize=8, labelpad=1)
        self._axes.spines[["top", "right"]].set_visible(False)

    def draw(self, title: str, stem: str, values: Mapping[int, float], bad: Sequence[int]) -> Picture:
        """The picture of `values` by step, those of `bad` marked."""
        steps = list(values)
        self._line.set_data(steps, list(values.values()))
        self._bad.set_data(bad, [values[step] for step in bad])
        self._axes.set_xlim(steps[0] - 0.3, steps[-1] + 0.3)
        self._axes.set_ylim(min(0.9, *values.values()) - 0.02, 1.005)
        self._axes.set_title(_short(title, longest=80), loc="left", **_TEXT)
        return Picture(title, stem, _png(self._figure))


def _figure(width: float, height: float) -> Any:
    # Figure without pyplot: no window system, no state shared with the user's own plots.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=80)


def _png(figure: Any) -> bytes:
    target = BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def _short(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"...{text[3 - longest :]}"


def reserve_folder(out: Path) -> Path:
    """A new folder `gradients_{time}` in `out`, for this run alone. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    moment = datetime.now()
    while True:
        folder = out / f"gradients_{moment:%Y%m%d%H%M%S}"
        try:
            folder.mkdir()
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
    folder.mkdir(exist_ok=True)
    path, steps = folder / "similarities.csv", findings.steps(rank)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *steps])
        for name in findings.parameters(rank):
            writer.writerow([neutral(name), *findings.row(rank, name, steps)])
        writer.writerow(["summary", *(findings.overall(rank, step).similarity for step in steps)])
    return path


class GradientReport(SuiteReport):
    """Collects verdicts, and writes and says at the end what they amount to."""

    summary: Findings

    def __init__(self, pair: RunPair, out: Path, *, has_page: bool) -> None:
        """A report on `pair` into a new folder in `out`; with `has_page` the pictures are kept for the HTML page."""
        self._pair = pair
        self._out = out
        self._has_page = has_page
        self.summary = Findings()
        self._files: list[Path] = []
        self._pictures: list[Picture] = []
        self._notes: list[str] = []

    def finish(self) -> None:
        if not self.summary.agreements:
            return
        folder = reserve_folder(self._out)
        for rank in sorted(self.summary.agreements):
            own_folder = folder if self._pair.target.is_one_rank else folder / f"rank{rank}"
            self._files.append(write_similarities(own_folder, self.summary, rank))
            self._draw(own_folder / "similarities_picture", rank)

    def answer(self, rows: RunRows) -> Answer:
        gaps = [Gap(kind="without a partner", what="steps", reason=line) for line in self._pair.all_unpaired()]
        return with_open(self.summary.answer(rows), gaps)

    def findings(self) -> Iterator[str]:
        yield from self.summary.lines()
        yield from self._unpaired()

    def facts(self) -> Iterator[str]:
        yield from self.summary.facts()
        yield from self._unpaired()

    def _unpaired(self) -> Iterator[str]:
        yield from map("not compared: {}".format, self._pair.all_unpaired())
        yield from self._notes

    def files(self) -> Iterator[tuple[str, Path]]:
        for path in self._files:
            yield "pictures" if path.is_dir() else "similarities", path

    def fault(self) -> str:
        return "not every step has a partner, so this run is not a success" if self._pair.all_unpaired() else ""

    def markup(self) -> str:
        heat_maps = "".join(_image(picture) for picture in self._pictures if picture.stem == HEAT_MAP)
        curves = "".join(_image(picture) for picture in self._pictures if picture.stem != HEAT_MAP)
        markup = f'<div class="msprobe-summary">{heat_maps}</div>' if heat_maps else ""
        if curves:
            summary = "<summary>Similarity over steps, by parameter</summary>"
            markup += f'<div class="msprobe-summary"><details>{summary}<div>{curves}</div></details></div>'
        return markup

    def _draw(self, folder: Path, rank: int) -> None:
        if not is_installed("matplotlib"):
            self._note(f"no pictures: {how_to_install('matplotlib')}")
            return
        pictures = SimilarityPictures(self.summary, rank)
        folder.mkdir()
        try:
            for picture in chain([pictures.heat_map()], pictures.lines()):
                path = folder / f"{escape(picture.stem)[:200]}.png"
                with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
                    file.write(picture.png)
                if self._has_page:
                    self._pictures.append(picture)
        except (ValueError, TypeError, ImportError, AttributeError) as error:
            self._note(f"not all pictures could be drawn: {type(error).__name__}: {error}")
        self._files.append(folder)
        if (others := len(self.summary.parameters(rank)) - len(pictures.shown)) > 0:
            self._note(
                f"pictures of {MOST_PARAMETERS} parameters per rank, those with a problem first; {others} have none"
            )

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)


def _image(picture: Picture) -> str:
    content = base64.b64encode(picture.png).decode("ascii")
    return f'<img alt="{text(picture.title)}" src="data:image/png;base64,{content}">'
