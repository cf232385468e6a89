"""All reports of a run in one folder, for a CI job to keep: CSV pair, JUnit XML, two HTML pages, a list of failures.

GitLab:  artifacts: {when: always, paths: [artifacts], reports: {junit: artifacts/junit.xml}}
GitHub:  uses: actions/upload-artifact@v4 with: {path: artifacts}, if: always()
"""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("MSPROBE_ARTIFACTS", "artifacts"))  # relative to the folder of this file


@pytest.hookimpl(tryfirst=True)  # before the reports are set up; what the command line says wins
def pytest_configure(config):
    folder = Path(__file__).parent / FOLDER
    option = config.option
    option.msprobe_out = option.msprobe_out or str(folder)
    option.msprobe_page = option.msprobe_page or str(folder / "page.html")
    option.xmlpath = option.xmlpath or str(folder / "junit.xml")
    option.htmlpath = option.htmlpath or str(folder / "report.html")
    option.self_contained_html = True
    if not hasattr(config, "workerinput"):  # a worker of -n writes nothing
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failures.txt").write_text("")


def pytest_msprobe_verdict(row):
    """One line per failing API call, there as soon as it has failed."""
    if row.status == "error":
        text = row.message or "; ".join(f"{output.label}: {output.message}" for output in row.outputs if output.message)
        with (Path(__file__).parent / FOLDER / "failures.txt").open("a", encoding="utf-8") as file:
            file.write(f"{row.call} {row.direction}: {text}\n")
