"""A page of --msprobe-page that is open in a browser."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from typing import Any


class Page:
    """An open page.

    Attributes:
        browser: that shows it.
    """

    def __init__(self, browser: Any, path: Path, width: int, link: str = "", theme: str = "light") -> None:
        self.browser = browser
        size = {"width": width, "height": 950, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(path.as_uri() + link)
        self.until("document.documentElement.dataset.ready !== undefined")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def until(self, condition: str) -> None:
        """Wait for a condition of JavaScript, as long as a busy machine may take."""
        latest = time.monotonic() + 20
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < latest, f"never became true: {condition}"
            time.sleep(0.02)

    def element(self, selector: str, text: str = "") -> Any:
        """The first element that fits and holds `text`, once there is one."""
        find = """[...document.querySelectorAll(%s)].find(element => element.textContent.includes(%s))"""
        found = find % (json.dumps(selector), json.dumps(text))
        self.until(found)
        return self.run(f"return {found}")

    def click(self, selector: str, text: str = "") -> None:
        element = self.element(selector, text)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map(element => element.textContent)", selector
        )
        return found

    def choose(self, label: str, option: str) -> None:
        script = """
            const select = [...document.querySelectorAll('.filters label')]
                .find(label => label.firstChild.textContent === arguments[0]).querySelector('select');
            select.value = [...select.options].find(one => one.textContent === arguments[1]).value;
            select.dispatchEvent(new Event('change', {bubbles: true}))"""
        self.run(script, label, option)

    def write(self, selector: str, text: str) -> None:
        script = (
            """arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"""
        )
        self.run(script, self.element(selector), text)

    def keys(self, key: str) -> None:
        """Press a key where the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(key).perform()

    @property
    def shown(self) -> int:
        """How many rows the filter leaves."""
        return int(self.texts("#shown b")[0].replace(",", ""))

    def has_shown(self, condition: str) -> None:
        self.until(f"(shown => {condition})(Number(document.querySelector('#shown b').textContent.replace(',', '')))")

    def column(self, name: str) -> list[str]:
        return self.texts(f"#table tbody td.c-{name}")

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]

    def printed(self) -> tuple[bytes, int]:
        """The page on A4 paper as PDF, and the number of its sheets."""
        paper = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        content = base64.b64decode(self.browser.execute_cdp_cmd("Page.printToPDF", paper)["data"])
        return content, len(re.findall(rb"/Type\s*/Page\b(?!s)", content))
