from __future__ import annotations

import numpy as np
import pytest
from output_pairs import DTYPES, verdict

from pytest_msprobe.numerics.measurement import measure
from pytest_msprobe.numerics.standards.elementwise import Binary


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_neighbour_of_the_right_number_fails(dtype: type) -> None:
    third = np.array([1 / 3], dtype)
    assert verdict(Binary(), third, [1 / 3], dtype).is_pass
    neighbour = (third.view(np.uint32 if third.itemsize == 4 else np.uint16) + 1).view(third.dtype)
    assert not verdict(Binary(), neighbour, [1 / 3], dtype).is_pass


def test_the_reason_counts_all_that_differ() -> None:
    tested, reference = np.array([1, 2, 3.0]), np.array([1, 2.5, 3 + 1e-9])
    found = Binary().judge(measure(tested, reference, off_bound=Binary().off_bound))
    assert found.reasons == ("2 of 3 elements differ from the benchmark, rounded once to the tested dtype; none may.",)


def test_it_compares_values_not_bits() -> None:
    assert verdict(Binary(), [-0.0, np.nan], [0.0, -np.nan]).is_pass
