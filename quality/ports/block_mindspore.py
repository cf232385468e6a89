"""The small decoder in MindSpore: `block_mindspore.py BUG [DUMP TASK]`."""

import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops

BUG = sys.argv[1]


class Attention(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = nn.Dense(32, 32), nn.Dense(32, 32), nn.Dense(32, 32), nn.Dense(32, 32)
        if BUG == "fused":
            self.qkv = nn.Dense(32, 96)
            del self.q, self.k, self.v

    def heads(self, x):
        return x.reshape(*x.shape[:2], 4, 8).transpose(0, 2, 1, 3)

    def construct(self, x):
        parts = self.qkv(x).chunk(3, -1) if BUG == "fused" else (self.q(x), self.k(x), self.v(x))
        q, k, v = (self.heads(part) for part in parts)
        scores = ops.matmul(q, k.swapaxes(2, 3)) / (32**0.5 if BUG == "scale" else 8**0.5)  # bug: scale
        time = x.shape[1]
        future = ms.Tensor(np.triu(np.ones((time, time), bool), 2 if BUG == "mask" else 1))
        scores = scores.masked_fill(future, -1e30)  # bug: mask
        shares = ops.softmax(scores, axis=-2 if BUG == "axis" else -1)  # bug: axis, mask
        mixed = ops.matmul(shares, v).transpose(0, 2, 1, 3).reshape(x.shape)
        return self.out(mixed)  # bug: transpose


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        eps = 1e-3 if BUG == "eps" else 1e-5
        self.norm1, self.norm2 = nn.LayerNorm((32,), epsilon=eps), nn.LayerNorm((32,), epsilon=eps)
        self.attention, self.up, self.down = Attention(), nn.Dense(32, 96), nn.Dense(96, 32)

    def construct(self, x):
        normed = self.norm1(x)  # bug: eps
        x = self.attention(normed) + x
        normed = self.norm2(x)  # bug: eps
        wide = ops.gelu(self.up(normed), approximate="tanh")
        return self.down(wide) + (normed if BUG == "residual" else x)  # bug: residual


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(48, 32), ms.Parameter(np.zeros((16, 32), np.float32))
        self.layers, self.norm = nn.SequentialCell(Layer(), Layer()), nn.LayerNorm((32,), epsilon=1e-5)
        self.head = nn.Dense(32, 48)

    def construct(self, tokens):
        start = 1 if BUG == "position" else 0
        x = self.words(tokens) + self.places[start : start + tokens.shape[1]]  # bug: position
        return self.head(self.norm(self.layers(x)))


def loss_of(tokens):
    logits = network(tokens)[:, :-1]
    return ops.cross_entropy(logits.reshape(-1, 48), tokens[:, 1:].reshape(-1))


weights, batch = np.load("weights.npz"), np.load("batch.npz")
state = {"words.embedding_table": weights["tokens.weight"], "places": weights["positions.weight"]}
state |= {f"head.{kind}": weights[f"head.{kind}"] for kind in ("weight", "bias")}
norms = {"norm": "ln"}
for layer in range(2):
    old, new = f"blocks.{layer}.", f"layers.{layer}."
    norms |= {f"{new}norm{place}": f"{old}ln_{place}" for place in (1, 2)}
    for kind in ("weight", "bias"):
        q, k, v, o = (weights[f"{old}{name}.{kind}"] for name in "qkvo")
        state[f"{new}attention.out.{kind}"] = o.T.copy() if BUG == "transpose" else o
        parts = {"qkv": np.concatenate((q, k, v))} if BUG == "fused" else {"q": q, "k": k, "v": v}
        state |= {f"{new}attention.{name}.{kind}": value for name, value in parts.items()}
        state |= {f"{new}up.{kind}": weights[f"{old}wide.{kind}"], f"{new}down.{kind}": weights[f"{old}narrow.{kind}"]}
for ours, theirs in norms.items():
    state |= {f"{ours}.gamma": weights[f"{theirs}.weight"], f"{ours}.beta": weights[f"{theirs}.bias"]}
network = Network()
network.set_train()
missing, _ = ms.load_param_into_net(network, {name: ms.Parameter(value) for name, value in state.items()})
assert not missing, missing
trained = network.trainable_params()
optimizer = nn.Momentum(trained, learning_rate=0.05, momentum=0.9)
forward_backward = ms.value_and_grad(loss_of, None, trained)
parts = [batch["tokens"][:1], batch["tokens"][1:]] if BUG == "accumulated" else [batch["tokens"]]
debugger = None
if len(sys.argv) > 2:
    from msprobe_collector import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=sys.argv[2], task=sys.argv[3], level="mix")
    debugger.start(network)
runs = [forward_backward(ms.Tensor(part.astype(np.int32))) for part in parts]
if debugger:
    debugger.stop()
total = sum(float(loss) for loss, _ in runs) / len(runs)
gradients = runs[0][1] if len(runs) == 1 else tuple((a + b) / 2 for a, b in zip(runs[0][1], runs[1][1], strict=True))
optimizer(gradients)
if debugger:
    debugger.step()
sizes = [sum(float((value.asnumpy() ** 2).sum()) for value in part) ** 0.5 for part in (gradients, trained)]
print(f"{total:.7f} {sizes[0]:.7f} {sizes[1]:.7f}")
