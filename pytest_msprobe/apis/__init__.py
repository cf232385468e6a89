"""What is known of an API by its name, once, for every suite: fact files (`facts/*.txt`) and their reader.

Adding an operator means adding lines there (docs/extending.md). Importing this package reads no file and loads
neither a framework nor NumPy.
"""

from __future__ import annotations

from pytest_msprobe.apis.fact_table import Fact, FactTable, facts

__all__ = ["Fact", "FactTable", "facts"]
