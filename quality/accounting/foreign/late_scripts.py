"""Training scripts of the third part, in forms that the first two have not; places that can go wrong: `spot`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from quality.accounting.foreign.training import Training, Way
from quality.accounting.foreign.watching import is_wrong, spot

_WORDS, _WIDTH, _LENGTH = 36, 20, 7


class Scaled(torch.autograd.Function):
    """Identity that hands another gradient on; nothing records it, not even its view."""

    @staticmethod
    def forward(context: Any, x: Tensor, factor: float) -> Tensor:
        context.factor = factor
        with torch._C.DisableTorchFunction():
            return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch._C.DisableTorchFunction():
            return gradient * context.factor, None


class Graph(nn.Module):
    """Messages along edges, added up at nodes; attention over the edges of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.head = nn.Linear(6, _WIDTH), nn.Linear(_WIDTH, 4)
        self.message = nn.ModuleList([nn.Linear(2 * _WIDTH + 3, _WIDTH) for _ in range(2)])
        self.judge = nn.ModuleList([nn.Linear(_WIDTH, 1) for _ in range(2)])
        self.update = nn.GRUCell(_WIDTH, _WIDTH)

    def forward(self, nodes: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
        x = self.inlet(nodes).relu()
        source, goal = edges.unbind(0)
        for at, (message, judge) in enumerate(zip(self.message, self.judge)):
            with spot(f"ends of edges exchanged {at}") as wrong:
                ends = (x[goal], x[source]) if wrong else (x[source], x[goal])
                told = torch.cat([*ends, kinds], -1)
            told = functional.leaky_relu(message(told), 0.2)
            score = judge(told).squeeze(-1)
            with spot(f"scores not exponential {at}") as wrong:
                score = score.sigmoid() if wrong else score.exp()
            with spot(f"sum at sources {at}") as wrong:
                total = torch.zeros(x.shape[0]).index_add(0, source if wrong else goal, score)
            with spot(f"weights of other nodes {at}") as wrong:
                share = total[source if wrong else goal]
            share = (score / share.clamp_min(1e-6)).unsqueeze(-1)
            if is_wrong(f"a message hands no gradient on {at}", told):
                told = Scaled.apply(told, 0.0)
            places, told, got = goal.unsqueeze(-1).expand_as(told), told * share, torch.zeros_like(x)
            with spot(f"mean of messages {at}") as wrong:
                got = got.scatter_reduce(0, places, told, "mean" if wrong else "sum")
            x = self.update(got, x)
        return self.head(x)


class Flow(nn.Module):
    """Affine couplings of halves, with the logarithm of the determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([nn.Sequential(nn.Linear(4, 16), nn.Softplus(), nn.Linear(16, 8)) for _ in range(4)])
        self.scale = nn.Parameter(torch.randn(4) * 0.2 + 1)
        self.register_buffer("order", torch.randperm(8))

    def forward(self, x: Tensor) -> Tensor:
        found = x.new_zeros(x.shape[0])
        for at, net in enumerate(self.nets):
            kept, moved = x.chunk(2, 1)
            size, shift = net(kept).split(4, 1)
            with spot(f"scale and shift exchanged {at}") as wrong:
                size, shift = (shift, size) if wrong else (size, shift)
                size = torch.tanh(size)
            size = size * self.scale[at]
            with spot(f"no exponential {at}") as wrong:
                moved = moved * (size + 1 if wrong else size.exp())
            with spot(f"scale and shift exchanged {at}"):
                moved = moved + shift
            is_wrong(f"determinant hands no gradient on {at}", size)
            with spot(f"determinant hands no gradient on {at}") as wrong:
                part = (size.detach() if wrong else size).sum(1)
            found = found + part
            with spot(f"halves not exchanged {at}") as wrong:
                x = torch.cat([kept, moved] if wrong else [moved, kept], 1)
        with spot("order inverted") as wrong:
            x = x.index_select(1, self.order.argsort() if wrong else self.order)
        density = 0.5 * (torch.linspace(0.5, 1.5, x.shape[1]) * x).square()
        with spot("density without a constant") as wrong:
            density = density + (0.0 if wrong else 0.5 * math.log(2 * math.pi))
        return density.sum(1).mean() - found.mean()


class Vae(nn.Module):
    """A variational autoencoder of pictures, with noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.code = nn.Conv2d(1, 6, 4, 2, 1), nn.Linear(96, 10)
        self.uncode, self.up = nn.Linear(5, 96), nn.ConvTranspose2d(6, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.elu(self.down(x))
        middle, width = self.code(y.flatten(1)).chunk(2, -1)
        with spot("variance for deviation") as wrong:
            deviation = torch.exp(width if wrong else 0.5 * width)
        with spot("mean and width exchanged") as wrong:
            middle, width = (width, middle) if wrong else (middle, width)
            z = torch.addcmul(middle, torch.randn_like(middle), deviation)
            far = -0.5 * (1 + width - middle.pow(2) - width.exp()).sum(-1)
        with spot("code of another picture") as wrong:
            z = self.uncode(z.roll(1, 0) if wrong else z)
        y = functional.elu(z).unflatten(1, (6, 4, 4))
        near = functional.binary_cross_entropy_with_logits(self.up(y), x.sigmoid(), reduction="none")
        with spot("reduction") as wrong:
            near = near.mean((1, 2, 3)) if wrong else near.sum((1, 2, 3))
        with spot("beta") as wrong:
            far = (1.0 if wrong else 0.7) * far
        return (near + far).mean()


class Clicks(nn.Module):
    """Bags of embeddings, their products with each other, two towers."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(12, 8, mode=mode) for mode in ("sum", "mean", "max")])
        self.low, self.top = nn.Linear(5, 8), nn.Linear(14, 1)

    def forward(self, numbers: Tensor, words: Tensor, starts: Tensor) -> Tensor:
        low = self.low(numbers).relu()
        found = [low]
        for at, bag in enumerate(self.bags):
            with spot(f"bags begin elsewhere {at}") as wrong:
                begin = starts[at] + starts[at].clamp(max=1) if wrong else starts[at]
                found.append(bag(words[at], begin))
        with spot("tables exchanged") as wrong:
            parts = torch.stack([found[0], found[2], found[1], found[3]] if wrong else found, 1)
        near = torch.bmm(parts, parts.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        with spot("products of the upper half") as wrong:
            chosen = near[:, rows, rows if wrong else columns]
        is_wrong("lower tower detached", low)
        with spot("lower tower detached") as wrong:
            both = torch.cat([low.detach() if wrong else low, chosen], -1)
        return self.top(both).squeeze(-1)


class Policy(nn.Module):
    """An actor and a critic on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(6, 24), nn.Linear(24, 4), nn.Linear(24, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x = torch.tanh(self.trunk(batch["states"]))
        logits, values = self.actor(x), self.critic(x).squeeze(-1)
        known = values.detach()
        steps, gain = [], torch.zeros(values.shape[0])
        for at in reversed(range(values.shape[1] - 1)):
            delta = batch["rewards"][:, at] + 0.97 * known[:, at + 1] - known[:, at]
            with spot(f"decay at {at}") as wrong:
                gain = (0.8 if wrong else 0.9) * gain
            gain = delta + gain
            steps.append(gain)
        with spot("steps not reversed") as wrong:
            gains = torch.stack(steps if wrong else steps[::-1], 1)
        deviation = gains.std()
        with spot("added to the deviation") as wrong:
            deviation = deviation + (1e-1 if wrong else 1e-6)
        scaled = (gains - gains.mean()) / deviation
        told = logits[:, :-1].log_softmax(-1)
        chosen = told.gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        ratio = (chosen - batch["before"]).exp()
        with spot("clip") as wrong:
            bound = ratio.clamp(0.8, 1.1 if wrong else 1.2)
        one, other = ratio * scaled, bound * scaled
        with spot("larger of both") as wrong:
            least = (torch.maximum if wrong else torch.minimum)(one, other)
        entropy = (told.exp() * told).sum(-1)
        with spot("weight of the entropy") as wrong:
            entropy = entropy * (0.03 if wrong else 0.01)
        far = functional.smooth_l1_loss(values[:, :-1], (gains + known[:, :-1]).detach())
        return (entropy - least).mean() + 0.5 * far


class Motion(nn.Module):
    """A differential equation, unrolled in steps of fourth order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(7, 18), nn.Linear(18, 6), nn.Linear(6, 3)

    def speed(self, time: float, x: Tensor) -> Tensor:
        """How fast the state changes."""
        clock = torch.full_like(x[:, :1], time)
        return self.second(functional.softsign(self.first(torch.cat([x, clock], 1))))

    def forward(self, x: Tensor) -> Tensor:
        size = 0.25
        for at in range(3):
            time = at * size
            one = self.speed(time, x)
            two = self.speed(time + size / 2, torch.add(x, one, alpha=size / 2))
            with spot(f"a whole step {at}") as wrong:
                three = torch.add(x, two, alpha=size if wrong else size / 2)
            three = self.speed(time + size / 2, three)
            with spot(f"speed before {at}") as wrong:
                four = torch.add(x, two if wrong else three, alpha=size)
            four = self.speed(time + size, four)
            with spot(f"weights of speeds {at}") as wrong:
                two = (1.8 if wrong else 2) * two
            x = x + size / 6 * (one + two + 2 * three + four)
        return self.head(x)


class Skips(nn.Module):
    """A U-Net of small pictures; skips are joined and added."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(n, m, 3, padding=1) for n, m in ((2, 6), (6, 8), (8, 10))])
        self.up = nn.ModuleList([nn.Conv2d(n, m, 3) for n, m in ((18, 8), (14, 6))])
        self.norms = nn.ModuleList([nn.GroupNorm(2, n) for n in (6, 8, 10)])
        self.last = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for at, (conv, norm) in enumerate(zip(self.down, self.norms)):
            x = functional.gelu(norm(conv(x)), approximate="tanh")
            kept.append(x)
            if at < 2:
                with spot(f"mean for max {at}") as wrong:
                    x = functional.avg_pool2d(x, 2) if wrong else functional.max_pool2d(x, 2)
        for at, conv in enumerate(self.up):
            with spot(f"other way up {at}") as wrong:
                how = {"mode": "nearest"} if wrong else {"mode": "bilinear", "align_corners": False}
                x = functional.interpolate(x, scale_factor=2, **how)
            with spot(f"skip mirrored {at}") as wrong:
                side = kept[1 - at].flip(-1) if wrong else kept[1 - at]
                x = torch.cat([x, side], 1)
            with spot(f"padding {at}") as wrong:
                x = functional.pad(x, (1, 1, 1, 1), mode="reflect" if wrong else "replicate")
            x = functional.silu(conv(x))
        return self.last(x)


class Gates(nn.Module):
    """An LSTM written by hand: one product for four gates, and a mask that ends rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(_WORDS, _WIDTH), nn.LayerNorm(_WIDTH)
        self.enter, self.again = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(_WIDTH, 4 * _WIDTH, bias=False)
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        state, cell = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        out = torch.empty_like(x)
        for at in range(x.shape[1]):
            gates = self.enter(x[:, at]) + self.again(state)
            entry, forget, new, leave = gates.chunk(4, -1)
            with spot(f"entry and forget exchanged {at}") as wrong:
                entry, forget = (forget, entry) if wrong else (entry, forget)
                entry, forget = entry.sigmoid(), forget.sigmoid()
            with spot(f"relu for tanh {at}") as wrong:
                new = new.relu() if wrong else new.tanh()
            cell = forget * cell + entry * new
            leave = leave.sigmoid()
            with spot(f"norm left out {at}") as wrong:
                state = leave * (cell if wrong else self.norm(cell))
            with spot(f"cell written {at}") as wrong:
                out[:, at] = cell if wrong else state
            if is_wrong(f"state hands no gradient on {at}", state):
                state = Scaled.apply(state, 0.0)
        return self.head(out)


class Queue(nn.Module):
    """Contrastive learning against keys that a buffer keeps; the buffer is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = (nn.Sequential(nn.Linear(9, 16), nn.CELU(), nn.Linear(16, 6)) for _ in range(2))
        self.key.requires_grad_(False)
        self.register_buffer("queue", functional.normalize(torch.randn(12, 6), dim=-1))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        q = functional.normalize(self.query(left), dim=-1)
        with torch.no_grad():
            with spot("keys of the left view") as wrong:
                k = self.key(left if wrong else right)
            k = functional.normalize(k, dim=-1)
        with spot("keys of other rows") as wrong:
            near = torch.einsum("nc,nc->n", q, k.flip(0) if wrong else k)
        near = near.unsqueeze(-1)
        far = torch.einsum("nc,kc->nk", q, self.queue.clone())
        with spot("written elsewhere") as wrong:
            self.queue[3:7] = k.flip(0) if wrong else k
        again = q @ self.queue.detach().clone().T
        with spot("temperature of the second loss") as wrong:
            again = again / (0.3 if wrong else 0.2)
        second = functional.cross_entropy(again, torch.arange(3, 3 + q.shape[0]))
        with spot("negatives before the positive") as wrong:
            logits = torch.cat([far, near] if wrong else [near, far], 1)
        return functional.cross_entropy(logits / 0.1, torch.zeros(q.shape[0], dtype=torch.long)) + second


class Layer(nn.Module):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.at = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 48), nn.Linear(24, _WIDTH), at

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        value, gate = self.up(normal).chunk(2, -1)
        with spot(f"gate and value exchanged {self.at}") as wrong:
            value, gate = (gate, value) if wrong else (value, gate)
            y = value * functional.silu(gate)
        with spot(f"dropout left out {self.at}") as wrong:
            y = self.down(y if wrong else functional.dropout(y, 0.2, self.training))
        with spot(f"skip around another layer {self.at}") as wrong:
            return (normal if wrong else x) + y


class Words(nn.Module):
    """Gated layers with dropout, each under a checkpoint where that is asked for; the mean of what they give."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, _WIDTH), nn.Parameter(torch.randn(_LENGTH, _WIDTH))
        self.layers = nn.ModuleList([Layer(at) for at in range(4)])
        self.head, self.is_checkpointed = nn.Linear(_WIDTH, _WORDS), is_checkpointed

    def forward(self, ids: Tensor) -> Tensor:
        x, parts = self.words(ids) + self.places, []
        for at, layer in enumerate(self.layers):
            with spot(f"checkpoint {at}"):
                x = checkpoint(layer, x, use_reentrant=False) if self.is_checkpointed else layer(x)
            if is_wrong(f"gradient counts twice {at}", x):
                x = Scaled.apply(x, 2.0)
            parts.append(x)
        with spot("one layer twice in the mean") as wrong:
            y = torch.stack([*parts[:3], parts[2] if wrong else parts[3]])
        y = y.mean(0)
        with spot("mean through bfloat16") as wrong:
            y = y.bfloat16().float() if wrong else y
        return self.head(y)


def _words_loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = net(batch["ids"]).flatten(0, 1).float()
    with spot("other labels left out") as wrong:
        return functional.cross_entropy(logits, batch["labels"], ignore_index=3 if wrong else 5)


def _averaged_step(training: Training, way: Way) -> None:
    """Two micro-batches, clipping, NAdam, and an exponential average of the parameters."""
    net, batch = training.net, training.batch
    average = [value.detach().clone() for value in net.parameters()]
    chosen = torch.optim.NAdam(net.parameters(), 2e-3)
    for number, (ids, labels) in enumerate(zip(batch["ids"].split(2), batch["labels"].split(2 * _LENGTH))):
        with way.casting():
            loss = _words_loss(net, {"ids": ids, "labels": labels})
        with spot(f"share of a batch {number}") as wrong:
            loss = loss.div(3.0 if wrong else 2.0)
        loss.backward()
    with spot("clip of another size") as wrong:
        nn.utils.clip_grad_norm_(net.parameters(), 0.2 if wrong else 0.1)
    with spot("value of the clip"):
        nn.utils.clip_grad_value_(net.parameters(), 0.02 if is_wrong("value of the clip") else 0.03)
    chosen.step()
    with torch.no_grad():
        for number, (slow, fast) in enumerate(zip(average, net.parameters())):
            with spot(f"average {number}") as wrong:
                slow.lerp_(fast, 0.02 if wrong else 0.01)


class Codes(nn.Module):
    """The nearest code of a book for each vector; the gradient goes straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.outlet, self.book = nn.Linear(8, 6), nn.Linear(6, 8), nn.Parameter(torch.randn(10, 6))

    def forward(self, x: Tensor) -> Tensor:
        z = self.inlet(x)
        far = torch.cdist(z, self.book)
        with spot("second nearest") as wrong:
            nearest = far.topk(2, largest=False).indices[:, 1] if wrong else far.argmin(-1)
            code = functional.embedding(nearest, self.book)
        is_wrong("commitment of the code", code)
        with spot("commitment of the code") as wrong:
            near = functional.mse_loss(z, code if wrong else code.detach())
        near = 0.25 * near + functional.mse_loss(code, z.detach())
        is_wrong("not straight through", code)
        is_wrong("not straight through", z)
        with spot("not straight through") as wrong:
            passed = self.outlet(code if wrong else z + (code - z).detach())
        return functional.huber_loss(passed, x, delta=0.5) + near


class Slots(nn.Module):
    """Memory that nothing has filled, written in pieces: by slices, indices, masks and copies."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.mid, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inlet(x)
        rows = torch.empty(8, 8)
        with spot("rows of a copy") as wrong:
            rows[:3].copy_(y[1:4] if wrong else y[:3])
        with spot("index put elsewhere") as wrong:
            places = torch.tensor([5, 4] if wrong else [4, 5])
            rows.index_put_((places,), y[3:5].sigmoid())
        with spot("columns of a view") as wrong:
            rows[3, ::2] = y[5, 1::2] if wrong else y[5, ::2]
            rows[3, 1::2] = 0.5
        part = y[1:3]
        with spot("copied by index") as wrong:
            part = part * (1.2 if wrong else 1.1)
        rows.index_copy_(0, torch.tensor([6, 7]), part)
        z = self.mid(rows)
        with spot("mask by another limit") as wrong:
            mask = z > (-0.1 if wrong else 0.3)
        held = z.masked_fill(mask, 0.1).clone()
        view, part = held[2:6], y[:4]
        with spot("added to a view twice") as wrong:
            view.add_(part, alpha=2.0 if wrong else 1.0)
        with spot("added by index") as wrong:
            held.index_add_(0, torch.tensor([0, 0, 7]), y[3:] if wrong else y[:3])
        part = y[:2]
        with spot("slices scattered") as wrong:
            held = held.slice_scatter(part, 0, 1 if wrong else 0, 3 if wrong else 2)
        return self.head(held.erf())


class Waves(nn.Module):
    """Dilated gated convolutions of a sound; spectra of it and of what is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.outlet = nn.Conv1d(1, 8, 1), nn.Conv1d(8, 1, 1)
        wide = [nn.Conv1d(8, 16, 3, dilation=2**at, padding=2**at) for at in range(3)]
        self.wide = nn.ModuleList([nn.utils.parametrizations.weight_norm(one) for one in wide])
        self.skip = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.inlet(x), torch.zeros(1)
        for at, (wide, skip) in enumerate(zip(self.wide, self.skip)):
            first, gate = wide(x).split(8, 1)
            with spot(f"tanh and gate exchanged {at}") as wrong:
                first, gate = (gate, first) if wrong else (first, gate)
                y = torch.tanh(first) * torch.sigmoid(gate)
            total = total + skip(y)
            with spot(f"not added {at}") as wrong:
                x = y * 1.0 if wrong else torch.add(x, y)
        return self.outlet(functional.prelu(total, torch.tensor([0.2])))


def _sound_loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
    made, wanted = net(batch["x"]).squeeze(1), batch["wanted"]
    window = torch.hann_window(8)

    def spectrum(x: Tensor) -> Tensor:
        found = torch.stft(x, 8, 4, window=window, return_complex=True)
        return torch.view_as_real(found).pow(2).sum(-1).add(1e-6).log()

    one, other = spectrum(made), spectrum(wanted)
    with spot("squares of spectra") as wrong:
        far = (functional.mse_loss if wrong else functional.l1_loss)(one, other)
    return far + functional.l1_loss(made, wanted)


class Mixture(nn.Module):
    """Densities of a mixture, from a network whose weights another one makes."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.inlet = nn.Linear(5, 12 * 9), nn.Linear(6, 9)

    def forward(self, task: Tensor, x: Tensor, y: Tensor) -> Tensor:
        weight = self.maker(task).unflatten(-1, (12, 9))
        x = self.inlet(x).sin()
        with spot("weights of another task") as wrong:
            made = torch.einsum("boi,bni->bno", weight.roll(1, 0) if wrong else weight, x)
        share, middle, width = made.tensor_split(3, -1)
        with spot("width by exponential") as wrong:
            width = width.exp() if wrong else functional.softplus(width)
        width = width + 1e-3
        far, size = (y.unsqueeze(-1) - middle) / width, width.log()
        with spot("shares not normalised") as wrong:
            told = (share if wrong else share.log_softmax(-1)) - size
        told = told - 0.5 * far.square()
        with spot("logarithm of the sum") as wrong:
            told = told.amax(-1) if wrong else told.logsumexp(-1)
        return -told.mean()


def _text(rows: int = 4) -> dict[str, Tensor]:
    return {"ids": torch.randint(0, _WORDS, (rows, _LENGTH)), "labels": torch.randint(0, _WORDS, (rows * _LENGTH,))}


def _graph() -> Training:
    batch = {"nodes": torch.randn(7, 6), "edges": torch.randint(0, 7, (2, 15)), "kinds": torch.randn(15, 3)}
    batch["labels"] = torch.randint(0, 4, (7,))
    batch["edges"][1, :7] = torch.arange(7)

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(net(batch["nodes"], batch["edges"], batch["kinds"]), batch["labels"])

    return Training(Graph(), batch, loss)


def _clicks() -> Training:
    batch = {
        "numbers": torch.randn(4, 5),
        "words": torch.randint(0, 12, (3, 11)),
        "starts": torch.tensor([[0, 3, 5, 9], [0, 2, 6, 8], [0, 1, 5, 7]]),
        "labels": torch.tensor([1.0, 0.0, 0.0, 1.0]),
    }

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found = net(batch["numbers"], batch["words"], batch["starts"])
        return functional.binary_cross_entropy_with_logits(found, batch["labels"])

    return Training(Clicks(), batch, loss)


def _policy() -> Training:
    batch = {"states": torch.randn(3, 6, 6), "rewards": torch.randn(3, 6), "actions": torch.randint(0, 4, (3, 5))}
    batch["before"] = -torch.rand(3, 5) - 1
    return Training(Policy(), batch, lambda net, batch: net(batch))


def _skips() -> Training:
    batch = {"x": torch.randn(2, 2, 8, 8), "wanted": torch.randn(2, 2, 8, 8)}
    return Training(Skips(), batch, lambda net, batch: functional.mse_loss(net(batch["x"]), batch["wanted"]))


def _of(make: Callable[[], nn.Module], **shapes: tuple[int, ...]) -> Training:
    """A network that gives its loss."""
    batch = {name: torch.randn(shape) for name, shape in shapes.items()}
    return Training(make(), batch, lambda net, batch: net(*batch.values()))


def _classes(make: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, rows: int) -> Training:
    batch = {"x": torch.randn(shape), "labels": torch.randint(0, classes, (rows,))}
    return Training(make(), batch, lambda net, batch: functional.cross_entropy(net(batch["x"]), batch["labels"]))


def _words(make: Callable[[], nn.Module], *step: Callable[[Training, Way], None]) -> Training:
    return Training(make(), _text(), _words_loss, *step)


#: What builds each training.
LATE_SCRIPTS: dict[str, Callable[[], Training]] = {
    "graph": _graph,
    "flow": lambda: _of(Flow, x=(5, 8)),
    "vae": lambda: _of(Vae, x=(3, 1, 8, 8)),
    "clicks": _clicks,
    "policy": _policy,
    "motion": lambda: _classes(Motion, (5, 6), 3, 5),
    "skips": _skips,
    "gates": lambda: _words(Gates),
    "queue": lambda: _of(Queue, left=(4, 9), right=(4, 9)),
    "words": lambda: _words(Words),
    "words, checkpointed": lambda: _words(lambda: Words(is_checkpointed=True)),
    "averaged": lambda: _words(Words, _averaged_step),
    "codes": lambda: _of(Codes, x=(7, 8)),
    "slots": lambda: _classes(Slots, (6, 6), 3, 8),
    "waves": lambda: Training(Waves(), {"x": torch.randn(2, 1, 32), "wanted": torch.randn(2, 32)}, _sound_loss),
    "mixture": lambda: _of(Mixture, task=(3, 5), x=(3, 4, 6), y=(3, 4)),
}
