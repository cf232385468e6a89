"""Networks of transformers, timm, torchvision and diffusers, with small random weights; nothing is fetched.

None of them is among those of quality/architectures but Longformer and RWKV, which write through views and indices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quality.accounting.foreign.training import Training
from quality.accounting.foreign.watching import spot
from quality.architectures.torchvision_operators import make_importable

_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LENGTH = 10


def _tokens(rows: int = 2, length: int = _LENGTH) -> Tensor:
    return torch.randint(3, 64, (rows, length))


def _model(kind: str, head: str, **settings: Any) -> Any:
    make_importable()
    import transformers

    configuration = transformers.AutoConfig.for_model(kind, **settings)
    return getattr(transformers, f"AutoModel{head}").from_config(configuration)


def _decoder(kind: str, **settings: Any) -> Training:
    model = _model(kind, "ForCausalLM", **{**_SMALL, **settings})
    ids = _tokens()
    return Training(
        model, {"ids": ids}, lambda net, batch: net(input_ids=batch["ids"], labels=batch["ids"], use_cache=False).loss
    )


def _encoder(kind: str, *, length: int = _LENGTH, **settings: Any) -> Training:
    model = _model(kind, "ForMaskedLM", **{**_SMALL, **settings})
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, length // 2 :] = 0
    batch = {"ids": _tokens(length=length), "mask": mask, "labels": _tokens(length=length)}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found: Tensor = net(input_ids=batch["ids"], attention_mask=batch["mask"], labels=batch["labels"]).loss
        return found

    return Training(model, batch, loss)


def _sequences(kind: str, **settings: Any) -> Training:
    model = _model(kind, "ForSeq2SeqLM", **settings)
    batch = {"ids": _tokens(), "labels": _tokens(length=7)}
    return Training(
        model, batch, lambda net, batch: net(input_ids=batch["ids"], labels=batch["labels"], use_cache=False).loss
    )


def _images(kind: str, *, size: int = 32, **settings: Any) -> Training:
    model = _model(kind, "ForImageClassification", num_labels=5, **settings)
    batch = {"pixels": torch.randn(2, 3, size, size), "labels": torch.tensor([1, 3])}
    return Training(model, batch, lambda net, batch: net(pixel_values=batch["pixels"], labels=batch["labels"]).loss)


def _classified(make: Callable[[], Any], *, rows: int = 2, size: int = 32) -> Training:
    make_importable()
    batch = {"pixels": torch.randn(rows, 3, size, size), "labels": torch.arange(rows) % 5}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found = net(batch["pixels"])
        with spot("label smoothing") as wrong:
            more = {"label_smoothing": 0.1} if wrong else {}
            return functional.cross_entropy(getattr(found, "logits", found), batch["labels"], **more)

    return Training(make(), batch, loss)


def _timm(name: str, **settings: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=5, **settings)


def _torchvision(name: str, **settings: Any) -> Any:
    from torchvision import models

    return models.get_model(name, weights=None, num_classes=5, **settings)


def _denoised(model: Any, noisy: Tensor, name: str = "sample", **conditions: Tensor) -> Training:
    batch = {"noisy": noisy, "noise": torch.randn_like(noisy), **conditions}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found = getattr(net(batch["noisy"], **{name: batch[name] for name in conditions}), name)
        return (found[:, : batch["noise"].shape[1]] - batch["noise"]).square().mean()

    return Training(model, batch, loss)


def _unet() -> Training:
    make_importable()
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return _denoised(model, torch.randn(2, 3, 16, 16), timestep=torch.tensor([3, 40]))


def _pixart() -> Training:
    make_importable()
    import diffusers

    model = diffusers.PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        sample_size=8,
        cross_attention_dim=16,
        caption_channels=12,
        in_channels=4,
        out_channels=4,
        use_additional_conditions=False,
    )
    text = torch.randn(2, 6, 12)
    return _denoised(model, torch.randn(2, 4, 8, 8), encoder_hidden_states=text, timestep=torch.tensor([3, 7]))


def _tiny_autoencoder() -> Training:
    make_importable()
    import diffusers

    model = diffusers.AutoencoderTiny(
        encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1), latent_channels=4,
    )  # fmt: skip
    return Training(
        model,
        {"pixels": torch.randn(2, 3, 16, 16)},
        lambda net, batch: (net(batch["pixels"]).sample - batch["pixels"]).square().mean(),
    )


_SEQUENCES = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}

#: What builds each network.
PACKAGES: dict[str, Callable[[], Training]] = {
    "stablelm": partial(_decoder, "stablelm", num_key_value_heads=2),
    "starcoder2": partial(_decoder, "starcoder2", num_key_value_heads=2),
    "cohere": partial(_decoder, "cohere", num_key_value_heads=2),
    "granite": partial(_decoder, "granite", num_key_value_heads=2, residual_multiplier=0.7),
    "olmoe": partial(_decoder, "olmoe", num_key_value_heads=2, **_EXPERTS),
    "gpt_neo": partial(_decoder, "gpt_neo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    "gpt_bigcode": partial(_decoder, "gpt_bigcode"),
    "codegen": partial(_decoder, "codegen", rotary_dim=4),
    "rwkv": partial(_decoder, "rwkv", attention_hidden_size=32),
    "albert": partial(_encoder, "albert", embedding_size=16),
    "distilbert": partial(_encoder, "distilbert", dim=32, hidden_dim=48, n_layers=2, n_heads=4),
    "roformer": partial(_encoder, "roformer"),
    "mpnet": partial(_encoder, "mpnet"),
    "esm": partial(_encoder, "esm", position_embedding_type="rotary", mask_token_id=3),
    "longformer": partial(_encoder, "longformer", attention_window=4),
    "pegasus": partial(_sequences, "pegasus", **_SEQUENCES),
    "marian": partial(_sequences, "marian", **_SEQUENCES),
    "umt5": partial(
        _sequences, "umt5", vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
        decoder_start_token_id=0, dropout_rate=0.0,
    ),
    "dinov2": partial(_images, "dinov2", **_VISION, mlp_ratio=2),
    "pvt_v2": partial(
        _images, "pvt_v2", size=32, image_size=32, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4], mlp_ratios=[2, 2, 2, 2],
    ),
    "poolformer": partial(_images, "poolformer", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1]),
    "timm xcit": partial(
        _classified, partial(_timm, "xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=2)
    ),
    "timm edgenext": partial(
        _classified, partial(_timm, "edgenext_xx_small", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), heads=(2, 2, 2, 2)),
        size=64,
    ),
    "timm levit": partial(
        _classified, partial(_timm, "levit_128s", img_size=32, embed_dim=(16, 24, 32), depth=(1, 1, 1)), rows=4
    ),
    "torchvision squeezenet": partial(_classified, partial(_torchvision, "squeezenet1_1"), size=48),
    "torchvision mnasnet": partial(_classified, partial(_torchvision, "mnasnet0_5"), size=32),
    "UNet2DModel": _unet,
    "PixArtTransformer2DModel": _pixart,
    "AutoencoderTiny": _tiny_autoencoder,
}  # fmt: skip
