"""Bugs as people make them in the right runs of `quality.sharded.outside`, with the answers that are right.

What is wrong is the docstring of the function that takes the place of a right one. `expected` has the records, and
`says` the setting, that may be named first; `is_lawless` says that the ranks alone show the bug.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer

from quality.sharded import (
    outside_data as data,
    outside_model as layers,
    outside_pipeline as pipeline,
    outside_sequence as sequence,
)
from quality.sharded.entries import Entry
from quality.sharded.outside import right
from quality.sharded.public_bugs import put


def _bug(name: str, of: str, owner: Any, old: str, new: Any, *expected: str, **facts: Any) -> Entry:
    """A right run with `new`, whose docstring says what is wrong, in the place of an attribute of `owner`."""
    facts = {"steps": 1, "wrong": str(inspect.getdoc(new)).partition("\n")[0], "place": new, **facts}
    return right(of).bug(name, put(owner, old, new), expected=expected, **facts)


def _at(direction: str, *layers: str) -> tuple[str, ...]:
    """Names of what these layers do in a direction, and of calls in them."""
    names = [
        f"{kind}{layer}{rest}"
        for layer in layers
        for kind, rest in (("Module.", f".*.{direction}"), ("", f" > *.{direction}"))
    ]
    gradients = [f"Module.{layer}.*.parameters_grad" for layer in layers if direction == "backward"]
    return (*names, *gradients)


def _gradients(*names: str) -> tuple[str, ...]:
    """Names of what the optimizer gets of these parameters."""
    return tuple(f"Optimizer.* gradients.{name}" for name in names)


_CLIPPED = ("Optimizer.clip_grad_norm.*", *_gradients("*"))
_LOSS = (
    "Tensor.__truediv__.*",
    "Tensor.__mul__.*",
    "Functional.cross_entropy.*",
    "Tensor.flatten.*.backward",
    *_at("backward", "head"),
)
_WORDS = _at("forward", "words")
_PARAMETERS = "parameter|weights|begin"
_BY_HAND, _DDP, _SPARE = "gradients averaged by hand", "DDP, qkv bias, two steps", {"is_lawless": True}
_STALE = {"says": _PARAMETERS, "is_lawless": True}
_CONTRAST, _BATCH_NORM, _ZERO2 = (
    "DDP, contrast over all ranks",
    "DDP, synchronised BatchNorm, two steps",
    "ZeRO 2 by hand, 3 ranks, two steps",
)

_OF_ROWS = (
    _bug("first values of each rank", _BY_HAND, data, "first_seed", data.first_seed_of_rank, *_WORDS, **_STALE),
    _bug(
        "lr of one rank",
        _DDP,
        data,
        "learning_rate",
        data.learning_rate_of_rank,
        "Optimizer.* parameters.*",
        says=r"\blr\b|learning rate",
        **_SPARE,
    ),
    _bug("step left out", _DDP, data, "steps", data.steps_but_first_on_last_rank, *_WORDS, **{**_STALE, "steps": 2}),
    _bug(
        "rows of one rank twice",
        "DDP, 3 ranks",
        data,
        "own_rows",
        data.rows_of_next_rank_twice,
        *_WORDS,
        "Tensor.chunk.*",
        says="batch|rows",
    ),
    _bug("accumulated loss not divided", "DDP, no_sync", data, "divided", data.undivided, *_LOSS, *_CLIPPED),
    _bug("no_sync on the last", "DDP, no_sync", data, "synced", data.never_synced, *_CLIPPED, **_SPARE),
    _bug("mean of means", "DDP, LSTM, tokens that do not count", data, "counted", data.counted_on_own_rank, *_LOSS),
    _bug(
        "features without gradient",
        _CONTRAST,
        data,
        "everywhere",
        data.gathered_without_gradient,
        *_at("backward", "right"),
        "Functional.normalize.*.backward",
        "Tensor.__matmul__.*.backward",
        "Tensor.T.*.backward",
        *_gradients("right.*"),
    ),
    _bug(
        "pairs from zero",
        _CONTRAST,
        data,
        "own_pairs",
        data.pairs_from_zero,
        "Functional.cross_entropy.*",
        "Torch.arange.*",
    ),
    _bug(
        "bias gradients not reduced",
        _BY_HAND,
        data,
        "reduced",
        data.weights_reduced,
        *_gradients("*bias", "*norm*"),
        **_SPARE,
    ),
    _bug("gradients reduced twice", _BY_HAND, data, "reduced", data.reduced_twice, *_CLIPPED, **_SPARE),
    _bug("gradients summed", _BY_HAND, data, "reduced", data.summed, *_CLIPPED),
    _bug(
        "clipped before reduced",
        "gradients averaged by hand, clipped",
        data,
        "reduced",
        data.clipped_before_reduced,
        *_CLIPPED,
        **_SPARE,
    ),
    _bug("FSDP2 clipped by own norm", "FSDP2, clipped, two steps", data, "clip", data.clipped_by_own_norm, *_CLIPPED),
    _bug(
        "FSDP2 never synced",
        "FSDP2, accumulated, recomputed",
        data,
        "synced",
        data.never_synced,
        *_CLIPPED,
        "Optimizer.AdamW.*",
    ),
    _bug(
        "HSDP replicas not reduced",
        "HSDP",
        data,
        "shard",
        data.shard_without_replicas,
        *_CLIPPED,
        "Module.*.parameters_grad",
        **_SPARE,
    ),
    _bug(
        "EMA of one rank",
        "DDP, EMA, two steps",
        data,
        "averaged",
        data.averaged_by_rank,
        "Tensor.lerp_.*",
        says="ema",
        **_SPARE,
    ),
    _bug(
        "EMA decay by ranks",
        "DDP, EMA, two steps",
        data,
        "averaged",
        data.averaged_by_rank_count,
        "Tensor.lerp_.*",
        says="ema",
    ),
    _bug(
        "BatchNorm of own images",
        _BATCH_NORM,
        data,
        "batch_norm",
        data.batch_norm_of_own_images,
        *_at("forward", "norm1"),
    ),
    _bug(
        "statistics without gradient",
        _BATCH_NORM,
        data,
        "total",
        data.total_without_gradient,
        *_at("backward", "norm2", "second"),
    ),
    _bug(
        "ZeRO 1 parameters stale",
        "ZeRO 1, two steps",
        ZeroRedundancyOptimizer,
        "_sync_params",
        data.stale,
        *_WORDS,
        **{**_STALE, "steps": 2},
    ),
    _bug("ZeRO 2 joined backwards", _ZERO2, data, "joined", data.joined_backwards, *_WORDS, says=_PARAMETERS, steps=2),
    _bug("ZeRO 2 own gradient", _ZERO2, data, "own_gradient", data.own_gradient_before, *_CLIPPED, "Optimizer.AdamW.*"),
    _bug(
        "tables exchanged",
        "tables of embeddings over ranks",
        data,
        "rows_of_all_tables",
        data.tables_exchanged,
        *_at("forward", "top", "top.0"),
        "Torch.cat.*.forward",
    ),
    _bug(
        "table gradients not divided",
        "tables of embeddings over ranks",
        data,
        "gradient_divisor",
        data.dense_divisor,
        *_gradients("tables.*"),
    ),
)

_CORE = _at("forward", "blocks.0.attention.core", "blocks.0.attention")
_ULYSSES, _RING, _SPLIT, _HALO, _HALO5 = (
    "Ulysses, two steps",
    "ring attention",
    "attention over split keys, 4 ranks",
    "halo of a spatial convolution",
    "halo, kernel of 5, 3 ranks",
)

_OF_SEQUENCES = (
    _bug(
        "positions from zero",
        _ULYSSES,
        sequence,
        "start_of",
        sequence.start_of_zero,
        *_at("forward", "places"),
        "Torch.arange.*",
    ),
    _bug(
        "labels of the own part rolled",
        _ULYSSES,
        sequence,
        "parts_of",
        sequence.labels_rolled,
        "Functional.cross_entropy.*",
        "Tensor.flatten.*.forward",
        "Tensor.chunk.*",
    ),
    _bug("heads in turn", _ULYSSES, sequence, "to_heads", sequence.heads_in_turn, *_CORE),
    _bug(
        "values of other heads",
        "Ulysses, 4 ranks, means",
        sequence.Ulysses,
        "forward",
        sequence.values_of_other_heads,
        *_CORE,
    ),
    _bug(
        "biases of a sequence not reduced",
        _RING,
        sequence,
        "reduced",
        sequence.weights_reduced,
        *_gradients("*bias", "*norm*"),
        **_SPARE,
    ),
    _bug("mean where sum", "attention over split keys", sequence, "reduced", sequence.averaged, *_CLIPPED),
    _bug(
        "ring the other way",
        "ring attention, 3 ranks, means, two steps",
        sequence,
        "owner_of",
        sequence.owner_after,
        *_CORE,
    ),
    _bug(
        "ring without gradient",
        _RING,
        sequence,
        "passed_on",
        sequence.passed_on_without_gradient,
        *_at("backward", "blocks.1.attention.core", "blocks.1.attention", "blocks.1.attention.qkv"),
    ),
    _bug("ring not scaled to the new sum", _RING, sequence, "merged", sequence.merged_with_old_norm, *_CORE),
    _bug("largest of own keys", _SPLIT, sequence, "largest", sequence.largest_of_own, *_CORE),
    _bug(
        "overlap of one layer",
        "context windows",
        sequence,
        "overlap",
        sequence.overlap_of_one_layer,
        *_CORE,
        *_at("forward", "blocks.1.attention.core", "blocks.1.attention"),
    ),
    _bug(
        "loss of the overlap",
        "context windows",
        sequence,
        "loss_of_own",
        sequence.loss_of_all,
        *_LOSS,
        "Tensor.__getitem__.*",
        "Tensor.flatten.*.forward",
    ),
    _bug("halo too small", _HALO5, sequence, "halo_of", sequence.one_row, *_at("forward", "first")),
    _bug("halo exchanged", _HALO, sequence, "with_halo", sequence.halo_exchanged, *_at("forward", "first")),
    _bug(
        "halo without gradient",
        _HALO,
        sequence,
        "with_halo",
        sequence.halo_without_gradient,
        *_at("backward", "second"),
        "Functional.gelu.0.backward",
    ),
    _bug(
        "mean of own rows",
        _HALO5,
        sequence,
        "pooled",
        sequence.mean_of_own_places,
        "Tensor.mean.*.forward",
        *_at("forward", "head"),
    ),
    _bug(
        "norm of own rows",
        _HALO,
        sequence,
        "normalised",
        sequence.normalised_by_own,
        *(f"Tensor.{call}.*.forward" for call in ("mean", "__getitem__", "__sub__", "square", "rsqrt", "__mul__")),
    ),
    _bug(
        "mean of places without gradient",
        _HALO5,
        sequence,
        "pooled",
        sequence.places_summed_without_gradient,
        "Tensor.mean.*.backward",
        "Functional.gelu.1.backward",
        *_at("backward", "second"),
    ),
)

_TP2, _TP4, _SP2, _TP2DP2 = (
    "column and row parallel, two steps",
    "column and row parallel, 4 ranks, clipped",
    "sequence parallel, two steps",
    "tp2 dp2, means of the own part",
)
_MOE = _at("forward", "moe", "moe.experts.[0-9]*")

_OF_LAYERS = (
    _bug(
        "column input not reduced",
        _TP2,
        layers,
        "entering",
        layers.entering_without_gradient,
        *_at("backward", "head", "norm"),
    ),
    _bug(
        "bias on each rank",
        _TP4,
        layers.Row,
        "forward",
        layers.biased_before,
        *_at("forward", "blocks.0.attention.out"),
    ),
    _bug(
        "keys of the other rank",
        _TP2,
        layers,
        "part_of",
        layers.keys_of_other_rank,
        *_at("forward", "blocks.0.attention.k", "blocks.0.attention"),
        says=_PARAMETERS,
    ),
    _bug("vocabulary not masked", _TP2, layers, "own_words", layers.all_rows, *_WORDS),
    _bug("loss over own words", _TP4, layers, "all_words", layers.own_sum, *_LOSS),
    _bug("biases not summed", _SP2, layers, "sum_copies", layers.sum_weights, *_gradients("*bias"), **_SPARE),
    _bug(
        "row biases not summed",
        _SP2,
        layers,
        "sum_copies",
        layers.sum_norms,
        *_gradients("*.out.bias", "*.down.bias"),
        **_SPARE,
    ),
    _bug("averaged over all ranks", _TP2DP2, layers, "average", layers.average_over_all, *_CLIPPED, **_SPARE),
    _bug("added up over data parallel ranks", _TP2DP2, layers, "average", layers.add_up, *_CLIPPED),
    _bug(
        "averaged over tensor parallel ranks",
        _TP2DP2,
        layers,
        "average",
        layers.average_over_tensor_ranks,
        *_CLIPPED,
        **_SPARE,
    ),
    _bug("clipped by own norm", _TP4, layers, "clip", layers.clip_by_own_norm, *_CLIPPED, **_SPARE),
    _bug(
        "norm counts copies",
        "tp2 dp2, sequence parallel, clipped",
        layers,
        "clip",
        layers.clip_counting_copies,
        *_CLIPPED,
    ),
    _bug(
        "shared keys not summed",
        "one head of keys for all",
        layers,
        "shared",
        layers.shared_without_sum,
        *_at("backward", "blocks.1.attention", "blocks.1.attention.[kv]", "blocks.1.norm1"),
        *_gradients("*.attention.[kv].*"),
        **_SPARE,
    ),
    _bug("other expert", "experts, one of 4", layers, "expert_of", layers.other_expert, *_MOE),
    _bug("rows in the order of experts", "experts, one of 4", layers, "combined", layers.combined_in_place, *_MOE),
    _bug(
        "gate made to add up to 1", "experts, two of 8, 4 ranks", layers, "combined", layers.combined_normalised, *_MOE
    ),
    _bug(
        "experts averaged",
        "experts, one of 4",
        layers,
        "finish",
        layers.finish_all_alike,
        *_gradients("moe.experts.*"),
        **_SPARE,
    ),
    _bug(
        "experts not divided",
        "experts, two of 8, 4 ranks",
        layers,
        "finish",
        layers.finish_without_experts,
        *_gradients("moe.experts.*"),
    ),
    _bug(
        "router not reduced",
        "experts, one of 4",
        layers,
        "finish",
        layers.finish_without_router,
        *_gradients("moe.router.weight"),
        **_SPARE,
    ),
    _bug(
        "DTensor gradients made local",
        "DTensor, rows over ranks",
        layers.DTensorRun,
        "on_rows",
        layers.rows_not_reduced,
        *_CLIPPED,
        **_SPARE,
    ),
    _bug(
        "DTensor output not summed",
        "DTensor, tensor parallel, loss parallel",
        layers,
        "plan",
        layers.plan_without_sum,
        *_at("forward", "down"),
    ),
)

_PIPELINE, _TIED = "pipeline 1F1B, two steps", "pipeline by hand, tied words"

_OF_STAGES = (
    _bug(
        "virtual stages in a row",
        "pipeline interleaved",
        pipeline,
        "blocks_of",
        pipeline.blocks_in_a_row,
        "Module.blocks.[12].*.forward",
        "blocks.[12]* > *.forward",
    ),
    _bug("microbatches not scaled", _PIPELINE, pipeline, "scales", pipeline.unscaled, *_CLIPPED),
    _bug(
        "gradients kept on a stage",
        _PIPELINE,
        pipeline,
        "clear",
        pipeline.clear_first_stage,
        *_CLIPPED,
        "Module.*.parameters_grad",
        steps=2,
    ),
    _bug(
        "clipped by own stage",
        "pipeline GPipe, 3 ranks, clipped",
        pipeline,
        "clip",
        pipeline.clip_by_own_stage,
        *_CLIPPED,
        **_SPARE,
    ),
    _bug(
        "tied words start apart",
        _TIED,
        pipeline,
        "start_tied",
        pipeline.start_apart,
        "Functional.linear.8.forward",
        *_WORDS,
        **_STALE,
    ),
    _bug(
        "tied words not summed", _TIED, pipeline, "sum_tied", pipeline.leave_tied, *_gradients("words.weight"), **_SPARE
    ),
    _bug(
        "loss of microbatches not divided",
        "pipeline by hand, tied words, 3 ranks",
        pipeline,
        "share",
        pipeline.share_of_all,
        *_LOSS,
        *_CLIPPED,
    ),
    _bug(
        "labels of microbatches exchanged",
        _TIED,
        pipeline,
        "label_of",
        pipeline.labels_exchanged,
        "Functional.cross_entropy.*",
        "Tensor.flatten.*.forward",
    ),
    _bug(
        "received gradients exchanged",
        _TIED,
        pipeline,
        "output_of",
        pipeline.gradients_exchanged,
        "Module.blocks.0.*.backward",
        "blocks.0 > *.backward",
        "blocks.0.* > *.backward",
        "Module.blocks.0.*.parameters_grad",
    ),
)

BUGS: tuple[Entry, ...] = (*_OF_ROWS, *_OF_SEQUENCES, *_OF_LAYERS, *_OF_STAGES)
