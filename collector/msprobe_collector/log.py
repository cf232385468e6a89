"""The logger of the collector."""

from __future__ import annotations

import logging

logger = logging.getLogger("msprobe_collector")
