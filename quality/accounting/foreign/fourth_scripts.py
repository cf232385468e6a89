"""Training scripts of the fourth part, of kinds that the other three have not; places that can go wrong: `spot`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from quality.accounting.foreign.late_scripts import Scaled
from quality.accounting.foreign.training import Training, Way
from quality.accounting.foreign.watching import is_wrong, spot

_WORDS, _WIDTH, _LENGTH = 30, 18, 6


class Attend(nn.Module):
    """Words into words: a recurrent encoder, a decoder that looks back by sums and tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.wanted = nn.Embedding(_WORDS, _WIDTH), nn.Embedding(_WORDS, _WIDTH)
        self.reader = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.writer, self.judge = nn.LSTMCell(2 * _WIDTH, _WIDTH), nn.Linear(_WIDTH, 1, bias=False)
        self.key, self.query = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.head = nn.Linear(2 * _WIDTH, _WORDS)

    def forward(self, ids: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        read, last = self.reader(self.words(ids))
        keys = self.key(read)
        state = last[0]
        with spot("begins with zeros") as wrong:
            state = state * (0.0 if wrong else 1.0)
        cell, before, told = torch.zeros_like(state), torch.zeros_like(labels[:, 0]), []
        for at in range(labels.shape[1]):
            scores = self.query(state).unsqueeze(1) + keys
            with spot(f"no tanh {at}") as wrong:
                scores = functional.softsign(scores) if wrong else torch.tanh(scores)
            scores = self.judge(scores).squeeze(-1)
            with spot(f"mask turned round {at}") as wrong:
                scores = scores.masked_fill(mask if wrong else ~mask, -1e4)
            weights = scores.softmax(-1).unsqueeze(1)
            with spot(f"sum of keys {at}") as wrong:
                found = torch.bmm(weights, keys if wrong else read)
            found = found.squeeze(1)
            entry = torch.cat([self.wanted(before), found], -1)
            with spot(f"state and cell exchanged {at}") as wrong:
                state, cell = self.writer(entry, (cell, state) if wrong else (state, cell))
            if is_wrong(f"state hands half a gradient on {at}", state):
                state = Scaled.apply(state, 0.5)
            told.append(self.head(torch.cat([state, found], -1)))
            before = labels[:, at]
        return torch.stack(told, 1)


class Capsules(nn.Module):
    """Small vectors that agree on larger ones, in three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.weight = nn.Conv2d(1, 12, 3, 2), nn.Parameter(torch.randn(27, 3, 6, 4) * 0.2)

    @staticmethod
    def squash(x: Tensor, place: str) -> Tensor:
        """A vector that is no longer than one."""
        square = x.square().sum(-1, keepdim=True)
        with spot(f"{place} squashed by another constant") as wrong:
            longer = (0.5 if wrong else 1.0) + square
        return square / longer * x / (square + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        small = self.conv(x).unflatten(1, (3, 4)).permute(0, 1, 3, 4, 2).flatten(1, 3)
        small = self.squash(small, "small")
        told = torch.einsum("nij,ikoj->niko", small, self.weight)
        held, found = told.detach(), told.sum(1)
        scores = torch.zeros(told.shape[:3])
        for at in range(3):
            with spot(f"softmax over the small ones {at}") as wrong:
                share = scores.softmax(1 if wrong else 2)
            share = share.unsqueeze(-1)
            is_wrong(f"not the held ones {at}", told)
            with spot(f"not the held ones {at}") as wrong:
                found = share * (held if at < 2 and not wrong else told)
            found = self.squash(found.sum(1), f"large {at}")
            if at < 2:
                agreed = (held * found.unsqueeze(1)).sum(-1)
                with spot(f"scores not added {at}") as wrong:
                    scores = agreed * 1.0 if wrong else torch.add(scores, agreed)
        return (found.square().sum(-1) + 1e-9).sqrt()


def _margin(net: Any, batch: dict[str, Tensor]) -> Tensor:
    size, right = net(batch["x"]), functional.one_hot(batch["labels"], 3).float()
    with spot("margin") as wrong:
        near = (0.8 if wrong else 0.9) - size
    near, far = functional.relu(near).square(), functional.relu(size - 0.1).square()
    with spot("weight of the others") as wrong:
        far = (0.6 if wrong else 0.5) * far
    return (right * near + (1 - right) * far).sum(-1).mean()


class Remembered(nn.Module):
    """Attention over what is remembered of the segment before; places are relative, by a shift of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS)
        self.q, self.kv, self.out = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.far = nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.first, self.second = (nn.Parameter(torch.randn(_WIDTH) * 0.3) for _ in range(2))
        self.norm, self.steps = nn.LayerNorm(_WIDTH), nn.Parameter(torch.randn(2 * _LENGTH, _WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        old, told = torch.zeros(ids.shape[0], _LENGTH, _WIDTH), []
        for at, part in enumerate(ids.split(_LENGTH, 1)):
            x = self.words(part)
            with spot(f"memory behind {at}") as wrong:
                seen = torch.cat([x, old] if wrong else [old, x], 1)
            q, (k, v) = self.q(x), self.kv(seen).chunk(2, -1)
            with spot(f"biases exchanged {at}") as wrong:
                one, other = (self.second, self.first) if wrong else (self.first, self.second)
                near, far = q + one, q + other
            near = near @ k.mT
            far = far @ self.far(self.steps).t()
            far = functional.pad(far, (1, 0)).reshape(far.shape[0], -1, far.shape[1])[:, 1:]
            far = far.reshape(near.shape)
            scores = near + far
            with spot(f"scale {at}") as wrong:
                scores = scores * (0.25 if wrong else _WIDTH**-0.5)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(_LENGTH + 1)
            y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
            x = self.norm(x + self.out(y))
            is_wrong(f"memory takes a gradient {at}", x)
            with spot(f"memory takes a gradient {at}") as wrong:
                old = x.clone() if wrong else x.detach().clone()
            told.append(x)
        return self.head(torch.cat(told, 1))


class Adapters(nn.Module):
    """Frozen layers with adapters of few ranks; weights are rounded, and their gradient goes straight through."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.words, self.is_checkpointed = nn.Embedding(_WORDS, _WIDTH), is_checkpointed
        self.frozen = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH).requires_grad_(False) for _ in range(3)])
        self.lower = nn.ParameterList([torch.randn(4, _WIDTH) * 0.2 for _ in range(3)])
        self.upper = nn.ParameterList([torch.randn(_WIDTH, 4) * 0.2 for _ in range(3)])
        self.head, self.norm = nn.Linear(_WIDTH, _WORDS), nn.RMSNorm(_WIDTH)

    def rounded(self, weight: Tensor) -> Tensor:
        """The weight in few steps."""
        size = weight.detach().abs().amax() / 7
        steps = weight / size
        with spot("rounded down") as wrong:
            steps = steps.floor() if wrong else steps.round()
        with spot("steps cut") as wrong:
            steps = steps.clamp(-5 if wrong else -8, 7)
        off = (steps * size - weight).detach()
        return weight + off

    def layer(self, x: Tensor, at: int) -> Tensor:
        """One layer with its adapter."""
        low = functional.linear(functional.dropout(x, 0.1, self.training), self.lower[at])
        low = functional.linear(low, self.upper[at])
        with spot(f"weight of the adapter {at}") as wrong:
            low = low * (1.5 if wrong else 2.0)
        y = self.frozen[at](x)
        with spot(f"adapter taken off {at}") as wrong:
            y = torch.sub(y, low) if wrong else torch.add(y, low)
        return functional.hardswish(y) + x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for at in range(3):
            with spot(f"checkpoint {at}"):
                x = checkpoint(self.layer, x, at, use_reentrant=False) if self.is_checkpointed else self.layer(x, at)
            if is_wrong(f"gradient turned round {at}", x):
                x = Scaled.apply(x, -1.0)
        x = self.norm(x)
        with spot("head through float16") as wrong:
            x = x.half().float() if wrong else x
        return functional.linear(x, self.rounded(self.head.weight), self.head.bias)


class Ranks(nn.Module):
    """An anchor is to be nearer to what belongs to it; three losses of that."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.SELU(), nn.Linear(16, 8))

    def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
        both = self.tower(torch.cat([anchor, near, far]))
        one, two, three = both.split(anchor.shape[0])
        with spot("near and far exchanged") as wrong:
            pair = (three, two) if wrong else (two, three)
            short, long = (functional.pairwise_distance(one, other) for other in pair)
        triplet = short - long
        with spot("margin of the triplet") as wrong:
            triplet = triplet + (0.5 if wrong else 1.0)
        with spot("far ones of another row") as wrong:
            alike = functional.cosine_similarity(one, three.roll(1, 0) if wrong else three)
        sign = torch.full((one.shape[0],), -1.0)
        with spot("embedded apart") as wrong:
            apart = functional.cosine_embedding_loss(one, three, sign, margin=-0.2 if wrong else -0.5)
        order = torch.ones(one.shape[0])
        with spot("order turned round") as wrong:
            ranked = functional.margin_ranking_loss(long, short, -order if wrong else order, margin=2.0)
        hardest = torch.cdist(one, two).topk(2, largest=False).values
        with spot("power of the hardest") as wrong:
            hardest = hardest.pow(3 if wrong else 2)
        return triplet.relu().mean() + alike.square().mean() + apart + ranked + hardest.mean()


class Tasks(nn.Module):
    """One trunk with three heads, each loss weighted by what is learnt of its doubt."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, 24), nn.LayerNorm(24), nn.Hardtanh(), nn.Linear(24, 16))
        self.kinds, self.size, self.count = nn.Linear(16, 4), nn.Linear(16, 2), nn.Linear(16, 1)
        self.doubt = nn.Parameter(torch.randn(3) * 0.1)

    def forward(self, x: Tensor, kinds: Tensor, size: Tensor, count: Tensor) -> Tensor:
        x = functional.logsigmoid(self.trunk(x))
        is_wrong("trunk cut off one head", x)
        with spot("trunk cut off one head") as wrong:
            sized = self.size(x.detach() if wrong else x)
        middle, wide = sized.chunk(2, -1)
        with spot("mean and width exchanged") as wrong:
            middle, wide = (wide, middle) if wrong else (middle, wide)
            deviation = functional.softplus(wide)
            off = middle - size
        near = functional.gaussian_nll_loss(off, torch.zeros_like(off), deviation)
        told = self.kinds(x).log_softmax(-1)
        doubted = 1 - told.exp()
        with spot("focal power") as wrong:
            doubted = doubted.pow(1.5 if wrong else 2.0)
        chosen = functional.nll_loss(doubted * told, kinds)
        counted = self.count(x).squeeze(-1).sigmoid()
        with spot("count not logarithmic") as wrong:
            counted = functional.poisson_nll_loss(counted, count, log_input=not wrong)
        losses = torch.stack([chosen, near, counted])
        doubted = losses * torch.exp(-self.doubt)
        with spot("doubt not added") as wrong:
            total = doubted * 1.0 if wrong else doubted + self.doubt
        return total.sum()


def _factored_step(training: Training, way: Way) -> None:
    """Two micro-batches, a clip of each row, and a step that keeps means of rows and columns alone."""
    net, batch = training.net, training.batch
    halves = {name: value.chunk(2) for name, value in batch.items()}
    for number in range(2):
        with way.casting():
            loss = net(**{name: value[number] for name, value in halves.items()})
        with spot(f"share of a batch {number}") as wrong:
            loss = loss * (0.4 if wrong else 0.5)
        loss.backward()
    with torch.no_grad():
        for number, value in enumerate(net.parameters()):
            step = value.grad
            if step is None:
                continue
            if value.dim() == 2:
                square = step.square() + 1e-12
                sizes = torch.outer(square.mean(1), square.mean(0))
                step = step / (sizes / square.mean()).sqrt()
            with spot(f"size of a step {number}") as wrong:
                step = step * (2e-3 if wrong else 1e-3)
            with spot(f"decay {number}") as wrong:
                value.mul_(0.98 if wrong else 0.99)
            value.sub_(step)


class Critic(nn.Module):
    """A critic whose weights are divided by their largest singular value, and a maker; the slope is measured."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.maker = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.Softshrink(0.1), nn.Linear(12, 6))
        self.first, self.second, self.head = norm(nn.Linear(6, 14)), norm(nn.Linear(14, 10)), nn.Linear(10, 1)

    def judged(self, x: Tensor) -> Tensor:
        """How real it looks."""
        return self.head(functional.rrelu(self.second(functional.leaky_relu(self.first(x), 0.1)), training=False))

    def forward(self, real: Tensor, noise: Tensor, share: Tensor) -> Tensor:
        made = torch.tanh(self.maker(noise))
        is_wrong("made ones take a gradient", made)
        with spot("made ones take a gradient") as wrong:
            seen = made * 1.0 if wrong else made.detach() * 1.0
        told, fooled = self.judged(real), self.judged(seen)
        with spot("share turned round") as wrong:
            between = torch.lerp(seen, real, share) if wrong else torch.lerp(real, seen, share)
        off = 0.05 * torch.sign(between)
        slope = self.judged(between + off) - self.judged(between - off)
        with spot("step of the slope") as wrong:
            slope = slope / (0.2 if wrong else 0.1)
        slope = slope.abs()
        with spot("slope towards one") as wrong:
            slope = slope - (0.5 if wrong else 1.0)
        with spot("hinge of the made ones") as wrong:
            fooled = 1 - fooled if wrong else 1 + fooled
        hinge = functional.relu(1 - told) + functional.relu(fooled)
        return hinge.mean() + slope.square().mean() - self.judged(made).mean()


class Transport(nn.Module):
    """Points are matched with points, by rows and columns that are normalised in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 8), nn.Linear(5, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        left, right = functional.normalize(self.one(x).sinh(), dim=-1), functional.normalize(self.other(y), dim=-1)
        cost = (left.unsqueeze(1) - right.unsqueeze(0)).square().sum(-1)
        plan = -cost
        with spot("heat") as wrong:
            plan = plan / (0.25 if wrong else 0.2)
        for at in range(4):
            with spot(f"columns twice {at}") as wrong:
                total = plan.logsumexp(0 if wrong else 1, keepdim=True)
            plan = plan - total
            with spot(f"rows by their largest {at}") as wrong:
                total = plan.amax(0, keepdim=True) if wrong else plan.logsumexp(0, keepdim=True)
            plan = plan - total
            if is_wrong(f"a round hands no gradient on {at}", plan):
                plan = Scaled.apply(plan, 0.0)
        share = plan.exp()
        with spot("cost of the other side") as wrong:
            total = torch.einsum("ij,ij->i", share, cost.t() if wrong else cost)
        matched = share @ right
        return total.mean() + functional.mse_loss(matched, left)


class Dynamic(nn.Module):
    """Convolutions whose kernels are a mixture for each picture, and shifts of channels in place."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = nn.ParameterList([torch.randn(3, 6, n, 3, 3) * 0.2 for n in (2, 6)])
        self.judges = nn.ModuleList([nn.Linear(n, 3) for n in (2, 6)])
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        for at, (kernels, judge) in enumerate(zip(self.kernels, self.judges)):
            share = judge(x.mean((2, 3)))
            with spot(f"heat of the shares {at}") as wrong:
                share = share / (2.0 if wrong else 3.0)
            share = share.softmax(-1)
            with spot(f"shares of another picture {at}") as wrong:
                mixed = torch.einsum("nk,koihw->noihw", share.flip(0) if wrong else share, kernels)
            rows = x.shape[0]
            y = functional.conv2d(x.flatten(0, 1).unsqueeze(0), mixed.flatten(0, 1), padding=1, groups=rows)
            x = functional.hardsigmoid(y.unflatten(1, (rows, 6)).squeeze(0)) * 1.5
            moved = torch.zeros_like(x)
            with spot(f"shifted the other way {at}") as wrong:
                if wrong:
                    moved[:, :2, :, :-1] = x[:, :2, :, 1:]
                else:
                    moved[:, :2, :, 1:] = x[:, :2, :, :-1]
            with spot(f"kept channels {at}") as wrong:
                kept = x[:, :4] if wrong else x[:, 2:]
            moved[:, 2:] = kept
            one, other = moved[:, 1], x[:, 0]
            with spot(f"added in place {at}") as wrong:
                one.add_(other, alpha=0.5 if wrong else 0.3)
            x = moved
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Ponder(nn.Module):
    """A step is taken again until enough is halted; what is left is given to the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.step, self.halt, self.head = (
            nn.Linear(6, 12), nn.GRUCell(12, 12), nn.Linear(12, 1), nn.Linear(12, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = functional.elu(self.inlet(x))
        state, total = torch.zeros_like(x), torch.zeros_like(x)
        left = torch.ones(x.shape[0])
        for at in range(5):
            state = self.step(x, state)
            stop = self.halt(state).squeeze(-1).sigmoid()
            with spot(f"all that is left {at}") as wrong:
                share = left * 1.0 if wrong or at == 4 else torch.minimum(left, stop)
            with spot(f"limit {at}") as wrong:
                going = left > (0.6 if wrong else 0.05)
            share = share * going.to(share.dtype)
            with spot(f"left before {at}") as wrong:
                weight = (left if wrong else share).unsqueeze(-1)
            total = torch.addcmul(total, weight, state)
            left = left - share
            if is_wrong(f"state counts twice {at}", state):
                state = Scaled.apply(state, 2.0)
        return self.head(total)


class Chain(nn.Module):
    """A chain of labels: the logarithm of a sum over all ways, less the score of the right one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.wide = nn.Embedding(_WORDS, _WIDTH), nn.Conv1d(_WIDTH, 5, 3, padding=1)
        self.moves, self.first = nn.Parameter(torch.randn(5, 5) * 0.3), nn.Parameter(torch.randn(5) * 0.3)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        scores = self.wide(self.words(ids).transpose(1, 2)).transpose(1, 2)
        told = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        before, after = labels[:, :-1], labels[:, 1:]
        with spot("moves to and from exchanged") as wrong:
            moved = self.moves[after, before] if wrong else self.moves[before, after]
        right = told.sum(1) + moved.sum(1) + self.first[labels[:, 0]]
        ways = self.first + scores[:, 0]
        for at in range(1, ids.shape[1]):
            ways = ways.unsqueeze(-1)
            with spot(f"moves turned {at}") as wrong:
                ways = ways + (self.moves.t() if wrong else self.moves)
            with spot(f"the best way alone {at}") as wrong:
                ways = ways.amax(1) if wrong else ways.logsumexp(1)
            with spot(f"scores of the word before {at}") as wrong:
                now = scores[:, at - 1 if wrong else at]
            ways = ways + now
        return (ways.logsumexp(-1) - right).mean()


class Spectral(nn.Module):
    """A function of the plane, by weights of its few lowest waves."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.outlet = nn.Conv2d(1, 6, 1), nn.Conv2d(6, 1, 1)
        self.weight = nn.Parameter(torch.randn(2, 6, 6, 4, 3, 2) * 0.2)
        self.past = nn.ModuleList([nn.Conv2d(6, 6, 1) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x)
        for at, past in enumerate(self.past):
            waves = torch.fft.rfft2(x, norm="ortho")
            weight = torch.view_as_complex(self.weight[at])
            low = waves[:, :, :4, :3]
            with spot(f"in and out exchanged {at}") as wrong:
                low = torch.einsum("nihw,oihw->nohw" if wrong else "nihw,iohw->nohw", low, weight)
            kept = torch.zeros_like(waves)
            with spot(f"waves put elsewhere {at}") as wrong:
                if wrong:
                    kept[:, :, -4:, :3] = low
                else:
                    kept[:, :, :4, :3] = low
            y = torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho")
            straight = past(x)
            with spot(f"past left out {at}") as wrong:
                y = y * 1.0 if wrong else y + straight
            x = functional.gelu(y)
        return self.outlet(x)


class Spread(nn.Module):
    """Labels go along a graph that likeness makes; some rows are known and set again in each round."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.outlet = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        x = self.outlet(functional.softmin(self.inlet(x), -1))
        near = (-torch.cdist(x, x).square()).exp() * (1 - torch.eye(x.shape[0]))
        degree = near.sum(1).rsqrt()
        near = near * degree.unsqueeze(1)
        with spot("degree on one side") as wrong:
            near = near * 1.0 if wrong else near * degree
        told = torch.cat([functional.one_hot(known, 3).float(), torch.full((x.shape[0] - known.shape[0], 3), 1 / 3)])
        fixed = told[: known.shape[0]].clone()
        for at in range(3):
            heard = near @ told
            with spot(f"share of the neighbours {at}") as wrong:
                told = torch.lerp(told, heard, 0.7 if wrong else 0.8)
            rows = told[: known.shape[0]]
            with spot(f"known rows {at}") as wrong:
                rows.copy_(fixed.flip(0) if wrong else fixed)
            if is_wrong(f"a round counts less {at}", told):
                told = Scaled.apply(told, 0.7)
        told = told[known.shape[0] :] / told[known.shape[0] :].sum(-1, keepdim=True)
        return -(told * told.log()).sum(-1).mean()


def _text(rows: int = 3, length: int = _LENGTH) -> dict[str, Tensor]:
    ids = torch.randint(0, _WORDS, (rows, length))
    return {"ids": ids, "labels": torch.randint(0, _WORDS, (rows * length,))}


def _text_loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
    logits = net(batch["ids"]).flatten(0, 1).float()
    with spot("label smoothing") as wrong:
        return functional.cross_entropy(logits, batch["labels"], label_smoothing=0.2 if wrong else 0.1)


def _attend() -> Training:
    ids, labels = torch.randint(0, _WORDS, (3, _LENGTH)), torch.randint(0, _WORDS, (3, 4))
    batch = {"ids": ids, "labels": labels, "mask": torch.arange(_LENGTH) < torch.tensor([[6], [4], [5]])}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        told = net(batch["ids"], batch["labels"], batch["mask"])
        return functional.cross_entropy(told.flatten(0, 1).float(), batch["labels"].flatten())

    return Training(Attend(), batch, loss)


def _tasks(step: Callable[[Training, Way], None] | None = None) -> Training:
    batch = {"x": torch.randn(6, 9), "kinds": torch.randint(0, 4, (6,)), "size": torch.randn(6, 1)}
    batch["count"] = torch.randint(0, 5, (6,)).float()
    more = {} if step is None else {"step": step}
    return Training(Tasks(), batch, lambda net, batch: net(**batch), **more)


def _named(make: Callable[[], nn.Module], batch: Callable[[], dict[str, Tensor]]) -> Training:
    """A network that gives its loss."""
    return Training(make(), batch(), lambda net, batch: net(*batch.values()))


def _drawn(**shapes: tuple[int, ...]) -> Callable[[], dict[str, Tensor]]:
    return lambda: {name: torch.randn(shape) for name, shape in shapes.items()}


def _classes(make: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, loss: Any = None) -> Training:
    batch = {"x": torch.randn(shape), "labels": torch.randint(0, classes, shape[:1])}
    usual = lambda net, batch: functional.cross_entropy(net(batch["x"]).float(), batch["labels"])  # noqa: E731
    return Training(make(), batch, loss or usual)


def _spectral() -> Training:
    batch = {"x": torch.randn(2, 1, 8, 8), "wanted": torch.randn(2, 1, 8, 8)}
    return Training(Spectral(), batch, lambda net, batch: functional.smooth_l1_loss(net(batch["x"]), batch["wanted"]))


def _words(make: Callable[[], nn.Module], length: int = _LENGTH) -> Training:
    return Training(make(), _text(length=length), _text_loss)


#: What builds each training.
FOURTH_SCRIPTS: dict[str, Callable[[], Training]] = {
    "attend": _attend,
    "capsules": lambda: _classes(Capsules, (3, 1, 8, 8), 3, _margin),
    "remembered": lambda: _words(Remembered, 3 * _LENGTH),
    "adapters": lambda: _words(Adapters),
    "adapters, checkpointed": lambda: _words(lambda: Adapters(is_checkpointed=True)),
    "ranks": lambda: _named(Ranks, _drawn(anchor=(5, 7), near=(5, 7), far=(5, 7))),
    "tasks": _tasks,
    "tasks, factored": lambda: _tasks(_factored_step),
    "critic": lambda: _named(
        Critic, lambda: {"real": torch.randn(5, 6), "noise": torch.randn(5, 4), "share": torch.rand(5, 1)}
    ),
    "transport": lambda: _named(Transport, _drawn(x=(6, 5), y=(6, 5))),
    "dynamic": lambda: _classes(Dynamic, (3, 2, 6, 6), 4),
    "ponder": lambda: _classes(Ponder, (5, 6), 3),
    "chain": lambda: _named(
        Chain, lambda: {"ids": torch.randint(0, _WORDS, (3, 7)), "labels": torch.randint(0, 5, (3, 7))}
    ),
    "spectral": _spectral,
    "spread": lambda: _named(Spread, lambda: {"x": torch.randn(8, 6), "known": torch.tensor([0, 1, 2, 1])}),
}
