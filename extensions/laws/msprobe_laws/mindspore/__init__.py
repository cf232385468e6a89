"""What is seen of a training of MindSpore, for the laws. Importing this package starts it where MSPROBE_LAWS is set."""

from __future__ import annotations

from msprobe_collector.loading import loader_of
from msprobe_laws.extension import is_wanted, start

__all__ = ["watch_laws"]

if is_wanted():
    start("mindspore")
__getattr__ = loader_of(__name__, {"watch_laws": "watch"})
