"""What the first screen says in every suite, on a wide screen, on a phone, in the dark, on paper and by its address.

Pictures of all of it are left in build/screenshots for people to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from open_page import Page
from page_reader import page_content

pytestmark = pytest.mark.slow

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

PageOf = Callable[[str], Path]
#: Pages by what they show; the second is the first word of their headline.
STATES = {
    "faults": "Wrong",
    "passes": "Right",
    "accounted": "Wrong",
    "comparison": "Wrong",
    "implementations": "Wrong",
    "long_runs": "Wrong",
    "overflow": "Wrong",
    "gradients": "Wrong",
    "known": "Wrong",
    "sharded": "Wrong",
    "repeat": "Right",
    "rounding": "Right",
}
#: What holds text that a box cuts off without a sign; regions that scroll, can be reached by keys and say so are none.
CUT = """
    const regions = '.table-box, .tree, .lanes, .scroll, canvas, input, select, option';
    return [...document.querySelectorAll('main *')].filter(one => {
        const style = getComputedStyle(one);
        if (one.closest(regions) || style.overflow === 'visible' || style.textOverflow === 'ellipsis') return false;
        return one.scrollHeight > one.clientHeight + 2 || one.scrollWidth > one.clientWidth + 2;
    }).map(one => one.className + ': ' + one.textContent.slice(0, 80))"""
#: Titles of columns that the table shows without scrolling it.
IN_SIGHT = """
    const right = document.querySelector('.table-box').getBoundingClientRect().right;
    return [...document.querySelectorAll('#table th')].filter(one => one.getBoundingClientRect().right <= right + 1)
        .map(one => one.className.split(' ').pop().slice(2))"""


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path:
    """The folder of the pictures."""
    folder = request.config.rootpath / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("state", STATES)
def test_every_answer_is_read_at_a_glance(state: str, browser: Any, page_of: PageOf, pictures: Path) -> None:
    path = page_of(state)
    (section,) = page_content(path)["sections"]
    diagnosis, measure = section["diagnosis"], [f"f_{name}" for name in section["measure"]]
    for width, theme in ((1280, "light"), (390, "light"), (1280, "dark")):
        page = Page(browser, path, width, theme=theme)
        assert page.run("return document.documentElement.dataset.theme") == theme
        assert page.browser.save_screenshot(str(pictures / f"{state}_{width}_{theme}.png"))
        (headline,) = page.texts("h1")
        assert headline == diagnosis["headline"]
        assert headline.startswith(STATES[state])
        assert len(headline) <= 90
        assert page.browser.title.startswith(f"{headline} - ")
        assert page.run("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
        assert page.run(CUT) == []
        shown = page.run(IN_SIGHT)
        assert shown[:2] == ["verdict", "name"]
        if section["answer"]["outcomes"].get("failed") and state != "gradients":
            assert {*measure} <= {*shown}, "how wrong a record is cannot be seen"
        assert ("0 Failed" in page.texts(".count")) <= (STATES[state] != "Wrong"), "the counts contradict the headline"
        assert page.errors() == []
    for cause in diagnosis["findings"][:3]:
        assert any(cause["name"] in text and cause["detail"] in text for text in page.texts(".causes li"))


@pytest.mark.parametrize("state", ["faults", "comparison", "overflow", "rounding"])
def test_paper_has_the_answer_and_the_failures_and_nothing_else(
    state: str, browser: Any, page_of: PageOf, pictures: Path
) -> None:
    page = Page(browser, page_of(state), 1280, theme="dark")
    content, sheets = page.printed()
    (pictures / f"{state}.pdf").write_bytes(content)
    (section,) = page_content(page_of(state))["sections"]
    failed = section["answer"]["outcomes"].get("failed", 0)
    assert sheets <= 2 + min(failed, 100) // 15
    page.until("document.documentElement.dataset.theme === 'dark'")  # as it was before printing
    # What is printed, seen on the screen.
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.until("document.documentElement.dataset.theme === 'light'")
    printed = page.texts("#table tbody tr .verdict")
    assert set(printed) <= {"Failed", "Explained", "Origin"}
    assert bool(printed) is bool(failed)
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.until("document.documentElement.dataset.theme === 'dark'")
    assert page.errors() == []


def test_what_a_baseline_knows_is_told_from_what_is_new(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("known"), 1280)
    assert page.column("verdict") == ["Failed, new", "Known failure"]
    assert "1 Known failures" in page.texts(".count")
    assert "Held to the baseline: 1 new, 0 gone, 1 as before" in page.texts(".answer > p")
    page.click("#table tbody td.c-name", "Mint.neg.0")
    (fact,) = [text for text in page.texts(".details .fact") if text.startswith("Baseline")]
    assert fact.startswith("Baselineas before: known since ")


def test_passes_are_folded_below_what_failed(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("faults"), 1280)
    (section,) = page_content(page_of("faults"))["sections"]
    passed = section["rows"]["status"].count(0)
    verdicts = page.column("verdict")
    assert verdicts[0] == "Failed"
    assert "Passed" not in verdicts
    assert page.texts("#passes") == [f"Show {passed:,} passed"]
    page.click("#passes")
    page.until("document.querySelector('#passes').textContent.startsWith('Hide')")
    assert page.column("verdict")[0] == "Failed", "failures stay on top"
    assert "passes=1" in page.run("return location.hash")
    page.click(".count", "Passed")  # who asks for passes gets them
    page.until("[...document.querySelectorAll('td.c-verdict')].every(one => one.textContent === 'Passed')")
    page = Page(browser, page_of("passes"), 1280)
    assert page.column("verdict")[0] == "Passed"
    assert not page.texts("#passes")


def test_a_view_is_its_address(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("faults"), 1280)
    page.choose("Cell", "layers.20.n1.RMSNorm")
    page.click(".count", "Failed, not explained")
    page.write("#search", "rsqrt forward")
    page.click("#table th button", "Error")
    page.click("#table tbody td.c-name", "Mint.rsqrt")
    page.until("document.querySelector('.details') && location.hash.includes('text=rsqrt')")
    address, shown = page.run("return location.hash"), page.shown
    name = page.texts(".details h2")[0]
    assert all(part in address for part in ("cell=layers.20.n1.RMSNorm", "verdict=unexplained", "sort=-f_ratio"))
    again = Page(browser, page_of("faults"), 1280, address)
    again.until("document.querySelector('.details')")
    assert again.texts(".details h2") == [name]
    assert again.shown == shown
    assert again.run("return document.getElementById('search').value") == "rsqrt forward"
    assert again.texts("th[aria-sort=descending]") == ["Error/\u200btol ▼"]
    assert again.run("return location.hash") == address
    again.run("location.hash = '#?verdict=skipped'")
    again.until("[...document.querySelectorAll('td.c-verdict')].every(one => one.textContent === 'Not judged')")
    assert not again.texts(".details")
    assert again.errors() == []


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("#rank0/Mint.absent.0.forward", "no record rank0/Mint.absent.0.forward"),
        ("#%E0%A4%A?cell=layers.99.Block", "no record %E0%A4%A, no cell layers.99.Block"),
        ("#<img src=x onerror=document.title='hit'>", "no record <img src=x onerror=document.title='hit'>"),
    ],
)
def test_an_address_that_the_page_does_not_have_is_said(link: str, said: str, browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("faults"), 1280, link)
    assert said in page.texts("[role=alert]")[0]
    assert page.shown == 2400
    page.click("[role=alert] button")
    page.until("!document.querySelector('[role=alert]')")
    assert page.browser.title != "hit"
    assert page.errors() == []


def test_a_page_of_two_suites_opens_the_suite_of_its_address(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("merged"), 1280, "#?suite=comparison&verdict=expected")
    assert page.texts("nav [aria-pressed=true]") == ["Comparison of dumps"]
    assert set(page.column("verdict")) == {"Inherited"}
    page.click("nav button", "API accuracy pre-check")
    page.until("document.querySelector('.suite').textContent === 'API accuracy pre-check'")
    assert page.run("return location.hash") in ("", "#")
    page.click(".count", "Failed")
    page.click("nav button", "Comparison of dumps")
    page.until("location.hash === '#?suite=comparison'")
    assert page.errors() == []


#: Of the page of one suite: how far each mark is below the line of the limit, and where the flags and their points are.
FROM_LINE = """
    const section = new Section(arguments[0]), canvas = document.createElement('canvas');
    canvas.style.cssText = 'width:900px;height:250px';
    document.body.append(canvas);
    const painter = new StripPainter(canvas, section, section.lanes[0], true);
    painter.resize();
    const line = painter.y(painter.scale.share(1));
    const found = section.lanes[0].rows.map(row => [section.status[row], section.heat[row], painter.rowY(row) - line]);
    const flags = painter.flags.map(([row], at) => [painter.margin.top, 2 + 20 * at + 17, painter.rowY(row)]);
    canvas.remove();
    return [found, flags];"""


def test_a_pass_that_uses_its_tolerance_up_is_no_near_failure(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("rounding"), 1280)
    marks, _ = page.run(FROM_LINE, page_content(page_of("rounding"))["sections"][0])
    at_limit = [below for status, heat, below in marks if heat == 1]
    assert at_limit, "no pass stands at the limit"
    assert min(at_limit) >= 6
    bars = dict(zip(page.texts("#distribution .bar-title"), page.texts("#distribution .bar-count")))
    assert bars["1"] == str(len(at_limit)), "what is at the limit stands among what is up to it"
    assert not page.run("return document.querySelectorAll('#distribution .bar-2').length")


def test_flags_stand_above_the_points(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("accounted"), 1280)
    marks, flags = page.run(FROM_LINE, page_content(page_of("accounted"))["sections"][0])
    assert flags
    for top, end, point in flags:
        assert end < top <= point, "a flag covers the plot"
    assert all(below <= -6 for status, _, below in marks if status == 1 and below is not None)


def test_a_suite_without_differences_has_no_empty_axis(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("repeat"), 1280)
    assert page.run("return document.querySelector('.lane canvas').clientHeight") < 100
    assert "height and colour" not in page.texts("#strip .legend")[0]
    assert not page.texts("#dots, #distribution")
