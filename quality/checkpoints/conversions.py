"""Right conversions: from the names and layouts of one library to those of another one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quality.checkpoints.models import HEAD, HEADS, State

#: What stands beside a layer's number, in transformers' names and in Megatron's.
_MEGATRON = {
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}
_AROUND = {
    "model.embed_tokens.weight": "embedding.word_embeddings.weight",
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "output_layer.weight",
}


def layers_of(state: State) -> int:
    """Return how many layers there are."""
    return 1 + max(int(number) for name in state for number in re.findall(r"(?:layers?|h|blocks)\.(\d+)\.", name))


def renamed(state: State, *pairs: tuple[str, str]) -> State:
    """Return the tensors with regular expressions replaced in their names, one pair after the other."""
    names = {}
    for name in state:
        new = name
        for old, text in pairs:
            new = re.sub(old, text, new)
        names[name] = new
    assert len(set(names.values())) == len(names)
    return {names[name]: value for name, value in state.items()}


def by_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return one matrix, or bias, of groups: the queries of a group, its key, its value, as Megatron has them."""
    groups = k.shape[0] // HEAD
    parts = [part.reshape(groups, -1, *part.shape[1:]) for part in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *q.shape[1:])


def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return query, key and value one after the other."""
    return torch.cat([q, k, v])


def attention(state: State, layer: int, kind: str = "weight") -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value of a layer."""
    q, k, v = (state[f"model.layers.{layer}.self_attn.{name}_proj.{kind}"] for name in "qkv")
    return q, k, v


def megatron(state: State, odd: Mapping[int, str] | None = None, *, is_grouped: bool = True) -> State:
    """Return Llama as Megatron-Core names it.

    Args:
        state: as transformers names it.
        odd: numbers of layers whose query, key and value are laid out otherwise than the rest.
        is_grouped: by groups of heads, or one after the other.
    """
    made = {_AROUND[name]: value for name, value in state.items() if name in _AROUND}
    for layer in range(layers_of(state)):
        here, there = f"model.layers.{layer}", f"decoder.layers.{layer}"
        lay = by_groups if is_grouped != (layer in (odd or {})) else joined
        for kind in ("weight", "bias"):
            if f"{here}.self_attn.q_proj.{kind}" in state:
                made[f"{there}.self_attention.linear_qkv.{kind}"] = lay(*attention(state, layer, kind))
        gate, up = state[f"{here}.mlp.gate_proj.weight"], state[f"{here}.mlp.up_proj.weight"]
        made[f"{there}.mlp.linear_fc1.weight"] = torch.cat([gate, up])
        made |= {f"{there}.{new}": state[f"{here}.{old}"] for old, new in _MEGATRON.items()}
    return made


def tensor_parallel(state: State, world: int, *, padded: int = 0) -> list[State]:
    """Return the parts of Megatron's ranks of `megatron(state)`, each with `padded` rows of zeros in the vocabulary."""
    parts: list[State] = [{} for _ in range(world)]
    for name, value in state.items():
        if "linear_proj" in name or "linear_fc2" in name:
            cut = list(value.chunk(world, 1))
        elif "linear_fc1.weight" in name:
            gate, up = value.chunk(2)
            cut = [torch.cat(pair) for pair in zip(gate.chunk(world), up.chunk(world))]
        elif "norm" in name:
            cut = [value] * world
        else:
            cut = list(value.chunk(world))
        if padded and ("word_embeddings" in name or "output_layer" in name):
            cut = [torch.cat([part, torch.zeros(padded, part.shape[1])]) for part in cut]
        for part, piece in zip(parts, cut):
            part[name] = piece
    return parts


def whole(parts: Sequence[State], order: Mapping[str, Sequence[int]] | None = None) -> State:
    """Return what the parts of ranks are parts of; those whose name has a key of `order` are joined in that order."""
    made: State = {}
    for name in parts[0]:
        ranks = next((list(ranks) for text, ranks in (order or {}).items() if text in name), list(range(len(parts))))
        pieces = [parts[rank][name] for rank in ranks]
        if "linear_proj" in name or "linear_fc2" in name:
            made[name] = torch.cat(pieces, 1)
        elif "linear_fc1.weight" in name:
            halves = [piece.chunk(2) for piece in pieces]
            made[name] = torch.cat([half[0] for half in halves] + [half[1] for half in halves])
        else:
            made[name] = pieces[0] if "norm" in name else torch.cat(pieces)
    return made


def sharded(state: State, world: int) -> list[State]:
    """Return parts by rows, as FSDP2 has them: the last ranks have fewer rows, or none."""
    parts: list[State] = [{} for _ in range(world)]
    for name, value in state.items():
        pieces = list(value.chunk(world))
        pieces += [value[:0]] * (world - len(pieces))
        for part, piece in zip(parts, pieces):
            part[name] = piece
    return parts


def pipelined(state: State, stages: int, chunks: int = 1) -> list[State]:
    """Return the parts of pipeline stages, whose layers begin at 0 each; with `chunks` in turn on each stage."""
    count = layers_of(state) // (stages * chunks)
    parts: list[State] = [{} for _ in range(stages)]
    for name, value in state.items():
        number = re.search(r"layers\.(\d+)\.", name)
        if number is None:
            parts[0 if "embed" in name else -1][f"model0.{name}" if chunks > 1 else name] = value
            continue
        block, local = divmod(int(number[1]), count)
        new = name.replace(number[0], f"layers.{local}.")
        parts[block % stages][f"model{block // stages}.{new}" if chunks > 1 else new] = value
    return parts


def linear(state: State) -> State:
    """Return GPT-2 with nn.Linear: transposed, query, key and value apart."""
    made: State = {}
    for name, value in state.items():
        is_matrix = value.dim() == 2 and ".c_" in name
        new = value.t().contiguous() if is_matrix else value
        if "c_attn" in name:
            for part, piece in zip("qkv", new.chunk(3)):
                made[name.replace("c_attn", f"{part}_proj")] = piece
        else:
            made[name] = new
    return renamed(
        made,
        (r"^transformer\.", "decoder."),
        (r"\.h\.", ".layers."),
        (r"attn\.c_proj", "attn.out_proj"),
        (r"mlp\.c_fc", "mlp.fc1"),
        (r"mlp\.c_proj", "mlp.fc2"),
        (r"ln_1", "attn_norm"),
        (r"ln_2", "mlp_norm"),
    )


def neox(state: State) -> State:
    """Return Llama with attention as GPT-NeoX has it: for each head its query, key and value."""
    made = renamed(
        {name: value for name, value in state.items() if not re.search("[qkv]_proj", name)},
        (r"^model\.", "gpt_neox."),
        ("self_attn.o_proj", "attention.dense"),
        ("embed_tokens", "embed_in"),
        ("lm_head", "embed_out"),
    )
    for layer in range(layers_of(state)):
        for kind in ("weight", "bias"):
            if f"model.layers.{layer}.self_attn.q_proj.{kind}" in state:
                parts = [part.reshape(HEADS, HEAD, *part.shape[1:]) for part in attention(state, layer, kind)]
                rows = torch.stack(parts, 1).reshape(-1, *parts[0].shape[2:])
                made[f"gpt_neox.layers.{layer}.attention.query_key_value.{kind}"] = rows
    return made


def stacked(state: State, *, is_fused: bool = False, is_transposed: bool = True) -> State:
    """Return Mixtral with one tensor for all experts of a layer; `is_fused` joins w1 and w3."""
    made = {name: value for name, value in state.items() if ".experts." not in name}
    for layer in range(layers_of(state)):
        at = f"model.layers.{layer}.block_sparse_moe"
        count = len([name for name in state if name.startswith(f"{at}.experts.") and name.endswith("w1.weight")])
        every = {
            name: torch.stack([state[f"{at}.experts.{expert}.{name}.weight"] for expert in range(count)])
            for name in ("w1", "w2", "w3")
        }
        if is_fused:
            every = {"gate_up_proj": torch.cat([every["w1"], every["w3"]], 1), "down_proj": every["w2"]}
        for name, value in every.items():
            made[f"{at}.experts.{name}"] = value.transpose(1, 2).contiguous() if is_transposed else value
    return renamed(made, ("block_sparse_moe", "mlp"), (r"mlp\.gate\.", "mlp.router."))


def expert_parallel(state: State, world: int) -> list[State]:
    """Return the parts of ranks that have some experts each, numbered from 0, and all of the rest."""
    parts: list[State] = [{} for _ in range(world)]
    count = 1 + max(int(number) for name in state for number in re.findall(r"experts\.(\d+)\.", name))
    for name, value in state.items():
        number = re.search(r"experts\.(\d+)\.", name)
        if number is None:
            for part in parts:
                part[name] = value
        else:
            rank, local = divmod(int(number[1]), count // world)
            parts[rank][name.replace(number[0], f"experts.{local}.")] = value
    return parts


def rotary_halves(value: Tensor) -> Tensor:
    """Return rows of heads from pairs that stand beside each other (Meta) to halves (transformers)."""
    rows = value.reshape(-1, HEAD // 2, 2, *value.shape[1:])
    return rows.transpose(1, 2).reshape(value.shape)


def halves(state: State, names: str = "qk") -> State:
    """Return a decoder whose queries and keys are ordered for a rotation of halves."""
    pattern = re.compile(rf"self_attn\.[{names}]_proj\.")
    return {name: rotary_halves(value) if pattern.search(name) else value for name, value in state.items()}


def of_mindspore(state: State) -> State:
    """Return names as MindSpore has them."""
    made = {name: value for name, value in state.items() if "num_batches_tracked" not in name}
    return renamed(
        made,
        (r"(LayerNorm|bn|norm\d?|ln_\w)\.weight$", r"\1.gamma"),
        (r"(LayerNorm|bn|norm\d?|ln_\w)\.bias$", r"\1.beta"),
        (r"running_mean$", "moving_mean"),
        (r"running_var$", "moving_variance"),
        (r"(embeddings|embed_tokens|wte|wpe)\.weight$", r"\1.embedding_table"),
    )


def gates(value: Tensor, order: Sequence[int]) -> Tensor:
    """Return the four gates of an LSTM in another order."""
    parts = value.chunk(4)
    return torch.cat([parts[number] for number in order])


def onnx_gates(state: State) -> State:
    """Return an LSTM in the order of ONNX: input, output, forget, cell."""
    made = {name: gates(value, (0, 3, 1, 2)) for name, value in state.items()}
    return renamed(made, (r"rnn\.weight_ih_l", "lstm.W_"), (r"rnn\.weight_hh_l", "lstm.R_"), (r"rnn\.bias", "lstm.B"))


def quantised(state: State) -> State:
    """Return matrices in int8 with a scale a row."""
    made: State = {}
    for name, value in state.items():
        if value.dim() == 2 and "layers" in name:
            scale = value.abs().amax(1, keepdim=True) / 127
            made[name] = (value / scale).round().to(torch.int8)
            made[f"{name}_scale"] = scale
        else:
            made[name] = value
    return made
