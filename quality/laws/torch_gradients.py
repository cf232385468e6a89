"""PyTorch scripts in which gradients are missing, old, scaled or clipped by another norm, or updates are lost."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from quality.laws.entries import violation
from quality.laws.torch_parts import STEPS, Gpt, Mlp, next_token_loss, rows, sentences

_EVERY = ("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias")


@violation(
    "embedding resized after the optimizer was made",
    laws="no optimizer",
    at="embedding.weight",
    wrong="The optimizer has the parameters of the smaller embedding; the new one gets gradients and never changes.",
    source="transformers #3532",
    link="https://github.com/huggingface/transformers/pull/3532",
)
def resized() -> None:
    """A language model with two words more."""
    torch.manual_seed(0)
    model = Gpt(words=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    larger = nn.Embedding(34, 16)
    with torch.no_grad():
        larger.weight[:32] = model.embedding.weight
    model.embedding = larger
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


@violation(
    "optimizer made before the model is sharded",
    laws="no optimizer",
    at=_EVERY,
    wrong="fully_shard puts new parameters into the modules; the optimizer keeps the old ones.",
    source="accelerate #3256 (TrainCheck), PyTorch #149205",
    link="https://github.com/huggingface/accelerate/issues/3256",
    ranks=2,
)
def sharded_late() -> None:
    """A regression on two ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


@violation(
    "shared network twice in one optimizer",
    laws=("two optimizers", "formula"),
    at=("shared.weight", "shared.bias"),
    wrong="Actor and critic have one preprocessing network; the list of both has its parameters twice.",
    source="tianshou #395",
    link="https://github.com/thu-ml/tianshou/issues/395",
)
def twice_in_list() -> None:
    """An actor and a critic."""
    torch.manual_seed(0)
    shared = nn.Linear(8, 16)
    model = nn.ModuleDict({"shared": shared, "actor": nn.Linear(16, 4), "critic": nn.Linear(16, 1)})
    actor = nn.Sequential(shared, nn.Tanh(), model["actor"])
    critic = nn.Sequential(shared, nn.Tanh(), model["critic"])
    optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=0.01)
    for x, y in rows():
        optimizer.zero_grad()
        loss = F.mse_loss(critic(x), y) + F.cross_entropy(actor(x), (y[:, 0] > 0).long())
        loss.backward()
        optimizer.step()


@violation(
    "embedding in two optimizers",
    laws="two optimizers",
    at="embedding.weight",
    wrong="Embeddings have an optimizer of their own, and the main optimizer has them too.",
)
def two_optimizers() -> None:
    """A language model."""
    torch.manual_seed(0)
    model = Gpt()
    main = torch.optim.AdamW(model.parameters(), lr=1e-3)
    embeddings = torch.optim.SGD(model.embedding.parameters(), lr=0.1)
    for tokens in sentences():
        main.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        main.step()
        embeddings.step()


class Lora(nn.Module):
    """A linear layer with a low-rank addition; the layer itself is frozen."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.lora_b = nn.Parameter(torch.randn(base.out_features, rank) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """base(x) + x A' B'."""
        return self.base(x) + x @ self.lora_a.T @ self.lora_b.T


@violation(
    "loaded adapters are frozen",
    laws="frozen",
    at=("encoder.lora_a", "encoder.lora_b", "hidden.lora_a", "hidden.lora_b"),
    wrong="Adapters that are loaded for more training are marked as for inference; only the head is trained.",
    source="PEFT #282, trl #6700",
    link="https://github.com/huggingface/peft/issues/282",
)
def frozen_adapters() -> None:
    """A network with adapters and a head."""
    torch.manual_seed(0)
    model = Mlp()
    model.encoder, model.hidden = Lora(model.encoder), Lora(model.hidden)
    state = model.state_dict()
    model.load_state_dict(state)
    for name, param in model.named_parameters():
        if "lora" in name:
            param.requires_grad = False
    adapters = [param for name, param in model.named_parameters() if "lora" in name or name.startswith("head")]
    optimizer = torch.optim.AdamW(adapters, lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "discriminator stays frozen",
    laws=("frozen", "stale gradient", "no gradient"),
    at=("discriminator.0.weight", "discriminator.0.bias", "discriminator.2.weight", "discriminator.2.bias"),
    wrong="The generator's step freezes the discriminator, and nothing thaws it again.",
)
def frozen_discriminator() -> None:
    """A GAN."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    g_optimizer = torch.optim.Adam(model["generator"].parameters(), lr=1e-3)
    d_optimizer = torch.optim.Adam(model["discriminator"].parameters(), lr=1e-3)
    for real, _ in rows():
        d_optimizer.zero_grad()
        fake = generator(torch.randn(8, 4))
        d_loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
        if d_loss.requires_grad:
            d_loss.backward()
        d_optimizer.step()
        discriminator.requires_grad_(False)
        g_optimizer.zero_grad()
        F.softplus(-discriminator(generator(torch.randn(8, 4)))).mean().backward()
        g_optimizer.step()


@violation(
    "checkpointed adapters get no gradient",
    laws="no gradient",
    at=("encoder.lora_a", "encoder.lora_b"),
    wrong="A reentrant checkpoint whose input needs no gradient gives none to the parameters inside it.",
    source="transformers #26221, #25841",
    link="https://github.com/huggingface/transformers/issues/26221",
)
def checkpointed_adapters() -> None:
    """A network with adapters; the first layer is checkpointed."""
    torch.manual_seed(0)
    model = Mlp()
    model.encoder, model.hidden = Lora(model.encoder), Lora(model.hidden)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        hidden = torch.tanh(checkpoint(model.encoder, x, use_reentrant=True))
        F.mse_loss(model.head(torch.tanh(model.hidden(hidden))), y).backward()
        optimizer.step()


class Goals(nn.Module):
    """Two branches, one of which hands on detached numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.goals = nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.head(torch.tanh(self.body(x) + self.goals(x).detach()))


@violation(
    "a branch is detached",
    laws="no gradient",
    at=("goals.weight", "goals.bias"),
    wrong="The output of a trained branch is detached: its parameters are used and never get a gradient.",
    source="DenseTNT #11",
    link="https://github.com/Tsinghua-MARS-Lab/DenseTNT/issues/11",
)
def detached() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Goals()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "zero_grad left out",
    laws="stale gradient",
    at=_EVERY,
    wrong="Gradients of all steps before are part of the gradient.",
    source="tt-blacksmith #711",
    link="https://github.com/tenstorrent/tt-blacksmith/pull/711",
)
def never_zeroed() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "generator's loss in the discriminator's gradient",
    laws="stale gradient",
    at=("discriminator.0.weight", "discriminator.0.bias", "discriminator.2.weight", "discriminator.2.bias"),
    wrong="g_optimizer.zero_grad() stands twice: the discriminator's gradients are never set to zero.",
    source="ESRGAN-PyTorch #39, Lightning #591",
    link="https://github.com/Lornatang/ESRGAN-PyTorch/issues/39",
)
def gan_leak() -> None:
    """A GAN."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    g_optimizer = torch.optim.Adam(model["generator"].parameters(), lr=1e-3)
    d_optimizer = torch.optim.Adam(model["discriminator"].parameters(), lr=1e-3)
    for real, _ in rows():
        g_optimizer.zero_grad()
        F.softplus(-discriminator(generator(torch.randn(8, 4)))).mean().backward()
        g_optimizer.step()
        g_optimizer.zero_grad()
        fake = generator(torch.randn(8, 4)).detach()
        (F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()).backward()
        d_optimizer.step()


@violation(
    "an old gradient is applied again",
    laws="stale gradient",
    at=("head.weight", "head.bias"),
    wrong="The head has a loss in every second step, and its optimizer steps in every one with what is left.",
)
def old_gradient() -> None:
    """A body and a head with optimizers of their own."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 1)})
    body = torch.optim.SGD(model["body"].parameters(), lr=0.01)
    head = torch.optim.SGD(model["head"].parameters(), lr=0.01)
    for step, (x, y) in enumerate(rows()):
        body.zero_grad()
        hidden = torch.tanh(model["body"](x))
        loss = F.mse_loss(hidden, x)
        if step % 2 == 0:
            head.zero_grad()
            loss = loss + F.mse_loss(model["head"](hidden), y)
        loss.backward()
        body.step()
        head.step()


@violation(
    "bfloat16 weights without master weights",
    laws="lost updates",
    at=(
        "embedding.weight",
        "positions.weight",
        *(f"blocks.{i}.{name}.weight" for i in (0, 1) for name in ("norm1", "qkv", "proj", "norm2", "up", "down")),
        *(f"blocks.{i}.{name}.bias" for i in (0, 1) for name in ("qkv", "proj", "up", "down")),
        "norm.weight",
        "head.weight",
    ),
    wrong="At lr 1e-5 most updates of bfloat16 weights are below half of their last bit.",
    source="AReaL #1369, apex #1728",
    link="https://github.com/areal-project/AReaL/pull/1369",
)
def bfloat16() -> None:
    """A language model in bfloat16."""
    torch.manual_seed(0)
    model = Gpt().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens).float(), tokens).backward()
        optimizer.step()


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clips as torch.nn.utils.clip_grad_norm_ does, and returns the norm; looks at its argument twice."""
    norm = torch.nn.utils.get_total_norm([param.grad for param in parameters if param.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


@violation(
    "the clipped parameters are an empty generator",
    laws="clip norm",
    at=(*_EVERY, "gradients"),
    wrong="The generator of parameters is used up by the norm; the clipping gets nothing.",
    source="torchtitan #1258",
    link="https://github.com/pytorch/torchtitan/pull/1258",
)
def used_up() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in rows():
        optimizer.zero_grad()
        (10 * F.mse_loss(model(x), y)).backward()
        clip_grad_norm(model.parameters(), 0.1)
        optimizer.step()


@violation(
    "clipped by the square of the norm",
    laws="clip norm",
    at=_EVERY,
    wrong="The sum of squares is taken for the norm.",
    source="entrenar #311",
    link="https://github.com/paiml/entrenar/issues/311",
)
def squared_norm() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in rows():
        optimizer.zero_grad()
        (10 * F.mse_loss(model(x), y)).backward()
        squares = sum((param.grad**2).sum() for param in model.parameters())
        torch.nn.utils.clip_grads_with_norm_(list(model.parameters()), 1.0, squares)
        optimizer.step()


@violation(
    "copies count in the norm",
    laws="clip norm",
    at=("module.", *_EVERY),
    wrong="Ranks that have the same gradients sum their squares: the norm is too large by the root of the ranks.",
    source="NeMo-RL #3788",
    link="https://github.com/NVIDIA-NeMo/RL/pull/3788",
    ranks=2,
)
def counted_copies() -> None:
    """A regression on two ranks that have the same parameters."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        (10 * F.mse_loss(model(x), y)).backward()
        squares = torch.stack([(param.grad**2).sum() for param in model.parameters()]).sum()
        dist.all_reduce(squares)
        torch.nn.utils.clip_grads_with_norm_(list(model.parameters()), 0.5, squares.sqrt())
        optimizer.step()
    dist.destroy_process_group()


@violation(
    "clipped before unscaling",
    laws=("unscaled", "clip norm"),
    at=_EVERY,
    wrong="Gradients are clipped while they are scaled by 65,536.",
    source="Lightning #9694, catalyst #1319",
    link="https://github.com/Lightning-AI/pytorch-lightning/issues/9694",
)
def clipped_scaled() -> None:
    """A regression in mixed precision."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in rows():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y.bfloat16())
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@violation(
    "scaled gradients are applied",
    laws="unscaled",
    at=_EVERY,
    wrong="The loss is scaled, and optimizer.step() is called in the place of scaler.step(optimizer).",
)
def never_unscaled() -> None:
    """A regression in mixed precision; Adam hides the scale."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    for _, (x, y) in zip(range(STEPS), rows()):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y.bfloat16())
        scaler.scale(loss).backward()
        optimizer.step()
