"""The strip of two runs with different calls: what is joined, what is folded, and where the runs part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from open_page import Page
from page_reader import page_content

pytestmark = pytest.mark.slow

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

PageOf = Callable[[str], Path]
#: Of the page of one suite at a width: the units of both runs as [kind, x, number of records], width of the canvas.
UNITS = """
    const section = new Section(arguments[0]), canvas = document.createElement('canvas');
    canvas.style.cssText = `width:${arguments[1]}px;height:222px`;
    document.body.append(canvas);
    const painter = new PairPainter(canvas, section, section.lanes[0], true);
    painter.arrange();
    const units = side => painter.runs[side].map(unit => [unit.kind, unit.x, unit.records.length]);
    canvas.remove();
    return [units('target'), units('golden')];"""


@pytest.mark.parametrize("width", [390, 1200])
def test_the_place_stands_in_the_middle_of_what_both_runs_share(browser: Any, page_of: PageOf, width: int) -> None:
    path = page_of("long_runs")
    page = Page(browser, path, 1280)
    target, golden = page.run(UNITS, page_content(path)["sections"][0], width)
    for units in (target, golden):
        assert [kind for kind, _, _ in units if kind == "place"] == ["place"]
        ((place, count),) = [(x, count) for kind, x, count in units if kind == "place"]
        assert count == 1
        assert abs(place - width / 2) < 0.1 * width
        before, behind = ([kind for kind, x, _ in units if (x - place) * way > 0] for way in (-1, 1))
        assert before == ["found", "region"] * 90
        assert set(behind) == {"behind"}
        assert [x for _, x, _ in units] == sorted(x for _, x, _ in units)
        assert all(0 < x < width for _, x, _ in units)
    assert {count for kind, _, count in target if kind == "region"} == {3}
    assert {count for kind, _, count in golden if kind == "region"} == {4}
    # What is equal in both stands in one column, and what is next to the place can be pointed at.
    mine, theirs = ([x for kind, x, _ in units if kind in ("found", "region")] for units in (target, golden))
    assert mine == pytest.approx(theirs)
    assert mine[-1] - mine[-2] >= 12


def test_both_runs_are_told_with_their_calls_and_lines(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("implementations"), 1280)
    assert page.texts("#strip h2") == ["Both runs in execution order"]
    about = page.texts(".about li")
    assert "port.py" in about[0]
    assert about[1].startswith("golden ")
    assert "original.py" in about[1]
    assert page.texts(".runs-place td") == ["Tensor.__mul__.2 port.py:21", "Tensor.__truediv__.0 original.py:21"]
    assert page.texts(".relation") == ["the result of the target is 2 times the golden one"]
    page.click(".runs-place .link", "Tensor.__truediv__.0")
    assert page.element(".details h2", "golden.Tensor.__truediv__.0")
    assert page.errors() == []


def test_a_region_is_unfolded_by_a_click_and_by_its_button(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("long_runs"), 1280)
    page.click(".runs-regions summary", "90 regions")
    assert page.texts(".runs-regions tbody tr")[89] == "Unfold3 calls pow.623 to pow.6254 calls mean.626 to mean.629"
    page.click(".runs-regions tbody tr:last-child button", "Unfold")
    page.until("document.querySelectorAll('.runs-regions [aria-pressed=true]').length === 1")
    page.click(".runs-regions tbody tr:last-child button", "Unfold")
    page.until("!document.querySelector('.runs-regions [aria-pressed=true]')")
    canvas = page.browser.find_element("css selector", ".lane canvas")
    page.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    target, _ = page.run(UNITS, page_content(page_of("long_runs"))["sections"][0], canvas.size["width"])
    x = [x for kind, x, _ in target if kind == "region"][-1]
    at = (round(x - canvas.size["width"] / 2), round(62 - canvas.size["height"] / 2))
    webdriver.ActionChains(page.browser).move_to_element_with_offset(canvas, *at).perform()
    page.until("document.querySelector('.tip')")
    assert page.texts(".tip")[0].startswith("pow.623 to pow.6253 calls in other steps, equal again")
    webdriver.ActionChains(page.browser).click().perform()
    page.until("document.querySelectorAll('.runs-regions [aria-pressed=true]').length === 1")
    assert page.errors() == []


def test_a_drag_over_the_strip_filters(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("long_runs"), 1280)
    canvas, everything = page.browser.find_element("css selector", ".lane canvas"), page.shown
    page.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    drag = webdriver.ActionChains(page.browser, duration=50).move_to_element_with_offset(canvas, 200, 20)
    drag.click_and_hold().move_by_offset(200, 0).release().perform()
    page.has_shown(f"shown > 0 && shown < {everything} / 2")
    assert page.errors() == []
