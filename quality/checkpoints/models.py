"""Small random models, as dictionaries of tensors under the names that public libraries give them."""

from __future__ import annotations

import torch
from torch import Tensor

State = dict[str, Tensor]

HEADS, HEAD = 4, 8
HIDDEN = HEADS * HEAD
WORDS = 100


def _matrix(*shape: int) -> Tensor:
    return torch.randn(shape) * shape[-1] ** -0.5


def _norm(size: int = HIDDEN) -> Tensor:
    return 1 + 0.1 * torch.randn(size)


def llama(
    layers: int = 3,
    groups: int = HEADS,
    inner: int = 48,
    *,
    bias: bool = False,
    experts: int = 0,
    is_tied: bool = False,
    seed: int = 0,
) -> State:
    """Return a decoder as transformers names Llama, Qwen2 (`bias`) or Mixtral (`experts`).

    Args:
        layers: how many.
        groups: heads of key and value.
        inner: width of the feed-forward layers.
        bias: whether query, key and value have one.
        experts: in place of each feed-forward layer, with a router; 0 for none.
        is_tied: whether the head is the embedding.
        seed: of the random numbers.
    """
    torch.manual_seed(seed)
    state = {"model.embed_tokens.weight": _matrix(WORDS, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, heads in (("q", HEADS), ("k", groups), ("v", groups)):
            state[f"{at}.self_attn.{name}_proj.weight"] = _matrix(heads * HEAD, HIDDEN)
            if bias:
                state[f"{at}.self_attn.{name}_proj.bias"] = _matrix(heads * HEAD)
        state[f"{at}.self_attn.o_proj.weight"] = _matrix(HIDDEN, HIDDEN)
        if experts:
            state[f"{at}.block_sparse_moe.gate.weight"] = _matrix(experts, HIDDEN)
            for expert in range(experts):
                place = f"{at}.block_sparse_moe.experts.{expert}"
                state[f"{place}.w1.weight"] = _matrix(inner, HIDDEN)
                state[f"{place}.w2.weight"] = _matrix(HIDDEN, inner)
                state[f"{place}.w3.weight"] = _matrix(inner, HIDDEN)
        else:
            state[f"{at}.mlp.gate_proj.weight"] = _matrix(inner, HIDDEN)
            state[f"{at}.mlp.up_proj.weight"] = _matrix(inner, HIDDEN)
            state[f"{at}.mlp.down_proj.weight"] = _matrix(HIDDEN, inner)
        state[f"{at}.input_layernorm.weight"] = _norm()
        state[f"{at}.post_attention_layernorm.weight"] = _norm()
    state["model.norm.weight"] = _norm()
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if is_tied else _matrix(WORDS, HIDDEN)
    return state


def gpt2(layers: int = 3, seed: int = 1) -> State:
    """Return GPT-2 of transformers, whose matrices are stored as (inputs, outputs)."""
    torch.manual_seed(seed)
    state = {"transformer.wte.weight": _matrix(WORDS, HIDDEN), "transformer.wpe.weight": _matrix(24, HIDDEN)}
    for layer in range(layers):
        at = f"transformer.h.{layer}"
        shapes = {"attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN)}
        shapes |= {"mlp.c_fc": (HIDDEN, 4 * HIDDEN), "mlp.c_proj": (4 * HIDDEN, HIDDEN)}
        for name, shape in shapes.items():
            state |= {f"{at}.{name}.weight": _matrix(*shape), f"{at}.{name}.bias": _matrix(shape[1])}
        for name in ("ln_1", "ln_2"):
            state |= {f"{at}.{name}.weight": _norm(), f"{at}.{name}.bias": _matrix(HIDDEN)}
    return state | {"transformer.ln_f.weight": _norm(), "transformer.ln_f.bias": _matrix(HIDDEN)}


def bert(layers: int = 3, seed: int = 2) -> State:
    """Return BERT of transformers."""
    torch.manual_seed(seed)
    state: State = {}
    for name, rows in (("word", WORDS), ("position", 24), ("token_type", 2)):
        state[f"bert.embeddings.{name}_embeddings.weight"] = _matrix(rows, HIDDEN)
    places = [("bert.embeddings.LayerNorm", 0, 0)]
    for layer in range(layers):
        at = f"bert.encoder.layer.{layer}"
        places += [(f"{at}.attention.self.{name}", HIDDEN, HIDDEN) for name in ("query", "key", "value")]
        places += [(f"{at}.attention.output.dense", HIDDEN, HIDDEN), (f"{at}.attention.output.LayerNorm", 0, 0)]
        places += [(f"{at}.intermediate.dense", HIDDEN, 64), (f"{at}.output.dense", 64, HIDDEN)]
        places += [(f"{at}.output.LayerNorm", 0, 0)]
    places += [("bert.pooler.dense", HIDDEN, HIDDEN)]
    for place, inputs, outputs in places:
        state[f"{place}.weight"] = _matrix(outputs, inputs) if inputs else _norm()
        state[f"{place}.bias"] = _matrix(outputs or HIDDEN)
    return state


def convnet(layers: int = 3, seed: int = 3) -> State:
    """Return convolutions with batch norm, and a classifier."""
    torch.manual_seed(seed)
    state: State = {}
    for layer in range(layers):
        inputs = 16 if layer else 3
        state[f"features.{layer}.conv.weight"] = _matrix(16, inputs, 3, 3)
        state[f"features.{layer}.bn.weight"] = _norm(16)
        state[f"features.{layer}.bn.bias"] = _matrix(16)
        state[f"features.{layer}.bn.running_mean"] = _matrix(16)
        state[f"features.{layer}.bn.running_var"] = torch.rand(16) + 0.5
        state[f"features.{layer}.bn.num_batches_tracked"] = torch.tensor(1000)
    return state | {"classifier.weight": _matrix(10, 16), "classifier.bias": _matrix(10)}


def lstm(layers: int = 3, seed: int = 4) -> State:
    """Return an LSTM of PyTorch: gates in the order input, forget, cell, output."""
    torch.manual_seed(seed)
    state: State = {}
    for layer in range(layers):
        for side in ("ih", "hh"):
            state[f"rnn.weight_{side}_l{layer}"] = _matrix(4 * HIDDEN, HIDDEN)
            state[f"rnn.bias_{side}_l{layer}"] = _matrix(4 * HIDDEN)
    return state


def vit(layers: int = 3, seed: int = 5) -> State:
    """Return a vision transformer as timm names it."""
    torch.manual_seed(seed)
    state = {"cls_token": _matrix(1, 1, HIDDEN), "pos_embed": _matrix(1, 17, HIDDEN)}
    state |= {"patch_embed.proj.weight": _matrix(HIDDEN, 3, 4, 4), "patch_embed.proj.bias": _matrix(HIDDEN)}
    for layer in range(layers):
        at = f"blocks.{layer}"
        for name, rows, columns in (
            ("attn.qkv", 3 * HIDDEN, HIDDEN),
            ("attn.proj", HIDDEN, HIDDEN),
            ("mlp.fc1", 64, HIDDEN),
            ("mlp.fc2", HIDDEN, 64),
        ):
            state |= {f"{at}.{name}.weight": _matrix(rows, columns), f"{at}.{name}.bias": _matrix(rows)}
        for name in ("norm1", "norm2"):
            state |= {f"{at}.{name}.weight": _norm(), f"{at}.{name}.bias": _matrix(HIDDEN)}
    return state | {"norm.weight": _norm(), "norm.bias": _matrix(HIDDEN), "head.weight": _matrix(10, HIDDEN)}


def mamba(layers: int = 3, seed: int = 6) -> State:
    """Return a state space model, whose convolution has one channel a group."""
    torch.manual_seed(seed)
    state = {"backbone.embedding.weight": _matrix(WORDS, HIDDEN)}
    for layer in range(layers):
        at = f"backbone.layers.{layer}"
        state[f"{at}.mixer.in_proj.weight"] = _matrix(128, HIDDEN)
        state[f"{at}.mixer.conv1d.weight"] = _matrix(64, 1, 4)
        state[f"{at}.mixer.conv1d.bias"] = _matrix(64)
        state[f"{at}.mixer.A_log"] = torch.log(torch.rand(64, 8) + 1)
        state[f"{at}.mixer.D"] = _norm(64)
        state[f"{at}.mixer.out_proj.weight"] = _matrix(HIDDEN, 64)
        state[f"{at}.norm.weight"] = _norm()
    return state | {"backbone.norm_f.weight": _norm()}


def trained(model: State, steps: int = 3, *, is_grouped: bool = False) -> dict[str, object]:
    """Return the state of AdamW after some steps, by numbers; `is_grouped` puts what is not decayed behind the rest."""
    torch.manual_seed(7)
    parameters = {name: value.clone().requires_grad_() for name, value in model.items() if value.is_floating_point()}
    gradients = {name: [torch.randn_like(value) * 0.01 for _ in range(steps)] for name, value in parameters.items()}
    decayed = [value for name, value in parameters.items() if value.dim() > 1]
    plain = [value for name, value in parameters.items() if value.dim() < 2]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups if is_grouped else list(parameters.values()), lr=1e-5)
    for step in range(steps):
        for name, value in parameters.items():
            value.grad = gradients[name][step]
        optimizer.step()
    return {"model": {name: value.detach() for name, value in parameters.items()}, "optimizer": optimizer.state_dict()}
