"""The commands of `python -m pytest_msprobe`: `conftest`, `docs`, `merge`, `next` and `page`."""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import asdict

from msprobe_collector.dump_format.values import printable
from pytest_msprobe.reports.jsonl import MERGED_NAME, merge_runs
from pytest_msprobe.reports.page import check_page_replaceable, write_page
from pytest_msprobe.suites.registry import suite_class

_PACKAGE = Path(__file__).parent
#: What `docs` copies, by its place in the repository.
_PAGES = ("README.md", "CHANGELOG.md", "docs", "collector/README.md", "collector/examples")


class CommandError(Exception):
    """Ends a command with exit code 2; the text is all that its user sees."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the commands; each sets `run(arguments)`, which gives the exit code, or None for 0."""
    parser = commands.add_parser(
        "conftest", help="write a conftest.py from a template", description="Write a conftest.py from a template."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="template; without it they are listed")
    parser.add_argument(
        "-o", dest="file", metavar="FILE", type=Path, default=Path("conftest.py"), help="default: conftest.py"
    )
    parser.set_defaults(run=write_conftest)
    parser = commands.add_parser(
        "docs",
        help="copy the documentation, CI jobs and examples into a folder",
        description="Copy the documentation, the CI jobs and the examples of this version into a new folder.",
    )
    parser.add_argument(
        "-o", dest="folder", metavar="DIR", type=Path, default=Path("msprobe_docs"), help="default: msprobe_docs"
    )
    parser.set_defaults(run=copy_docs)
    parser = commands.add_parser(
        "merge",
        help="join the results of several runs, shards or hosts",
        description="Join rows of --msprobe-jsonl into one JSONL file, and those of the pre-check into a CSV pair. Of "
        "rows for the same check the last one counts, in the order in which the sources are named. Exits with 1 when "
        "there are failures among them.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", type=Path, help="a .jsonl file, or a folder with some")
    parser.add_argument("-o", dest="folder", metavar="DIR", type=Path, required=True, help="folder to write into")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the page of the merged rows as well")
    parser.set_defaults(run=merge)
    parser = commands.add_parser(
        "next",
        help="write the configurations that collect the tensors of suspects",
        description="Write the config.json of both runs that collects the tensors of the calls which a comparison "
        "without tensors suspects, and say how to prove it with them.",
    )
    parser.add_argument("diagnosis", metavar="FILE", type=Path, help="a file of --msprobe-diagnosis")
    parser.add_argument(
        "-o",
        dest="file",
        metavar="FILE",
        type=Path,
        default=Path("config.json"),
        help="of the target; that of the golden run stands beside it as FILE with _golden; default: config.json",
    )
    parser.set_defaults(run=write_next)
    parser = commands.add_parser(
        "page",
        help="make the page of finished runs",
        description="Make one page from rows of --msprobe-jsonl: of one run, or of shards, resumed runs and ranks "
        "together. Of rows on the same record the last one counts, in the order in which the files are named.",
    )
    parser.add_argument("sources", nargs="+", metavar="ROWS", type=Path, help="a file of --msprobe-jsonl")
    parser.add_argument("-o", dest="page", metavar="FILE", type=Path, required=True, help="page to write")
    parser.set_defaults(run=make_page)


def merge(arguments: argparse.Namespace) -> int:
    """Results of several runs, shards or hosts as one, and their summary; 1 when there are failures.

    Raises:
        CommandError: a source is not what it should be, or a file cannot be written.
    """
    with _stated_errors():
        if arguments.page is not None:
            check_page_replaceable(arguments.page)
        merged = merge_runs(arguments.sources, arguments.folder, suite_class)
        sys.stdout.write("".join(f"{line}\n" for line in merged.lines()))
        if arguments.page is not None:
            _write_page(arguments.page, [arguments.folder / MERGED_NAME])
    return int(merged.has_failed)


def make_page(arguments: argparse.Namespace) -> None:
    """Write the page of finished runs, and say where.

    Raises:
        CommandError: a source is not what it should be, or the page cannot be written.
    """
    with _stated_errors():
        _write_page(arguments.page, arguments.sources)


def write_next(arguments: argparse.Namespace) -> None:
    """Write the configurations of the next collection, and say what to do with them.

    Raises:
        CommandError: the diagnosis is not what it should be, asks for nothing, or a file cannot be written.
    """
    from pytest_msprobe.suites.comparison.accounting.next_collection import read_next_collection

    with _stated_errors():
        found = read_next_collection(arguments.diagnosis)
    if found is None:
        raise CommandError(f"{arguments.diagnosis}: suspects no call whose tensors would tell more")
    target, folder = arguments.file, arguments.file.stem
    files = {"target": target, "golden": target.with_name(f"{target.stem}_golden{target.suffix}")}
    dumps = {side: f"{folder}_dumps/{side}" for side in files}
    for side, file in files.items():
        keys = {name: value for name, value in asdict(getattr(found, side)).items() if value}
        _create(file, json.dumps({**keys, "dump_path": dumps[side]}, indent=2) + "\n")
    command = f"pytest --msprobe-dump={dumps['target']} --msprobe-golden={dumps['golden']}"
    sys.stdout.write(
        f"{len(found.calls)} {'call' if len(found.calls) == 1 else 'calls'}: {', '.join(map(printable, found.calls))}\n"
        f"1. run the target again with PrecisionDebugger({str(files['target'])!r}), the golden run with "
        f"PrecisionDebugger({str(files['golden'])!r})\n"
        f"2. {command} --msprobe-diagnosis={folder}_diagnosis.json\n"
    )


def _write_page(page: Path, sources: Sequence[Path]) -> None:
    write_page(page, sources, suite_class)
    sys.stdout.write(f"page: {page}\n")


@contextmanager
def _stated_errors() -> Iterator[None]:
    """Turn a ValueError, or an OSError with its file, into the error of a command, for use around its body."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}") from None


def write_conftest(arguments: argparse.Namespace) -> None:
    """List the templates of a conftest.py, or copy one.

    Raises:
        CommandError: there is no such template, or a file is in the way.
    """
    templates = find_templates()
    if arguments.name is None:
        sys.stdout.write(_listing(templates))
        return
    template = templates.get(arguments.name)
    if template is None:
        raise CommandError(f"there is no template {arguments.name!r}; there are:\n{_listing(templates)}".rstrip())
    _copy(template, arguments.file)
    companion = template.with_suffix(".txt")
    if companion.is_file():
        beside = arguments.file.parent / companion.name
        if beside.exists():
            sys.stdout.write(f"kept {beside}\n")
        else:
            _copy(companion, beside)


def copy_docs(arguments: argparse.Namespace) -> None:
    """Copy README, documentation, CI jobs and examples into a new folder, and say where to begin.

    Raises:
        CommandError: the folder exists or cannot be written, or the installation has no documentation.
    """
    bundled, target = _PACKAGE / "documentation", arguments.folder
    source = bundled if bundled.is_dir() else _PACKAGE.parent
    if not (source / "docs").is_dir():
        raise CommandError(f"the documentation is missing from this installation: {bundled}; install it again")
    if target.exists():
        raise CommandError(f"{target} exists and is left as it is; name another folder with -o")
    with _stated_errors():
        for page in _PAGES:
            place = target / page
            place.parent.mkdir(parents=True, exist_ok=True)
            if (source / page).is_dir():
                shutil.copytree(
                    source / page, place, ignore=shutil.ignore_patterns("__pycache__", "*_dump", "site_pages.py")
                )
            else:
                shutil.copyfile(source / page, place)
    sys.stdout.write(f"wrote {target}; begin with {target / 'README.md'}\n")


def find_templates() -> dict[str, Path]:
    """Templates by name: inside the installed package, or at the top of the repository.

    Raises:
        CommandError: the installation has no folder of templates.
    """
    folders = (_PACKAGE / "conftest_templates", _PACKAGE.parent / "conftest_templates")
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        raise CommandError(f"the templates are missing from this installation: {folders[0]}; install it again")
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def _listing(templates: dict[str, Path]) -> str:
    width = max(map(len, templates))
    lines = []
    for name, path in templates.items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first, _, _ = docstring.partition("\n")
        lines.append(f"  {name:{width}}  {first}\n")
    return "".join(lines)


def _copy(source: Path, target: Path) -> None:
    _create(target, source.read_text(encoding="utf-8"))


def _create(target: Path, content: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise CommandError(f"{target} exists and is left as it is; name another file with -o") from None
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}") from None
    sys.stdout.write(f"wrote {target}\n")
