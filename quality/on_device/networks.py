"""Architectures of transformers that run on any device: small ones, and two of a size that a GPU is used for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import transformers
from torch import Tensor, nn

#: (network, its arguments for one batch).
Built = tuple[nn.Module, dict[str, Tensor]]

_SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_CAUSAL = {**_SMALL, **_TOKENS, "num_key_value_heads": 2}
_IMAGES = {key: _SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}


def _built(kind: str, model: str, **settings: object) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(**settings)
    network: nn.Module = getattr(transformers, model)(config)
    return network


def _letters(rows: int = 2, length: int = 24, most: int = 90) -> dict[str, Tensor]:
    letters = torch.randint(5, most, (rows, length))
    return {"input_ids": letters, "labels": letters}


def _pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 3])}


def _mixtral() -> Built:
    settings = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
    return _built("Mixtral", "MixtralForCausalLM", **_CAUSAL, **settings), _letters()


def _t5() -> Built:
    settings = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    return _built("T5", "T5ForConditionalGeneration", vocab_size=99, **settings), _letters()


def _whisper() -> Built:
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _WHISPER_SIDE.items()}
    lengths = {"max_source_positions": 30, "max_target_positions": 64, "num_mel_bins": 8}
    network = _built(
        "Whisper",
        "WhisperForConditionalGeneration",
        **{**sides, **lengths, **_TOKENS, "vocab_size": 99, "d_model": 32, "decoder_start_token_id": 1},
    )
    return network, {"input_features": torch.randn(2, 8, 60), "labels": _letters()["labels"]}


_WHISPER_SIDE = {"layers": 1, "attention_heads": 4, "ffn_dim": 64}


def _wav2vec2() -> Built:
    layers = {"conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
    others = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}
    network = _built("Wav2Vec2", "Wav2Vec2ForCTC", vocab_size=32, **_IMAGES, **layers, **others)
    return network, {"input_values": torch.randn(2, 800), "labels": torch.randint(1, 30, (2, 6))}


def _llama_of_a_gpu() -> Built:
    """0.13 B parameters, 4 x 1,024 tokens."""
    size = {"vocab_size": 32_000, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16}
    others = {"num_key_value_heads": 8, "intermediate_size": 2816, "max_position_embeddings": 1024}
    return _built("Llama", "LlamaForCausalLM", **size, **others, **_TOKENS), _letters(4, 1024, 31_990)


class _Classifier(nn.Module):
    """A network that gives logits, with its loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Tensor, labels: Tensor) -> tuple[Tensor]:
        return (nn.functional.cross_entropy(self.network(pixel_values).logits, labels),)


def _resnet50() -> Built:
    network = _Classifier(_built("ResNet", "ResNetForImageClassification", num_labels=1000))
    return network, {"pixel_values": torch.randn(64, 3, 224, 224), "labels": torch.randint(0, 1000, (64,))}


SMALL: Mapping[str, Callable[[], Built]] = {
    "llama": lambda: (_built("Llama", "LlamaForCausalLM", **_CAUSAL), _letters()),
    "mixtral": _mixtral,
    "gpt2": lambda: (
        _built("GPT2", "GPT2LMHeadModel", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64),
        _letters(),
    ),
    "bert": lambda: (_built("Bert", "BertForMaskedLM", **_SMALL), _letters()),
    "mamba": lambda: (
        _built("Mamba", "MambaForCausalLM", vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8),
        _letters(),
    ),
    "t5": _t5,
    "whisper": _whisper,
    "vit": lambda: (
        _built("ViT", "ViTForImageClassification", **_IMAGES, image_size=32, patch_size=8, num_labels=5),
        _pictures(),
    ),
    "resnet": lambda: (
        _built(
            "ResNet",
            "ResNetForImageClassification",
            embedding_size=16,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            num_labels=5,
        ),
        _pictures(),
    ),
    "convnext": lambda: (
        _built(
            "ConvNext",
            "ConvNextForImageClassification",
            hidden_sizes=[16, 32],
            depths=[1, 1],
            num_stages=2,
            num_labels=5,
        ),
        _pictures(),
    ),
    "wav2vec2": _wav2vec2,
}
LARGE: Mapping[str, Callable[[], Built]] = {"llama of a GPU": _llama_of_a_gpu, "resnet50": _resnet50}


def build(name: str) -> Built:
    """Return the network in training, without dropout, and a batch, both drawn from one seed."""
    torch.manual_seed(0)
    network, batch = {**SMALL, **LARGE}[name]()
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute in ("attention_dropout", "dropout_p", "dropout", "activation_dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    return network, batch
