"""Networks of packages for the third part, which was written when the accounting was done: none is in the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quality.accounting.foreign import packages
from quality.accounting.foreign.packages import (
    _SEQUENCES as SEQUENCES,
    _VISION as VISION,
    _classified,
    _decoder,
    _denoised,
    _encoder,
    _images,
    _model,
    _sequences,
    _timm,
    _tokens,
    _torchvision,
)
from quality.accounting.foreign.training import Training
from quality.architectures.torchvision_operators import make_importable


def _speech(kind: str, **settings: Any) -> Training:
    """Letters from sound."""
    sizes = {name: value for name, value in packages._SMALL.items() if name != "max_position_embeddings"}
    sizes |= {"conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_conv_pos_embeddings": 8}
    sizes |= {"num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0}
    model = _model(kind, "ForCTC", **sizes, **settings)
    batch = {"sound": torch.randn(2, 640), "labels": _tokens(length=4)}
    return Training(model, batch, lambda net, batch: net(input_values=batch["sound"], labels=batch["labels"]).loss)


def _speech_to_text() -> Training:
    sizes = {**SEQUENCES, "max_source_positions": 32, "max_target_positions": 32, "input_feat_per_channel": 12}
    del sizes["max_position_embeddings"]
    model = _model("speech_to_text", "ForSpeechSeq2Seq", **sizes, conv_channels=16, bos_token_id=1)
    batch = {"sound": torch.randn(2, 24, 12), "labels": _tokens(length=6)}
    return Training(model, batch, lambda net, batch: net(input_features=batch["sound"], labels=batch["labels"]).loss)


def _patchtst() -> Training:
    make_importable()
    import transformers

    model = transformers.PatchTSTForPrediction(
        transformers.PatchTSTConfig(
            num_input_channels=3, context_length=24, patch_length=4, patch_stride=4, prediction_length=6, d_model=16,
            num_hidden_layers=2, num_attention_heads=2, ffn_dim=24,
        )
    )  # fmt: skip
    batch = {"past": torch.randn(3, 24, 3), "future": torch.randn(3, 6, 3)}
    return Training(model, batch, lambda net, batch: net(past_values=batch["past"], future_values=batch["future"]).loss)


def _forecast(kind: str, **settings: Any) -> Training:
    """The future of a series, with an encoder and a decoder."""
    make_importable()
    import transformers

    sizes = {"prediction_length": 4, "context_length": 10, "lags_sequence": [1, 2], "num_time_features": 2}
    sizes |= {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    configuration = transformers.AutoConfig.for_model(kind, **sizes, **settings)
    model = getattr(transformers, f"{type(configuration).__name__.removesuffix('Config')}ForPrediction")(configuration)
    batch = {
        "past_values": torch.randn(3, 12),
        "past_time_features": torch.randn(3, 12, 2),
        "past_observed_mask": torch.ones(3, 12),
        "future_values": torch.randn(3, 4),
        "future_time_features": torch.randn(3, 4, 2),
    }
    return Training(model, batch, lambda net, batch: net(**batch).loss)


def _siglip() -> Training:
    text = {name: value for name, value in packages._SMALL.items() if name != "pad_token_id"}
    model = _model("siglip", "", text_config=text, vision_config=VISION)
    batch = {"ids": _tokens(length=8), "pixels": torch.randn(2, 3, 32, 32)}
    return Training(
        model,
        batch,
        lambda net, batch: net(input_ids=batch["ids"], pixel_values=batch["pixels"], return_loss=True).loss,
    )


def _vilt() -> Training:
    make_importable()
    import transformers

    sizes = {**packages._SMALL, **VISION, "num_labels": 5}
    model = transformers.ViltForQuestionAnswering(transformers.ViltConfig(**sizes))
    batch = {"ids": _tokens(length=8), "pixels": torch.randn(2, 3, 32, 32), "labels": torch.rand(2, 5)}
    return Training(
        model,
        batch,
        lambda net, batch: net(input_ids=batch["ids"], pixel_values=batch["pixels"], labels=batch["labels"]).loss,
    )


def _decision() -> Training:
    """Actions that follow states and what is still to be won."""
    make_importable()
    import transformers

    configuration = transformers.DecisionTransformerConfig(
        state_dim=5, act_dim=3, hidden_size=24, n_layer=2, n_head=2, max_ep_len=20
    )
    batch = {
        "states": torch.randn(2, 6, 5),
        "actions": torch.randn(2, 6, 3),
        "rewards": torch.randn(2, 6, 1),
        "returns_to_go": torch.randn(2, 6, 1),
        "timesteps": torch.arange(6).repeat(2, 1),
    }

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found = net(**batch, attention_mask=torch.ones(2, 6, dtype=torch.int64))
        return functional.mse_loss(found.action_preds, batch["actions"])

    return Training(transformers.DecisionTransformerModel(configuration), batch, loss)


def _segmented(name: str, **settings: Any) -> Training:
    """A class of each pixel."""
    make_importable()
    from torchvision.models import segmentation

    model = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=4, **settings)
    batch = {"pixels": torch.randn(2, 3, 32, 32), "labels": torch.randint(0, 4, (2, 32, 32))}
    return Training(
        model, batch, lambda net, batch: functional.cross_entropy(net(batch["pixels"])["out"], batch["labels"])
    )


def _detection() -> Training:
    """The head of a detection network, on features that are given."""
    make_importable()
    from torchvision.models.detection import fcos

    model = fcos.FCOSHead(32, 3, 4, 1)
    batch = {"near": torch.randn(2, 32, 6, 6), "far": torch.randn(2, 32, 3, 3)}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found = net([batch["near"], batch["far"]])
        return (
            found["cls_logits"].square().mean()
            + found["bbox_regression"].mean()
            + found["bbox_ctrness"].sigmoid().mean()
        )

    return Training(model, batch, loss)


def _diffusion(
    name: str, noisy: tuple[int, ...], conditions: Callable[[], dict[str, Tensor]], **settings: Any
) -> Training:
    make_importable()
    import diffusers

    return _denoised(getattr(diffusers, name)(**settings), torch.randn(*noisy), **conditions())


def _uvit() -> Training:
    make_importable()
    import diffusers

    model = diffusers.UVit2DModel(
        hidden_size=32, cond_embed_dim=16, micro_cond_encode_dim=4, micro_cond_embed_dim=4, encoder_hidden_size=16,
        vocab_size=20, codebook_size=16, in_channels=8, block_out_channels=8, num_res_blocks=1, block_num_heads=2,
        num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, sample_size=4, use_bias=True,
    )  # fmt: skip
    batch = {
        "ids": torch.randint(0, 16, (2, 4, 4)),
        "text": torch.randn(2, 5, 16),
        "pooled": torch.randn(2, 16),
        "micro": torch.randn(2, 1) + 3,
        "labels": torch.randint(0, 16, (2, 4, 4)),
    }

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(
            net(batch["ids"], batch["text"], batch["pooled"], batch["micro"]), batch["labels"]
        )

    return Training(model, batch, loss)


def _autoencoder_dc() -> Training:
    make_importable()
    import diffusers

    model = diffusers.AutoencoderDC(
        in_channels=3, latent_channels=4, attention_head_dim=4, encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"), encoder_block_out_channels=(8, 16),
        decoder_block_out_channels=(8, 16), encoder_layers_per_block=(1, 1), decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)), decoder_qkv_multiscales=((), (5,)), upsample_block_type="interpolate",
        downsample_block_type="stride_conv", decoder_norm_types="rms_norm", decoder_act_fns="silu", scaling_factor=0.4,
    )  # fmt: skip
    return Training(
        model,
        {"pixels": torch.randn(2, 3, 16, 16)},
        lambda net, batch: (net(batch["pixels"]).sample - batch["pixels"]).square().mean(),
    )


_T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
_T5 |= {"decoder_start_token_id": 0}

#: What builds each network.
LATE_PACKAGES: dict[str, Callable[[], Training]] = {
    "glm": partial(_decoder, "glm", num_key_value_heads=2, head_dim=8),
    "nemotron": partial(_decoder, "nemotron", num_key_value_heads=2),
    "persimmon": partial(_decoder, "persimmon"),
    "mpt": partial(_decoder, "mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=32),
    "xglm": partial(_decoder, "xglm", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    "granitemoe": partial(_decoder, "granitemoe", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    "jetmoe": partial(_decoder, "jetmoe", num_key_value_heads=2, kv_channels=8, num_local_experts=4),
    "gpt_oss": partial(_decoder, "gpt_oss", num_key_value_heads=2, head_dim=8, num_local_experts=4, sliding_window=4),
    "ctrl": partial(_decoder, "ctrl", n_embd=32, dff=48, n_layer=2, n_head=4, n_positions=32),
    "recurrent_gemma": partial(_decoder, "recurrent_gemma", num_hidden_layers=3, lru_width=32, attention_window_size=8),
    "lfm2": partial(_decoder, "lfm2", num_key_value_heads=2, full_attn_idxs=[1]),
    "diffllama": partial(_decoder, "diffllama", num_key_value_heads=2),
    "convbert": partial(_encoder, "convbert", embedding_size=16, conv_kernel_size=3, head_ratio=2),
    "fnet": partial(_encoder, "fnet"),
    "squeezebert": partial(_encoder, "squeezebert", embedding_size=32),
    "mobilebert": partial(_encoder, "mobilebert", embedding_size=16, intra_bottleneck_size=16),
    "megatron-bert": partial(_encoder, "megatron-bert"),
    "deberta": partial(
        _encoder, "deberta", relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=8
    ),
    "mbart": partial(_sequences, "mbart", **SEQUENCES),
    "led": partial(_sequences, "led", **SEQUENCES, attention_window=4, max_encoder_position_embeddings=32),
    "longt5": partial(
        _sequences, "longt5", **_T5, local_radius=4, encoder_attention_type="transient-global", global_block_size=4
    ),
    "m2m_100": partial(_sequences, "m2m_100", **SEQUENCES),
    "prophetnet": partial(
        _sequences, "prophetnet", vocab_size=64, hidden_size=32, encoder_ffn_dim=48, decoder_ffn_dim=48,
        num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4,
        ngram=2, num_buckets=8, relative_max_distance=16, max_position_embeddings=32, decoder_start_token_id=1,
    ),
    "beit": partial(_images, "beit", **VISION, use_absolute_position_embeddings=True),
    "focalnet": partial(
        _images, "focalnet", image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], focal_levels=[2, 2],
        focal_windows=[3, 3], drop_path_rate=0.0,
    ),
    "regnet": partial(_images, "regnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
    "bit": partial(_images, "bit", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=2),
    "swiftformer": partial(
        _images, "swiftformer", image_size=64, size=64, depths=[1, 1, 1, 1], embed_dims=[8, 16, 16, 24], mlp_ratio=2,
    ),
    "wavlm": partial(_speech, "wavlm", num_buckets=16, max_bucket_distance=32),
    "sew": partial(_speech, "sew", squeeze_factor=2),
    "speech_to_text": _speech_to_text,
    "patchtst": _patchtst,
    "autoformer": partial(_forecast, "autoformer", moving_average=3),
    "informer": partial(_forecast, "informer"),
    "siglip": _siglip,
    "vilt": _vilt,
    "decision_transformer": _decision,
    "timm cait": partial(
        _classified,
        partial(_timm, "cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2),
    ),
    "timm crossvit": partial(
        _classified,
        partial(
            _timm, "crossvit_tiny_240", img_size=48, img_scale=(1.0, 1.0), patch_size=(12, 16), embed_dim=(16, 32),
            depth=((1, 2, 0),), num_heads=(2, 2), mlp_ratio=(2, 2, 1),
        ),
        size=48,
    ),
    "timm inception_next": partial(
        _classified, partial(_timm, "inception_next_atto", dims=(8, 16, 24, 32), depths=(1, 1, 1, 1)), size=64
    ),
    "timm mambaout": partial(
        _classified, partial(_timm, "mambaout_femto", dims=(8, 16, 24, 32), depths=(1, 1, 1, 1)), size=64
    ),
    "timm resnest": partial(
        _classified, partial(_timm, "resnest14d", base_width=16, stem_width=8, layers=(1, 1, 1, 1))
    ),
    "timm sequencer": partial(
        _classified,
        partial(
            _timm, "sequencer2d_s", img_size=32, layers=(1, 1, 1, 1), embed_dims=(8, 16, 16, 16),
            hidden_sizes=(4, 8, 8, 8), patch_sizes=(4, 2, 1, 1),
        ),
    ),
    "timm starnet": partial(_classified, partial(_timm, "starnet_s050", base_dim=8, depths=(1, 1, 1, 1)), size=64),
    "timm twins": partial(
        _classified,
        partial(
            _timm, "twins_svt_small", img_size=64, embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4),
            depths=(2, 1, 1, 1), wss=(4, 4, 4, 2),
        ),
        size=64,
    ),
    "timm tnt": partial(
        _classified,
        partial(_timm, "tnt_s_patch16_224", img_size=32, embed_dim=24, inner_dim=8, depth=2, num_heads_outer=2,
                num_heads_inner=2),
    ),
    "torchvision vit": partial(
        _classified,
        lambda: __import__("torchvision").models.VisionTransformer(32, 8, 2, 2, 24, 48, num_classes=5, dropout=0.1),
    ),
    "torchvision mobilenet_v2": partial(
        _classified,
        partial(
            _torchvision, "mobilenet_v2", width_mult=0.25,
            inverted_residual_setting=[[1, 16, 1, 1], [3, 24, 2, 2], [3, 32, 1, 2]],
        ),
        size=32,
    ),
    "torchvision lraspp": partial(_segmented, "lraspp_mobilenet_v3_large"),
    "torchvision fcos head": _detection,
    "UVit2DModel": _uvit,
    "AutoencoderDC": _autoencoder_dc,
    "SanaTransformer2DModel": partial(
        _diffusion, "SanaTransformer2DModel", (2, 4, 8, 8),
        lambda: {"timestep": torch.tensor([3, 7]), "encoder_hidden_states": torch.randn(2, 6, 12)},
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=8, num_layers=2,
        num_cross_attention_heads=2, cross_attention_head_dim=8, cross_attention_dim=16, caption_channels=12,
        sample_size=8, patch_size=1,
    ),
    "UNet1DModel": partial(
        _diffusion, "UNet1DModel", (2, 4, 16), lambda: {"timestep": torch.tensor([3, 40])}, block_out_channels=(8, 16),
        in_channels=4, out_channels=4, down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
        up_block_types=("UpResnetBlock1D", "UpResnetBlock1D"), mid_block_type="MidResTemporalBlock1D",
        layers_per_block=1, use_timestep_embedding=True, act_fn="mish", out_block_type="OutConv1DBlock",
        time_embedding_type="positional", norm_num_groups=4, extra_in_channels=0, flip_sin_to_cos=True,
    ),
}  # fmt: skip
