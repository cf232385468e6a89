"""The HTML page as an engineer meets it, in Debian's Chromium without a window."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from dump_builder import DumpBuilder

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

A = np.random.default_rng(5).standard_normal((4, 8)).astype(np.float32)
#: Each sets `document.title` if it ever runs.
ATTACKS = (
    "Mint.<script>document.title='hit'<.0",
    "Mint.--><img src=x onerror=document.title='hit'>.0",
    "Mint.\"onmouseover=document.title='hit' x=\".0",
    "</div></template><svg onload=document.title='hit'>",
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of 14 passes, three failures and every attack."""
    builder = DumpBuilder(tmp_path_factory.mktemp("page"))
    for number in range(14):
        builder.call(f"Mint.exp.{number}", [A], [np.exp(A.astype(np.float64)).astype(np.float32)])
    for number, error in enumerate((0.5, 30.0, 4.0)):
        builder.call(f"Mint.neg.{number}", [A], [-A + np.float32(error)])
    builder.stacks["Mint.neg.1.forward"] = [f"File {attack}, line 1, in {attack}, \n {attack}" for attack in ATTACKS]
    for attack in ATTACKS:
        builder.records[attack if attack.startswith("<") else f"{attack}.forward"] = {
            "input_args": [{"type": attack, "value": attack}],
            "input_kwargs": {},
            "output": [],
        }
    command = ["-m", "pytest", f"--msprobe-dump={builder.write()}", "--html=page.html", "--self-contained-html"]
    subprocess.run([sys.executable, *command], cwd=builder.folder, capture_output=True, check=False)
    return (builder.folder / "page.html").as_uri()


@pytest.fixture
def page(address: str, browser: webdriver.Chrome) -> webdriver.Chrome:
    """That page, opened for the first time."""
    browser.get(address)
    browser.execute_script("sessionStorage.clear()")
    browser.get(address)
    return browser


def texts(page: webdriver.Chrome, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)"
    found: list[str] = page.execute_script(script, f"#results-table {selector}")
    return found


def click(page: webdriver.Chrome, selector: str) -> None:
    page.find_element("css selector", selector).click()


def test_passes_are_folded_and_one_click_shows_them(page: webdriver.Chrome) -> None:
    assert "Passed" not in texts(page, ".col-result")
    click(page, "[data-test-result=passed]")
    assert texts(page, ".col-result").count("Passed") == 14


def test_numbers_sort_as_numbers_and_calls_by_their_number(page: webdriver.Chrome) -> None:
    click(page, "[data-column-type=max_abs]")
    click(page, "[data-column-type=max_abs]")
    assert texts(page, ".col-max_abs")[:4] == ["30", "4", "0.5", "-"]
    click(page, "[data-column-type=cosine]")
    found = texts(page, ".col-cosine")
    judged = [float(text) for text in found if text != "-"]
    assert judged == sorted(judged)
    click(page, "[data-test-result=passed]")
    click(page, "[data-column-type=testId]")
    calls = [name for name in texts(page, ".col-testId") if name.startswith("Mint.exp")]
    assert calls == [f"Mint.exp.{number}" for number in range(14)]


def test_the_page_can_be_reduced_to_failures_and_one_unfolds(page: webdriver.Chrome) -> None:
    click(page, "[data-test-result=skipped]")
    assert texts(page, ".failed .col-testId")[:3] == ["Mint.neg.0", "Mint.neg.1", "Mint.neg.2"]
    assert set(texts(page, ".col-result")) == {"Failed"}
    assert not any(shown.is_displayed() for shown in page.find_elements("css selector", ".msprobe"))
    rows = page.find_elements("css selector", ".failed .col-testId")
    next(row for row in rows if row.text == "Mint.neg.1").click()
    (unfolded,) = (shown for shown in page.find_elements("css selector", ".msprobe") if shown.is_displayed())
    assert "Max absolute error 30 is not below 0.0001" in unfolded.text
    assert "Call stack, innermost first" in unfolded.text
    picture = unfolded.find_element("css selector", "figure svg")
    assert page.execute_script("return arguments[0].getBoundingClientRect().width", picture) > 100
    assert picture.find_elements("css selector", "path")


def test_no_script_of_a_dump_runs(page: webdriver.Chrome) -> None:
    click(page, "[data-test-result=passed]")
    click(page, "#show_all_details")
    for attack in ATTACKS:
        assert any(attack.removesuffix(".0") in name for name in texts(page, ".col-testId"))
    foreign = "#results-table :is(script, [onerror], [onload], svg:not(.msprobe figure svg), svg svg)"
    assert page.execute_script("return document.querySelectorAll(arguments[0]).length", foreign) == 0
    page.execute_script(
        "for (const cell of document.querySelectorAll('td')) cell.dispatchEvent(new Event('mouseover'))"
    )
    assert page.title == "API accuracy pre-check"


def test_the_page_reports_no_error_of_its_own_and_fetches_nothing(page: webdriver.Chrome) -> None:
    fetched = page.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
