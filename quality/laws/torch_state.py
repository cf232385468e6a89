"""PyTorch scripts in which weights part, change dtype or storage, or are averaged wrongly."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from quality.laws.entries import violation
from quality.laws.torch_parts import Gpt, Mlp, next_token_loss, rows, sentences

_EVERY = ("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias")


@violation(
    "assigned weights are not tied any more",
    laws="tied",
    at=("embedding.weight", "head.weight"),
    wrong="load_state_dict(assign=True) gives each name a tensor of its own: head and embedding part.",
    source="PyTorch #188346",
    link="https://github.com/pytorch/pytorch/issues/188346",
)
def assigned() -> None:
    """A language model that goes back to its last good weights after a bad loss."""
    torch.manual_seed(0)
    model = Gpt(is_tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    good = None
    for step, tokens in enumerate(sentences()):
        if step == 5:
            model.load_state_dict(good, assign=True)
            optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        if step == 2:
            good = {name: value.clone() for name, value in model.state_dict().items()}


@violation(
    "a tied head is exchanged",
    laws="tied",
    at=("embedding.weight", "head.weight"),
    wrong="The head is made smaller after some steps by a copy of the weights, which are not tied any more.",
)
def exchanged() -> None:
    """A language model whose head is copied before it is converted."""
    torch.manual_seed(0)
    model = Gpt(is_tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(sentences()):
        if step == 4:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
            optimizer.add_param_group({"params": [model.head.weight]})
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class Rotary(nn.Module):
    """A layer after a rotation by its place, whose frequencies are a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, 16, 2) / 16)), persistent=False)
        self.mlp = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        angles = torch.outer(torch.arange(tokens.shape[1]).to(self.inv_freq.dtype), self.inv_freq)
        x = self.embedding(tokens)
        even, odd = x[..., ::2], x[..., 1::2]
        cos, sin = angles.cos(), angles.sin()
        x = torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)
        return self.head(torch.tanh(self.mlp(x)))


@violation(
    "evaluation leaves the model in bfloat16",
    laws="dtype",
    at=("embedding.weight", "mlp.weight", "mlp.bias", "head.weight", "head.bias", "inv_freq"),
    wrong="The evaluation casts the model to bfloat16, and training goes on with it.",
    source="transformers #30709",
    link="https://github.com/huggingface/transformers/issues/30709",
)
def evaluated_in_bfloat16() -> None:
    """A language model that is evaluated in the middle."""
    torch.manual_seed(0)
    model = Rotary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, tokens in enumerate(sentences()):
        optimizer.zero_grad()
        next_token_loss(model(tokens).float(), tokens).backward()
        optimizer.step()
        if step == 4:
            model.eval().to(torch.bfloat16)
            with torch.no_grad():
                next_token_loss(model(tokens).float(), tokens)
            model.train()


@violation(
    "frequencies become bfloat16",
    laws="dtype",
    at="inv_freq",
    wrong="A helper casts all floating buffers to the dtype of the activations, frequencies of the rotation too.",
    source="NeMo Automodel #2549, gpt-neox #1016",
    link="https://github.com/NVIDIA-NeMo/Automodel/pull/2549",
)
def cast_buffers() -> None:
    """A language model whose buffers are cast when the first long batch comes."""
    torch.manual_seed(0)
    model = Rotary()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(sentences()):
        if step == 3:
            for module in model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.to(torch.bfloat16))
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class Shadow:
    """A moving average of parameters that can take their place."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.shadow = [param.detach().clone() for param in parameters]

    @torch.no_grad()
    def update(self, parameters: Iterable[nn.Parameter]) -> None:
        """shadow = decay * shadow + (1 - decay) * parameter."""
        for shadow, param in zip(self.shadow, parameters):
            shadow.mul_(self.decay).add_(param, alpha=1 - self.decay)

    def swap(self, parameters: Iterable[nn.Parameter]) -> None:
        """Exchanges the tensors of the average and of the parameters."""
        for i, param in enumerate(parameters):
            param.data, self.shadow[i] = self.shadow[i], param.data


@violation(
    "averaged weights are not taken out again",
    laws=("storage", "EMA"),
    at=_EVERY,
    wrong="The evaluation puts the averaged weights into the model and does not put the trained ones back.",
    source="Open-Sora-Plan #186, diffusers #2321",
    link="https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/186",
)
def never_restored() -> None:
    """A regression, evaluated with averaged weights."""
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
            with torch.no_grad():
                F.mse_loss(model(x), y)


@violation(
    "DDP is bypassed",
    laws="replicas",
    at=_EVERY,
    wrong="The loss is computed by model.module: no gradient is reduced, and each rank trains a model of its own.",
    source="minimind #853",
    link="https://github.com/jingyaogong/minimind/issues/853",
    ranks=2,
)
def bypassed() -> None:
    """A regression on two ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        F.mse_loss(model.module(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()


@violation(
    "only the first rank clips",
    laws="replicas",
    at=_EVERY,
    wrong="The norm is applied on rank 0 only, so that parameters that all ranks have part from each other.",
    source="BLOOM-176B (TrainCheck: DeepSpeed #1801)",
    link="https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md",
    ranks=2,
)
def clipped_on_one_rank() -> None:
    """A regression on two ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in rows(seed=1 + dist.get_rank()):
        optimizer.zero_grad()
        (10 * F.mse_loss(model(x), y)).backward()
        if dist.get_rank() == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    dist.destroy_process_group()


class EMAModel:
    """A moving average whose decay grows with the steps."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float = 0.9999) -> None:
        self.shadow_params = [param.detach().clone() for param in parameters]
        self.decay = decay
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter]) -> None:
        """Updates the average."""
        self.optimization_step += 1
        value = (1 + self.optimization_step) / (10 + self.optimization_step)
        self.decay = 1 - min(self.decay, value)
        for shadow, param in zip(self.shadow_params, parameters):
            shadow.sub_(self.decay * (shadow - param))


class FlippedEMA:
    """A moving average with a wrong sign."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Updates the average."""
        for average, param in zip(self.module.parameters(), model.parameters()):
            gap = average - param
            average.add_(gap * (1 - self.decay))


@violation(
    "decay of the average feeds on itself",
    laws="EMA",
    at=_EVERY,
    wrong="The decay of a step takes the place of the largest one: later the average follows the weights by half.",
    source="diffusers #1864",
    link="https://github.com/huggingface/diffusers/issues/1864",
)
def fed_back() -> None:
    """A regression with averaged weights."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = EMAModel(model.parameters(), decay=0.999)
    for x, y in rows(30):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.step(model.parameters())


@violation(
    "the average moves away",
    laws="EMA",
    at=_EVERY,
    wrong="The difference to the weights is added where it is to be subtracted.",
    source="ai-toolkit #1034",
    link="https://github.com/ostris/ai-toolkit/issues/1034",
)
def flipped() -> None:
    """A regression with averaged weights."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ema = FlippedEMA(model, decay=0.9)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        ema.update(model)
