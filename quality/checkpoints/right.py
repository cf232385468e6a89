"""Right conversions."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quality.checkpoints import conversions as to, files
from quality.checkpoints.entries import Entry
from quality.checkpoints.models import State, bert, convnet, gpt2, llama, lstm, mamba, trained, vit


def _without(state: State, pattern: str) -> State:
    return {name: value for name, value in state.items() if not re.search(pattern, name)}


def _with_buffers(state: State) -> State:
    frequencies = 10000 ** (-torch.arange(4) / 4)
    made = dict(state)
    for layer in range(to.layers_of(state)):
        made[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = frequencies.clone()
        made[f"model.layers.{layer}.self_attn.bias"] = torch.ones(1, 1, 16, 16).tril().bool()
    return made


def mixed(state: State) -> State:
    """Return matrices in bfloat16, the rest in float32."""
    return {name: value.bfloat16() if value.dim() > 1 else value for name, value in state.items()}


def _flax(state: State) -> State:
    """Return a vision transformer with kernels as Flax has them: inputs in front of outputs."""
    made = {}
    for name, value in state.items():
        if value.dim() == 4:
            made[name.replace("weight", "kernel")] = value.permute(2, 3, 1, 0).contiguous()
        elif value.dim() == 2:
            made[name.replace("weight", "kernel")] = value.t().contiguous()
        else:
            made[re.sub(r"(norm\d?)\.weight", r"\1.scale", name)] = value
    return to.renamed(made, (r"blocks\.(\d+)", r"encoderblock_\1"))


def _channels_last(state: State) -> State:
    return {
        name: value.permute(0, 2, 3, 1).contiguous() if value.dim() == 4 else value for name, value in state.items()
    }


def by_other_groups(content: dict[str, Any]) -> dict[str, Any]:
    """Return the same optimizer as if it had been made of two groups: numbers follow another order of parameters."""
    model, optimizer = content["model"], content["optimizer"]
    names = list(model)
    order = [name for name in names if model[name].dim() > 1] + [name for name in names if model[name].dim() < 2]
    state = {number: optimizer["state"][names.index(name)] for number, name in enumerate(order)}
    group = {key: value for key, value in optimizer["param_groups"][0].items() if key != "params"}
    count = sum(value.dim() > 1 for value in model.values())
    groups = [group | {"params": list(range(count))}, group | {"params": list(range(count, len(order)))}]
    renaming = to.renamed(model, (r"^model\.", "module."))
    return {"model": renaming, "optimizer": {"state": state, "param_groups": groups}}


def by_names(content: dict[str, Any]) -> dict[str, Any]:
    """Return the same optimizer with names in place of numbers, as FSDP gathers it."""
    names = list(content["model"])
    state = {names[number]: value for number, value in content["optimizer"]["state"].items()}
    return {"model": content["model"], "optimizer": {"state": state}}


def _moments_beside(content: dict[str, Any]) -> State:
    """Return parameters and moments in one list, as MindSpore's optimizers name them."""
    names = list(content["model"])
    made = dict(content["model"])
    for number, state in content["optimizer"]["state"].items():
        made[f"moment1.{names[number]}"] = state["exp_avg"]
        made[f"moment2.{names[number]}"] = state["exp_avg_sq"]
    return to.of_mindspore(made)


def padded(state: State, rows: int = 28) -> State:
    """Return a vocabulary that ends with rows of zeros."""
    return {
        name: torch.cat([value, torch.zeros(rows, value.shape[1])])
        if "embed_tokens" in name or "lm_head" in name
        else value
        for name, value in state.items()
    }


def _cast(state: State, dtype: torch.dtype) -> State:
    return {name: value.to(dtype) for name, value in state.items()}


def _squeezed(value: Tensor) -> Tensor:
    return value.reshape([size for size in value.shape if size > 1])


def _without_counters() -> State:
    """Return convolutions without the number of batches, which MindSpore does not count."""
    return _without(convnet(), "num_batches_tracked")


_prefixed = partial(files.ranks, name="rank{}.pt")
_safe_parts = partial(files.ranks, name="model-{}.safetensors")
_megatron_parts = partial(files.ranks, key="model")
_grouped = partial(llama, groups=2)

ENTRIES = (
    Entry("Llama to Megatron, groups of heads", _grouped, to.megatron, files.torch_file, files.safetensors),
    Entry(
        "Llama to one matrix after the other, four layers",
        partial(llama, 4),
        partial(to.megatron, is_grouped=False),
        files.safetensors,
        files.safetensors_shards,
    ),
    Entry("Qwen2 with biases to Megatron", partial(llama, 3, 2, bias=True), to.megatron),
    Entry("Llama to heads of GPT-NeoX", llama, to.neox, files.safetensors),
    Entry("GPT-2 to nn.Linear", gpt2, to.linear, files.safetensors, files.safetensors),
    Entry("Mixtral to stacked experts", partial(llama, 2, experts=4), to.stacked),
    Entry(
        "Mixtral to stacked experts, gate and up joined",
        partial(llama, 2, experts=4),
        partial(to.stacked, is_fused=True, is_transposed=False),
        files.safetensors,
    ),
    Entry(
        "two ranks of tensor parallelism",
        _grouped,
        lambda state: to.tensor_parallel(to.megatron(state), 2),
        _megatron_parts,
    ),
    Entry(
        "four ranks of tensor parallelism against the whole",
        lambda: to.megatron(llama(4)),
        lambda state: to.tensor_parallel(state, 4),
        _megatron_parts,
    ),
    Entry(
        "two ranks against four",
        lambda: to.tensor_parallel(to.megatron(llama()), 2),
        lambda parts: to.tensor_parallel(to.whole(parts), 4),
        _megatron_parts,
        _megatron_parts,
    ),
    Entry("rows on three ranks", partial(llama, inner=50), lambda state: to.sharded(state, 3), _prefixed),
    Entry(
        "rows on eight ranks, safetensors",
        _without_counters,
        lambda state: to.sharded(state, 8),
        _safe_parts,
    ),
    Entry("torch.distributed.checkpoint of renamed weights", llama, to.neox, files.distributed, files.safetensors),
    Entry(
        "two pipeline stages that count layers from 0",
        partial(llama, 4),
        lambda state: to.pipelined(to.megatron(state), 2),
        _megatron_parts,
    ),
    Entry(
        "two stages of two chunks in turn",
        partial(llama, 4),
        lambda state: to.pipelined(to.megatron(state), 2, 2),
        partial(files.ranks, name="mp_rank_00_{:03}/model_optim_rng.pt"),
    ),
    Entry(
        "two ranks of experts that count from 0",
        partial(llama, 2, experts=4),
        lambda state: to.expert_parallel(state, 2),
        _prefixed,
    ),
    Entry(
        "tied head left out",
        partial(llama, is_tied=True),
        lambda state: _without(state, "lm_head"),
        files.safetensors,
        files.torch_file,
    ),
    Entry(
        "prefixes of wrappers",
        llama,
        lambda state: {f"module._orig_mod.{name}": value for name, value in state.items()},
        files.wrapped,
    ),
    Entry("batch norm to MindSpore", _without_counters, to.of_mindspore, files.mindspore),
    Entry("BERT to MindSpore", bert, to.of_mindspore, files.mindspore, files.safetensors),
    Entry("Meta's rotation to transformers'", partial(llama, groups=2), to.halves),
    Entry("LSTM to the gates of ONNX", lstm, to.onnx_gates),
    Entry("vision transformer to Flax", vit, _flax, files.safetensors),
    Entry("convolutions with channels last", convnet, _channels_last, files.safetensors, files.torch_legacy),
    Entry(
        "patches as a linear layer, tokens without a batch",
        vit,
        lambda state: {
            name: value.flatten(1) if value.dim() == 4 else _squeezed(value) if value.dim() == 3 else value
            for name, value in state.items()
        },
    ),
    Entry(
        "Mamba with a convolution of two dimensions",
        mamba,
        lambda state: to.renamed(
            {name: _squeezed(value) if "conv1d.weight" in name else value for name, value in state.items()},
            (r"^backbone", "model"),
            ("mixer", "ssm"),
        ),
    ),
    Entry(
        "norms of old TensorFlow names",
        bert,
        lambda state: to.renamed(
            state, (r"LayerNorm\.weight", "LayerNorm.gamma"), (r"LayerNorm\.bias", "LayerNorm.beta")
        ),
    ),
    Entry(
        "mixed dtypes in another layout",
        lambda: mixed(llama(groups=2)),
        to.megatron,
        files.safetensors,
        files.safetensors_shards,
    ),
    Entry("the form before PyTorch 1.6", gpt2, lambda state: state, files.torch_legacy, files.torch_file),
    Entry("optimizer states in another order of numbers", lambda: trained(llama(2)), by_other_groups),
    Entry("optimizer states by names", lambda: trained(llama(2)), by_names),
    Entry(
        "moments beside parameters, MindSpore",
        lambda: trained(bert(2)),
        _moments_beside,
        files.mindspore,
        outcome="said",
        says="step",
    ),
    Entry(
        "counters of batch norm dropped",
        convnet,
        to.of_mindspore,
        files.mindspore,
        outcome="said",
        says="num_batches_tracked",
    ),
    Entry(
        "buffers dropped",
        lambda: _with_buffers(llama()),
        lambda state: _without(state, "inv_freq|attn.bias"),
        outcome="said",
        says="inv_freq",
    ),
    Entry(
        "cast to bfloat16",
        llama,
        partial(_cast, dtype=torch.bfloat16),
        files.safetensors,
        outcome="said",
        says="cast|round",
    ),
    Entry(
        "cast to float16 in another layout",
        _grouped,
        lambda state: _cast(to.megatron(state), torch.float16),
        outcome="said",
        says="cast|round",
    ),
    Entry(
        "int8 with a scale a row", llama, to.quantised, files.safetensors, outcome="said", says="int8|quanti[sz]|scale"
    ),
    Entry("padded vocabulary", llama, padded, outcome="said", says="pad"),
    Entry(
        "padded vocabulary on two ranks",
        llama,
        lambda state: to.tensor_parallel(to.megatron(padded(state)), 2),
        _megatron_parts,
        outcome="said",
        says="pad",
    ),
)
