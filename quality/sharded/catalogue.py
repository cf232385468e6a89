"""All entries: right runs and planted bugs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from quality.sharded.entries import Entry

_BF16 = {"dtype": torch.bfloat16}
_MOE = {"experts": 4}


def _hand_made(name: str, sizes: dict[str, int], **settings: object) -> Entry:
    ways = {key: settings.pop(key) for key in ("sp", "zigzag") if key in settings}
    return Entry(name, "hand-made", sizes, settings, ways)


def _plain(name: str, sizes: dict[str, int], ways: str = "", **settings: object) -> Entry:
    return Entry(name, "plain", sizes, settings, {"ways": ways} if ways else {})


_TP2, _TP4, _DP2, _CP2, _PP2 = {"tp": 2}, {"tp": 4}, {"dp": 2}, {"cp": 2}, {"pp": 2}

#: Sharded runs that equal the run on one rank.
RIGHT: tuple[Entry, ...] = (
    _hand_made("tp2", _TP2),
    _hand_made("tp2 bfloat16", _TP2, **_BF16),
    _hand_made("tp4", _TP4),
    _hand_made("tp2 sp", _TP2, sp=True),
    _hand_made("tp2 sp bfloat16", _TP2, sp=True, **_BF16),
    _hand_made("tp4 sp", _TP4, sp=True),
    _hand_made("tp2 not clipped", _TP2, max_norm=0.0),
    _hand_made("tp2 sp not clipped", _TP2, sp=True, max_norm=0.0),
    _hand_made("tp2 tied", _TP2, tied=True),
    _hand_made("tp2 mse", _TP2, loss="mse"),
    _hand_made("tp2 policy", _TP2, loss="policy"),
    _hand_made("tp2 smoothing", _TP2, smoothing=0.1),
    _hand_made("tp2 qk norm", _TP2, qk_norm=True),
    _hand_made("tp2 one key head", _TP2, kv_heads=1),
    _hand_made("tp2 two key heads sp", _TP2, kv_heads=2, sp=True),
    _hand_made("tp2 dropout", _TP2, dropout=0.2),
    _hand_made("tp2 dropout checkpointed", _TP2, dropout=0.2, checkpointed=True),
    _hand_made("tp2 moe", _TP2, experts_over="features", **_MOE),
    _hand_made("tp2 sp moe", _TP2, experts_over="features", sp=True, **_MOE),
    _hand_made("ep2", _DP2, **_MOE),
    _hand_made("ep2 bfloat16", _DP2, **_MOE, **_BF16),
    _hand_made("ep2 single experts", _DP2, single_experts=True, closed_experts=1, **_MOE),
    _hand_made("dp2 etp2", _DP2, experts_over="features", **_MOE),
    _hand_made("ep2 tp2 sp", {"dp": 2, "tp": 2}, sp=True, **_MOE),
    _hand_made("cp2 ring", _CP2),
    _hand_made("cp2 zigzag", _CP2, zigzag=True),
    _hand_made("cp2 zigzag bfloat16", _CP2, zigzag=True, **_BF16),
    _hand_made("cp4 zigzag", {"cp": 4}, zigzag=True),
    _hand_made("tp2 cp2 sp zigzag", {"cp": 2, "tp": 2}, sp=True, zigzag=True),
    _hand_made("dp2", _DP2),
    _hand_made("dp2 ignored labels", _DP2, ignored=6),
    _hand_made("tp2 dp2", {"dp": 2, "tp": 2}),
    _hand_made("tp2 dp2 sp accumulated", {"dp": 2, "tp": 2}, sp=True, microbatches=2),
    _hand_made("zero2", _DP2, microbatches=2, zero2=True),
    _hand_made("pp2", _PP2, microbatches=2),
    _hand_made("pp2 bfloat16", _PP2, microbatches=4, **_BF16),
    _hand_made("pp2 local names", _PP2, microbatches=2, local_names=True),
    _hand_made("pp2 tied muon", _PP2, microbatches=2, tied=True, optimizer="muon"),
    _hand_made("pp2 four blocks", _PP2, microbatches=2, blocks=4, local_names=True),
    _hand_made("pp4", {"pp": 4}, microbatches=4, blocks=4),
    _hand_made("tp2 pp2", {"pp": 2, "tp": 2}, microbatches=2, sp=True),
    _plain("DTensor tp2", _TP2, max_norm=0.0),
    _plain("DTensor tp2 sp", _TP2, "sp"),
    _plain("DTensor tp2 sp bfloat16", _TP2, "sp", **_BF16),
    _plain("DTensor tp2 sharded loss", _TP2, "sp losses"),
    _plain("DTensor tp4 sp", _TP4, "sp"),
    _plain("DTensor tp2 mse", _TP2, loss="mse", optimizer="sgd", max_norm=0.0),
    _plain("FSDP2", {"shard": 2}),
    _plain("FSDP2 bfloat16", {"shard": 2}, **_BF16),
    _plain("FSDP2 uneven", {"shard": 4}, width=20),
    _plain("FSDP2 accumulated", {"shard": 2}, microbatches=2),
    _plain("FSDP2 tp2", {"shard": 2, "tp": 2}, "sp"),
    _plain("FSDP2 replicated", {"replicate": 2, "shard": 2}),
    _plain("DDP", _DP2, "ddp"),
    _plain("DDP no_sync", _DP2, "ddp", microbatches=2),
    _plain("DDP ignored labels", _DP2, "ddp", ignored=6),
    _plain("pipelining 1F1B", _PP2, microbatches=2),
    _plain("pipelining GPipe bfloat16", _PP2, "gpipe", microbatches=4, **_BF16),
    _plain("pipelining 1F1B accumulated", _PP2, "twice", microbatches=2),
    _plain("pipelining 1F1B scaled", _PP2, "scaled", microbatches=2),
    Entry("MindSpore dp2", "mindspore", _DP2),
    Entry("MindSpore tp2", "mindspore", _TP2),
)


#: Entries that are judged by a run of several ranks, the second one.
PAIRS: tuple[tuple[str, str], ...] = (
    ("tp2", "tp2"),
    ("tp2", "dp2"),
    ("tp2", "cp2 zigzag"),
    ("tp2 dp2", "tp2 cp2 sp zigzag"),
    ("tp2 pp2", "tp4"),
    ("tp2 sp bfloat16", "cp2 zigzag bfloat16"),
    ("dp2 etp2", "tp2 moe"),
    ("FSDP2 tp2", "FSDP2 replicated"),
    ("DTensor tp2 sp", "FSDP2"),
    ("pipelining 1F1B", "DTensor tp4 sp"),
    ("bias added before the reduction", "tp4"),
    ("column input gradient not reduced", "dp2"),
    ("clip norm counts copies", "tp4"),
    ("norm gradient not summed", "tp2 sp not clipped"),
    ("probabilities gathered without gradients", "tp2 sp moe"),
)


def everything() -> tuple[Entry, ...]:
    """Right runs, then the bugs."""
    from quality.sharded import held_out, public_bugs

    return (*RIGHT, *public_bugs.BUGS, *held_out.BUGS)


def right(name: str) -> Entry:
    """The right run of this name."""
    return _found(name, RIGHT)


def unclipped(name: str) -> Entry:
    """The same without clipping, so that a wrong gradient does not make all others wrong."""
    entry = right(name)
    return replace(entry, settings={**entry.settings, "max_norm": 0.0})


def by_name(name: str) -> Entry:
    """The entry of this name."""
    from quality.sharded import outside

    return _found(name, (*everything(), *outside.everything()))


def _found(name: str, entries: Iterable[Entry]) -> Entry:
    return next(entry for entry in entries if entry.name == name)
