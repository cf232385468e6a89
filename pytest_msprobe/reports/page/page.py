"""The page as one file: template, style, scripts and the data of all rows."""

from __future__ import annotations

import base64
import gzip
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from pytest_msprobe.installing import version_of
from pytest_msprobe.reports.jsonl import encodable, read_latest_rows
from pytest_msprobe.reports.page.section import Section, ShownSuite

#: In this order: each uses only what stands before it.
SCRIPTS = (
    "vendored/preact.umd.js",
    "vendored/hooks.umd.js",
    "vendored/htm.umd.js",
    "data.js",
    "selection.js",
    "tree.js",
    "strip.js",
    "treeview.js",
    "table.js",
    "details.js",
    "pictures.js",
    "app.js",
)
#: What a page of ours begins with: nothing else is replaced.
_BEGINNING = b"<!doctype html>\n<!-- pytest-msprobe page -->"


def write_page(path: Path, sources: Sequence[Path], suite_of: Callable[[str], ShownSuite | None]) -> None:
    """Write the page of the rows in `sources`, files of `--msprobe-jsonl`, to `path`, which is whole or as it was.

    Of rows on the same record the last one counts, in the order of the sources. `suite_of` gives a suite by its name.

    Raises:
        ValueError: a source holds something else than rows, or rows of a suite that is not known; the text names it.
        OSError: a source cannot be read, or the page not written; FileExistsError when another file stands there.
    """
    sections: dict[str, Section] = {}
    for row in read_latest_rows(sources):
        name = row.suite or "precheck"  # rows of version 0.1 do not name theirs
        if name not in sections:
            suite = suite_of(name)
            if suite is None:
                raise ValueError(f"rows of the suite {name!r}, which this version does not know")
            sections[name] = Section(suite)
        sections[name].add(row)
    write_whole(path, render([section.content() for section in sections.values()]))


def render(sections: Sequence[dict[str, Any]]) -> bytes:
    """The page for the `content` of some sections."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pytest_msprobe.reports.page", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = files("pytest_msprobe.reports.page") / "assets"
    content = {
        "version": version_of("pytest-msprobe"),
        "made": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        "sections": sections,
    }
    text = environment.get_template("page.html").render(
        title=" and ".join(section["title"] for section in sections) or "No rows",
        style=(folder / "page.css").read_text(encoding="utf-8"),
        scripts=[(folder / name).read_text(encoding="utf-8") for name in SCRIPTS],
        # Letters, digits, + and /: whatever a dump holds, it cannot end the element that it stands in.
        data=base64.b64encode(gzip.compress(_encoded(content), 9, mtime=0)).decode("ascii"),
    )
    return text.encode("utf-8")


def check_replaceable(path: Path) -> None:
    """Refuse to write over a file at `path` that this plugin did not write.

    Raises:
        FileExistsError: the file is no page of --msprobe-page.
    """
    if path.exists():
        with path.open("rb") as file:
            if file.read(len(_BEGINNING)) != _BEGINNING:
                raise FileExistsError(f"{path} is not a page of --msprobe-page, and is not replaced")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there only when it is whole. Raises OSError."""
    check_replaceable(path)
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _encoded(content: Any) -> bytes:
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return msgspec.json.encode(encodable(content))
