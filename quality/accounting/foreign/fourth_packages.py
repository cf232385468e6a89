"""Networks of packages for the fourth part: none is in the other three, nor among those of quality/architectures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from quality.accounting.foreign import packages
from quality.accounting.foreign.late_packages import _diffusion, _speech
from quality.accounting.foreign.packages import (
    _SEQUENCES as SEQUENCES,
    _VISION as VISION,
    _classified,
    _decoder,
    _encoder,
    _images,
    _model,
    _sequences,
    _timm,
    _tokens,
)
from quality.accounting.foreign.training import Training
from quality.architectures.torchvision_operators import make_importable


def _perceiver() -> Training:
    """Few latent vectors that look at many words."""
    sizes = {"num_latents": 6, "d_latents": 24, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 2}
    sizes |= {"num_self_attention_heads": 2, "num_cross_attention_heads": 2, "vocab_size": 64}
    model = _model("perceiver", "ForMaskedLM", **sizes, max_position_embeddings=10, qk_channels=16, v_channels=24)
    batch = {"ids": _tokens(), "labels": _tokens()}
    return Training(model, batch, lambda net, batch: net(inputs=batch["ids"], labels=batch["labels"]).loss)


def _whisper() -> Training:
    sizes = {**SEQUENCES, "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 16}
    del sizes["max_position_embeddings"]
    model = _model("whisper", "ForSpeechSeq2Seq", **sizes, bos_token_id=1)
    batch = {"sound": torch.randn(2, 8, 24), "labels": _tokens(length=6)}
    return Training(model, batch, lambda net, batch: net(input_features=batch["sound"], labels=batch["labels"]).loss)


def _clip() -> Training:
    text = {name: value for name, value in packages._SMALL.items() if name not in ("pad_token_id", "eos_token_id")}
    model = _model("clip", "", text_config=text, vision_config=VISION, projection_dim=16)
    batch = {"ids": _tokens(length=8), "pixels": torch.randn(2, 3, 32, 32)}
    return Training(
        model,
        batch,
        lambda net, batch: net(input_ids=batch["ids"], pixel_values=batch["pixels"], return_loss=True).loss,
    )


def _spectra() -> Training:
    """A class of a spectrogram."""
    make_importable()
    import transformers

    sizes = {**VISION, "max_length": 24, "num_mel_bins": 16, "patch_size": 8, "time_stride": 4, "frequency_stride": 4}
    del sizes["image_size"]
    model = transformers.ASTForAudioClassification(transformers.ASTConfig(**sizes, num_labels=5))
    batch = {"sound": torch.randn(2, 24, 16), "labels": torch.tensor([1, 3])}
    return Training(model, batch, lambda net, batch: net(input_values=batch["sound"], labels=batch["labels"]).loss)


def _masked_pictures() -> Training:
    """Patches that are left out are made again."""
    make_importable()
    import transformers

    sizes = {**VISION, "decoder_hidden_size": 24, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**sizes, decoder_intermediate_size=32))
    batch = {"pixels": torch.randn(2, 3, 32, 32), "noise": torch.rand(2, 16)}
    return Training(model, batch, lambda net, batch: net(pixel_values=batch["pixels"], noise=batch["noise"]).loss)


def _proposals() -> Training:
    """The head of a detection network that says where something may be, on features that are given."""
    make_importable()
    from torchvision.models.detection import rpn

    model = rpn.RPNHead(16, 3, conv_depth=2)
    batch = {"near": torch.randn(2, 16, 6, 6), "far": torch.randn(2, 16, 3, 3)}

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        scores, places = net([batch["near"], batch["far"]])
        parts = [functional.softplus(one).mean() + other.abs().mean() for one, other in zip(scores, places)]
        return parts[0] + parts[1]

    return Training(model, batch, loss)


def _quantised() -> Training:
    make_importable()
    import diffusers

    model = diffusers.VQModel(
        block_out_channels=(8, 16), layers_per_block=1, latent_channels=4, num_vq_embeddings=12, norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, sample_size=16,
    )  # fmt: skip

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        found = net(batch["pixels"])
        return (found.sample - batch["pixels"]).square().mean() + found.commit_loss.mean()

    return Training(model, {"pixels": torch.randn(2, 3, 16, 16)}, loss)


def _text(rows: int = 2, words: int = 6, width: int = 12) -> dict[str, Tensor]:
    return {"encoder_hidden_states": torch.randn(rows, words, width)}


#: What builds each network.
FOURTH_PACKAGES: dict[str, Callable[[], Training]] = {
    "olmo": partial(_decoder, "olmo", num_key_value_heads=2, clip_qkv=1.0),
    "phimoe": partial(_decoder, "phimoe", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    "helium": partial(_decoder, "helium", num_key_value_heads=2, head_dim=8),
    "smollm3": partial(_decoder, "smollm3", num_key_value_heads=2, no_rope_layers=[1, 0]),
    "exaone4": partial(_decoder, "exaone4", num_key_value_heads=2, sliding_window=4, sliding_window_pattern=2),
    "apertus": partial(_decoder, "apertus", num_key_value_heads=2),
    "nanochat": partial(_decoder, "nanochat", num_key_value_heads=2),
    "bitnet": partial(_decoder, "bitnet", num_key_value_heads=2),
    "biogpt": partial(_decoder, "biogpt"),
    "cohere2": partial(_decoder, "cohere2", num_key_value_heads=2),
    "qwen2_moe": partial(
        _decoder, "qwen2_moe", num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    ),
    "qwen3_next": partial(
        _decoder, "qwen3_next", num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        shared_expert_intermediate_size=24, head_dim=8, linear_num_value_heads=4, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"],
    ),
    "jamba": partial(
        _decoder, "jamba", num_key_value_heads=2, num_experts=2, num_experts_per_tok=1, attn_layer_period=2,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False, mamba_d_state=4,
        mamba_dt_rank=4,
    ),
    "minimax": partial(
        _decoder, "minimax", num_key_value_heads=2, num_local_experts=4, head_dim=8, block_size=4,
        layer_types=["linear_attention", "full_attention"],
    ),
    "falcon_mamba": partial(_decoder, "falcon_mamba", state_size=4, time_step_rank=4, use_mambapy=False),
    "doge": partial(_decoder, "doge", num_key_value_heads=2),
    "arcee": partial(_decoder, "arcee", num_key_value_heads=2),
    "rembert": partial(_encoder, "rembert", input_embedding_size=16, output_embedding_size=24),
    "ibert": partial(_encoder, "ibert", quant_mode=False),
    "roberta-prelayernorm": partial(_encoder, "roberta-prelayernorm"),
    "nomic_bert": partial(_encoder, "nomic_bert"),
    "yoso": partial(_encoder, "yoso", use_expectation=True),
    "perceiver": _perceiver,
    "blenderbot": partial(_sequences, "blenderbot", **SEQUENCES),
    "pegasus_x": partial(_sequences, "pegasus_x", **SEQUENCES, block_size=4, num_global_tokens=2),
    "mvp": partial(_sequences, "mvp", **SEQUENCES),
    "nllb-moe": partial(_sequences, "nllb-moe", **SEQUENCES, num_experts=3, encoder_sparse_step=2,
                        decoder_sparse_step=2, expert_capacity=8),
    "whisper": _whisper,
    "wav2vec2-conformer": partial(_speech, "wav2vec2-conformer", conv_depthwise_kernel_size=3),
    "data2vec-audio": partial(_speech, "data2vec-audio", conv_pos_kernel_size=3),
    "unispeech-sat": partial(_speech, "unispeech-sat"),
    "spectra": _spectra,
    "vit_mae": _masked_pictures,
    "clip": _clip,
    "swinv2": partial(
        _images, "swinv2", image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4,
        drop_path_rate=0.0,
    ),
    "segformer": partial(
        _images, "segformer", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 24], num_attention_heads=[1, 2, 2, 4],
        mlp_ratios=[2, 2, 2, 2], drop_path_rate=0.0,
    ),
    "mobilevit": partial(
        _images, "mobilevit", image_size=32, patch_size=2, hidden_sizes=[16, 24, 32], expand_ratio=2.0,
        neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 48], num_attention_heads=2, mlp_ratio=2.0,
    ),
    "hiera": partial(
        _images, "hiera", image_size=[32, 32], patch_size=[7, 7], patch_stride=[4, 4], embed_dim=8, depths=[1, 1],
        num_heads=[1, 2], query_stride=[2, 2], num_query_pool=1, masked_unit_size=[4, 4],
        masked_unit_attention=[True, False], drop_path_rate=0.0,
    ),
    "mobilenet_v1": partial(_images, "mobilenet_v1", image_size=32, depth_multiplier=0.25),
    "timm davit": partial(
        _classified,
        partial(_timm, "davit_tiny", depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4),
                window_size=4),
        size=64,
    ),
    "timm convmixer": partial(
        _classified, lambda: __import__("timm").models.convmixer.ConvMixer(16, 2, 5, 4, num_classes=5)
    ),
    "timm nest": partial(
        _classified,
        lambda: __import__("timm").models.nest.Nest(
            32, patch_size=2, embed_dims=(8, 16, 24), num_heads=(1, 2, 3), depths=(1, 1, 1), num_classes=5
        ),
    ),
    "timm volo": partial(
        _classified,
        lambda: __import__("timm").models.volo.VOLO(
            (1, 1), 32, num_classes=5, embed_dims=(24, 48), num_heads=(2, 4), downsamples=(True, False),
            outlook_attention=(True, False), stem_hidden_dim=8, mlp_ratio=2.0, use_mix_token=False,
        ),
    ),
    "timm convit": partial(
        _classified,
        partial(_timm, "convit_tiny", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2,
                local_up_to_layer=1),
    ),
    "timm nfnet": partial(
        _classified,
        lambda: __import__("timm").models.NormFreeNet(
            __import__("timm").models.nfnet._nfres_cfg((1, 1, 1, 1), channels=(16, 16, 32, 32)), num_classes=5
        ),
    ),
    "timm repvit": partial(_classified, partial(_timm, "repvit_m0_9", embed_dim=(8, 8, 16, 16), depth=(1, 1, 1, 1))),
    "timm eva": partial(
        _classified,
        partial(_timm, "eva02_tiny_patch14_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2,
                ref_feat_shape=(4, 4)),
    ),
    "timm fasternet": partial(_classified, partial(_timm, "fasternet_t0", embed_dim=8, depths=(1, 1, 1, 1))),
    "torchvision densenet": partial(
        _classified,
        lambda: __import__("torchvision").models.DenseNet(4, (2, 2), 8, bn_size=2, num_classes=5),
    ),
    "torchvision proposals": _proposals,
    "torchvision swin_v2": partial(
        _classified,
        lambda: __import__("torchvision").models.SwinTransformer(
            [4, 4], 8, [2, 1], [1, 2], [4, 4], num_classes=5, stochastic_depth_prob=0.0,
            block=__import__("torchvision").models.swin_transformer.SwinTransformerBlockV2,
            downsample_layer=__import__("torchvision").models.swin_transformer.PatchMergingV2,
        ),
    ),
    "DiTTransformer2DModel": partial(
        _diffusion, "DiTTransformer2DModel", (2, 4, 8, 8),
        lambda: {"timestep": torch.tensor([3, 7]), "class_labels": torch.tensor([1, 4])},
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
        num_embeds_ada_norm=10, norm_num_groups=1,
    ),
    "SD3Transformer2DModel": partial(
        _diffusion, "SD3Transformer2DModel", (2, 4, 8, 8),
        lambda: {**_text(), "pooled_projections": torch.randn(2, 10), "timestep": torch.tensor([3, 7])},
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=12, caption_projection_dim=16, pooled_projection_dim=10, out_channels=4,
        pos_embed_max_size=8,
    ),
    "AuraFlowTransformer2DModel": partial(
        _diffusion, "AuraFlowTransformer2DModel", (2, 4, 8, 8),
        lambda: {**_text(), "timestep": torch.tensor([0.3, 0.7])},
        sample_size=8, patch_size=2, in_channels=4, num_mmdit_layers=1, num_single_dit_layers=1, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=12, caption_projection_dim=16, out_channels=4,
        pos_embed_max_size=16,
    ),
    "WanTransformer3DModel": partial(
        _diffusion, "WanTransformer3DModel", (1, 4, 2, 8, 8),
        lambda: {**_text(1), "timestep": torch.tensor([3])},
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=12,
        freq_dim=16, ffn_dim=32, num_layers=2, rope_max_seq_len=32,
    ),
    "VQModel": _quantised,
}  # fmt: skip
