"""Bugs of sharded trainings that were reported in public, each planted in a right run: those that may be looked at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from quality.sharded import attention, experts, layers, network, training
from quality.sharded.catalogue import right, unclipped
from quality.sharded.entries import Entry
from quality.sharded.layout import Group, Layout
from quality.sharded.mappings import copied, whole

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/issues/"


def put(owner: Any, name: str, new: Any) -> Callable[[], AbstractContextManager[Any]]:
    """A change that puts `new` in the place of an attribute."""
    return lambda: mock.patch.object(owner, name, new)


def both(*changes: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    """All of these changes."""

    @contextmanager
    def changed() -> Any:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change())
            yield

    return changed


def norm_is_not_summed(one: nn.Parameter, layout: Layout) -> None:
    """Gradients of the final norm stay what this rank's part of the sequence gives."""
    if not getattr(one, "is_final_norm", False):
        layout.tp.sum(one.grad)


def _marking_final_norm(model: network.Gpt) -> None:
    model.norm.weight.is_final_norm = True
    _finalise(model)


_finalise = training.finalise_gradients


def summed_with_sequence_parallel(one: nn.Parameter, layout: Layout) -> None:
    """Only with sequence parallelism are gradients of norms summed."""
    if layout.sequence_parallel:
        layout.tp.sum(one.grad)


def local_words(local: int, group: Group) -> int:
    """The vocabulary of this rank."""
    return local


def local_mean(shifted: Tensor, vocabulary: int, group: Group) -> Tensor:
    """The mean over the words of this rank."""
    return shifted.mean(-1)


def all_logits(logits: Tensor, group: Group) -> Tensor:
    """Logits of all words, though the loss takes them for a shard."""
    return whole(logits, group, logits.dim() - 1)


def counted_on_each_stage(one: nn.Parameter, model: network.Gpt) -> bool:
    """No stage leaves the tied embedding to the other."""
    return False


def without_reduced_gradients(probabilities: Tensor, group: Group) -> Tensor:
    """As `to_local()` without `grad_placements` hands a copy to sharded experts."""
    return probabilities


def gathered_without_gradients(probabilities: Tensor, group: Group, dim: int) -> Tensor:
    """By a plain all_gather; only what this rank had keeps no gradient either."""
    parts = [torch.empty_like(probabilities) for _ in range(group.size)]
    dist.all_gather(parts, probabilities.detach().contiguous(), group=group.process_group)
    return torch.cat(parts, dim)


def summed_without_gradients(logits: Tensor, labels: Tensor, group: Group) -> Tensor:
    """The log softmax of all words by hand; the labels' values are summed by a plain all_reduce."""
    largest = group.sum(logits.detach().amax(-1, keepdim=True), dist.ReduceOp.MAX)
    shifted = logits - largest
    total = PlainSum.apply(shifted.exp().sum(-1), group)
    local = labels - group.index * logits.shape[-1]
    is_own = (local >= 0) & (local < logits.shape[-1])
    chosen = shifted.gather(-1, local.clamp(0, logits.shape[-1] - 1)[..., None])[..., 0] - total.log()
    return PlainSum.apply(chosen * is_own, group)


class PlainSum(torch.autograd.Function):
    """A sum over ranks whose gradient stays on the rank where it arises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """The sum."""
        return group.sum(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """As it comes."""
        return grad, None


def in_dense_group(one: nn.Parameter, layout: Layout) -> None:
    """Every gradient, those of experts too, is averaged over the data parallel ranks."""
    layout.dp.sum(one.grad).div_(layout.averaged)


def skipped_without_rows(expert: nn.Module, rows: Tensor) -> Tensor:
    """An expert without rows does not run and has no gradient."""
    return expert(rows) if len(rows) else rows


def local_tokens(logits: Tensor, layout: Layout) -> int:
    """The tokens of this rank."""
    return logits.shape[:-1].numel()


def last_microbatch(before: Tensor | None, grad: Tensor) -> Tensor:
    """Every backward is taken for the first one after a step."""
    return grad.clone()


def is_named_embedding(name: str) -> bool:
    """Only the first stage's copy is known as the embedding."""
    return name.startswith("emb")


def stage_local_name(name: str, one: nn.Parameter, model: network.Gpt) -> str:
    """The checkpoint is read by the names that blocks have on this stage."""
    return name


def with_fresh_random_numbers(block: nn.Module, x: Tensor) -> Tensor:
    """The recomputation draws dropout anew."""
    return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)


def of_another_rank(layout: Layout) -> Tensor:
    """The state of the next rank: ranks that compute the same draw other numbers."""
    return torch.Generator().manual_seed(training.RANDOM_SEED + layout.tp.index).get_state()


def entered_without_reduction(self: layers.ColumnLinear, x: Tensor) -> Tensor:
    """The gradient of the input is not summed over ranks."""
    return x


def reduced_both_ways(self: layers.RowLinear, partial: Tensor) -> Tensor:
    """The gradient is summed although every rank has it whole."""
    return copied(_left(self, partial), self.layout.tp)


_left = layers.RowLinear.left


def bias_before_reduction(self: layers.RowLinear, x: Tensor) -> Tensor:
    """Every rank adds the bias to its part of the sum."""
    return self.left(F.linear(x, self.weight, self.bias))


def scale_of_local_width(self: attention.Core, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The width of a head is taken from what this rank has of all heads."""
    local = q.shape[-1] / self.layout.tp.size
    with mock.patch.object(attention, "scale_of", return_value=local**-0.5):
        return _core(self, q, k, v)


_core = attention.Core.forward


def unmasked(self: layers.VocabEmbedding, rows: Tensor, is_other: Tensor) -> Tensor:
    """Tokens of other ranks give some row of this one."""
    return rows


def own_norm(model: network.Gpt, max_norm: float) -> Tensor:
    """Clipped by the norm of what this rank has."""
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


@contextmanager
def counting_copies() -> Any:
    """The norm of all parameters is summed over tensor parallel ranks."""

    def squared(ours: list[nn.Parameter], model: network.Gpt) -> Tensor:
        return model.layout.tp.sum(sum(one.grad.float().square().sum() for one in ours))

    with mock.patch.object(training, "squared", squared):
        yield


_FORWARD, _BACKWARD, _OPTIMIZER = ({"direction": name} for name in ("forward", "backward", "optimizer"))
_CLIPPED = ("Optimizer.clip_grad_norm.*", "Optimizer.* gradients.*")

BUGS: tuple[Entry, ...] = (
    unclipped("tp2 sp").bug(
        "norm gradient not summed",
        both(
            put(training, "sum_over_tp", norm_is_not_summed),
            put(training, "finalise_gradients", _marking_final_norm),
        ),
        source="Megatron-LM #1446, NeMo-RL #3716, gpt-neox #1257, TransformerEngine #441",
        link=_MEGATRON + "1446",
        wrong="With sequence parallelism the gradient of the final norm is not summed over tensor parallel ranks.",
        expected=("Optimizer.* gradients.norm.weight",),
        **_OPTIMIZER,
    ),
    right("tp2 smoothing").bug(
        "labels smoothed over the local vocabulary",
        both(put(layers, "smoothed_over", local_words), put(layers, "smoothed_mean", local_mean)),
        source="Megatron-LM #737, #7464, #7452 (1)",
        link=_MEGATRON + "7452",
        wrong="Label smoothing takes mean and vocabulary size of this rank's shard of the logits.",
        expected=("Module.criterion.*.forward", "criterion > *.forward"),
        **_FORWARD,
    ),
    right("tp2").bug(
        "cross entropy of gathered logits",
        put(layers, "sharded_logits", all_logits),
        source="Megatron-LM #7452 (2)",
        link=_MEGATRON + "7452",
        wrong="The vocabulary-parallel loss gets logits that were gathered before: it is log(2) too large.",
        expected=("Module.criterion.*.forward", "criterion > *.forward"),
        **_FORWARD,
    ),
    right("pp2 tied muon").bug(
        "tied weight counted on each stage",
        put(training, "is_second_copy", counted_on_each_stage),
        source="ROCm/TransformerEngine #715, NeMo-RL #3788, Megatron-FSDP #7227",
        link=_MEGATRON + "7227",
        wrong="The gradient of the tied embedding counts on the first and on the last stage in the norm.",
        expected=_CLIPPED,
        **_OPTIMIZER,
    ),
    unclipped("tp2 qk norm").bug(
        "norm of heads summed with sequence parallelism only",
        put(training, "sum_over_tp", summed_with_sequence_parallel),
        source="NeMo-RL #3716, Megatron-LM #7452 (11)",
        link=_MEGATRON + "7452",
        wrong="The gradient of the norm of queries, which sees the heads of its rank, is summed only with sp.",
        expected=("Optimizer.* gradients.blocks.[01].attn.q_norm.weight",),
        **_OPTIMIZER,
    ),
    right("tp2 moe").bug(
        "router gradient of one rank's experts",
        put(experts, "copied_probabilities", without_reduced_gradients),
        source="Megatron-LM #599, #619; torchtitan #2387, #2416, #4054, #1878",
        link="https://github.com/pytorch/torchtitan/issues/2387",
        wrong="Probabilities become local without partial gradients: each router learns from its rank's features.",
        expected=(
            "Module.blocks.1.mlp.*.backward",
            "blocks.1.mlp > *.backward",
            "blocks.1.mlp.router > *.backward",
            "Module.blocks.1.norm2.*.backward",
            "blocks.1.norm2 > *.backward",
            "Optimizer.* gradients.blocks.[01].mlp.router.weight",
        ),
        **_BACKWARD,
    ),
    right("tp2 sp moe").bug(
        "probabilities gathered without gradients",
        put(experts, "gathered_probabilities", gathered_without_gradients),
        source="NeMo Automodel #2995",
        link="https://github.com/NVIDIA-NeMo/Automodel/pull/2995",
        wrong="A plain all_gather hands the probabilities on: the router is trained by its own loss only.",
        expected=(
            "Module.blocks.1.mlp.*.backward",
            "blocks.1.mlp > *.backward",
            "blocks.1.mlp.router > *.backward",
            "Module.blocks.1.norm2.*.backward",
            "blocks.1.norm2 > *.backward",
            "Optimizer.* gradients.blocks.[01].mlp.router.weight",
        ),
        **_BACKWARD,
    ),
    right("tp2 policy").bug(
        "log probability summed without gradients",
        put(layers, "log_probability", summed_without_gradients),
        source="ms-swift #9947",
        link="https://github.com/modelscope/ms-swift/pull/9947",
        wrong="The label's log probability is summed by a plain all_reduce: other ranks' logits get no gradient.",
        expected=(
            "Module.criterion.*.backward",
            "criterion > *.backward",
            "Module.head.*.backward",
            "head > *.backward",
        ),
        **_BACKWARD,
    ),
    unclipped("dp2 etp2").bug(
        "experts averaged in the dense group",
        put(training, "reduce_over_data", in_dense_group),
        source="Megatron-LM #1622, #1628",
        link=_MEGATRON + "1622",
        wrong="Ranks with other features of an expert average their gradients as if they had copies.",
        expected=("Optimizer.* gradients.blocks.[01].mlp.experts.*",),
        **_OPTIMIZER,
    ),
    right("ep2 single experts").bug(
        "expert without tokens has no gradient",
        put(experts, "runs_expert", skipped_without_rows),
        source="NeMo Automodel #2995 (3)",
        link="https://github.com/NVIDIA-NeMo/Automodel/pull/2995",
        wrong="An expert that no token was sent to has no gradient instead of zeros: moments and decay are skipped.",
        expected=(
            "Optimizer.* *blocks.[01].mlp.experts.local_experts.[13].*",
            "Module.blocks.[01].mlp.experts.local_experts.[13].*",
            "blocks.[01].mlp.experts.local_experts.[13] > *",
        ),
        **_OPTIMIZER,
    ),
    right("tp2 sp moe").bug(
        "router loss averaged over local tokens",
        put(experts, "counted_tokens", local_tokens),
        source="Megatron-LM #5047",
        link=_MEGATRON + "5047",
        wrong="The router's loss is averaged over the tokens of this rank, and its gradients are summed over ranks.",
        expected=(
            "Module.blocks.[01].mlp.router.*",
            "blocks.[01].mlp.router > *",
            "Module.blocks.1.norm2.*.backward",
            "Optimizer.* gradients.blocks.[01].mlp.router.weight",
        ),
        direction="forward",
    ),
    right("zero2").bug(
        "accumulator reset at every backward",
        put(training, "accumulated", last_microbatch),
        source="open-instruct #1498, DeepSpeed #1488",
        link="https://github.com/deepspeedai/DeepSpeed/issues/1488",
        wrong="Every backward counts as the first of a step: only the last microbatch is trained on.",
        expected=_CLIPPED,
        **_OPTIMIZER,
    ),
    right("pp2 tied muon").bug(
        "tied copy in another optimizer",
        put(training, "is_embedding", is_named_embedding),
        source="Megatron-LM #4641",
        link=_MEGATRON + "4641",
        wrong="The last stage's copy of the tied embedding goes to Muon, the first stage's to AdamW.",
        expected=("Optimizer.* *head.weight", "Optimizer.* *emb.weight"),
        **_OPTIMIZER,
    ),
    right("pp2 four blocks").bug(
        "checkpoint read by stage-local names",
        put(network, "loaded_name", stage_local_name),
        source="Megatron-LM #7452 (12)",
        link=_MEGATRON + "7452",
        wrong="The second of two stages loads blocks 0 and 1 again in the place of 2 and 3.",
        expected=("Module.blocks.[0123].*.forward", "blocks.[0123]* > *.forward"),
        **_FORWARD,
    ),
    right("tp2 dropout checkpointed").bug(
        "recomputation draws fresh dropout",
        put(network, "recomputed", with_fresh_random_numbers),
        source="OLMo-core #828, PyTorch #190758, #190717",
        link="https://github.com/allenai/OLMo-core/issues/828",
        wrong="Activations are computed again with other random numbers than the first time.",
        expected=("Module.blocks.1*.backward", "blocks.1* > *.backward", "Module.blocks.1.*parameters_grad"),
        **_BACKWARD,
    ),
    right("tp2 dropout").bug(
        "random state of another rank",
        put(training, "saved_random_state", of_another_rank),
        source="Megatron-LM #6858, Megatron-Bridge #5257, Megatron-LM #6920, torchtitan #1702",
        link=_MEGATRON + "6858",
        wrong="After a resume tensor parallel ranks draw other numbers for activations that all of them have.",
        expected=("Module.blocks.0.drop.*.forward", "blocks.0.drop > *.forward"),
        **_FORWARD,
    ),
    right("tp2").bug(
        "column input gradient not reduced",
        put(layers.ColumnLinear, "entered", entered_without_reduction),
        source="Megatron-LM, copy_to_tensor_model_parallel_region left out",
        wrong="The gradient of a column-parallel layer's input is not summed over ranks.",
        expected=(
            "Module.head.*.backward",
            "head > *.backward",
            "Module.norm.*.backward",
            "norm > *.backward",
            "Module.blocks.1.mlp.down.*.backward",
            "blocks.1.mlp.down > *.backward",
        ),
        **_BACKWARD,
    ),
    right("tp2").bug(
        "row output reduced in backward too",
        put(layers.RowLinear, "left", reduced_both_ways),
        source="Megatron-LM, reduce_from_tensor_model_parallel_region with all-reduce as backward",
        wrong="The gradient of a row-parallel layer's output is summed over ranks that each have it whole.",
        expected=(
            "Module.blocks.1.mlp.down.*.backward",
            "blocks.1.mlp.down > *.backward",
            "Module.blocks.1.mlp.*.backward",
        ),
        **_BACKWARD,
    ),
    right("tp2").bug(
        "bias added before the reduction",
        put(layers.RowLinear, "forward", bias_before_reduction),
        source="nano-vllm #99, MinivLLM #80, text-generation-inference #1036",
        link="https://github.com/huggingface/text-generation-inference/issues/1036",
        wrong="Each rank adds the bias of a row-parallel layer to its part of the sum.",
        expected=("Module.blocks.0.attn.o.*.forward", "blocks.0.attn.o > *.forward"),
        **_FORWARD,
    ),
    right("tp2").bug(
        "attention scaled by the local width",
        put(attention.Core, "forward", scale_of_local_width),
        source="Megatron-LM, hidden_size_per_attention_head from the local hidden size",
        wrong="The scale of scores is made from the width that one rank has.",
        expected=("Module.blocks.0.attn.core.*.forward", "blocks.0.attn.core > *.forward"),
        **_FORWARD,
    ),
    right("tp2").bug(
        "vocabulary mask missing",
        put(layers.VocabEmbedding, "masked", unmasked),
        source="Megatron-LM, VocabParallelEmbedding without its mask",
        wrong="Tokens of other ranks add a row of this rank's embedding.",
        expected=("Module.emb.*.forward", "emb > *.forward"),
        **_FORWARD,
    ),
    right("tp2").bug(
        "clip norm of the own shard",
        put(training, "clip", own_norm),
        source="PyTorch #170862, torchtune #2420",
        link="https://github.com/meta-pytorch/torchtune/issues/2420",
        wrong="Each rank clips by the norm of the gradients that it has.",
        expected=_CLIPPED,
        **_OPTIMIZER,
    ),
    right("tp2 sp").bug(
        "clip norm counts copies",
        counting_copies,
        source="Megatron-LM, param_is_not_tensor_parallel_duplicate left out",
        wrong="Parameters that every rank has count once for each rank in the norm.",
        expected=_CLIPPED,
        **_OPTIMIZER,
    ),
)
