"""The page of --msprobe-page as an engineer meets it: each element used, its effect seen, at three widths."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from open_page import Page
from page_reader import page_content

from tools.vendor import fetched, member

pytestmark = pytest.mark.slow

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

WIDTHS = (390, 1280)
STATES = ("faults", "passes", "comparison", "accounted", "unmatched", "overflow", "gradients")
PageOf = Callable[[str], Path]


@pytest.fixture(params=WIDTHS)
def faults(request: pytest.FixtureRequest, browser: Any, page_of: PageOf) -> Page:
    """The page of two ranks with a wrong operation, at each width."""
    return Page(browser, page_of("faults"), request.param)


def total(page_of: PageOf, name: str, **wanted: int) -> int:
    """Rows of a page by their columns, counted without its script."""
    (section,) = page_content(page_of(name))["sections"]
    rows = section["rows"]
    return sum(all(rows[key][row] == value for key, value in wanted.items()) for row in range(len(rows["status"])))


def test_the_first_screen_answers(faults: Page) -> None:
    assert faults.texts("h1")[0].startswith("Wrong: Mint.rsqrt")
    assert "in layers.20.n1.RMSNorm" in faults.texts(".causes li")[0]
    assert any("all by rounding" in cause for cause in faults.texts(".causes li"))
    commands = faults.texts(".command code")
    assert any("Mint.rsqrt" in command for command in commands)
    assert any("--msprobe-reproducers" in command for command in commands)
    assert faults.texts(".causes .source") == ["/home/train/model.py:43"]
    assert faults.run("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    orders, verdicts = [int(text) for text in faults.column("order")], faults.column("verdict")
    failed = verdicts.count("Failed")
    assert failed > 3, "failures do not come first"
    assert set(verdicts[:failed]) == {"Failed"}
    assert orders[: failed // 2] == sorted(orders[: failed // 2]), "failures of a rank are in execution order"
    assert faults.errors() == []


def test_verdicts_filter(faults: Page, page_of: PageOf) -> None:
    for word, status in (("Failed", 1), ("Passed", 0), ("Not judged", 2)):
        faults.click(".count", word)
        faults.has_shown(f"shown === {total(page_of, 'faults', status=status)}")
        assert faults.run("return document.querySelector('.count[aria-pressed=true]').textContent").endswith(word)
        faults.click(".count", word)
        faults.has_shown(f"shown === {total(page_of, 'faults')}")
    faults.click(".chip", "Mint.rsqrt")
    faults.until("[...document.querySelectorAll('td.c-name')].every(cell => cell.textContent.includes('rsqrt'))")


def test_the_filter_bar(faults: Page, page_of: PageOf) -> None:
    everything = faults.shown
    faults.write("#search", "softmax layers.7.")
    faults.has_shown(f"shown > 0 && shown < {everything}")
    assert {name.rpartition(".")[0] for name in faults.column("name")} == {"MintFunctional.softmax"}
    faults.click("#reset")
    faults.has_shown(f"shown === {everything}")
    faults.choose("Rank", "1")
    faults.has_shown(f"shown === {total(page_of, 'faults', slot=1)}")
    assert set(faults.column("rank")) == {"1"}
    faults.choose("Rank", "all")
    faults.choose("Dtype", "BFloat16")
    faults.until("[...document.querySelectorAll('td.c-dtype')].every(cell => cell.textContent === 'BFloat16')")
    faults.choose("Dtype", "all")
    faults.choose("Cell", "layers.3.n1.RMSNorm")
    faults.until("[...document.querySelectorAll('td.c-cell')].every(cell => cell.textContent.includes('layers.3.n1'))")
    faults.choose("Cell", "all")
    faults.choose("Verdict", "Explained by rounding")
    faults.until("[...document.querySelectorAll('td.c-verdict')].every(cell => cell.textContent === 'Explained')")
    faults.choose("Verdict", "all")
    places = "document.querySelectorAll('.filters .place')"
    faults.run(f"const input = {places}[0]; input.value = 10; input.dispatchEvent(new Event('input'))")
    faults.run(f"const input = {places}[1]; input.value = 19; input.dispatchEvent(new Event('input'))")
    faults.has_shown("shown === 20")  # ten of each rank
    faults.run("document.activeElement.blur()")
    faults.keys("\ue00c")  # Escape
    faults.has_shown(f"shown === {everything}")
    faults.run("document.activeElement.blur()")
    faults.keys("/")
    assert faults.run("return document.activeElement.id") == "search"


def test_the_strip_filters_and_opens(faults: Page) -> None:
    lanes = faults.browser.find_elements("css selector", ".lane canvas")
    assert len(lanes) == 2
    everything = faults.shown
    lane = lanes[0]
    faults.run("arguments[0].scrollIntoView({block: 'center'})", lane)
    width = lane.size["width"]
    drag = webdriver.ActionChains(faults.browser, duration=50).move_to_element_with_offset(lane, -width // 5, 0)
    drag.click_and_hold().move_by_offset(width // 4, 0).release().perform()
    faults.has_shown(f"shown < {everything} / 2 && shown > {everything} / 10")
    assert faults.run("return document.querySelectorAll('.brush').length") == 2
    places = faults.run("return [...document.querySelectorAll('.filters .place')].map(input => Number(input.value))")
    assert 2 * (places[1] - places[0] + 1) == faults.shown
    faults.click("#reset")
    faults.run("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", lane)
    faults.keys("\ue014")  # the right arrow goes to the first failure
    faults.until("document.querySelector('.details')")
    assert "Failed" in faults.texts(".details .verdict-line")[0] or "Explained" in faults.texts(".details .verdict")[0]


def test_pointing_at_the_strip_says_what_is_there_and_a_click_opens_it(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("overflow"), 1000)
    lane = page.element(".lane canvas")
    # The sixth of its 15 rows passes on 10 values, on a scale from 1 to 100.
    left, right, top, bottom = 62, 14, 44, 30
    x = left + (5.5 / 15) * (lane.size["width"] - left - right)
    y = lane.size["height"] - bottom - 0.5 * (lane.size["height"] - top - bottom)
    move = webdriver.ActionChains(browser, duration=50).move_to_element_with_offset(
        lane, int(x - lane.size["width"] / 2), int(y - lane.size["height"] / 2)
    )
    move.perform()
    page.until("document.querySelector('.tip')")
    assert "Tensor.masked_fill.0 forward" in page.texts(".tip")[0]
    move.click().perform()
    page.until("document.querySelector('.details')")
    assert page.texts(".details h2") == ["Tensor.masked_fill.0 forward"]


def test_the_tree_unfolds_searches_and_filters(faults: Page) -> None:
    nodes = faults.texts("#tree .node .node-name")
    assert "model.GPT" in nodes[0]
    assert "layers.20.Block" in nodes, "the way to the first failure is open"
    assert any(name.startswith("Mint.rsqrt.") for name in nodes)
    before = len(nodes)
    row = faults.element("#tree .node", "layers.5.Block")
    faults.run("arguments[0].scrollIntoView({block: 'center'})", row)
    row.find_element("css selector", ".twist").click()
    faults.until(f"document.querySelectorAll('#tree .node').length > {before}")
    faults.click("#tree .node", "layers.5.Block")
    faults.until("[...document.querySelectorAll('td.c-cell')].every(cell => cell.textContent.startsWith('layers.5.'))")
    assert faults.run("return document.querySelectorAll('#tree [aria-selected=true]').length") == 1
    faults.click("#tree .node", "layers.5.Block")  # once more takes it back
    faults.has_shown("shown === 2400")
    faults.write("#tree input", "softmax.3")
    faults.until("document.querySelectorAll('#tree .node').length < 200")
    assert any("softmax.3" in name for name in faults.texts("#tree .call .node-name"))
    faults.write("#tree input", "")
    faults.run("document.querySelector('#tree [role=treeitem]').focus()")
    faults.keys("\ue015")  # down
    assert faults.run("return document.activeElement.textContent").startswith("▸layers.0.Block")
    faults.keys("\ue014")  # right unfolds
    faults.until("document.activeElement.getAttribute('aria-expanded') === 'true'")
    faults.keys("\ue012")  # left folds
    faults.until("document.activeElement.getAttribute('aria-expanded') === 'false'")
    faults.click("#tree .call", "Mint.rsqrt.")
    faults.until("document.querySelector('.details h2').textContent.includes('Mint.rsqrt')")


def test_headers_sort_and_the_third_click_goes_back_to_the_order(faults: Page) -> None:
    def clicked() -> list[str]:
        faults.run("document.querySelector('.table-box').scrollTop = 0")
        faults.click("#table th.c-f_ratio button")
        return faults.column("f_ratio")[:20]

    faults.click("#passes")
    worst = [float(text) for text in clicked()]
    assert worst == sorted(worst, reverse=True)
    best = [float(text) for text in clicked()]
    assert best == sorted(best)
    assert best[0] < worst[-1]
    clicked()
    assert faults.column("verdict")[0] == "Failed"
    assert set(faults.run("return [...document.querySelectorAll('#table th')].map(th => th.ariaSort)")) == {"none"}


def test_a_row_opens_has_a_link_and_neighbours(faults: Page) -> None:
    faults.click("#passes")
    faults.click("#table th.c-order button")
    faults.click("#table tbody td.c-name", "Mint.mean.0")
    faults.until("document.querySelector('.details')")
    assert faults.texts(".details h2") == ["Mint.mean.0 forward"]
    assert faults.run("return location.hash") == "#rank0/Mint.mean.0.forward?sort=order&passes=1"
    faults.click(".details button[aria-label='Next record']")
    assert faults.run("return location.hash.split('?')[0]") == "#rank0/Mint.add.0.forward"
    faults.click(".details button[aria-label='Previous record']")
    faults.until("location.hash.startsWith('#rank0/Mint.mean.0.forward?')")
    faults.keys("k")
    faults.until("document.querySelector('.details h2').textContent === 'Mint.square.0 forward'")
    faults.click(".details .fact button", "layers.0.Block")
    faults.until("[...document.querySelectorAll('td.c-cell')].every(cell => cell.textContent.startsWith('layers.0.'))")
    faults.click(".details button[aria-label='Close']")
    faults.until("!document.querySelector('.details')")
    faults.run("document.querySelector('.table-box').focus()")
    faults.keys("\ue015")
    faults.until("document.querySelector('.details')")
    faults.keys("\ue00c")
    faults.until("!document.querySelector('.details')")


def test_a_link_opens_its_record(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("faults"), 1680, "#rank1/Mint.rsqrt.40.backward")
    page.until("document.querySelector('.details')")
    assert page.texts(".details h2") == ["Mint.rsqrt.40 backward"]
    assert "rank1" in page.texts(".details dl")[0]
    page.until("document.querySelector('#table tr.chosen')")
    single = Page(browser, page_of("attacks"), 1680, "#Mint.neg.0.forward")
    single.until("document.querySelector('.details')")
    assert single.texts(".details h2") == ["Mint.neg.0 forward"]


def test_the_selection_is_copied_and_saved(faults: Page) -> None:
    faults.run("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    faults.run("URL.createObjectURL = blob => { blob.text().then(text => { window.saved = text; }); return '#'; }")
    faults.click(".count", "Failed, not explained")
    faults.click(".filter-end button", "Copy as Markdown")
    faults.until("window.copied")
    lines = faults.run("return window.copied").splitlines()
    assert lines[0].startswith("**Wrong: Mint.rsqrt")
    assert lines[2].startswith("- Mint.rsqrt in ")
    assert sum(line.startswith("| ") for line in lines) == faults.shown + 2
    shown = faults.shown  # the address that stands for the file is also one of the page
    faults.click("#csv")
    faults.until("window.saved")
    saved = faults.run("return window.saved").removeprefix("\ufeff").splitlines()
    assert saved[0].startswith("link,#,Verdict,API call,Direction,Rank,Cell")
    assert len(saved) == shown + 1
    assert all("Mint.rsqrt" in line for line in saved[1:])
    faults.run("window.copied = ''")
    faults.click(".command .copy")
    faults.until("window.copied")
    assert faults.run("return window.copied") == faults.texts(".command code")[0]


def test_pictures_filter_and_the_theme_changes(faults: Page) -> None:
    assert faults.texts("#dots .label")[0].endswith("Mint.rsqrt")
    faults.click("#dots .label", "Mint.rsqrt")
    faults.until("[...document.querySelectorAll('td.c-name')].every(cell => cell.textContent.includes('rsqrt'))")
    faults.until("document.querySelectorAll('#dots .label').length === 1")  # what stands below moves up
    faults.click("#dots .label", "Mint.rsqrt")
    faults.until("document.querySelectorAll('#dots .label').length > 1")
    faults.click("#dots .chip", "BFloat16")
    faults.until("[...document.querySelectorAll('td.c-dtype')].every(cell => cell.textContent === 'BFloat16')")
    faults.click("#reset")
    faults.until("document.querySelector('#distribution .bar-2')")
    before = faults.texts("#distribution .bar-title")
    faults.run(
        "const select = document.querySelector('#distribution select'); select.value = 'max_ulp';"
        "select.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    faults.until(
        f"JSON.stringify([...document.querySelectorAll('#distribution .bar-title')].map(e => e.textContent)) "
        f"!== {json.dumps(json.dumps(before, separators=(',', ':')))}"
    )
    pixel = "return [...document.querySelector('.lane canvas').getContext('2d').getImageData(200, 40, 1, 1).data]"
    first = faults.run("return document.documentElement.dataset.theme")
    background = faults.run("return getComputedStyle(document.querySelector('.panel')).backgroundColor")
    faults.click("#theme")
    faults.until(f"document.documentElement.dataset.theme !== '{first}'")
    assert faults.run("return getComputedStyle(document.querySelector('.panel')).backgroundColor") != background
    assert faults.run(pixel) is not None
    faults.click("#theme")
    assert faults.errors() == []


def test_both_sides_of_a_comparison_stand_in_the_tree(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("comparison"), 1680)
    assert "Mint.rsqrt.1 forward" in page.texts(".causes li")[0]
    assert any("one-sided" in text for text in page.texts("#tree .node-facts"))
    page.write("#tree input", "mean.4")
    page.until("document.querySelector('#tree .call')")
    assert any("only in the golden dump" in name for name in page.texts("#tree .call .node-name"))
    page.choose("Verdict", "Only on one side")
    page.has_shown("shown > 0")
    assert page.errors() == []


#: How many points of the strip's canvas have each colour of a part, all of them and those left of a place.
COUNT_PARTS = """
    const canvas = document.querySelector('#strip canvas'), style = getComputedStyle(document.documentElement);
    const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const found = {};
    for (const name of ['born', 'inherited', 'defined', 'rounding']) {
        const hex = style.getPropertyValue('--' + name).trim();
        const wanted = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
        found[name] = {all: 0, before: 0};
        for (let y = arguments[1]; y < canvas.height; y++) for (let x = 0; x < canvas.width; x++) {
            const at = 4 * (y * canvas.width + x);
            if (!wanted.every((value, part) => Math.abs(pixels[at + part] - value) < 3)) continue;
            found[name].all++;
            if (x < arguments[0]) found[name].before++;
        }
    }
    return found;"""


def test_the_strip_shows_what_each_difference_is_made_of(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("accounted"), 1680)
    (section,) = page_content(page_of("accounted"))["sections"]
    names = [section["texts"][call] for call in section["rows"]["call"]]
    width = page.run("return document.querySelector('#strip canvas').clientWidth")
    place = 62 + (names.index("Functional.softmax.1") + 0.5) / len(names) * (width - 76)
    band = page.run("return document.querySelector('#strip canvas').clientHeight") - 40
    for theme in ("light", "dark"):
        if page.run("return document.documentElement.dataset.theme") != theme:
            page.click("#theme")
        found = page.run(COUNT_PARTS, place - 3, band - 12)
        # Two calls are at fault, some hundred inherit it, and before the first one nothing differs.
        assert 0 < found["born"]["all"] < found["inherited"]["all"] / 20
        assert [found[name]["before"] for name in ("born", "inherited", "defined")] == [0, 0, 0]
    # Not by colours alone: words in the legend, patterns in the swatches, shares in words.
    legend = page.texts("#strip .legend")[0]
    assert all(word in legend for word in ("arises here", "inherited", "defined differently", "rounding"))
    patterns = "[...document.querySelectorAll('.swatch')].map(one => getComputedStyle(one).backgroundImage)"
    assert page.run(f"return new Set({patterns}).size") == 4
    point = """const canvas = document.querySelector('#strip canvas'), box = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new PointerEvent('pointermove',
            {clientX: box.x + arguments[0], clientY: box.y + arguments[1], bubbles: true}))"""
    page.run(point, place, band + 8)
    page.until("document.querySelector('.tip')")
    assert "Functional.softmax.1 forward" in page.texts(".tip")[0]
    assert "100 % arises here" in page.texts(".tip")[0]
    page.run("location.hash = '#Functional.softmax.1.forward'")
    page.until("document.querySelector('.details')")
    shares = dict(zip(page.texts(".outputs thead th"), page.texts(".outputs tbody tr:last-child td")))
    assert (shares["Arises here"], shares["Inherited"], shares["Defined"]) == ("1.000", "0.000", "0.000")
    assert page.element("#error-picture")
    assert page.errors() == []


def test_the_tree_says_in_which_cells_a_difference_is_born(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("accounted"), 1680)
    assert "in blocks.1.a.Attention" in page.texts(".causes li")[0]
    page.write("#tree input", "softmax")
    page.until("![...document.querySelectorAll('#tree .node-name')].some(one => one.textContent === 'head.Linear')")
    nodes = page.run(
        """return [...document.querySelectorAll('#tree .node:not(.call)')].map(node =>
            [node.querySelector('.node-name').textContent, (node.querySelector('.level') || {}).textContent])"""
    )
    assert nodes == [
        ["blocks.0.Block", "▼ inherited →"],
        ["a.Attention", "▼ inherited →"],
        ["blocks.1.Block", "arises inside →"],
        ["a.Attention", "arises inside →"],
        ["blocks.2.Block", "inherited →"],
        ["a.Attention", "inherited →"],
    ]
    born = page.run("return [...document.querySelectorAll('.level-born')].map(one => one.closest('.node').title)")
    assert len(born) == 2
    assert all("forward: arises inside, passed on; backward: arises inside, passed on" in title for title in born)
    assert page.errors() == []


def test_cells_of_one_side_stand_below_the_cell_that_both_have(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("unmatched"), 1680)
    page.write("#tree input", "attn")
    page.until("document.querySelector('#tree .side-golden')")
    nodes = page.run(
        """return [...document.querySelectorAll('#tree .node:not(.call)')].map(node => [Number(node.ariaLevel),
            node.querySelector('.node-name').textContent, (node.querySelector('.one-sided') || {}).title || ''])"""
    )
    assert [1, "bs.0.Block ↔ blocks.0.Block", ""] in nodes
    assert [2, "a.Attn", "only in the target"] in nodes
    assert [2, "a.Attn", "only in the golden dump"] in nodes
    assert [2, "a.Attn ↔ blocks.1.attention.Attn", ""] in nodes
    assert {name for level, name, _ in nodes if level == 1} == {
        "bs.0.Block ↔ blocks.0.Block",
        "bs.1.Block ↔ blocks.1.Block",
    }
    cells = page.run("return [...document.querySelectorAll('.filters option')].map(one => one.textContent)")
    assert "blocks.1.attention.Attn" not in cells  # the name of a matched Cell is the target's
    assert page.errors() == []


def test_gradients_and_overflow_have_their_pictures(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("gradients"), 1000)
    assert page.texts("#gradients-0 .label")[-1] == "head.weight"
    picture = page.element("#gradients-0 canvas")
    page.run("arguments[0].scrollIntoView({block: 'center'})", picture)
    rows, width = 4, picture.size["width"]
    step = min(70, (width - 12) / 5)
    chain = webdriver.ActionChains(browser, duration=50).move_to_element_with_offset(
        picture, int(6 + 3.5 * step - width / 2), int(10 - (rows * 20 + 30) / 2)
    )
    chain.click().perform()
    page.until("document.querySelector('.details')")
    assert page.texts(".details h2") == ["embed.weight.step3"]
    assert [text.split(" of ")[0] for text in page.texts(".details figcaption")] == ["Similarity", "Norm"]
    assert "Parameter" in page.texts("#table th")
    assert not {"Direction", "Device"} & {*page.texts("#table th")}
    page = Page(browser, page_of("overflow"), 1000)
    assert "Mint.matmul.3 forward reached 9 records" in page.texts(".reached li")[0]
    page.click(".reached button", "Mint.matmul.3")
    page.until("document.querySelector('.details h2').textContent === 'Mint.matmul.3 forward'")
    assert page.errors() == []


def test_a_failing_block_is_drawn(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("attacks"), 1680, "#Mint.neg.0.forward")
    page.until("document.querySelector('#error-picture canvas')")
    # The last 16 of 80 columns are wrong: one fifth of the picture.
    script = """
        const canvas = document.querySelector('#error-picture canvas'), context = canvas.getContext('2d');
        const at = share => [...context.getImageData(Math.round(share), 22, 1, 1).data].join();
        const size = Math.max(3, Math.min(22, Math.floor(560 / 64), Math.floor(300 / 40)));
        return [at(size * 10 + 2), at(size * 60 + 2)]"""
    right, wrong = page.run(script)
    assert right != wrong
    assert any("equal" in text for text in page.texts(".decades div"))


def test_no_text_of_a_dump_becomes_markup(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("attacks"), 1680)
    title = page.browser.title
    for name in ("Mint.neg.0", "Mint.<img", "Mint.</script>"):
        page.click("#table td.c-name", name)
        page.until(f"document.querySelector('.details h2').textContent.includes({json.dumps(name)})")
    page.click("#tree .node", "Mint.neg.0")
    page.run("for (const one of document.querySelectorAll('td, .node')) one.dispatchEvent(new Event('mouseover'))")
    assert page.run("return document.querySelectorAll('#app :is(script, img, svg, [onerror], [onload])').length") == 0
    assert page.browser.title == title
    assert title.startswith(page.texts("h1")[0])
    assert page.errors() == []


def test_the_page_asks_for_nothing(browser: Any, page_of: PageOf) -> None:
    page = Page(browser, page_of("faults"), 1000)
    fetched = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in fetched if not name.startswith(("data:", "blob:"))] == []
    assert "default-src 'none'" in page_of("faults").read_text(encoding="utf-8")[:1000]


def test_the_command_judges_the_failures_again(browser: Any, page_of: PageOf) -> None:
    path = page_of("attacks")
    page = Page(browser, path, 1000)
    command = shlex.split(next(text for text in page.texts(".command code") if text.count("::") > 2))
    assert command[:3] == ["python", "-m", "pytest"]
    done = subprocess.run(
        [sys.executable, *command[1:], "-rA"], cwd=path.parent, capture_output=True, text=True, check=False
    )
    assert "2 failed" in done.stdout.splitlines()[-1], done.stdout
    assert "passed" not in done.stdout.splitlines()[-1]


def test_a_large_page_is_small_and_keeps_few_rows_in_the_document(browser: Any, page_of: PageOf) -> None:
    assert page_of("large").stat().st_size <= 3_000_000
    page = Page(browser, page_of("large"), 1680)
    assert page.shown == 10_000
    assert page.run("return document.querySelectorAll('#table tbody tr').length") < 80
    assert page.run("return document.querySelectorAll('*').length") < 4000
    page.click("#passes")
    page.until("document.querySelector('.table-box').scrollHeight > 290000")
    page.run("document.querySelector('.table-box').scrollTop = 150000")
    page.until("document.querySelector('#table td.c-order') && document.querySelector('tr[aria-rowindex=\"5010\"]')")
    assert page.run("return document.querySelectorAll('#table tbody tr').length") < 80


#: The checker of accessibility, which the test fetches: 560 kB that no user needs.
AXE = ("axe-core@4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745")


AXE_RUN = """
    const done = arguments[0], told = one => [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 200))];
    axe.run({resultTypes: ["violations"]}).then(result => done(result.violations.map(told)))"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here, which fetches axe-core")
    try:
        tarball = fetched(AXE[0], tmp_path_factory.mktemp("axe"))
    except subprocess.CalledProcessError:
        pytest.skip("npm cannot fetch axe-core here")
    assert hashlib.sha256(tarball.read_bytes()).hexdigest() == AXE[1]
    with tarfile.open(tarball) as content:
        return member(content, "axe.min.js").decode("utf-8")


@pytest.mark.parametrize(("state", "link"), [*((state, "") for state in STATES), ("attacks", "#Mint.neg.0.forward")])
def test_no_serious_fault_of_accessibility(state: str, link: str, browser: Any, page_of: PageOf, axe: str) -> None:
    for width, clicks in ((1680, 0), (1680, 1), (400, 0)):
        page = Page(browser, page_of(state), width, link)
        for _ in range(clicks):
            page.run("document.getElementById('theme').click()")  # dark and light
        page.run(axe)
        found = browser.execute_async_script(AXE_RUN)
        assert [one for one in found if one[0] in ("serious", "critical")] == []
