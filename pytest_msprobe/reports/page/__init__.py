"""One self-contained page of a run, or of several, made from their machine rows alone."""

from __future__ import annotations
