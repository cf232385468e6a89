"""A pytest plugin: this process has neither MindSpore nor PyTorch, whatever is installed.

`PYTHONPATH=tests python -m pytest -p fakes.without_frameworks ...`
"""

from __future__ import annotations

import sys

#: What the extras `mindspore` and `torch` bring.
FRAMEWORKS = ("mindspore", "torch")

for _name in FRAMEWORKS:
    if _name in sys.modules:
        raise RuntimeError(f"{_name} is loaded already")
    # `import` then raises ModuleNotFoundError, and find_spec finds nothing.
    sys.modules[_name] = None  # type: ignore[assignment]
