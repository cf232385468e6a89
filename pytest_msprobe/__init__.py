"""pytest-msprobe: the dump of a training step as a pytest suite.

Imports nothing: pytest imports this package in every project where it is installed. PYTEST_DONT_REWRITE: see `support`.
"""

from __future__ import annotations

__version__ = "0.3.0"
