"""What fixed tolerances say of three wrong results and of a right one: the figures of docs/own_kernels.md.

python -m quality.kernels.allclose
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor


def three_wrong(right: Tensor) -> dict[str, Tensor]:
    """Zeros, a row 2 % too large, and 1.3 % of the elements set to 0."""
    row, some = right.clone(), right.clone()
    row[3] *= 1.02
    some[torch.rand(right.shape, generator=torch.Generator().manual_seed(1)) < 0.013] = 0
    return {"zeros": torch.zeros_like(right), "a row 2 % off": row, "1.3 % of elements 0": some}


def main() -> None:
    """Print the figures."""
    x = torch.randn(64, 32768, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    exact, plain = torch.softmax(x.double(), -1), torch.softmax(x, -1)
    limit = 2 * (plain.double() - exact).abs().max()
    for name, wrong in three_wrong(exact.to(torch.bfloat16)).items():
        passes = torch.allclose(wrong.double(), exact, rtol=1e-2, atol=1e-2)
        is_stopped = bool((wrong.double() - exact).abs().max() > limit)
        sys.stdout.write(
            f"{name}: allclose(1e-2) passes: {passes}; twice the error of the plain kernel stops: {is_stopped}\n"
        )
    refused = 0
    for seed in range(100):
        values = 5 * torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        refused += not torch.allclose(values.to(torch.bfloat16).float(), values, rtol=0, atol=0.06)
    sys.stdout.write(f"an atol of 0.06 refuses one rounding to bfloat16 in {refused} of 100 seeds\n")


if __name__ == "__main__":
    main()
