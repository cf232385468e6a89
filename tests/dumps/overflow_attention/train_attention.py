import json
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn

from msprobe_collector import PrecisionDebugger


class Attention(nn.Cell):
    def __init__(self, width: int) -> None:
        super().__init__()
        generator = np.random.default_rng(0)
        self.weights = [
            Parameter(Tensor(generator.normal(0, scale, (width, width)), ms.float16), name=name)
            for name, scale in (("query", 9.0), ("key", 9.0), ("value", 0.3))
        ]

        self.future = Tensor(np.triu(np.ones((4, 4)), 1) > 0)

    def construct(self, x):
        query, key, value = (mint.matmul(x, weight) for weight in self.weights)
        scores = mint.matmul(query, mint.transpose(key, 0, 1))
        scores = scores.masked_fill(self.future, float("-inf"))
        scores = mint.sub(scores, mint.amax(scores, 1, True))
        shares = mint.exp(scores)
        shares = mint.div(shares, mint.sum(shares, 1, True))
        return mint.matmul(shares, value)


ms.set_context(mode=ms.PYNATIVE_MODE)
model = Attention(8)
batch = Tensor(np.random.default_rng(1).normal(0, 9, (4, 8)), ms.float16)
with open("config.json", "w") as file:
    json.dump({"task": "tensor", "level": "L1", "dump_path": sys.argv[1], "rank": [], "step": [], "tensor": {}}, file)
debugger = PrecisionDebugger("config.json")
debugger.start(model, rank_id=0)
output = model(batch)
loss = mint.mean(mint.square(output))
debugger.stop()
debugger.step()
print(loss)
