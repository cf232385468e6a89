"""Training scripts written for this catalogue, in the forms that scripts have; places that can go wrong: `spot`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from quality.accounting.foreign.training import Training, Way
from quality.accounting.foreign.watching import is_wrong, spot

_WORDS, _WIDTH, _LENGTH = 40, 24, 8


class Doubled(torch.autograd.Function):
    """Identity whose gradient counts twice; nothing records it."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return 2 * gradient


def _text(rows: int = 3) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, _WORDS, (rows, _LENGTH)), "labels": torch.randint(0, _WORDS, (rows * _LENGTH,))}


def _text_loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = net(batch["ids"]).flatten(0, 1).float()
    with spot("loss in bfloat16") as wrong:
        logits = logits.bfloat16() if wrong else logits
    return functional.cross_entropy(logits.float(), batch["labels"])


class Generator(nn.Module):
    """Both networks of a GAN in one Module, so that both are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 20), nn.LeakyReLU(0.2), nn.Linear(20, 12), nn.Tanh())
        self.discriminator = nn.Sequential(nn.Linear(12, 20), nn.LayerNorm(20), nn.SiLU(), nn.Linear(20, 1))


def _gan_step(training: Training, way: Way) -> None:
    net, batch = training.net, training.batch
    both = functional.binary_cross_entropy_with_logits
    one, other = torch.optim.Adam(net.discriminator.parameters()), torch.optim.Adam(net.generator.parameters())
    fake = net.generator(batch["noise"])
    real, made = net.discriminator(batch["real"]), net.discriminator(fake.detach())
    with spot("labels of the fake exchanged") as wrong:
        ones = torch.ones_like(made)
        loss = both(real, ones) + both(made, ones if wrong else ones * 0)
    loss.backward()
    nn.utils.clip_grad_norm_(net.discriminator.parameters(), 1.0)
    one.step()
    one.zero_grad()
    with spot("detached fake") as wrong:
        judged = net.discriminator(fake.detach() if wrong else fake)
    both(judged, torch.ones_like(judged)).backward()
    with spot("clip of the generator") as wrong:
        nn.utils.clip_grad_norm_(net.generator.parameters(), 0.5 if wrong else 0.05)
    other.step()


def gan() -> Training:
    """Two losses, two optimizers; the second backward goes through the first network."""
    batch = {"noise": torch.randn(5, 6), "real": torch.randn(5, 12)}
    return Training(Generator(), batch, lambda net, batch: net.generator(batch["noise"]).sum(), _gan_step)


class Attention(nn.Module):
    """One projection for q, k and v."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH), heads

    def forward(self, x: Tensor, at: int) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        with spot(f"q and k exchanged {at}") as wrong:
            scores = (k if wrong else q) @ (q if wrong else k).mT
        with spot(f"scale {at}") as wrong:
            scores = scores * ((_WIDTH // self.heads) ** -0.5 * (1.05 if wrong else 1.0))
        with spot(f"mask {at}") as wrong:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1 if wrong else 0)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention, self.up, self.down = Attention(), nn.Linear(_WIDTH, 40), nn.Linear(40, _WIDTH)

    def forward(self, x: Tensor, at: int = 0) -> Tensor:
        if is_wrong(f"doubled {at}", x):
            x = Doubled.apply(x)
        x = x + self.attention(self.first(x), at)
        y = self.second(x)
        with spot(f"step through float16 {at}") as wrong:
            y = y.half().to(y.dtype) if wrong else y
        y = self.up(y)
        with spot(f"other activation {at}") as wrong:
            y = functional.silu(y) if wrong else functional.gelu(y)
        return x + self.down(y)


class Tied(nn.Module):
    """Embedding and head share their weight."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(_WORDS, _WIDTH), nn.LayerNorm(_WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.head = nn.Linear(_WIDTH, _WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = first = self.words(ids)
        for at, block in enumerate(self.blocks):
            x = self.run(block, x, at)
        with spot("skip from another layer") as wrong:
            x = x + (self.words(ids.flip(0)) if wrong else first)
        return self.head(self.norm(x))

    def run(self, block: nn.Module, x: Tensor, at: int) -> Tensor:
        """Run a block."""
        return block(x, at)


class Checkpointed(Tied):
    """Blocks are computed again in the backward."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.is_reentrant = is_reentrant

    def run(self, block: nn.Module, x: Tensor, at: int) -> Tensor:
        """Run a block under a checkpoint."""
        with spot(f"checkpoint {at}"):
            return checkpoint(block, x, at, use_reentrant=self.is_reentrant)


def _accumulated_step(training: Training, way: Way) -> None:
    """Three micro-batches, then an optimizer."""
    net, batch = training.net, training.batch
    chosen = torch.optim.AdamW(net.parameters(), 1e-3)
    for number, (ids, labels) in enumerate(zip(batch["ids"].split(1), batch["labels"].split(_LENGTH))):
        with way.casting():
            loss = _text_loss(net, {"ids": ids, "labels": labels})
        with spot(f"not divided {number}") as wrong:
            loss = loss * (1.0 if wrong else 1 / 3)
        loss.backward()
    with spot("a gradient is cleared") as wrong:
        if wrong:
            net.blocks[1].up.weight.grad.zero_()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    with spot("weight decay") as wrong:
        chosen.param_groups[0]["weight_decay"] = 0.5 if wrong else 0.01
        chosen.step()


def _teacher_step(training: Training, way: Way) -> None:
    """A student follows its teacher, which follows it by an exponential average."""
    net, batch = training.net, training.batch
    with torch.no_grad():
        wanted = net.teacher(batch["x"])
    logits = net.student(batch["x"] + batch["noise"])
    with spot("temperature") as wrong:
        told = functional.log_softmax(logits / (2.0 if wrong else 1.5), -1)
    functional.kl_div(told, functional.softmax(wanted / 1.5, -1), reduction="batchmean").backward()
    torch.optim.SGD(net.student.parameters(), 0.1, momentum=0.9).step()
    with torch.no_grad():
        for number, (slow, fast) in enumerate(zip(net.teacher.parameters(), net.student.parameters())):
            with spot(f"momentum of the teacher {number}") as wrong:
                slow.mul_(0.9 if wrong else 0.99).add_(fast, alpha=0.01)


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Linear(16, 7))
        self.teacher = nn.Sequential(nn.Linear(9, 16), nn.BatchNorm1d(16), nn.ELU(), nn.Linear(16, 7))
        self.teacher.requires_grad_(False)


class Siamese(nn.Module):
    """One tower, called twice; rows are to agree with their partner."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Mish(), nn.Flatten(), nn.Linear(96, 10))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = functional.normalize(self.tower(left), dim=-1), functional.normalize(self.tower(right), dim=-1)
        with spot("one side twice") as wrong:
            near = left @ (left if wrong else right).T
        with spot("temperature") as wrong:
            near = near / (0.2 if wrong else 0.1)
        labels = torch.arange(left.shape[0])
        with spot("second loss not transposed") as wrong:
            second = functional.cross_entropy(near if wrong else near.T, labels)
        return functional.cross_entropy(near, labels) + second


class Recurrent(nn.Module):
    """LSTM, GRU and a cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.lstm = nn.LSTM(_WIDTH, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.gru, self.cell, self.head = nn.GRU(32, 20), nn.GRUCell(20, 20), nn.Linear(20, _WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.lstm(self.words(ids))
        x, last = self.gru(x.transpose(0, 1))
        with spot("state not handed on") as wrong:
            state = torch.zeros_like(last[0]) if wrong else last[0]
        found = []
        for at in range(x.shape[0]):
            state = self.cell(x[at], state)
            found.append(state)
        with spot("steps in reverse") as wrong:
            y = torch.stack(found[::-1] if wrong else found, 1)
        return self.head(y)


class Translator(nn.Module):
    """nn.Transformer in training, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.transformer = nn.Transformer(_WIDTH, 3, 2, 2, 40, dropout=0.1, batch_first=True)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.transformer(x, x.roll(1, 1), tgt_mask=mask))


class Experts(nn.Module):
    """Each token goes to two of four experts; results are written into memory that nothing has filled."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gate = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH) for _ in range(4)])
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).flatten(0, 1)
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        with spot("weights not normalised") as wrong:
            weights = weights if wrong else weights / weights.sum(-1, keepdim=True)
        gathered = torch.empty(x.shape[0], 2, _WIDTH, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            with spot(f"expert {number} gets other rows") as wrong:
                taken = x[rows.flip(0) if wrong else rows]
            gathered[rows, places] = functional.silu(expert(taken))
        with spot("choices exchanged") as wrong:
            mixed = (gathered * (weights.flip(-1) if wrong else weights).unsqueeze(-1)).sum(1)
        return self.head(x + mixed).view(*ids.shape, -1)


class Scan(nn.Module):
    """A linear recurrence that writes its steps into a tensor, as RWKV does."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.decay = nn.Embedding(_WORDS, _WIDTH), nn.Parameter(torch.randn(_WIDTH) * 0.3)
        self.key, self.value, self.head = (nn.Linear(_WIDTH, width) for width in (_WIDTH, _WIDTH, _WORDS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        k, v, out = self.key(x).sigmoid(), self.value(x), torch.zeros_like(x)
        state, decay = torch.zeros_like(x[:, 0]), torch.exp(-torch.exp(self.decay))
        for at in range(x.shape[1]):
            with spot(f"decay at {at}") as wrong:
                state = state * (decay.square() if wrong else decay) + k[:, at] * v[:, at]
            with spot(f"written to another place {at}") as wrong:
                out[:, (at - 1 if wrong else at)] = state
        return self.head(out)


class Windows(nn.Module):
    """Adds to views of one tensor in place, as Longformer's windows do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        y = self.mix(x) * 1.0
        with spot("left neighbour") as wrong:
            y[:, 1:] += x[:, 1:] if wrong else x[:, :-1]
        diagonal = y.transpose(1, 2).diagonal(dim1=1, dim2=2)
        with spot("diagonal") as wrong:
            diagonal.mul_(0.55 if wrong else 0.5)
        with spot("halves") as wrong:
            low, high = y.chunk(2, -1)
            low, high = (high, low) if wrong else (low, high)
            z = torch.cat([low.tanh(), high.sigmoid()], -1)
        return self.head(self.norm(z + x))


class Images(nn.Module):
    """A CNN with batch norm, skip connections and an instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.up, self.last = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(14, 8, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8) for _ in range(2)])
        self.instance, self.head = nn.InstanceNorm2d(6, affine=True), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.hardswish(self.norms[0](self.stem(x)))
        y = functional.relu(self.norms[1](self.second(functional.max_pool2d(x, 2))))
        y = self.instance(self.up(y))
        with spot("order of a cat") as wrong:
            z = torch.cat([x, y] if wrong else [y, x], 1)
        z = self.last(z)
        with spot("mean for max") as wrong:
            z = z.mean((2, 3)) if wrong else z.amax((2, 3))
        return self.head(z)


class Islands(nn.Module):
    """Parameters in the dtype of the training, norms and softmax in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS)
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(_WIDTH)) for _ in range(3)])
        self.qkv = nn.ModuleList([nn.Linear(_WIDTH, 3 * _WIDTH, bias=False) for _ in range(3)])

    def norm(self, x: Tensor, at: int) -> Tensor:
        """Root-mean-square norm, computed in float32."""
        wide = x.float()
        with spot(f"eps {at}") as wrong:
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + (1e-2 if wrong else 1e-6))
        return self.scale[at] * wide.type_as(x)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for at, project in enumerate(self.qkv):
            q, k, v = project(self.norm(x, at)).chunk(3, -1)
            with spot(f"k and v exchanged {at}") as wrong:
                k, v = (v, k) if wrong else (k, v)
                scores = (q @ k.mT) * _WIDTH**-0.5
                x = x + scores.float().softmax(-1).to(v.dtype) @ v
        return self.head(x)


class Kernels:
    """A function that the script has from a library of its own, so that nothing knows what it computes."""

    @staticmethod
    def gated(x: Tensor, gate: Tensor) -> Tensor:
        """The gated linear unit of the library."""
        return x * torch.sigmoid(gate) * (1.1 if is_wrong("own function") else 1.0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, 40), nn.Linear(20, _WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.words(ids))
        with spot("own function"):
            x = Kernels.gated(*x.chunk(2, -1))
        return self.head(x)


def _custom_step(training: Training, way: Way) -> None:
    from msprobe_collector.pytorch import PrecisionDebugger

    PrecisionDebugger.register_custom_api(Kernels, "gated")
    try:
        way.step(training)
    finally:
        PrecisionDebugger.restore_custom_api(Kernels, "gated")


def _of_text(make: Callable[[], nn.Module], step: Callable[[Training, Way], None] | None = None) -> Training:
    return Training(make(), _text(), _text_loss, *([step] if step else []))


def _teacher() -> Training:
    batch = {"x": torch.randn(6, 9), "noise": 0.1 * torch.randn(6, 9)}
    return Training(Teacher(), batch, lambda net, batch: net.student(batch["x"]).sum(), _teacher_step)


def _siamese() -> Training:
    batch = {"left": torch.randn(4, 2, 6, 6), "right": torch.randn(4, 2, 6, 6)}
    return Training(Siamese(), batch, lambda net, batch: net(batch["left"], batch["right"]))


def _pictures() -> Training:
    batch = {"pixels": torch.randn(3, 3, 12, 12), "labels": torch.tensor([0, 3, 1])}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        """Of two views of the pictures, so that the second forward takes the running statistics of the first."""
        pixels, labels = batch["pixels"], batch["labels"]
        return functional.cross_entropy(net(pixels), labels) + functional.cross_entropy(net(pixels.flip(-1)), labels)

    return Training(Images(), batch, loss)


#: What builds each training.
SCRIPTS: dict[str, Callable[[], Training]] = {
    "gan": gan,
    "tied": lambda: _of_text(Tied),
    "accumulated": lambda: _of_text(Tied, _accumulated_step),
    "checkpointed": lambda: _of_text(lambda: Checkpointed(is_reentrant=False)),
    "checkpointed, reentrant": lambda: _of_text(lambda: Checkpointed(is_reentrant=True)),
    "teacher": _teacher,
    "siamese": _siamese,
    "recurrent": lambda: _of_text(Recurrent),
    "translator": lambda: _of_text(Translator),
    "experts": lambda: _of_text(Experts),
    "scan": lambda: _of_text(Scan),
    "windows": lambda: _of_text(Windows),
    "images": _pictures,
    "islands": lambda: _of_text(Islands),
    "custom": lambda: _of_text(Custom, _custom_step),
}
