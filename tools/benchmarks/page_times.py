"""How long a page takes in Chromium without a window, the smallest of some openings, in ms.

    python -m tools.benchmarks.page_times page.html

Beside the time on the clock stands that of the processor for the page's thread, which other programs do not change.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from selenium import webdriver

#: What is done, and the statement that does it: the time until the next picture is drawn counts.
ACTIONS = {
    "filter by verdict": "document.querySelector('.count').click()",
    "all again": "document.querySelector('.count').click()",
    "filter by text": "{ const e = document.getElementById('search'); e.value = 'rsqrt layers.20'; "
    "e.dispatchEvent(new Event('input', {bubbles: true})); }",
    "no text": "{ const e = document.getElementById('search'); e.value = ''; "
    "e.dispatchEvent(new Event('input', {bubbles: true})); }",
    "unfold a Cell": "[...document.querySelectorAll('#tree .twist')].filter(e => e.textContent === '▸')[0].click()",
    "open a record": "document.querySelector('#table tbody td').click()",
    "sort by a figure": "[...document.querySelectorAll('#table th.num button')].pop().click()",
}
TIMED = """
    const done = arguments[arguments.length - 1], start = performance.now();
    %s;
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--openings", type=int, default=5)
    arguments = parser.parse_args()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1600,1000"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    best: dict[str, tuple[float, float]] = {}

    def busy() -> float:
        metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    try:
        browser.execute_cdp_cmd("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
        browser.execute_cdp_cmd("Performance.enable", {})
        for _ in range(arguments.openings):
            browser.get("about:blank")
            browser.get(arguments.page.resolve().as_uri())
            ready, before = None, busy()
            while ready is None:
                time.sleep(0.05)
                ready = browser.execute_script("return document.documentElement.dataset.ready")
            found = {"interactive": (float(ready), busy() - before)}
            for name, action in ACTIONS.items():
                before = busy()
                found[name] = browser.execute_async_script(TIMED % action), busy() - before
            for name, pair in found.items():
                best[name] = min(pair[0], best.get(name, pair)[0]), min(pair[1], best.get(name, pair)[1])
    finally:
        browser.quit()
    print(f"{arguments.page.stat().st_size / 1e6:.2f} MB")
    for name, (clock, processor) in best.items():
        print(f"{name:20} {clock:8.0f} ms {processor:8.0f} ms of the processor")


if __name__ == "__main__":
    main()
