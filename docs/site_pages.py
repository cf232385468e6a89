"""Hooks of MkDocs: pages of the site that are made from the code, and pages that stand elsewhere in the repository.

Nothing of it is committed. Links between Markdown files are written for the repository; on the site they lead to the
same pages, and those to files that the site does not have become plain text.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from pytest_msprobe.run.settings import sections
from pytest_msprobe.suites.options import Option

ROOT = Path(__file__).parents[1]
#: Pages by the place of their text in the repository.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "extensions/laws/README.md": "laws.md",
    "extensions/checkpoints/README.md": "checkpoints.md",
}
#: Runs of the gallery: (page, what it shows, arguments of pytest in the folder of dumps).
GALLERY = (
    (
        "precheck",
        "A training step judged with a limit that is too strict for float32: every failure is explained by rounding.",
        ("--msprobe-dump=gpt_tiny_tensor", "--msprobe-max-abs=1e-6"),
    ),
    (
        "comparison",
        "Two training steps of a GPT, one with a changed weight: the weight is at fault, 138 operations inherit it.",
        ("--msprobe-dump=target", "--msprobe-golden=golden"),
    ),
    (
        "overflow",
        "Attention scores that overflow float16, and what they reach.",
        ("--msprobe-dump=overflow_attention", "--msprobe-suite=overflow"),
    ),
    (
        "gradients",
        "Gradients of two trainings: from step 3 on, one parameter's are wrong.",
        ("--msprobe-gradients=gradients/target", "--msprobe-golden=gradients/golden"),
    ),
)
#: Variables that this project reads or sets, by what they are for.
ENVIRONMENT = (
    (("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), "devices that workers may get; set to its own in a worker"),
    (
        ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "ASCEND_LAUNCH_BLOCKING"),
        "set in the processes of a run, if they are not",
    ),
    (("PYTEST_MSPROBE_DEVICE",), "set in a worker: the id of its device, for rows and for conftest.py files"),
    (("MSPROBE_LAWS", "MSPROBE_LAWS_SKIP", "MSPROBE_LAWS_MEANT"), "in a training: check laws; leave out; meant"),
    (("MSPROBE_ARTIFACTS",), "template `ci`: folder for results; `artifacts` by default"),
    (("MSPROBE_REFERENCE_PYTHON",), "tests and tools of the repository: a Python that has the existing tool"),
    (
        ("MSPROBE_TEST_KILLS", "MSPROBE_TEST_SIZES"),
        "tests of the repository: how many runs are ended, and disks filled",
    ),
    (("MSPROBE_BENCHMARK_CLOCK", "MSPROBE_BENCHMARK_WITNESS"), "files by which `tools.benchmarks` watches its runs"),
)
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs."""
    sys.path.append(str(ROOT))  # MkDocs does not begin in it
    from tools.coverage import make_page

    pages = {page: (ROOT / place).read_text(encoding="utf-8") for place, page in ELSEWHERE.items()}
    pages["reference/options.md"] = "\n".join(_options())
    pages["coverage.md"] = make_page()
    pages["gallery.md"] = "\n".join(_gallery())
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    for name, html in _gallery_pages():
        files.append(File.generated(config, f"gallery/{name}.html", content=html))
    return files


def _gallery() -> Iterator[str]:
    yield "# Gallery of pages\n"
    yield "Pages that `--msprobe-page=report.html` writes, of dumps of the repository. [What is on a page](page.md).\n"
    for name, text, arguments in GALLERY:
        yield f"- [{name.capitalize()}](gallery/{name}.html){{target=_blank}}: {text} `pytest {' '.join(arguments)}`"


def _gallery_pages() -> Iterator[tuple[str, bytes]]:
    """(name, HTML) of each page of the gallery."""
    dumps = ROOT / "tests" / "dumps"
    with tempfile.TemporaryDirectory() as folder:
        for dump in ("gpt_tiny_tensor", "overflow_attention", "gradients"):
            (Path(folder) / dump).symlink_to(dumps / dump)
        with tarfile.open(dumps / "gpt_perturbed" / "dumps.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        for name, _, arguments in GALLERY:
            page = Path(folder) / f"{name}.html"
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "--rootdir=.",
                "-c=/dev/null",
                f"--msprobe-page={page.name}",
            ]
            done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
            if not page.exists():
                raise PluginError(f"gallery: {' '.join(arguments)} wrote no page:\n{done.stdout}{done.stderr}")
            yield name, page.read_bytes()


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Have links of the repository lead to pages of the site."""
    name = page.file.src_uri
    place = next((place for place, here in ELSEWHERE.items() if here == name), f"docs/{name}")

    def site_link(match: re.Match[str]) -> str:
        text, link = match.groups()
        target, _, anchor = link.partition("#")
        if "://" in link or not target:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
        found = ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if files.get_file_from_path(found) is None:
            return text
        relative = posixpath.relpath(found, posixpath.dirname(name) or ".")
        return f"[{text}]({relative}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(site_link, part) for part in parts)


def _options() -> Iterator[str]:
    """The page of all options, by suite."""
    yield "# Options\n"
    yield (
        "Each option has three names: on the command line, in an ini file, and, as in ini but without `msprobe_`, as a "
        "key of the YAML file of `--msprobe-config`. The command line wins, then YAML, then ini. A suite refuses "
        "options of other suites on the command line; in ini and YAML they may stand together. `pytest --help` lists "
        "those that most runs need, in bold, `python -m pytest_msprobe options` all, `options NAME` explains one.\n"
    )
    for section in sections():
        yield f"\n## {section.title.capitalize()}\n"
        if section.shared:
            names = ", ".join(f"`{option.flag}`" for option in section.shared)
            yield f"Also, with the same meaning as above: {names}.\n"
        for title, options in section.questions:
            yield f"\n{title.capitalize()}:\n"
            yield from _table(*options)
    yield "\n## Environment variables\n"
    yield "No option is read from a variable; a run says so of one that is called like an option.\n"
    yield "| variable | what it is for |\n|---|---|"
    yield from (f"| `{'`, `'.join(names)}` | {meaning} |" for names, meaning in ENVIRONMENT)


def _table(*options: Option) -> Iterator[str]:
    yield "| option | what it does | default | ini |"
    yield "|---|---|---|---|"
    for option in options:
        value = f"={option.metavar}" if option.metavar else ""
        flag = "in YAML only" if option.is_yaml_only else f"`{option.flag}{value}`"
        flag = f"**{flag}**" if option.is_common else flag
        text = re.sub(r"(--[a-z][a-z0-9-]+\w)", r"`\1`", option.help).replace("|", "&#124;")  # a bar would end the cell
        cells = [flag, text, f"`{option.default}`" if option.default else "", f"`{option.key}`"]
        yield f"| {' | '.join(cells)} |"
