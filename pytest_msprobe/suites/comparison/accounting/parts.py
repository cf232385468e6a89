"""Names of the parts of a difference: see `terms`."""

from __future__ import annotations

BORN_TARGET, INHERITED, DEFINED, BORN_GOLDEN = PARTS = ("born_target", "inherited", "defined", "born_golden")
