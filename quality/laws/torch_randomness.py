"""PyTorch scripts with wrong random numbers, repeated data or labels of other places."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from quality.laws.entries import violation
from quality.laws.torch_parts import STEPS, Block, Gpt, Mlp, next_token_loss, rows, sentences


class FusedBlock(Block):
    """A block whose attention drops weights, in evaluation too."""

    def attention(self, x: Tensor) -> Tensor:
        """Causal self-attention of (batch, length, width)."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), dropout_p=0.1, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


@violation(
    "attention drops in evaluation",
    laws="dropout in eval",
    at=("blocks.0", "blocks.1"),
    wrong="scaled_dot_product_attention drops whatever the mode of the module is.",
    source="timm #1978, PyTorch #124464",
    link="https://github.com/huggingface/pytorch-image-models/pull/1978",
)
def attention_in_evaluation() -> None:
    """A language model, evaluated twice."""
    torch.manual_seed(0)
    model = Gpt(dropout=0.1)
    model.blocks = nn.ModuleList(FusedBlock(16, 2, 0.1) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_out = next(sentences(seed=7))
    for step, tokens in enumerate(sentences()):
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                next_token_loss(model(held_out), held_out)
            model.train()


class Functional(nn.Module):
    """Two layers with dropout of torch.nn.functional."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.last(F.dropout(torch.tanh(self.first(x)), 0.3))


@violation(
    "functional dropout in evaluation",
    laws="dropout in eval",
    at=("dropout", "Functional"),
    wrong="F.dropout drops unless it gets training=self.training.",
)
def functional_in_evaluation() -> None:
    """A regression, evaluated in the middle."""
    torch.manual_seed(0)
    model = Functional()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held_x, held_y = next(rows(seed=7))
    for step, (x, y) in enumerate(rows()):
        model.train()
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        if step == 5:
            model.eval()
            with torch.no_grad():
                F.mse_loss(model(held_x), held_y)


class ConstantDropout(nn.Module):
    """Dropout by a kernel that is given the same seed by every layer and step."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        with torch.random.fork_rng():
            torch.manual_seed(0x1BF58)
            return F.dropout(x, self.p, self.training)


@violation(
    "one mask in all layers",
    laws="dropout layers",
    at=tuple(f"blocks.{i}.drop{j}" for i in (0, 1) for j in (1, 2)),
    wrong="Seed and offset of the dropout kernel are constants: all layers drop the same places.",
    source="flash-attention #2088",
    link="https://github.com/Dao-AILab/flash-attention/issues/2088",
)
def one_mask() -> None:
    """A language model."""
    torch.manual_seed(0)
    model = Gpt()
    for block in model.blocks:
        block.drop1, block.drop2 = ConstantDropout(0.2), ConstantDropout(0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


@violation(
    "one mask on all ranks",
    laws="dropout ranks",
    at=("drop1", "drop2"),
    wrong="All data parallel ranks begin with one seed and draw the same masks for different rows.",
    source="torchtitan #1946, mlcommons/training #844, tt-train #55947",
    link="https://github.com/pytorch/torchtitan/pull/1946",
    ranks=2,
)
def one_mask_on_ranks() -> None:
    """A regression on two ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mlp(dropout=0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


class CheckpointedGpt(Gpt):
    """A language model whose blocks are computed again in backward, with the random numbers of then."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        return self.head(self.norm(x))


_DROPS = tuple(f"blocks.{i}.drop{j}" for i in (0, 1) for j in (1, 2))


@violation(
    "recomputation draws other masks",
    laws="recomputation",
    at=_DROPS,
    wrong="Checkpointing does not keep the random state: the recomputed forward has other dropout masks.",
    source="OLMo-core #828",
    link="https://github.com/allenai/OLMo-core/pull/828",
)
def recomputed() -> None:
    """A language model with dropout."""
    torch.manual_seed(0)
    model = CheckpointedGpt(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class OwnCheckpoint(torch.autograd.Function):
    """Runs a block again in backward, as some code bases do by hand."""

    @staticmethod
    def forward(ctx: Any, block: nn.Module, count: int, x: Tensor, *params: Tensor) -> Tensor:
        """The output of the block, without a graph."""
        ctx.block, ctx.params = block, params
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the block's input and parameters."""
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.block(x)
        grads = torch.autograd.grad(out, (x, *ctx.params), grad)
        return (None, None, *grads)


class OwnCheckpointedGpt(Gpt):
    """A language model with checkpoints of its own."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            params = tuple(block.parameters())
            x = OwnCheckpoint.apply(block, len(params), x, *params)
        return self.head(self.norm(x))


@violation(
    "own checkpoint function without the random state",
    laws="recomputation",
    at=_DROPS,
    wrong="A hand-written checkpoint runs the block again with fresh dropout masks.",
    source="guided-diffusion #167",
    link="https://github.com/openai/guided-diffusion/issues/167",
)
def own_checkpoint() -> None:
    """A language model with dropout."""
    torch.manual_seed(0)
    model = OwnCheckpointedGpt(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class Simulated(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are drawn when they are asked for, from a generator that each worker gets a copy of."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(42)

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.generator.standard_normal(8).astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(np.sin(x[:1]))


@violation(
    "workers draw the same numbers",
    laws=("data workers", "same batch"),
    at=("batch", "x", "DataLoader of Simulated"),
    wrong="The dataset has a NumPy generator; each worker has a copy of it, and two workers give equal batches.",
    source="PyTorch #5059, pytorch-3dunet #32",
    link="https://github.com/pytorch/pytorch/issues/5059",
)
def same_workers() -> None:
    """A regression with data from two workers."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in DataLoader(Simulated(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "always the first batch",
    laws="same batch",
    at=("batch", "x"),
    wrong="A new iterator is made in each step; without shuffling it always begins with the same batch.",
    source="wandb/examples #444, face.evoLVe #39",
    link="https://github.com/wandb/examples/issues/444",
)
def first_batch() -> None:
    """A regression."""
    torch.manual_seed(0)
    x, y = next(rows(batch=80))
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = next(iter(loader))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of a causal language model, which moves the labels by one place."""
    labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)


@violation(
    "labels are moved twice",
    laws="labels",
    at=("labels", "cross_entropy"),
    wrong="The script moves the labels by one place, and the loss does so again: token t + 2 is learned from token t.",
    source="transformers #47394, #37830",
    link="https://github.com/huggingface/transformers/issues/47394",
)
def moved_twice() -> None:
    """A language model."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        optimizer.zero_grad()
        logits = model(tokens)
        causal_loss(logits[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()


@violation(
    "labels are not moved",
    laws="labels",
    at=("labels", "cross_entropy"),
    wrong="The loss takes the labels as they are: the model learns to repeat its input.",
    source="transformers #27517",
    link="https://github.com/huggingface/transformers/issues/27517",
)
def not_moved() -> None:
    """A language model."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens in sentences():
        labels = tokens.clone()
        optimizer.zero_grad()
        logits = model(tokens)
        F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)).backward()
        optimizer.step()
