"""Which tensors of two checkpoints belong together by their names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

#: What wrappers, savers and whole Modules put before or between the names of parameters.
_WRAPPERS = frozenset(
    "module _orig_mod _fsdp_wrapped_module _checkpoint_wrapped_module _modules _parameters _buffers".split()
)
#: Names of the dictionary that holds the model, the likeliest first where several fit.
_HOLDERS = ("model", "module", "state_dict", "model_state_dict", "net", "network", "backbone", "ema", "optimizer")
#: MindSpore's names of parameters, and PyTorch's.
#: Source: mindspore.nn (LayerNorm, BatchNorm, Embedding) and torch.nn 2.13.
_MINDSPORE = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
}
#: Numbers that count layers, experts or ranks: a digit behind a short word, as in w1, is a part of that word.
_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+|(?<=[A-Za-z]{4})\d+|(?<=[._]l)\d+")
#: Names of PyTorch's tensors of a recurrent layer that have a part for each gate.
GATES = re.compile(r"(?:weight|bias)_[ih]h(?=[._]|$)")
#: Kinds of roles that tensors have, the roles, and what says so in a name.
_ROLES = tuple(
    (kind, role, re.compile(rf"(?:^|[._/])(?:{pattern})(?=[._/]|$)"))
    for kind, role, pattern in (
        ("attention", "q", "q|query|wq|to_q|qproj"),
        ("attention", "k", "k|key|wk|to_k|kproj"),
        ("attention", "v", "v|value|wv|to_v|vproj"),
        ("attention", "o", "o|wo|out"),
        ("gated", "gate", "gate|w1"),
        ("gated", "up", "up|w3"),
        ("gated", "down", "down|w2"),
        ("norm", "first", r"input_layer_?norm|att(?:entio)?n_norm|ln_?1|(?:layer_?)?norm_?1|linear_qkv[.]layer_norm"),
        (
            "norm",
            "second",
            r"post_attention_layer_?norm|(?:ffn|mlp|pre_mlp)_(?:layer_?)?norm|ln_?2|(?:layer_?)?norm_?2"
            r"|linear_fc1[.]layer_norm",
        ),
        ("affine", "weight", "weight|gamma|kernel"),
        ("affine", "bias", "bias|beta"),
        ("statistic", "mean", "running_mean|moving_mean"),
        ("statistic", "variance", "running_var|moving_variance"),
        ("moment", "second", "exp_avg_sq|moment2|adam_v"),
        ("moment", "first", "exp_avg|moment1|adam_m"),
        ("vocabulary", "output", "lm_head|embed_out|unembed|output_layer|head|output"),
        ("vocabulary", "position", "wpe|position_embeddings?|pos_embed|positional_embedding"),
        ("vocabulary", "input", "wte|embed_tokens|tok_embeddings|word_embeddings?|embeddings?|embed"),
        ("stack", "encoder", "encoder"),
        ("stack", "decoder", "decoder"),
        ("attending", "itself", "self_attn|self_attention|attn1"),
        ("attending", "across", "cross_attn|cross_?attention|encoder_attn|encdecattention|attn2|inter_attention"),
    )
)


@dataclass(frozen=True, slots=True)
class Matched:
    """Two names of one tensor; `how` is "" for equal names."""

    target: str
    golden: str
    how: str


def match_names(target: Iterable[str], golden: Iterable[str]) -> list[Matched]:
    """The names that belong together, each once: equal ones, then without what wraps them, then by MindSpore's words.

    A prefix that one side alone has is taken away where its rest is a whole name of the other side; of several
    prefixes with the same rest, that of the model, or the one that fits most names.
    """
    ours, theirs = dict.fromkeys(target), dict.fromkeys(golden)
    matches = [Matched(name, name, "") for name in ours if name in theirs]
    for match in matches:
        del ours[match.target], theirs[match.golden]
    for change, how in ((_unwrapped, "prefix"), (_translated, "MindSpore's names")):
        matches += _by_key(ours, theirs, change, how)
        matches += _by_suffix(ours, theirs, change, how)
    return matches


def likeness(name: str, other: str) -> tuple[bool, int]:
    """How much two names have in common: whether all numbers agree, and how many words; for choosing the largest."""
    return parted(name)[1] == parted(other)[1], sum((_words(name) & _words(other)).values())


@lru_cache(maxsize=1 << 16)
def _words(name: str) -> Counter[str]:
    return Counter(re.split(r"[._/\[\]]", name))


@lru_cache(maxsize=1 << 16)
def parted(name: str) -> tuple[str, tuple[int, ...]]:
    """(the name with a mark in place of each number that counts something, the numbers)."""
    return _NUMBER.sub("\0", name), tuple(int(number[:18]) for number in _NUMBER.findall(name))


@lru_cache(maxsize=1 << 16)
def roles(name: str) -> dict[str, str]:
    """What the words of a name say that it is: (kind of role, role), of each kind the word that stands first."""
    first: dict[str, tuple[int, str]] = {}
    for kind, role, pattern in _ROLES:
        match = pattern.search(name.lower())
        if match is not None and match.start() < first.get(kind, (len(name), ""))[0]:
            first[kind] = match.start(), role
    return {kind: role for kind, (_, role) in first.items()}


def are_in_conflict(name: str, other: str) -> bool:
    """Whether two names say that they are different things, such as key and value."""
    first, second = roles(name), roles(other)
    return any(second.get(kind, role) != role for kind, role in first.items())


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _translated(name: str) -> str:
    return ".".join(_MINDSPORE.get(part, part) for part in _unwrapped(name).split("."))


def _by_key(ours: dict[str, None], theirs: dict[str, None], change: Callable[[str], str], how: str) -> list[Matched]:
    """Names that are the same when changed; each is taken from both sides."""
    keys: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, names in enumerate((ours, theirs)):
        for name in names:
            keys[change(name)][side].append(name)
    matches = [Matched(names[0], other[0], how) for names, other in keys.values() if len(names) == len(other) == 1]
    for match in matches:
        del ours[match.target], theirs[match.golden]
    return matches


def _by_suffix(ours: dict[str, None], theirs: dict[str, None], change: Callable[[str], str], how: str) -> list[Matched]:
    """Names of which one is the end of the other, prefix by prefix."""
    owners: list[dict[str, list[str]]] = []
    for held in (ours, theirs):
        owner: dict[str, list[str]] = defaultdict(list)
        for name in held:
            owner[change(name)].append(name)
        owners.append(owner)
    pairs: dict[tuple[int, str], list[tuple[str, str]]] = defaultdict(list)
    for side in (0, 1):
        for key, names in owners[side].items():
            parts = key.split(".")
            for cut in range(1, len(parts)):
                rest = owners[1 - side].get(".".join(parts[cut:]))
                if rest is not None and len(rest) == len(names) == 1:
                    pair = (names[0], rest[0]) if side == 0 else (rest[0], names[0])
                    pairs[side, ".".join(parts[:cut])].append(pair)
    matches = []
    for (_, prefix), candidates in sorted(pairs.items(), key=lambda item: (_rank(item[0][1]), -len(item[1]))):
        for name, other in candidates:
            if name in ours and other in theirs:
                matches.append(Matched(name, other, f"{how} {prefix}." if how == "prefix" else how))
                del ours[name], theirs[other]
    return matches


def _rank(prefix: str) -> int:
    """The place of a prefix in the order in which prefixes are tried."""
    words = prefix.split(".")
    holders = [_HOLDERS.index(word) for word in words if word in _HOLDERS]
    return max(holders) if len(holders) == len(words) else len(_HOLDERS)
