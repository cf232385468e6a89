"""Sample pictures at the points of a grid with a kernel that is wrong in a way: `grid_samples.py DUMP MODE FAULT`.

Six calls: two paddings, and a grid that is the picture's own, one that is turned a little, and a random one.
"""

import sys

import torch
from torch.nn.functional import affine_grid, grid_sample
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_collector.pytorch import PrecisionDebugger

DUMP, MODE, FAULT = sys.argv[1:]
FAULTS = {
    "none": lambda output, random: output,
    "noise": lambda output, random: output * (1 + 0.01 * torch.randn(output.shape, generator=random)),
    "x1.01": lambda output, random: output * 1.01,
    "x1.2": lambda output, random: output * 1.2,
    "zeros": lambda output, random: torch.zeros_like(output),
}


class Kernel(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        output = function(*arguments, **(keywords or {}))
        if function.overloadpacket is torch.ops.aten.grid_sampler_2d:
            return FAULTS[FAULT](output, torch.Generator().manual_seed(5))
        return output


random = torch.Generator().manual_seed(0)
straight = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).repeat(3, 1, 1)
debugger = PrecisionDebugger(dump_path=DUMP, task="tensor", level="L1")
debugger.start()
with Kernel():
    for padding in ("zeros", "border"):
        pictures = torch.randn(3, 2, 16, 16, generator=random)
        turned = straight + 0.1 * torch.randn(3, 2, 3, generator=random)
        grids = [affine_grid(angle, pictures.shape, align_corners=False) for angle in (straight, turned)]
        for grid in (*grids, torch.rand(3, 16, 16, 2, generator=random) * 2 - 1):
            grid_sample(pictures, grid, mode=MODE, padding_mode=padding, align_corners=False)
debugger.stop()
debugger.step()
