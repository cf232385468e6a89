"""Wrong formulas of attention, norms, activations and losses, of kinds that people report."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from quality.kernels import references as exact

# Attention.


def alibi(query: Tensor, key: Tensor, value: Tensor, first: int = 1) -> Tensor:
    """Attention with a bias that falls with the distance, steeper from head to head."""
    heads, rows, columns = query.shape[1], query.shape[2], key.shape[2]
    slopes = 2.0 ** -torch.arange(first, heads + first, dtype=query.dtype)
    distance = (torch.arange(rows).unsqueeze(1) - torch.arange(columns)).abs()
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) - slopes[:, None, None] * distance
    return torch.softmax(scores, -1) @ value


def window_of_five(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The window holds a key too many."""
    return exact.attention(query, key, value, "window", 5)


def capped(query: Tensor, key: Tensor, value: Tensor, cap: float = 5.0, late: bool = False) -> Tensor:
    """Attention with a soft cap of scores, of scaled ones unless `late`."""
    scores, scale = query @ key.transpose(-2, -1), math.sqrt(query.shape[-1])
    scores = cap * torch.tanh(scores / cap) / scale if late else cap * torch.tanh(scores / scale / cap)
    return torch.softmax(scores, -1) @ value


def split_keys_mean(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Two parts of the keys are merged by a mean that does not weigh them by their totals."""
    half = key.shape[2] // 2
    return (
        exact.attention(query, key[:, :, :half], value[:, :, :half])
        + exact.attention(query, key[:, :, half:], value[:, :, half:])
    ) / 2


def padded(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor, more: int = 0) -> Tensor:
    """Attention to the first keys of each sequence."""
    seen = torch.arange(key.shape[2]) < (lengths + more).reshape(-1, 1, 1, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = torch.softmax(scores.masked_fill(~seen, -math.inf), -1)
    return weights.masked_fill(~seen, 0.0) @ value


def padded_nan(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """A sequence without keys becomes NaN in place of 0."""
    seen = torch.arange(key.shape[2]) < lengths.reshape(-1, 1, 1, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ value


def padded_mean(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> Tensor:
    """A sequence without keys gets the mean of all values, because masked scores are a finite number."""
    seen = torch.arange(key.shape[2]) < lengths.reshape(-1, 1, 1, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~seen, -1e4), -1) @ value


def causal_top_left(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The mask starts at the first key where there are more keys than queries."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf), -1) @ value


def with_totals(query: Tensor, key: Tensor, value: Tensor, base: float = math.e) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of its totals."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1) / math.log(base)


def paged(query: Tensor, pages: Tensor, table: Tensor, last: int = 0) -> Tensor:
    """Attention of one query a sequence to pages of four keys, which are values as well."""
    table = torch.cat([table[:, :-1], table[:, -1:].roll(last, 0)], 1)
    keys = pages[table].flatten(1, 2)
    return exact.attention(query[:, None, None], keys[:, None], keys[:, None])[:, 0, 0]


def shared_first_head(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Only the first head of a group gives a gradient to its key."""
    groups = query.shape[1] // key.shape[1]
    copies = torch.stack([key] + [key.detach()] * (groups - 1), 2).flatten(1, 2)
    return exact.attention(query, copies, value.repeat_interleave(groups, 1))


def softmax_without_delta(x: Tensor) -> Tensor:
    """The gradient leaves out the row's sum."""
    powers = (x - x.detach().amax(-1, keepdim=True)).exp()
    return powers / powers.detach().sum(-1, keepdim=True)


def bias_of_first(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """A bias of heads, whose gradient is that of the first sequence."""
    biases = torch.stack([bias] + [bias.detach()] * (len(query) - 1))
    return torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + biases, -1) @ value


def biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention with a bias of heads."""
    return torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias, -1) @ value


# Norms.


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Norm of two groups of channels."""
    return F.group_norm(x, 2, weight, bias, 1e-5)


def group_norm_in_turns(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Channels belong to groups in turns."""
    order = torch.arange(x.shape[1]).reshape(2, -1).t().flatten()
    normal = F.group_norm(x[:, torch.argsort(order)], 2, eps=1e-5)[:, order]
    return normal * weight[:, None] + bias[:, None]


def batch_norm(x: Tensor, mean: Tensor, variance: Tensor, correction: int = 1) -> Tensor:
    """Batch norm that updates its running statistics in place."""
    mean.mul_(0.9).add_(0.1 * x.mean(0))
    variance.mul_(0.9).add_(0.1 * x.var(0, correction=correction))
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)


def batch_norm_written(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """The running variance gets the biased one."""
    wide_mean, wide_variance = mean.float(), variance.float()
    result = batch_norm(x.float(), wide_mean, wide_variance, 0)
    mean.copy_(wide_mean)
    variance.copy_(wide_variance)
    return result.to(x.dtype)


def rms_first_rows(x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weight counts whole tiles of 32 rows alone."""
    rows = (torch.arange(len(x)) < len(x) // 32 * 32).unsqueeze(1)
    return exact.rms_norm(x, torch.where(rows, weight, weight.detach()))


def residual_returned(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The residual of before is returned."""
    return exact.rms_norm(x + residual, weight), residual * 1


def chan_without_means(x: Tensor) -> Tensor:
    """Variances of two halves are merged without the distance of their means."""
    return torch.stack([part.var(-1, correction=0) for part in x.chunk(2, -1)]).mean(0)


def normalised(x: Tensor, epsilon: float = 1e-3, added: bool = False) -> Tensor:
    """Rows of length 1, at least `epsilon` being taken for their length."""
    length = x.square().sum(-1, keepdim=True).sqrt()
    return x / (length + epsilon if added else length.clamp(min=epsilon))


# Element by element.


def softplus(x: Tensor, threshold: float = 20.0) -> Tensor:
    """Softplus, which is x above a threshold."""
    return F.softplus(x, threshold=threshold)


def sigmoid_by_short_exp(x: Tensor) -> Tensor:
    """The exponential from three terms of the fraction of its exponent."""
    scaled = -x * math.log2(math.e)
    fraction = (scaled - scaled.floor()) * math.log(2)
    power = (1 + fraction * (1 + fraction * (0.5 + fraction / 6))) * 2.0 ** scaled.detach().floor()
    return 1 / (1 + power)


def rms_by_estimate(x: Tensor, weight: Tensor) -> Tensor:
    """The inverse root has twelve bits and no step of Newton."""
    inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    exponent = inverse.detach().log2().floor()
    return x * (inverse * 2**-exponent * 4096).round() / 4096 * 2**exponent * weight


def tanh_by_exp(x: Tensor) -> Tensor:
    """Overflows for large arguments."""
    power = (2 * x).exp()
    return (power - 1) / (power + 1)


def limited(x: Tensor, limit: float = 3.0) -> Tensor:
    """SiLU and product of limited halves."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * (up.clamp(-limit, limit) + 1)


def flushed(x: Tensor) -> Tensor:
    """Half of x; what is denormal becomes 0."""
    result = x * 0.5
    return torch.where(result.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(result), result)


def truncated(x: Tensor) -> Tensor:
    """The last digits are cut off in place of rounded."""
    result = exact.gelu(x.detach().float())
    if x.dtype == torch.float32:
        return (result.double() * (1 - 2.0**-24)).float()
    bits = 16 if x.dtype == torch.bfloat16 else 13
    return (result.view(torch.int32) >> bits << bits).view(torch.float32).to(x.dtype)


def rounded_twice(x: Tensor) -> Tensor:
    """Rounded to a wider half dtype before it is rounded to its own."""
    return exact.gelu(x.detach().float()).to(torch.float16).float().to(x.dtype)


def dropped_out(x: Tensor, keep: Tensor, factor: float = 2.0) -> Tensor:
    """Dropout of one half by a given mask."""
    return x * keep * factor


# Losses.


def ignoring(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of rows whose target is not 0."""
    return F.cross_entropy(logits, target, ignore_index=0)


def ignored_counted(logits: Tensor, target: Tensor) -> Tensor:
    """Ignored rows count in the mean."""
    return F.cross_entropy(logits, target, ignore_index=0, reduction="sum") / len(target)


def smoothed(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of smoothed labels."""
    return F.cross_entropy(logits, target, label_smoothing=0.1)


def smoothed_over_others(logits: Tensor, target: Tensor) -> Tensor:
    """What is smoothed is spread over the other labels alone."""
    logs, size = torch.log_softmax(logits, -1), logits.shape[-1]
    chosen = logs.gather(1, target.unsqueeze(1)).squeeze(1)
    return -(0.9 * chosen + 0.1 / (size - 1) * (logs.sum(-1) - chosen)).mean()


def padded_vocabulary(logits: Tensor, target: Tensor) -> Tensor:
    """The vocabulary is padded to whole blocks of 64 by logits of 0."""
    return F.cross_entropy(F.pad(logits, (0, -logits.shape[-1] % 64)), target)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    """Divergence of distributions, by rows."""
    return F.kl_div(torch.log_softmax(x, -1), torch.log_softmax(y, -1), log_target=True, reduction="batchmean")


def divergence_swapped(x: Tensor, y: Tensor) -> Tensor:
    """The divergence of the other direction."""
    return divergence(y, x)


def binary(logits: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy of each logit."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


def binary_of_logarithms(logits: Tensor, target: Tensor) -> Tensor:
    """Logarithms of a sigmoid that is rounded to 0 or 1."""
    p = torch.sigmoid(logits)
    return -(target * p.log() + (1 - target) * (1 - p).log())


def huber(x: Tensor, y: Tensor) -> Tensor:
    """Huber loss beyond 2."""
    return F.huber_loss(x, y, delta=2.0)


def huber_scaled(x: Tensor, y: Tensor) -> Tensor:
    """The smooth loss, which is divided by 2."""
    return F.smooth_l1_loss(x, y, beta=2.0)


def squared_logsumexp(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy and 1e-3 of the squared logarithm of totals."""
    return F.cross_entropy(logits, target) + 1e-3 * torch.logsumexp(logits, -1).square().mean()
