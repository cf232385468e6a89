"""What the documentation names exists: options, files, pages of the site; its CI jobs are valid.

`.ci/installed` runs what the documentation says about installing: the commands of README.md and the CI jobs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from documented import PAGES, ROOT

from msprobe_collector.msprobe_names import NAMES
from pytest_msprobe import __version__
from pytest_msprobe.run.settings import all_options

DOCS = ROOT / "docs"
#: All Markdown but what the programs of `quality` write and what is no file of this repository.
ALL = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "skills").rglob("*.md"))]
FLAGS = {"--msprobe-dump", "--msprobe-config", *(option.flag for option in all_options() if not option.is_yaml_only)}
#: What names options beside the pages.
OTHERS = sorted(
    path
    for pattern in ("docs/ci/*", "docs/*.py", "conftest_templates/*", "tools/**/*.py", ".ci/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
)
#: Files that may name a page.
SOURCES = ("", ".py", ".txt", ".json", ".yaml", ".yml", ".md")
#: Snippets are left out: their links and flags belong to somebody else.
FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_exist(page: Path) -> None:
    named = set(re.findall(r"--msprobe-[a-z0-9]+(?:-[a-z0-9]+)*", page.read_text(encoding="utf-8")))
    assert named <= FLAGS


def test_every_variable_is_on_the_page_of_options() -> None:
    listed = re.findall(r'"((?:PYTEST_)?MSPROBE_\w+)"', (DOCS / "site_pages.py").read_text(encoding="utf-8"))
    folders = ("pytest_msprobe", "collector", "extensions", "conftest_templates", "docs", "tools", "tests", ".ci")
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    read = re.compile(r'(?:environ\.get\(|environ\[|[A-Z] = )"((?:PYTEST_)?MSPROBE_[A-Z_]+)"')
    found = {name for text in texts for name in read.findall(text)}
    assert found == set(listed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    made_by_the_site = {"reference/options.md", "coverage.md"}
    missing = [
        link
        for link in links
        if "://" not in link and link not in made_by_the_site and not (page.parent / link).exists()
    ]
    assert missing == []


def test_the_site_has_every_page() -> None:
    class Loader(yaml.SafeLoader):
        """MkDocs allows tags of its own."""

    Loader.add_multi_constructor("", lambda loader, suffix, node: None)
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.load(text, Loader)["nav"]  # a SafeLoader
    listed = set(re.findall(r"'([^']+\.md)'", repr(nav)))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | {"laws.md", "checkpoints.md"} <= listed


def test_pages_are_few_and_short() -> None:
    texts = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in ALL}
    assert len(texts) <= 28
    assert sum(len(text.split()) for text in texts.values()) <= 30_000
    assert [name for name, text in texts.items() if max(map(len, text.splitlines())) > 120] == []
    elsewhere = {
        path for folder in ("collector", "tests", "tools", "pytest_msprobe") for path in (ROOT / folder).rglob("*.md")
    }
    assert elsewhere == set()


def test_the_architecture_is_one_page_of_places_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\d\. ", text, re.MULTILINE)) == 9
    rows = re.findall(r"^\| (.*) \| (.*) \|$", text.partition("## Where each fact is kept")[2], re.MULTILINE)[1:]
    assert 0 < len(rows) <= 40
    roots = (ROOT, ROOT / "pytest_msprobe", ROOT / "collector" / "msprobe_collector")
    places = [place for _, cell in rows for place in re.findall(r"`([\w/]+(?:\.py|\.yaml|/))`", cell)]
    assert len(places) >= len(rows)
    assert [place for place in places if not any((root / place).exists() for root in roots)] == []


def test_the_glossary_has_the_words_of_an_answer() -> None:
    from pytest_msprobe.answers.finding import Confidence
    from pytest_msprobe.answers.words import _KIND_WORDS

    bold = " ".join(re.findall(r"\*\*(.*?)\*\*", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.DOTALL)).split()
    words = {"Right", "Wrong", "Nothing judged", *_KIND_WORDS.values(), *get_args(Confidence)}
    assert {word for word in words if word not in " ".join(bold)} == set()


def test_pages_that_the_code_names_exist() -> None:
    folders = ("pytest_msprobe", "collector", "extensions", "conftest_templates", "tools", "tests", "skills", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files = [path for path in paths if path.suffix in SOURCES and "dumps" not in path.parts]
    assert len(files) > 500
    page = re.compile(r"\b(?:docs|extensions|quality)/[a-z_/]+\.md\b")
    named = {(path, name) for path in files for name in page.findall(path.read_text(encoding="utf-8"))}
    assert {(path.name, name) for path, name in named if not (ROOT / name).exists()} == set()


def headings(page: Path) -> set[str]:
    """Anchors of a page, as MkDocs makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_anchors_of_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8")))
    missing = [
        f"{link}#{anchor}"
        for link, anchor in links
        if "://" not in link and anchor not in headings(page.parent / link if link else page)
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("job", "schema"), [("github-actions.yml", "github-workflows"), ("gitlab-ci.yml", "gitlab-ci")]
)
def test_ci_jobs_are_valid(job: str, schema: str) -> None:
    check = pytest.importorskip("check_jsonschema")
    with pytest.raises(SystemExit) as ended:
        check.main(["--builtin-schema", f"vendor.{schema}", str(DOCS / "ci" / job)])
    assert ended.value.code in (0, None)


@pytest.mark.parametrize("job", sorted(path.name for path in (DOCS / "ci").iterdir()))
def test_ci_jobs_install_what_one_variable_names_and_write_the_page(job: str) -> None:
    text = (DOCS / "ci" / job).read_text(encoding="utf-8")
    assert set(re.findall(r"pip install (.*)", text)) == {'"$MSPROBE"' + ("'" if job == "Jenkinsfile" else "")}
    assert re.findall(r"pytest_msprobe-\S+?\.whl", text) == [f"pytest_msprobe-{__version__}-py3-none-any.whl"]
    assert re.search(r"--(?:msprobe-)?page[= ]\w+/page\.html", text)


def test_ci_jobs_collect_diagnose_and_compare() -> None:
    texts = "".join((DOCS / "ci" / job).read_text(encoding="utf-8") for job in ("github-actions.yml", "gitlab-ci.yml"))
    for command in (
        "msprobe_collector collect",
        "pytest_msprobe diagnose",
        "--msprobe-golden=",
        "pytest_msprobe merge",
    ):
        assert command in texts


def test_only_the_clone_is_installed_from_the_working_folder() -> None:
    """`pip install '.[torch]'` installs the project of whoever reads it elsewhere."""
    found = {
        (page.relative_to(ROOT).as_posix(), line)
        for page in [*PAGES, *(DOCS / "ci").iterdir(), *(ROOT / "conftest_templates").iterdir()]
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install [^`]*'?\.(?:\[|'| |$)", line)
    }
    assert {page for page, _ in found} == {"README.md", "CONTRIBUTING.md", "docs/index.md", "docs/new_suite.md"}
    (place,) = re.findall(r"pip install './pytest_msprobe-(.*)-py3-none-any", (ROOT / "README.md").read_text("utf-8"))
    assert place == __version__


@pytest.mark.needs("mindspore")
@pytest.mark.needs("torch")
def test_import_lines_of_the_existing_tool_have_a_replacement_that_works() -> None:
    table = (DOCS / "migration.md").read_text(encoding="utf-8").partition("## The collector")[2]
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", table, flags=re.MULTILINE)
    for _, ours in rows:
        for line in re.findall(r"`(from [^`]*)`", ours):
            exec(line, {})
    theirs = " ".join(left for left, _ in rows)
    theirs += "".join(f" {name}" for homes in NAMES.values() for name in homes)  # those that as-msprobe gives
    exported = (
        "PrecisionDebugger seed_all MsprobeStep MsprobeInitStep TrainerMon save save_grad step compare module_dump"
    )
    exported += " compare_distributed GradComparator module_dump_end random_save acl_save AclGraphDumper"
    assert {name for name in exported.split() if not re.search(rf"\b{name}\b", theirs)} == set()


def test_steps_of_examples_begin_at_0() -> None:
    """A later step differs already where an earlier one did."""
    files = [*PAGES, *(ROOT / "collector" / "examples").rglob("*.json")]
    steps = [found for file in files for found in re.findall(r'"step": \[(\d+)', file.read_text(encoding="utf-8"))]
    assert len(steps) > 2
    assert set(steps) == {"0"}


def test_the_jenkinsfile_is_groovy() -> None:
    groovy = pytest.importorskip("tree_sitter_groovy")
    tree_sitter = pytest.importorskip("tree_sitter")
    parser = tree_sitter.Parser(tree_sitter.Language(groovy.language()))
    assert not parser.parse((DOCS / "ci" / "Jenkinsfile").read_bytes()).root_node.has_error
