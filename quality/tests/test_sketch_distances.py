"""Distances from sketches: as near to the true ones as README.md says."""

from __future__ import annotations

import numpy as np

from quality.sketches.distances import LEAST, MOST, ratios


def test_2000_distances_are_near() -> None:
    estimates = np.array([row[1:] for row in ratios(2000, seed=7)])
    inside = ((estimates >= LEAST) & (estimates <= MOST)).mean(axis=0)
    assert inside[0] >= 0.99
    assert inside[1] >= 0.95  # of shards, of which half of the numbers add up
