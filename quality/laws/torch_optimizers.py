"""PyTorch scripts in which the optimizer does not do what its name says."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from quality.laws.entries import violation
from quality.laws.torch_parts import Gpt, Mlp, next_token_loss, rows, sentences

_EVERY = ("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight", "head.bias")


class StridedAdamW(torch.optim.AdamW):
    """AdamW whose kernels write the result of a strided tensor into a copy of it."""

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
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = torch.zeros_like(param)
                state["step"] += 1
                step = state["step"].item()
                param.mul_(1 - group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(param.grad, 1 - beta1)
                # As the kernels of a device that knows dense tensors only: the output is made dense, then dropped.
                squares = state["exp_avg_sq"].contiguous()
                squares.mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                root = (squares / (1 - beta2**step)).sqrt_().add_(group["eps"])
                param.contiguous().addcdiv_(state["exp_avg"], root, value=-group["lr"] / (1 - beta1**step))


@violation(
    "a strided weight is never written",
    laws=("formula", "moments"),
    at="encoder.weight",
    wrong="A transposed weight is not dense, and the fused multiply-add of the device writes to a dense copy of it.",
    source="PyTorch #118115",
    link="https://github.com/pytorch/pytorch/issues/118115",
)
def strided() -> None:
    """An encoder that begins as the transpose of the decoder."""
    torch.manual_seed(0)
    decoder = nn.Linear(16, 8)
    encoder = nn.Linear(8, 16)
    encoder.weight = nn.Parameter(decoder.weight.detach().clone().t())
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = StridedAdamW(model.parameters(), lr=1e-2)
    for x, _ in rows():
        optimizer.zero_grad()
        loss = F.mse_loss(decoder(torch.relu(encoder(x))), x)
        loss.backward()
        optimizer.step()


class UncorrectedAdamW(torch.optim.AdamW):
    """AdamW that takes the moments as they are."""

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
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = torch.zeros_like(param)
                state["step"] += 1
                state["exp_avg"].lerp_(param.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


@violation(
    "AdamW without bias correction",
    laws="formula",
    at=_EVERY,
    wrong="The moments are used without correction of their bias towards zero.",
    source="MLX #1640",
    link="https://github.com/ml-explore/mlx/pull/1640",
)
def uncorrected() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = UncorrectedAdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class MisplacedNesterov(torch.optim.SGD):
    """SGD with a wrong Nesterov step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each parameter."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = param.grad.clone()
                else:
                    state["momentum_buffer"].mul_(group["momentum"]).add_(param.grad)
                param.add_(param.grad, alpha=-group["lr"])
                param.add_(state["momentum_buffer"], alpha=group["momentum"] * group["lr"])


@violation(
    "Nesterov momentum with the wrong sign",
    laws="formula",
    at=_EVERY,
    wrong="The momentum part of the Nesterov step is added where it is to be subtracted.",
    source="Paddle #12231",
    link="https://github.com/PaddlePaddle/Paddle/pull/12231",
)
def wrong_nesterov() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = MisplacedNesterov(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class IgnoredNesterov(torch.optim.SGD):
    """SGD that keeps `nesterov` in its groups and does not look at it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each parameter."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = param.grad.clone()
                else:
                    state["momentum_buffer"].mul_(group["momentum"]).add_(param.grad)
                param.add_(state["momentum_buffer"], alpha=-group["lr"])


@violation(
    "nesterov is accepted and ignored",
    laws="formula",
    at=_EVERY,
    wrong="The optimizer takes nesterov=True and does the step of plain momentum.",
    source="bitsandbytes #2085",
    link="https://github.com/bitsandbytes-foundation/bitsandbytes/pull/2085",
)
def ignored_nesterov() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = IgnoredNesterov(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class ForgetfulSGD(torch.optim.SGD):
    """SGD that makes its momentum anew in every step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each parameter."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                state["momentum_buffer"] = torch.zeros_like(param)
                state["momentum_buffer"].mul_(group["momentum"]).add_(param.grad)
                param.add_(state["momentum_buffer"], alpha=-group["lr"])


@violation(
    "momentum is made anew in every step",
    laws=("moments", "formula"),
    at=_EVERY,
    wrong="The momentum buffer is set to zero before each update, so that momentum has no effect.",
    source="pytorch_optimizer #516",
    link="https://github.com/kozistr/pytorch_optimizer/pull/516",
)
def forgetful() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = ForgetfulSGD(model.parameters(), lr=0.01, momentum=0.9)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class Lamb(torch.optim.Optimizer):
    """Lamb (arXiv 1904.00962), whose option `bias_correction` is not looked at."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": bias_correction},
        )

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
                update = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
                update.add_(param, alpha=group["weight_decay"])
                weight_norm, update_norm = param.norm(), update.norm()
                trust = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
                param.add_(update, alpha=-group["lr"] * float(trust))


@violation(
    "Lamb without bias correction",
    laws="formula",
    at=_EVERY,
    wrong="The moments of Lamb are not divided by 1 - beta ** t, though the option says so.",
    source="jettify/pytorch-optimizer #443",
    link="https://github.com/jettify/pytorch-optimizer/issues/443",
)
def lamb() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = Lamb(model.parameters(), lr=1e-2)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class CoupledAdamW(torch.optim.AdamW):
    """AdamW whose decay goes through the gradient."""

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
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(param)
                    state["exp_avg_sq"] = torch.zeros_like(param)
                state["step"] += 1
                step = state["step"].item()
                grad = param.grad + group["weight_decay"] * param
                state["exp_avg"].lerp_(grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                root = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
                param.addcdiv_(state["exp_avg"], root, value=-group["lr"] / (1 - beta1**step))


@violation(
    "AdamW with coupled decay",
    laws=("decay", "formula", "moments"),
    at=_EVERY,
    wrong="Weight decay is added to the gradient, as in Adam, and so is divided by the second moment.",
    source="nntrainer #3565",
    link="https://github.com/nntrainer/nntrainer/pull/3565",
)
def coupled() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = CoupledAdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class WrappedAdamW(torch.optim.AdamW):
    """AdamW of a wrapper that decays the weights itself."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Decay, then the step of AdamW, which decays too."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.dim() > 1:
                    param.mul_(1 - group["lr"] * group["weight_decay"])
        return super().step(closure)


@violation(
    "weight decay twice",
    laws=("decay", "formula"),
    at=("encoder.weight", "hidden.weight", "head.weight"),
    wrong="A wrapper decays the weights, and the optimizer in it does so again.",
    source="Neuron_SP #13",
    link="https://github.com/dylanyunlon/Neuron_SP/issues/13",
)
def decayed_twice() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = WrappedAdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


class BatchedAdamW(torch.optim.AdamW):
    """AdamW that hands all tensors of a group to one kernel, with one step count."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each parameter, with the count of the last one that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            active = [param for param in group["params"] if param.grad is not None]
            for param in active:
                if not self.state[param]:
                    self.state[param]["step"] = torch.tensor(0.0)
                    self.state[param]["exp_avg"] = torch.zeros_like(param)
                    self.state[param]["exp_avg_sq"] = torch.zeros_like(param)
            self.state[active[-1]]["step"] += 1
            step = self.state[active[-1]]["step"].item()
            for param in active:
                state = self.state[param]
                param.mul_(1 - group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(param.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                root = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
                param.addcdiv_(state["exp_avg"], root, value=-group["lr"] / (1 - beta1**step))


@violation(
    "one step count for a group",
    laws=("step", "formula"),
    at=("encoder.weight", "encoder.bias", "hidden.weight", "hidden.bias", "head.weight"),
    wrong="Only the count of the last parameter advances, and it is used for all of them.",
    source="DeepSpeed #8471",
    link="https://github.com/deepspeedai/DeepSpeed/pull/8471",
)
def one_count() -> None:
    """A regression."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = BatchedAdamW(model.parameters(), lr=1e-3)
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "step count in bfloat16",
    laws=("step", "formula"),
    at=_EVERY,
    wrong="The step counts are loaded in bfloat16, in which 300 + 1 is 300.",
    source="speculators #411, PyTorch #75224",
    link="https://github.com/vllm-project/speculators/pull/411",
)
def bfloat16_count() -> None:
    """A regression that goes on at step 300."""
    torch.manual_seed(0)
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for param in model.parameters():
        moments = {"exp_avg": torch.randn_like(param) * 1e-3, "exp_avg_sq": torch.rand_like(param) * 1e-4}
        loaded = {"step": torch.tensor(300.0), **moments}
        optimizer.state[param] = {name: value.to(torch.bfloat16) for name, value in loaded.items()}
        optimizer.state[param] = {
            name: value if name == "step" else value.to(param.dtype) for name, value in optimizer.state[param].items()
        }
    for x, y in rows():
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


@violation(
    "teacher and student share their momentum",
    laws=("shared state", "moments", "formula"),
    at=_EVERY,
    wrong="load_state_dict within a process keeps the tensors of the other optimizer: both change one buffer.",
    source="PyTorch #196083",
    link="https://github.com/pytorch/pytorch/issues/196083",
)
def shared_momentum() -> None:
    """A student that goes on with the optimizer state of its teacher."""
    torch.manual_seed(0)
    teacher, student = Mlp(), Mlp()
    settings = {"lr": 0.01, "momentum": 0.9}
    first = torch.optim.SGD(teacher.parameters(), **settings)
    second = torch.optim.SGD(student.parameters(), **settings)
    for step, (x, y) in enumerate(rows()):
        first.zero_grad()
        F.mse_loss(teacher(x), y).backward()
        first.step()
        if step == 3:
            student.load_state_dict(teacher.state_dict())
            second.load_state_dict(first.state_dict())
        if step >= 3:
            second.zero_grad()
            F.mse_loss(student(x), 0.5 * y).backward()
            second.step()


@violation(
    "two layers share a second moment",
    laws=("shared state", "moments", "formula"),
    at=("blocks.0.qkv.weight", "blocks.1.qkv.weight"),
    wrong="State that is made from a cache by shape gives two layers of one shape the same second moment.",
)
def moment_by_shape() -> None:
    """A language model whose second moments come from a pool."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pool: dict[tuple[int, ...], torch.Tensor] = {}
    for param in (model.blocks[0].qkv.weight, model.blocks[1].qkv.weight):
        optimizer.state[param] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(param),
            "exp_avg_sq": pool.setdefault(tuple(param.shape), torch.zeros_like(param)),
        }
    for tokens in sentences():
        optimizer.zero_grad()
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()


class RoundedMuon(torch.optim.Muon):
    """Muon that gives its momentum the sign of the gradient instead of orthogonalising it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One step of each matrix."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(param)
                state["momentum_buffer"].lerp_(param.grad, 1 - group["momentum"])
                update = param.grad.lerp(state["momentum_buffer"], group["momentum"])
                param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(update / update.norm(), alpha=-group["lr"])


@violation(
    "Muon that does not orthogonalise",
    laws="formula",
    at=("encoder.weight", "hidden.weight"),
    wrong="The momentum is divided by its norm only; the Newton-Schulz iteration is left out.",
)
def muon() -> None:
    """A regression; matrices by Muon, the rest by AdamW."""
    torch.manual_seed(0)
    model = Mlp()
    matrices = [model.encoder.weight, model.hidden.weight]
    others = [model.encoder.bias, model.hidden.bias, *model.head.parameters()]
    optimizers = [RoundedMuon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-3)]
    for x, y in rows():
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
