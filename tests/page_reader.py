"""What a page of --msprobe-page holds, read without its script."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def page_content(path: Path) -> dict[str, Any]:
    """Everything that the script of the page at `path` gets."""
    text = path.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script id="rows" type="application/octet-stream">([A-Za-z0-9+/=]*)</script>', text)
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
    return content


def page_rows(path: Path) -> list[dict[str, Any]]:
    """Its rows in their order, with the texts in place of their numbers."""
    found = []
    for section in page_content(path)["sections"]:
        texts, rows = section["texts"], section["rows"]
        for row in range(len(section["counts"])):
            named = {name: texts[rows[name][row]] for name in ("call", "part", "outcome", "message")}
            place = {name: rows[name][row] for name in ("order", "heat", "status")}
            path_of_cell, cell = [], rows["cell"][row]
            while cell >= 0:
                name, cell = section["cells"][cell]
                path_of_cell.insert(0, name)
            found.append({**named, **place, "cells": path_of_cell, "dump": section["slots"][rows["slot"][row]]["dump"]})
    return found
