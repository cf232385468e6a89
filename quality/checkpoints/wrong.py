"""Wrong conversions: what a converter does wrongly in one place, or throughout."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quality.checkpoints import conversions as to, files
from quality.checkpoints.entries import Entry, layer
from quality.checkpoints.models import HEAD, HEADS, HIDDEN, State, bert, convnet, gpt2, llama, lstm, trained
from quality.checkpoints.right import by_names, by_other_groups, padded

Change = Callable[[Tensor], Tensor]


def exchanged(state: State, first: str, second: str) -> State:
    """Return a state in which tensors whose names begin with `first` have the values of those with `second`."""
    made = dict(state)
    for name in state:
        if name.startswith(first):
            other = second + name.removeprefix(first)
            made[name], made[other] = state[other], state[name]
    return made


def changed(state: State, pattern: str, change: Change) -> State:
    """Return a state in which tensors with such a name are changed."""
    assert any(re.search(pattern, name) for name in state)
    return {name: change(value).contiguous() if re.search(pattern, name) else value for name, value in state.items()}


def from_another_layer(state: State, pattern: str, source: int, target: int) -> State:
    """Return a state in which tensors of layer `target` have the values of layer `source`."""
    made = dict(state)
    for name in state:
        if re.search(rf"layers\.{target}\.{pattern}", name):
            made[name] = state[name.replace(f"layers.{target}.", f"layers.{source}.")]
    return made


def _at(number: int, name: str) -> str:
    return f"model.layers.{number}.{name}"


def _swap(number: int, first: str, second: str) -> Callable[[State], State]:
    return lambda state: exchanged(state, _at(number, first), _at(number, second))


def _then(*steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(content: Any) -> Any:
        for step in steps:
            content = step(content)
        return content

    return run


def _change(pattern: str, change: Change) -> Callable[[State], State]:
    return lambda state: changed(state, pattern, change)


def _same(state: Any) -> Any:
    return state


def _row_zero(value: Tensor) -> Tensor:
    made = value.clone()
    made[-1] = 0
    return made


def _rolled(value: Tensor, by: int = 1) -> Tensor:
    return torch.cat([value[:by], value[:-by]])


def _heads_exchanged(value: Tensor) -> Tensor:
    """Return columns in which head 1 and head 2 are exchanged."""
    parts = list(value.split(HEAD, 1))
    parts[1], parts[2] = parts[2], parts[1]
    return torch.cat(parts, 1)


def _through(dtype: torch.dtype) -> Change:
    return lambda value: value.to(dtype).to(value.dtype)


def _stale(value: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return value - 1e-3 * torch.randn(value.shape, generator=generator).sign() * value.abs().mean()


def _lora(value: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(12)
    low = torch.randn(value.shape[0], 2, generator=generator) @ torch.randn(2, value.shape[1], generator=generator)
    return value + 0.005 * low


def _repeated_groups(value: Tensor) -> Tensor:
    """Return the queries of two groups in turn in place of one group after the other."""
    return value.reshape(2, HEADS // 2, HEAD, -1).transpose(0, 1).reshape(value.shape)


def _of_rank(parts: Sequence[State], rank: int, pattern: str, change: Change) -> list[State]:
    return [changed(part, pattern, change) if number == rank else part for number, part in enumerate(parts)]


def _ranks_exchanged(parts: Sequence[State], pattern: str) -> list[State]:
    names = [name for name in parts[0] if re.search(pattern, name)]
    assert names
    first, second = parts
    return [first | {name: second[name] for name in names}, second | {name: first[name] for name in names}]


def _moments(content: dict[str, Any], name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return an optimizer in which the state of a parameter is another one."""
    number = list(content["model"]).index(name)
    state = content["optimizer"]["state"]
    return {**content, "optimizer": content["optimizer"] | {"state": state | {number: change(state[number])}}}


def _moments_exchanged(content: dict[str, Any], first: str, second: str) -> dict[str, Any]:
    names, state = list(content["model"]), content["optimizer"]["state"]
    a, b = names.index(first), names.index(second)
    return {**content, "optimizer": content["optimizer"] | {"state": state | {a: state[b], b: state[a]}}}


def _swapped_kinds(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"exp_avg": state["exp_avg_sq"], "exp_avg_sq": state["exp_avg"]}


def _states_moved(content: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer in which each square matrix has the state of the square matrix before."""
    state = content["optimizer"]["state"]
    squares = [number for number in state if state[number]["exp_avg"].shape == (HIDDEN, HIDDEN)]
    moved = state | {number: state[squares[place - 1]] for place, number in enumerate(squares)}
    return {**content, "optimizer": content["optimizer"] | {"state": moved}}


def _stage_of_the_first(parts: Sequence[State]) -> list[State]:
    first, second = parts
    return [first, second | {name: value for name, value in first.items() if "layers." in name}]


_JOINED = partial(to.megatron, is_grouped=False)
_GROUPED = partial(llama, groups=2)
_FOUR = partial(llama, 4)
_MOE = partial(llama, 2, experts=4)
_PARTS = partial(files.ranks, key="model")
_RANKS = partial(files.ranks, name="rank{}.pt")
_EXPERTS = "block_sparse_moe.experts."
_KV = ("k_proj", "v_proj", "qkv", r"query_key_value", r"\b[kv]\b")
_MLP = ("gate", "up", "fc1", "mlp")
_SWAP = "exchang|swap|interchang|holds what"


def _parallel(state: State) -> list[State]:
    return to.tensor_parallel(to.megatron(state), 2)


def _wrong(
    name: str,
    golden: Callable[[], Any],
    convert: Callable[[Any], Any],
    fault: Callable[[Any], Any],
    at: str | tuple[str, ...],
    wrong: str,
    *,
    after: bool = False,
    instead: bool = False,
    says: str = "",
    **writers: Any,
) -> Entry:
    """Return an entry; the fault comes before the conversion, `after` it or `instead` of it."""
    broken = fault if instead else _then(convert, fault) if after else _then(fault, convert)
    places = (at,) if isinstance(at, str) else at
    return Entry(
        name, golden, convert, broken=broken, outcome="different", at=places, says=says, wrong=wrong, **writers
    )


ENTRIES = (
    _wrong(
        "key and value exchanged in layer 1",
        _FOUR,
        _JOINED,
        _swap(1, "self_attn.k_proj", "self_attn.v_proj"),
        layer(1, *_KV),
        "Layer 1 has its value where the others have their key.",
        says=_SWAP,
    ),
    _wrong(
        "key and value exchanged in layer 2, groups of heads",
        _GROUPED,
        to.megatron,
        _swap(2, "self_attn.k_proj", "self_attn.v_proj"),
        layer(2, *_KV),
        "Layer 2 has its value where the others have their key.",
        says=_SWAP,
        write_golden=files.safetensors,
    ),
    _wrong(
        "key and value exchanged in layer 0, heads of GPT-NeoX",
        partial(llama, bias=True),
        to.neox,
        _swap(0, "self_attn.k_proj", "self_attn.v_proj"),
        layer(0, *_KV),
        "Layer 0 has its value, and its bias, where the others have their key.",
        says=_SWAP,
    ),
    _wrong(
        "layers 1 and 2 exchanged",
        _FOUR,
        to.megatron,
        lambda state: exchanged(state, "model.layers.1.", "model.layers.2."),
        (layer(1, ""), layer(2, "") + "|1 and 2|2 and 1"),
        "Layer 1 of the conversion is layer 2 of the golden side, and the other way round.",
        says=_SWAP,
    ),
    _wrong(
        "feed-forward layers of 0 and 2 exchanged",
        llama,
        to.neox,
        lambda state: exchanged(state, "model.layers.0.mlp.", "model.layers.2.mlp."),
        (layer(0, *_MLP), layer(2, *_MLP) + "|0 and 2|2 and 0"),
        "The feed-forward layers of layers 0 and 2 are exchanged, their attention is not.",
        says=_SWAP,
        write=files.safetensors,
    ),
    _wrong(
        "norms of two layers exchanged",
        llama,
        lambda state: to.renamed(state, (r"^model\.layers", "decoder.blocks"), ("layernorm", "norm")),
        lambda state: exchanged(state, "model.layers.0.input_layernorm", "model.layers.1.input_layernorm"),
        (layer(0, "input"), layer(1, "input") + "|0 and 1|1 and 0"),
        "The first norms of layers 0 and 1 are exchanged.",
        says=_SWAP,
    ),
    _wrong(
        "experts 0 and 1 exchanged in layer 1",
        _MOE,
        lambda state: to.renamed(state, (r"block_sparse_moe\.experts\.(\d)", r"mlp.expert_\1")),
        _swap(1, f"{_EXPERTS}0", f"{_EXPERTS}1"),
        layer(1, "expert"),
        "Experts 0 and 1 of layer 1 are exchanged, the router is not.",
        says=_SWAP,
    ),
    _wrong(
        "experts 2 and 3 exchanged in layer 0, stacked",
        _MOE,
        to.stacked,
        _swap(0, f"{_EXPERTS}2", f"{_EXPERTS}3"),
        layer(0, "expert"),
        "Experts 2 and 3 of layer 0 are exchanged, the router is not.",
        says=_SWAP,
    ),
    _wrong(
        "ranks of experts exchanged in layer 1",
        _MOE,
        lambda state: to.expert_parallel(state, 2),
        lambda parts: _ranks_exchanged(parts, r"layers\.1\..*experts"),
        layer(1, "expert"),
        "Experts of layer 1 stand on the other rank, those of layer 0 do not.",
        after=True,
        says=_SWAP,
        write=_RANKS,
    ),
    _wrong(
        "one square matrix transposed",
        _FOUR,
        to.megatron,
        _change(r"layers\.2\.self_attn\.o_proj", torch.t),
        layer(2, "o_proj", "linear_proj", r"\bo\b"),
        "The output of attention of layer 2 is transposed, those of other layers are not.",
        says="transpos",
    ),
    _wrong(
        "one square matrix transposed under its own name",
        llama,
        _same,
        _change(r"layers\.1\.self_attn\.q_proj", torch.t),
        layer(1, "q_proj", r"\bq\b"),
        "The query of layer 1 is transposed.",
        says="transpos",
        write=files.safetensors,
    ),
    _wrong(
        "square matrices not transposed",
        gpt2,
        to.linear,
        lambda state: changed(state, r"attn\.out_proj\.weight", torch.t),
        r"out_proj|c_proj",
        "Matrices that are square were taken for transposed already.",
        after=True,
        says="transpos",
    ),
    _wrong(
        "parts by columns of one layer joined 1, 0",
        _GROUPED,
        lambda state: to.whole(_parallel(state)),
        lambda state: to.whole(to.tensor_parallel(state, 2), {"layers.1.self_attention.linear_proj": (1, 0)}),
        layer(1, "o_proj", "linear_proj", r"\bo\b"),
        "The two parts of the output of attention of layer 1 are joined in the wrong order.",
        after=True,
        says="order|1, 0|exchang",
    ),
    _wrong(
        "parts by columns of all layers joined 1, 0",
        llama,
        lambda state: to.whole(_parallel(state)),
        lambda state: to.whole(to.tensor_parallel(state, 2), {"linear_fc2": (1, 0)}),
        "down_proj|linear_fc2",
        "The parts of each down projection are joined in the wrong order, those of gate and up are not.",
        after=True,
        says="order|1, 0|exchang",
    ),
    _wrong(
        "parts of the vocabulary joined 1, 0",
        llama,
        lambda state: to.whole(_parallel(state)),
        lambda state: to.whole(to.tensor_parallel(state, 2), {"word_embeddings": (1, 0)}),
        "embed",
        "The two halves of the embedding are joined in the wrong order, those of the head are not.",
        after=True,
        says="order|1, 0|exchang",
    ),
    _wrong(
        "files of two ranks exchanged in one layer",
        llama,
        _parallel,
        lambda parts: _ranks_exchanged(parts, r"layers\.2\.mlp\.linear_fc1\.weight"),
        layer(2, *_MLP),
        "Rank 0 has the part of gate and up of layer 2 that is rank 1's.",
        after=True,
        says="order|1, 0|exchang",
        write=_PARTS,
    ),
    _wrong(
        "a replicated norm that differs on one rank",
        llama,
        _parallel,
        lambda parts: _of_rank(parts, 1, r"layers\.1\.mlp\.linear_fc1\.layer_norm", lambda value: value + 0.01),
        layer(1, "norm"),
        "Rank 1 has another copy of the second norm of layer 1.",
        after=True,
        says="cop(y|ies)|replica|rank",
        write=_PARTS,
    ),
    _wrong(
        "padding stays between the parts of the vocabulary",
        llama,
        to.megatron,
        lambda state: to.whole(to.tensor_parallel(state, 2, padded=14)),
        "embed|lm_head|output_layer",
        "Each rank's vocabulary was padded, and the parts are joined with the padding of rank 0 in the middle.",
        after=True,
        says="pad|row|shape",
    ),
    _wrong(
        "one layer joined where others have groups",
        _FOUR,
        to.megatron,
        lambda state: to.megatron(state, {1: "joined"}),
        layer(1, *_KV, "q_proj"),
        "Query, key and value of layer 1 stand one after the other, not by heads.",
        instead=True,
        says="layout|interleav|join|group",
    ),
    _wrong(
        "queries of two groups in turn in one layer",
        _GROUPED,
        to.megatron,
        _change(r"layers\.0\.self_attn\.q_proj", _repeated_groups),
        layer(0, "q_proj", "qkv", r"\bq\b"),
        "Heads of the query of layer 0 stand in another order.",
    ),
    _wrong(
        "two heads exchanged in the output of one layer",
        llama,
        to.megatron,
        _change(r"layers\.1\.self_attn\.o_proj", _heads_exchanged),
        layer(1, "o_proj", "linear_proj", r"\bo\b"),
        "Columns of heads 1 and 2 are exchanged in layer 1.",
    ),
    _wrong(
        "gate and up exchanged in one layer",
        _FOUR,
        to.megatron,
        _swap(3, "mlp.gate_proj", "mlp.up_proj"),
        layer(3, *_MLP),
        "Layer 3 has up where the others have gate.",
        says=_SWAP,
    ),
    _wrong(
        "gate and up exchanged in all layers",
        llama,
        lambda state: to.renamed(state, (r"^model\.", "module."), ("self_attn", "attention")),
        _then(*[_swap(number, "mlp.gate_proj", "mlp.up_proj") for number in range(3)]),
        "gate_proj|up_proj",
        "gate_proj has the values of up_proj, and the other way round.",
        says=_SWAP,
    ),
    _wrong(
        "gate and up exchanged in one expert",
        _MOE,
        partial(to.stacked, is_fused=True, is_transposed=False),
        _swap(1, f"{_EXPERTS}2.w1", f"{_EXPERTS}2.w3"),
        layer(1, "expert"),
        "Expert 2 of layer 1 has w3 where the others have w1.",
    ),
    _wrong(
        "the last row lost",
        llama,
        to.neox,
        _change(r"layers\.2\.mlp\.down_proj", _row_zero),
        layer(2, "down_proj"),
        "The last row of the down projection of layer 2 is 0.",
    ),
    _wrong(
        "a word lost",
        llama,
        to.megatron,
        _change("embed_tokens", lambda value: value[:-1]),
        "embed",
        "The embedding has 99 words in place of 100.",
        says="shape|row",
    ),
    _wrong(
        "a stale layer",
        _FOUR,
        to.megatron,
        _change(r"layers\.2\.mlp\.(gate|up)_proj", _stale),
        layer(2, *_MLP),
        "Gate and up of layer 2 are those of an earlier step.",
    ),
    _wrong(
        "one tensor through float16",
        llama,
        to.megatron,
        _change(r"layers\.1\.mlp\.down_proj", _through(torch.float16)),
        layer(1, "down_proj", "linear_fc2"),
        "The down projection of layer 1 was stored in float16 once.",
        says="round|cast|float16",
    ),
    _wrong(
        "one layer through bfloat16",
        llama,
        to.neox,
        _change(r"layers\.0\.", _through(torch.bfloat16)),
        layer(0, ""),
        "Layer 0 was stored in bfloat16 once.",
        says="round|cast|bfloat16",
        write=files.safetensors,
    ),
    _wrong(
        "norms with 1 added",
        llama,
        lambda state: to.renamed(state, (r"^model\.", "")),
        _change("norm", lambda value: value + 1),
        "norm",
        "Weights of norms have 1 added, as Gemma stores them, in a model that does not.",
    ),
    _wrong(
        "one norm with 1 subtracted",
        bert,
        to.of_mindspore,
        _change(r"layer\.1\.attention\.output\.LayerNorm\.weight", lambda value: value - 1),
        layer(1, "LayerNorm"),
        "The weight of a norm of layer 1 has 1 subtracted.",
        write=files.mindspore,
    ),
    _wrong(
        "weight and bias of a norm exchanged",
        bert,
        to.of_mindspore,
        lambda state: exchanged(
            state, "bert.encoder.layer.2.output.LayerNorm.weight", "bert.encoder.layer.2.output.LayerNorm.bias"
        ),
        layer(2, "LayerNorm"),
        "gamma of a norm of layer 2 has the values of the bias.",
        says=_SWAP,
        write=files.mindspore,
    ),
    _wrong(
        "mean and variance exchanged",
        convnet,
        to.of_mindspore,
        lambda state: exchanged(state, "features.1.bn.running_mean", "features.1.bn.running_var"),
        r"features\.1\.bn",
        "Mean and variance of the second batch norm are exchanged.",
        says=_SWAP,
        write=files.mindspore,
    ),
    _wrong(
        "kernels of one layer turned by 180 degrees",
        convnet,
        lambda state: to.renamed(state, ("features", "stages")),
        _change(r"features\.2\.conv", lambda value: value.flip(2, 3)),
        r"(features|stages)\.2\.conv",
        "A convolution in place of a cross-correlation, in one layer.",
    ),
    _wrong(
        "a bias dropped",
        partial(llama, bias=True),
        _same,
        lambda state: {name: value for name, value in state.items() if name != _at(1, "self_attn.k_proj.bias")},
        layer(1, r"k_proj\.bias"),
        "The bias of the key of layer 1 is missing.",
        says="alone|only|missing",
    ),
    _wrong(
        "a bias of 0 in a joined layer",
        partial(llama, bias=True),
        to.megatron,
        _change(r"layers\.2\.self_attn\.v_proj\.bias", torch.zeros_like),
        layer(2, r"v_proj\.bias", r"qkv\.bias"),
        "The bias of the value of layer 2 is 0.",
    ),
    _wrong(
        "queries scaled in all layers",
        llama,
        to.megatron,
        _change("q_proj", lambda value: value * HEAD**-0.5),
        "q_proj|qkv",
        "The factor of attention is in the weight of the query.",
    ),
    _wrong(
        "one matrix negated",
        _GROUPED,
        to.megatron,
        _change(r"layers\.1\.self_attn\.v_proj", torch.neg),
        layer(1, "v_proj", "qkv", r"\bv\b"),
        "The value of layer 1 has the other sign.",
    ),
    _wrong(
        "rotation of queries alone",
        llama,
        to.halves,
        lambda state: to.halves(state, "q"),
        "q_proj|k_proj",
        "Rows of queries are in the order of transformers, rows of keys in Meta's.",
        instead=True,
    ),
    _wrong(
        "rotation left out in one layer",
        _FOUR,
        to.halves,
        lambda state: {
            name: state[name] if name.startswith("model.layers.2.") else value
            for name, value in to.halves(state).items()
        },
        layer(2, "q_proj", "k_proj"),
        "Rows of layer 2 are in Meta's order, those of the other layers in the order of transformers.",
        instead=True,
    ),
    _wrong(
        "rows of the embedding shifted by one",
        llama,
        to.megatron,
        _change("embed_tokens", _rolled),
        "embed",
        "Each word has the embedding of the word before.",
    ),
    _wrong(
        "places shifted by two",
        gpt2,
        to.linear,
        _change(r"wpe", partial(_rolled, by=2)),
        "wpe",
        "Positions begin at 2, as those of OPT.",
    ),
    _wrong(
        "two words exchanged",
        partial(llama, is_tied=True),
        lambda state: to.renamed(state, (r"^model\.", "transformer.")),
        _change("embed_tokens", lambda value: value[[1, 0, *range(2, len(value))]]),
        "embed",
        "Words 0 and 1 are exchanged in the embedding, and not in the head that is tied to it.",
    ),
    _wrong(
        "a head that is tied no more",
        partial(llama, is_tied=True),
        _same,
        _change("lm_head", _stale),
        "lm_head",
        "The head of a tied model has other values than its embedding.",
    ),
    _wrong(
        "a scale that is twice too large",
        lambda: to.quantised(llama()),
        lambda state: to.renamed(state, (r"^model\.", "decoder.")),
        _change(r"layers\.1\.mlp\.up_proj\.weight_scale", lambda value: value * 2),
        layer(1, "up_proj"),
        "The scales of the int8 matrix up of layer 1 are twice too large.",
    ),
    _wrong(
        "int8 with a scale that is twice too large",
        llama,
        to.quantised,
        _change(r"layers\.2\.self_attn\.o_proj\.weight_scale", lambda value: value * 2),
        layer(2, "o_proj"),
        "The scales of the int8 output of attention of layer 2 are twice too large.",
        after=True,
    ),
    _wrong(
        "scales of another layer",
        llama,
        to.quantised,
        lambda state: from_another_layer(state, r"mlp\.down_proj\.weight_scale", 0, 1),
        layer(1, "down_proj"),
        "The scales of the int8 matrix down of layer 1 are those of layer 0.",
        after=True,
    ),
    _wrong(
        "a value lost in the padding",
        llama,
        padded,
        _change("lm_head", lambda value: torch.cat([value[:99], torch.zeros_like(value[:1]), value[100:]])),
        "lm_head",
        "The last word of the head is 0, as the padding behind it.",
        after=True,
    ),
    _wrong(
        "a stage that has the layers of the first",
        _FOUR,
        lambda state: to.pipelined(to.megatron(state), 2),
        _stage_of_the_first,
        layer(2, "") + r"|layers?\W+3\b|mp_rank_01|^1\.",
        "The second stage has the layers of the first one.",
        after=True,
        write=_PARTS,
    ),
    _wrong(
        "a layer that is there twice",
        _FOUR,
        to.megatron,
        lambda state: from_another_layer(state, "mlp", 2, 3),
        layer(3, *_MLP),
        "The feed-forward layer of layer 3 is that of layer 2.",
    ),
    _wrong(
        "rows of one rank lost",
        llama,
        lambda state: to.sharded(state, 3),
        lambda parts: _of_rank(parts, 2, r"layers\.0\.mlp\.gate_proj", torch.zeros_like),
        layer(0, "gate_proj"),
        "Rows of gate of layer 0 that the last rank has are 0.",
        after=True,
        write=_RANKS,
    ),
    _wrong(
        "two gates exchanged in one layer",
        lstm,
        to.onnx_gates,
        _change(r"(weight|bias)_(ih|hh)_l1", partial(to.gates, order=(1, 0, 2, 3))),
        r"(weight|bias|[WRB])_\w*?1\b|layer\W+1",
        "Input and forget gate of layer 1 are exchanged.",
    ),
    _wrong(
        "an adapter merged twice in one layer",
        _GROUPED,
        to.megatron,
        _change(r"layers\.1\.self_attn\.q_proj", _lora),
        layer(1, "q_proj", "qkv", r"\bq\b"),
        "A low-rank addition was merged once more in layer 1.",
    ),
    _wrong(
        "moments of a parameter exchanged",
        lambda: trained(llama(2)),
        by_other_groups,
        lambda content: _moments(content, _at(1, "mlp.up_proj.weight"), _swapped_kinds),
        layer(1, "up_proj") + r"|state\W+1[35]\b",
        "The first moment of up of layer 1 is its second one.",
        says=_SWAP,
    ),
    _wrong(
        "moments of two parameters exchanged",
        lambda: trained(llama(2)),
        by_other_groups,
        lambda content: _moments_exchanged(
            content, _at(0, "self_attn.q_proj.weight"), _at(0, "self_attn.o_proj.weight")
        ),
        layer(0, "q_proj", "o_proj") + r"|state\W+[14]\b",
        "Query and output of layer 0 have each other's moments.",
        says=_SWAP,
    ),
    _wrong(
        "moments of two layers exchanged, by names",
        lambda: trained(llama(2)),
        by_names,
        lambda content: _moments_exchanged(content, _at(0, "mlp.gate_proj.weight"), _at(1, "mlp.gate_proj.weight")),
        (layer(0, "gate_proj"), layer(1, "gate_proj")),
        "Gates of layers 0 and 1 have each other's moments.",
        says=_SWAP,
    ),
    _wrong(
        "states that keep numbers of another order",
        lambda: trained(llama(2)),
        _same,
        _states_moved,
        r"(?i)optimizer|exp_avg|moment",
        "States of square matrices belong to the square matrix before.",
    ),
    _wrong(
        "a second moment lost",
        lambda: trained(llama(2)),
        by_names,
        lambda content: _moments(
            content,
            _at(1, "self_attn.v_proj.weight"),
            lambda state: state | {"exp_avg_sq": torch.zeros_like(state["exp_avg_sq"])},
        ),
        layer(1, "v_proj"),
        "The second moment of the value of layer 1 is 0.",
    ),
)
