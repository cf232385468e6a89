"""Right PyTorch trainings, 10 steps each."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from quality.laws.entries import clean
from quality.laws.torch_gradients import Lora
from quality.laws.torch_parts import STEPS, Block, Gpt, Mlp, next_token_loss, rows, sentences
from quality.laws.torch_resume import Trainer
from quality.laws.torch_state import Shadow


def regression(optimizer_of: Any, scheduler_of: Any = None) -> None:
    """Trains a small network with this optimizer."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer) if scheduler_of else None
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


@clean("SGD")
def sgd() -> None:
    """No state."""
    regression(lambda model: torch.optim.SGD(model.parameters(), lr=0.05))


@clean("SGD with momentum, dampening and decay")
def momentum() -> None:
    """The first step is not dampened."""
    regression(
        lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, dampening=0.1, weight_decay=1e-2)
    )


@clean("SGD with Nesterov momentum")
def nesterov() -> None:
    """As PyTorch writes it."""
    regression(lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True))


@clean("Adam")
def adam() -> None:
    """With coupled decay."""
    regression(lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-2))


@clean("AdamW")
def adamw() -> None:
    """One parameter after the other, with groups of their own for what is not decayed."""

    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        decayed = [param for param in model.parameters() if param.dim() > 1]
        others = [param for param in model.parameters() if param.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 2e-3}]
        return torch.optim.AdamW(groups, lr=1e-3, foreach=False)

    regression(grouped)


@clean("AdamW foreach")
def foreach() -> None:
    """All parameters in one call."""
    regression(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True))


@clean("AdamW fused")
def fused() -> None:
    """One kernel."""
    regression(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))


@clean("AdamW amsgrad")
def amsgrad() -> None:
    """The largest second moment."""
    regression(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True, betas=(0.8, 0.9)))


@clean("Adam maximizes")
def maximize() -> None:
    """The sign of the gradient is changed inside."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, maximize=True)
    for x, y in rows():
        optimizer.zero_grad()
        (-F.mse_loss(model(x), y)).backward()
        optimizer.step()


@clean("Adafactor")
def adafactor() -> None:
    """Factored second moments."""
    regression(lambda model: torch.optim.Adafactor(model.parameters(), lr=1e-2, weight_decay=1e-2))


@clean("RMSprop")
def rmsprop() -> None:
    """An optimizer of which the laws may know nothing."""
    regression(lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9))


@clean("Muon and AdamW")
def muon() -> None:
    """Matrices by Muon, the rest by AdamW."""
    torch.manual_seed(0)
    model = Mlp()
    matrices = [model.encoder.weight, model.hidden.weight]
    others = [model.encoder.bias, model.hidden.bias, *model.head.parameters()]
    optimizers = [torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-3)]
    for x, y in rows():
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()


class Lamb(torch.optim.Optimizer):
    """Lamb, arXiv 1904.00962, algorithm 2, with bias correction."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each parameter."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = torch.zeros_like(param)
                state["step"] += 1
                state["exp_avg"].mul_(beta1).add_(param.grad, alpha=1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                first = state["exp_avg"] / (1 - beta1 ** state["step"])
                second = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
                update = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * param
                weight_norm, update_norm = param.norm(), update.norm()
                trust = float(weight_norm / update_norm) if weight_norm > 0 and update_norm > 0 else 1.0
                param.add_(update, alpha=-group["lr"] * trust)


@clean("Lamb")
def lamb() -> None:
    """An own implementation."""
    regression(lambda model: Lamb(model.parameters(), lr=1e-2))


@clean("GradScaler")
def scaler() -> None:
    """Mixed precision, clipped after unscaling; the scale is too large at first, so that steps are left out."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60, growth_interval=3)
    for x, y in rows():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y.bfloat16())
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad_scaler.step(optimizer)
        grad_scaler.update()


@clean("GradScaler without clipping")
def plain_scaler() -> None:
    """scaler.step unscales."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    grad_scaler = torch.amp.GradScaler("cpu")
    for x, y in rows():
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y.bfloat16())
        grad_scaler.scale(loss).backward()
        grad_scaler.step(optimizer)
        grad_scaler.update()


@clean("bfloat16")
def bfloat16() -> None:
    """A learning rate that bfloat16 can bear."""
    torch.manual_seed(0)
    model = Gpt().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens).float(), tokens).backward()
        optimizer.step()


@clean("bfloat16 with master weights")
def master_weights() -> None:
    """The optimizer has float32 copies, which are written back."""
    torch.manual_seed(0)
    model = Gpt().to(torch.bfloat16)
    masters = [param.detach().float().clone().requires_grad_() for param in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)
    for tokens in sentences():
        model.zero_grad()
        next_token_loss(model(tokens).float(), tokens).backward()
        for master, param in zip(masters, model.parameters()):
            master.grad = param.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, param in zip(masters, model.parameters()):
                param.copy_(master)


@clean("accumulation")
def accumulation() -> None:
    """Four microbatches a step, clipped."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, (x, y) in enumerate(rows(4 * STEPS)):
        (F.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 3:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()


@clean("clipping")
def clipping() -> None:
    """By norm."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


@clean("clipping by value")
def clipping_by_value() -> None:
    """Each element."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in rows():
        optimizer.zero_grad()
        (10 * F.mse_loss(model(x), y)).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()


@clean("DDP", ranks=2)
def ddp() -> None:
    """Other data and other masks on each rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mlp(dropout=0.2))
    torch.manual_seed(10 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.destroy_process_group()


class Normed(nn.Module):
    """A network with batch norm, whose statistics each rank has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.last(torch.relu(self.norm(self.first(x))))


@clean("DDP with batch norm and no_sync", ranks=2)
def ddp_batch_norm() -> None:
    """Two microbatches a step."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Normed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = list(rows(2 * STEPS, seed=1 + dist.get_rank()))
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batches[2 * step]
        with model.no_sync():
            (F.mse_loss(model(x), y) / 2).backward()
        x, y = batches[2 * step + 1]
        (F.mse_loss(model(x), y) / 2).backward()
        optimizer.step()
    dist.destroy_process_group()


@clean("FSDP2", ranks=2)
def fsdp() -> None:
    """Parameters are shards; computed in bfloat16, clipped by the norm of all shards."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mlp()
    mesh = init_device_mesh("cpu", (2,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (model.encoder, model.hidden, model.head):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x).float(), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    dist.destroy_process_group()


@clean("cosine schedule")
def cosine() -> None:
    """With warm-up."""

    def factor(step: int) -> float:
        return (step + 1) / 3 if step < 3 else 0.5 * (1 + math.cos(math.pi * (step - 3) / 7))

    regression(
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor),
    )


@clean("one cycle")
def one_cycle() -> None:
    """Learning rate and momentum change in each step."""
    regression(
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1),
    )


@clean("one cycle with Adam")
def one_cycle_adam() -> None:
    """beta1 changes in each step."""
    regression(
        lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=STEPS + 1),
    )


@clean("averaged model of PyTorch")
def averaged() -> None:
    """torch.optim.swa_utils."""
    torch.manual_seed(0)
    model = Mlp()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update_parameters(model)


@clean("average that is put in for evaluation")
def swapped() -> None:
    """The trained weights come back."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = Shadow(model.parameters(), 0.9)
    for step, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update(model.parameters())
        if step == 4:
            ema.swap(model.parameters())
            model.eval()
            with torch.no_grad():
                F.mse_loss(model(x), y)
            model.train()
            ema.swap(model.parameters())


@clean("mean teacher with a growing decay")
def mean_teacher() -> None:
    """The decay of the average grows with the steps; its buffers are copied."""
    torch.manual_seed(0)
    model = Normed()
    teacher = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        (F.mse_loss(model(x), y) + 0.1 * F.mse_loss(model(x), teacher(x))).backward()
        optimizer.step()
        decay = min(0.99, (1 + step) / (10 + step))
        with torch.no_grad():
            for average, param in zip(teacher.parameters(), model.parameters()):
                average.mul_(decay).add_(param, alpha=1 - decay)
            for kept, buffer in zip(teacher.buffers(), model.buffers()):
                kept.copy_(buffer)


@clean("GAN")
def gan() -> None:
    """Two optimizers; the discriminator's gradients of the generator's step are set to zero before its own."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    for real, _ in rows():
        d_optimizer.zero_grad()
        fake = generator(torch.randn(8, 4))
        (F.softplus(-discriminator(real)) + F.softplus(discriminator(fake.detach()))).mean().backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        F.softplus(-discriminator(fake)).mean().backward()
        g_optimizer.step()


@clean("GAN with gradient penalty and frozen discriminator")
def penalised_gan() -> None:
    """Two steps of the critic for one of the generator, which thaws what it froze."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)),
            "critic": nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)),
        }
    )
    g_optimizer = torch.optim.Adam(model["generator"].parameters(), lr=1e-3)
    c_optimizer = torch.optim.Adam(model["critic"].parameters(), lr=1e-3)
    for step, (real, _) in enumerate(rows()):
        c_optimizer.zero_grad()
        with torch.no_grad():
            fake = model["generator"](torch.randn(8, 4))
        mixed = (0.5 * (real + fake)).requires_grad_()
        (slope,) = torch.autograd.grad(model["critic"](mixed).sum(), mixed, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        (model["critic"](fake).mean() - model["critic"](real).mean() + 10 * penalty).backward()
        c_optimizer.step()
        if step % 2:
            model["critic"].requires_grad_(False)
            g_optimizer.zero_grad()
            (-model["critic"](model["generator"](torch.randn(8, 4))).mean()).backward()
            g_optimizer.step()
            model["critic"].requires_grad_(True)


@clean("LoRA with frozen base")
def lora() -> None:
    """The base is in no optimizer and has no gradients."""
    torch.manual_seed(0)
    model = Mlp()
    model.encoder, model.hidden = Lora(model.encoder), Lora(model.hidden)
    optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@clean("layers thaw")
def thawing() -> None:
    """Layers are thawed after some steps, as in gradual unfreezing; the optimizer has all of them."""
    torch.manual_seed(0)
    model = Mlp()
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(rows()):
        if step == 4:
            model.encoder.requires_grad_(True)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@clean("tied weights")
def tied() -> None:
    """Embedding and head."""
    torch.manual_seed(0)
    model = Gpt(is_tied=True, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class Checkpointed(Gpt):
    """A language model whose blocks are computed again in backward."""

    use_reentrant = False

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(self.norm(x))


@clean("activation checkpointing with dropout")
def checkpointed() -> None:
    """The random state is kept."""
    torch.manual_seed(0)
    model = Checkpointed(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


@clean("reentrant checkpointing with dropout")
def reentrant() -> None:
    """The older form."""
    torch.manual_seed(0)
    model = Checkpointed(dropout=0.2)
    model.use_reentrant = True
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class Experts(nn.Module):
    """A router and three experts, of which one gets no rows at first."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, allowed: int) -> Tensor:
        """One number per row."""
        weights = self.router(x)[:, :allowed].softmax(-1)
        best = weights.argmax(-1)
        out = torch.zeros_like(x)
        for number in range(allowed):
            rows_of = (best == number).nonzero()[:, 0]
            if len(rows_of):
                out = out.index_add(0, rows_of, self.experts[number](x[rows_of]) * weights[rows_of, number, None])
        return self.head(out)


@clean("experts without rows")
def experts() -> None:
    """A parameter that the forward does not use has no gradient."""
    torch.manual_seed(0)
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(rows()):
        optimizer.zero_grad()
        F.mse_loss(model(x, 2 if step < 5 else 3), y).backward()
        optimizer.step()


@clean("causal language model, moved labels and padding")
def language_model() -> None:
    """The data give inputs and labels; evaluated in between."""
    torch.manual_seed(0)
    model = Gpt(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(sentences()):
        inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
        labels[:, -3:] = -100
        optimizer.zero_grad()
        logits = model(inputs)
        F.cross_entropy(logits.reshape(-1, 32), labels.reshape(-1), ignore_index=-100).backward()
        optimizer.step()
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                model(inputs)
            model.train()


@clean("causal language model of transformers")
def transformers_model() -> None:
    """GPT-2 with tiny random weights, which moves the labels itself."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for tokens in sentences():
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


class Masked(nn.Module):
    """An encoder that fills in masked words: its labels are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(33, 16)
        self.block = Block(16, 2, 0.1)
        self.head = nn.Linear(16, 33)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the word at each place."""
        return self.head(self.block(self.embedding(tokens)))


@clean("masked language model")
def masked_model() -> None:
    """Labels stand at the places of the inputs, and most are ignored."""
    torch.manual_seed(0)
    model = Masked()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        is_masked = torch.rand(tokens.shape) < 0.3
        labels = tokens.masked_fill(~is_masked, -100)
        optimizer.zero_grad()
        logits = model(tokens.masked_fill(is_masked, 32))
        F.cross_entropy(logits.reshape(-1, 33), labels.reshape(-1), ignore_index=-100).backward()
        optimizer.step()


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Rows with noise by NumPy, which PyTorch seeds in each worker."""

    def __init__(self) -> None:
        self.x = np.random.default_rng(0).standard_normal((80, 8)).astype(np.float32)

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.x[index] + 0.1 * np.random.standard_normal(8).astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(np.sin(x[:1]))


@clean("data workers with noise")
def workers() -> None:
    """Two workers, shuffled."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@clean("two epochs")
def epochs() -> None:
    """The same batches come again in the next epoch, in the same order."""
    torch.manual_seed(0)
    x, y = next(rows(batch=40))
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


@clean("spectral norm and LSTM")
def spectral() -> None:
    """A parametrized weight and a fused layer."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"lstm": nn.LSTM(8, 8, batch_first=True), "head": nn.Linear(8, 1)})
    nn.utils.parametrizations.spectral_norm(model["head"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        out, _ = model["lstm"](x[:, None].expand(-1, 3, -1))
        F.mse_loss(model["head"](out[:, -1]), y).backward()
        optimizer.step()


@clean("resumed run", runs=2)
def resumed() -> None:
    """Everything is saved and loaded."""
    Trainer("").train()


@clean("resumed run with clipping and accumulation", runs=2)
def resumed_accumulation() -> None:
    """The checkpoint is written between two steps; data are drawn by a generator that is saved."""
    torch.manual_seed(0)
    model = Mlp(dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(5)
    path = Path("checkpoint.pt")
    step, is_resumed = 0, path.exists()
    if is_resumed:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"])
        torch.set_rng_state(state["rng"])
        step = state["step"]
    while step < STEPS:
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(8, 8, generator=generator)
            (F.mse_loss(model(x), torch.sin(x[:, :1])) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        step += 1
        if step == 5 and not is_resumed:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "generator": generator.get_state(),
                    "rng": torch.get_rng_state(),
                    "step": step,
                },
                path,
            )
        if step == 7 and not is_resumed:
            return
