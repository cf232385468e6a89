"""The norm that clipping reports, of one rank and of several."""

from __future__ import annotations

import pytest

from msprobe_laws.law import Unchecked
from msprobe_laws.observation import Clipping
from msprobe_laws.signals import ClipNorm
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF


@pytest.mark.parametrize(
    ("reported", "left", "has_other_ranks", "says"),
    [
        (2.0, 1.0, False, "holds"),
        (2.0, 1.0, True, "holds"),
        (4.0, 0.5, False, "it reports the norm 4 of gradients of norm 2, 2 times it"),
        # The rank has a part of the gradients, as in tensor parallelism: what is left follows from the whole norm.
        (4.0, 0.5, True, "holds"),
        (4.0, None, True, "unchecked"),
        (4.0, 1.0, True, "clipping to 1 leaves the norm 1 of 2"),
        (1.5, 1.0, True, "it reports the norm 1.5 of gradients of norm 2, 0.75 times it"),
        (4.0, 2.0, False, "it reports the norm 4 of gradients of norm 2, 2 times it"),
    ],
)
def test_a_norm_of_all_ranks_is_at_least_that_of_one(
    reported: float, left: float | None, has_other_ranks: bool, says: str
) -> None:
    clipping = Clipping(["w"], 2.0, left, reported, 1.0, 100, FLOAT32_ROUNDOFF, has_other_ranks=has_other_ranks)
    result = ClipNorm().check(clipping)
    messages = ["unchecked"] if isinstance(result, Unchecked) else [finding.message for finding in result]
    assert (messages or ["holds"]) == [says]
