"""Rows of a CSV text whose fields may be of any length."""

from __future__ import annotations

import csv
import io


def csv_rows(text: str) -> list[list[str]]:
    """The rows of `text`. A message or a name may be longer than the 131,072 characters that `csv` takes by default.

    Raises:
        csv.Error: it is not CSV.
    """
    limit = csv.field_size_limit(max(len(text), 1))
    try:
        return list(csv.reader(io.StringIO(text, newline="")))
    finally:
        csv.field_size_limit(limit)
