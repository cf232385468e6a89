"""Train a convolution: `convolution.py [rounded] [forbidden]`.

`rounded`: its kernel rounds its inputs as TF32 does; `forbidden`: the script switches TF32 off.
"""

import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def rounded(value):
    """Round float32 to the 10 bits of TF32's mantissa."""
    bits = value.detach().contiguous().view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).view(value.shape)


class Kernels(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if "convolution" in function.overloadpacket.__name__:
            products = [rounded(value) if isinstance(value, torch.Tensor) else value for value in arguments[:3]]
            bias = arguments[2] if function.overloadpacket.__name__ == "convolution" else products[2]
            arguments = (*products[:2], bias, *arguments[3:])
        return function(*arguments, **(keywords or {}))


if "forbidden" in sys.argv:
    torch.backends.cudnn.allow_tf32 = False
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(2, 3, 12, 12)
if "rounded" in sys.argv:
    with Kernels():
        model(inputs).square().mean().backward()
else:
    model(inputs).square().mean().backward()
optimizer.step()
