"""The catalogue of kernels: some of each half are stopped, right ones pass in every dtype, and entries are whole."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from quality.kernels.__main__ import answer_to
from quality.kernels.entries import Draw
from quality.kernels.flakes import KERNELS as FLAKES
from quality.kernels.right import KERNELS as RIGHT
from quality.kernels.wrong_first import KERNELS as WRONG


def test_the_catalogue_is_large() -> None:
    assert len({kernel.name for kernel in RIGHT}) >= 60
    assert len({kernel.name for kernel in WRONG}) >= 50
    assert len(FLAKES) >= 8


@pytest.mark.parametrize("kernel", WRONG[::6], ids=lambda kernel: kernel.name)
def test_wrong_kernels_are_stopped(kernel: Any) -> None:
    dtype = kernel.dtypes[0]
    assert answer_to(kernel, kernel.inputs(Draw(dtype, 1), kernel.shape))


@pytest.mark.parametrize("kernel", [*RIGHT[::6], *FLAKES], ids=lambda kernel: kernel.name)
def test_right_kernels_pass(kernel: Any) -> None:
    for dtype in kernel.dtypes:
        for shape in kernel.shapes:
            assert answer_to(kernel, kernel.inputs(Draw(dtype, 1), shape)) == ""
