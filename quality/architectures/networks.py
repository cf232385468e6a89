"""Architectures of packages on PyPI, made small: random weights, a batch, what a step minimises. Nothing is fetched.

A package is imported where one of its networks is built; none of them is needed by this project.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

#: (network, its loss for one batch); the loss is called once a step.
Built = tuple[Any, Callable[[], Any]]


@dataclass(frozen=True)
class Architecture:
    """One network.

    Attributes:
        name: of its row in the table.
        package: that it comes from.
        kind: what it is for.
        build: makes the network and its loss, with random numbers of the generator as it is.
    """

    name: str
    package: str
    kind: str
    build: Callable[[], Built]

    @property
    def framework(self) -> str:
        """`pytorch` or `mindspore`."""
        return "mindspore" if self.package == "mindcv" else "pytorch"


_LENGTH = 12
_IMAGE = 32
_SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": _IMAGE,
    "patch_size": 8,
}
_ENCODER_DECODER = {
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "pad_token_id": 0,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def _tokens(*, rows: int = 2, length: int = _LENGTH) -> Any:
    import torch

    return torch.randint(3, 96, (rows, length))


def _pixels(*shape: int) -> Any:
    import torch

    return torch.randn(*(shape or (2, 3, _IMAGE, _IMAGE)))


def _transformer(model_type: str, head: str, **settings: Any) -> Any:
    """A model of transformers: `head` is the end of an Auto class, `ForCausalLM`."""
    import transformers

    configuration = transformers.AutoConfig.for_model(model_type, **settings)
    return getattr(transformers, f"AutoModel{head}").from_config(configuration)


def _decoder(model_type: str, **settings: Any) -> Built:
    model, ids = _transformer(model_type, "ForCausalLM", **{**_SMALL, **settings}), _tokens()
    return model, lambda: model(input_ids=ids, labels=ids).loss


def _encoder(model_type: str, *, length: int = _LENGTH, **settings: Any) -> Built:
    import torch

    model = _transformer(model_type, "ForMaskedLM", **{**_SMALL, **settings})
    ids, mask = _tokens(length=length), torch.ones(2, length, dtype=torch.int64)
    mask[1, length // 2 :] = 0
    return model, lambda: model(input_ids=ids, attention_mask=mask, labels=ids).loss


def _sequences(model_type: str, **settings: Any) -> Built:
    model, ids = _transformer(model_type, "ForSeq2SeqLM", **settings), _tokens()
    return model, lambda: model(input_ids=ids, labels=ids).loss


def _images(model_type: str, **settings: Any) -> Built:
    import torch

    model = _transformer(model_type, "ForImageClassification", num_labels=5, **settings)
    size = settings.get("image_size", _IMAGE)
    pixels, labels = _pixels(2, 3, size, size), torch.tensor([1, 3])
    return model, lambda: model(pixel_values=pixels, labels=labels).loss


def _whisper() -> Built:
    settings = {**_ENCODER_DECODER, "max_source_positions": 16, "max_target_positions": 16, "num_mel_bins": 8}
    settings |= {"decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2}
    model, ids, sound = _transformer("whisper", "ForSpeechSeq2Seq", **settings), _tokens(), _pixels(2, 8, 32)
    return model, lambda: model(input_features=sound, labels=ids).loss


def _speech(model_type: str, **more: Any) -> Built:
    settings = {**_SMALL, "conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), **more}
    settings |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2}
    del settings["max_position_embeddings"]
    model, sound, ids = _transformer(model_type, "ForCTC", **settings), _pixels(2, 640), _tokens(length=4)
    return model, lambda: model(input_values=sound, labels=ids).loss


def _clip() -> Built:
    text = {name: value for name, value in _SMALL.items() if name != "pad_token_id"}
    text |= {"bos_token_id": 1, "eos_token_id": 2}
    model = _transformer("clip", "", text_config=text, vision_config=_VISION, projection_dim=16)
    ids, pixels = _tokens(), _pixels()
    ids[:, -1] = 2
    return model, lambda: model(input_ids=ids, pixel_values=pixels, return_loss=True).loss


def _blip() -> Built:
    import transformers

    text = {**_SMALL, "encoder_hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    settings = transformers.BlipConfig(text_config=text, vision_config=_VISION, projection_dim=16)
    model, ids, pixels = transformers.BlipForConditionalGeneration(settings), _tokens(), _pixels()
    return model, lambda: model(pixel_values=pixels, input_ids=ids, labels=ids).loss


def _llava() -> Built:
    import torch
    import transformers

    settings = transformers.LlavaConfig(
        text_config={"model_type": "llama", **_SMALL},
        vision_config={"model_type": "clip_vision_model", **_VISION},
        image_token_index=95,
        image_seq_length=16,
    )
    model = transformers.LlavaForConditionalGeneration(settings)
    ids = torch.cat([torch.full((2, 16), 95), torch.randint(3, 95, (2, 6))], 1)
    pixels = _pixels()
    return model, lambda: model(input_ids=ids, pixel_values=pixels, labels=ids).loss


def _detr() -> Built:
    import torch
    import transformers

    settings = transformers.DetrConfig(
        **{**_ENCODER_DECODER, "num_queries": 6, "num_labels": 4, "use_timm_backbone": False},
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
        ),
    )
    model, pixels = transformers.DetrForObjectDetection(settings), _pixels(2, 3, 64, 64)
    boxes = torch.tensor([[0.5, 0.5, 0.3, 0.3], [0.2, 0.3, 0.2, 0.1]])
    labels = [{"class_labels": torch.tensor([1, 2]), "boxes": boxes} for _ in range(2)]
    return model, lambda: model(pixel_values=pixels, labels=labels).loss


def _segformer() -> Built:
    import torch

    settings = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "decoder_hidden_size": 16, "num_labels": 4}
    settings |= {"num_attention_heads": [1, 2, 3, 4]}
    model = _transformer("segformer", "ForSemanticSegmentation", **settings)
    pixels, labels = _pixels(2, 3, 64, 64), torch.randint(0, 4, (2, 64, 64))
    return model, lambda: model(pixel_values=pixels, labels=labels).loss


def _videomae() -> Built:
    import torch

    settings = {**_VISION, "num_frames": 4, "tubelet_size": 2, "num_labels": 5}
    model = _transformer("videomae", "ForVideoClassification", **settings)
    video, labels = _pixels(2, 4, 3, _IMAGE, _IMAGE), torch.tensor([1, 3])
    return model, lambda: model(pixel_values=video, labels=labels).loss


def _timm(name: str, *, size: int = _IMAGE, **settings: Any) -> Built:
    import timm

    return _classified(timm.create_model(name, pretrained=False, num_classes=5, **settings), 2, 3, size, size)


def _classified(model: Any, *shape: int) -> Built:
    import torch
    from torch.nn.functional import cross_entropy

    pixels, labels = _pixels(*shape), torch.tensor([1, 3])
    return model, lambda: cross_entropy(model(pixels), labels)


def _torchvision(name: str) -> Built:
    from torchvision import models

    return _classified(models.get_model(name, weights=None, num_classes=5))


def _mixer() -> Built:
    from timm.models.mlp_mixer import MlpMixer

    return _classified(MlpMixer(num_classes=5, img_size=_IMAGE, patch_size=8, num_blocks=2, embed_dim=32))


def _densenet() -> Built:
    from torchvision.models import DenseNet

    return _classified(DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=5))


def _swin_v2() -> Built:
    from torchvision.models import swin_transformer as swin

    settings: dict[str, Any] = {"patch_size": [4, 4], "window_size": [4, 4], "depths": [1, 2], "num_heads": [2, 4]}
    settings |= {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
    return _classified(swin.SwinTransformer(**settings, embed_dim=16, num_classes=5), 2, 3, 64, 64)


def _video_resnet() -> Built:
    from torchvision.models.video import resnet

    layers = {"conv_makers": [resnet.Conv3DSimple] * 4, "layers": [1, 1, 1, 1], "num_classes": 5}
    return _classified(
        resnet.VideoResNet(block=resnet.BasicBlock, stem=resnet.BasicStem, **layers), 2, 3, 4, _IMAGE, _IMAGE
    )


def _detection(name: str) -> Built:
    import torch
    from torchvision.models import detection

    model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64)
    images = [torch.rand(3, 64, 64), torch.rand(3, 60, 64)]
    boxes = torch.tensor([[4.0, 6.0, 30.0, 40.0], [20.0, 10.0, 60.0, 50.0]])
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 3])} for _ in images]
    return model, lambda: sum(model(images, targets).values())


def _segmentation() -> Built:
    import torch
    from torch.nn.functional import cross_entropy
    from torchvision.models import segmentation

    model = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    pixels, labels = _pixels(2, 3, 64, 64), torch.randint(0, 4, (2, 64, 64))
    return model, lambda: cross_entropy(model(pixels)["out"], labels)


def _raft() -> Built:
    from torchvision.models import optical_flow

    model = optical_flow.raft_small(weights=None)
    first, second = _pixels(1, 3, 128, 128), _pixels(1, 3, 128, 128)
    return model, lambda: sum(flow.abs().mean() for flow in model(first, second, num_flow_updates=2))


_UNET_BLOCKS = {
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}


def _denoised(model: Any, noisy: Any, **conditions: Any) -> Built:
    """A step of a diffusion model: the prediction against noise."""
    import torch

    noise = torch.randn_like(noisy)
    return model, lambda: (model(noisy, **conditions).sample[:, : noise.shape[1]] - noise).square().mean()


def _unet() -> Built:
    import diffusers
    import torch

    model = diffusers.UNet2DConditionModel(sample_size=16, cross_attention_dim=16, attention_head_dim=4, **_UNET_BLOCKS)
    return _denoised(
        model, _pixels(2, 4, 16, 16), timestep=torch.tensor([3, 40]), encoder_hidden_states=_pixels(2, 6, 16)
    )


def _controlnet() -> Built:
    import diffusers
    import torch

    blocks = {name: value for name, value in _UNET_BLOCKS.items() if name != "up_block_types"}
    model = diffusers.ControlNetModel(
        cross_attention_dim=16, attention_head_dim=4, conditioning_embedding_out_channels=(8, 16), **blocks
    )
    noisy, text, condition = _pixels(2, 4, 16, 16), _pixels(2, 6, 16), _pixels(2, 3, 32, 32)

    def loss() -> Any:
        found = model(noisy, torch.tensor([3, 40]), encoder_hidden_states=text, controlnet_cond=condition)
        return sum((part - 1).square().mean() for part in (*found.down_block_res_samples, found.mid_block_res_sample))

    return model, loss


def _autoencoder() -> Built:
    import diffusers

    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
    )
    pixels = _pixels()

    def loss() -> Any:
        latents = model.encode(pixels).latent_dist
        return (model.decode(latents.sample()).sample - pixels).square().mean() + 0.1 * latents.kl().mean()

    return model, loss


def _vq() -> Built:
    import diffusers

    model = diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        num_vq_embeddings=16,
    )
    pixels = _pixels()

    def loss() -> Any:
        found = model(pixels)
        return (found.sample - pixels).square().mean() + found.commit_loss.mean()

    return model, loss


def _dit() -> Built:
    import diffusers
    import torch

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, sample_size=8, num_embeds_ada_norm=10
    )
    return _denoised(model, _pixels(2, 4, 8, 8), timestep=torch.tensor([3, 7]), class_labels=torch.tensor([1, 4]))


def _sd3() -> Built:
    import diffusers
    import torch

    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=12,
        in_channels=4,
        out_channels=4,
        pos_embed_max_size=8,
    )
    text, pooled = _pixels(2, 6, 16), _pixels(2, 12)
    conditions = {"timestep": torch.tensor([3.0, 7.0]), "encoder_hidden_states": text, "pooled_projections": pooled}
    return _denoised(model, _pixels(2, 4, 8, 8), **conditions)


def _flux() -> Built:
    import diffusers
    import torch

    model = diffusers.FluxTransformer2DModel(
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=12,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    conditions = {"encoder_hidden_states": _pixels(2, 6, 16), "pooled_projections": _pixels(2, 12)}
    conditions |= {"timestep": torch.tensor([0.3, 0.7]), "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3)}
    return _denoised(model, _pixels(2, 16, 8), **conditions, guidance=torch.ones(2))


def _mindcv(name: str) -> Built:
    import mindcv

    return _classified_by_cells(mindcv.create_model(name, num_classes=5))


def _mindcv_vit() -> Built:
    from mindcv.models.vit import VisionTransformer

    return _classified_by_cells(
        VisionTransformer(image_size=64, patch_size=16, embed_dim=32, depth=2, num_heads=2, num_classes=5)
    )


def _mindcv_convnext() -> Built:
    from mindcv.models.convnext import ConvNeXt

    return _classified_by_cells(
        ConvNeXt(in_channels=3, num_classes=5, depths=[1, 1, 1, 1], dims=[8, 16, 24, 32], drop_path_rate=0.1)
    )


def _classified_by_cells(network: Any) -> Built:
    import mindspore
    import numpy as np

    drawn = np.random.default_rng(7).standard_normal((2, 3, 64, 64))
    pixels, labels = mindspore.Tensor(drawn.astype(np.float32)), mindspore.Tensor([1, 3], mindspore.int32)

    def loss() -> Any:
        found = network(pixels)
        return mindspore.ops.cross_entropy(found[0] if isinstance(found, tuple) else found, labels)

    return network, loss


_DECODERS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "gpt2": {},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 6},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "qwen3_moe": {"num_key_value_heads": 2, "head_dim": 8, **_EXPERTS},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "gemma2": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6},
    "gemma3_text": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6},
    "phi": {},
    "phi3": {"num_key_value_heads": 2},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {},
    "gpt_neox": {},
    "gptj": {"rotary_dim": 4},
    "olmo2": {"num_key_value_heads": 2},
    "mamba": {"state_size": 4},
    "mamba2": {"state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    "rwkv": {"attention_hidden_size": 32},
}
_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "electra": {"embedding_size": 16},
    "longformer": {"attention_window": 4},
    "big_bird": {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "length": 48},
    "modernbert": {"local_attention": 4},
}
_T5 = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_BART = {**_ENCODER_DECODER, "max_position_embeddings": 64, "forced_eos_token_id": 2}
_SWIN = {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4, "patch_size": 2}
_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
_TIMM: dict[str, dict[str, Any]] = {
    "deit_tiny_patch16_224": {"img_size": _IMAGE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2},
    "maxvit_rmlp_pico_rw_256": {"size": 64, "img_size": 64, "embed_dim": (32, 32, 64, 64), "depths": (1,) * 4},
    "convnextv2_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
    "efficientnet_b0": {},
    "mobilenetv3_small_050": {},
    "regnetx_002": {},
}
_MINDCV = (
    *("resnet18", "densenet121", "mobilenet_v2_035_224", "mobilenet_v3_small_075", "mnasnet_050", "squeezenet1_0"),
    *("ghostnet_050", "efficientnet_b0", "shufflenet_v2_x0_5", "pvt_v2_b0"),
)

_LATE: dict[str, dict[str, Any]] = {
    "stablelm": {"num_key_value_heads": 2},
    "starcoder2": {"num_key_value_heads": 2},
    "cohere": {"num_key_value_heads": 2},
    "granite": {"num_key_value_heads": 2},
    "xglm": {"d_model": 32, "attention_heads": 4, "num_layers": 2, "ffn_dim": 64},
    "codegen": {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "n_positions": 64},
}

#: Packages and kinds, with what builds each of their networks by its name.
_BUILDS: tuple[tuple[str, str, dict[str, Callable[[], Built]]], ...] = (
    ("transformers", "decoder", {name: partial(_decoder, name, **how) for name, how in _DECODERS.items()}),
    ("transformers", "encoder", {name: partial(_encoder, name, **how) for name, how in _ENCODERS.items()}),
    (
        "transformers",
        "sequence to sequence",
        {"t5": partial(_sequences, "t5", **_T5), "bart": partial(_sequences, "bart", **_BART)},
    ),
    (
        "transformers",
        "speech",
        {"whisper": _whisper, "wav2vec2": partial(_speech, "wav2vec2"), "hubert": partial(_speech, "hubert")},
    ),
    (
        "transformers",
        "vision",
        {
            "vit": partial(_images, "vit", **_VISION),
            "swin": partial(_images, "swin", image_size=_IMAGE, **_SWIN),
            "convnext": partial(_images, "convnext", **_CONVNEXT),
        },
    ),
    ("transformers", "multi-modal", {"clip": _clip, "blip": _blip, "llava": _llava}),
    ("transformers", "detection", {"detr": _detr}),
    ("transformers", "segmentation", {"segformer": _segformer}),
    ("transformers", "video", {"videomae": _videomae}),
    ("timm", "vision", {f"timm {name}": partial(_timm, name, **how) for name, how in _TIMM.items()}),
    ("timm", "vision", {"timm mlp_mixer": _mixer}),
    (
        "torchvision",
        "vision",
        {
            "torchvision resnet18": partial(_torchvision, "resnet18"),
            "torchvision shufflenet_v2_x0_5": partial(_torchvision, "shufflenet_v2_x0_5"),
            "torchvision densenet": _densenet,
            "torchvision swin_v2": _swin_v2,
        },
    ),
    (
        "torchvision",
        "detection",
        {
            f"torchvision {name}": partial(_detection, name)
            for name in ("fasterrcnn_mobilenet_v3_large_fpn", "retinanet_resnet50_fpn")
        },
    ),
    ("torchvision", "segmentation", {"torchvision deeplabv3_mobilenet_v3_large": _segmentation}),
    ("torchvision", "video", {"torchvision video resnet": _video_resnet, "torchvision raft_small": _raft}),
    (
        "diffusers",
        "diffusion",
        {
            "UNet2DConditionModel": _unet,
            "ControlNetModel": _controlnet,
            "AutoencoderKL": _autoencoder,
            "VQModel": _vq,
            "DiTTransformer2DModel": _dit,
            "SD3Transformer2DModel": _sd3,
            "FluxTransformer2DModel": _flux,
        },
    ),
    ("mindcv", "vision", {f"mindcv {name}": partial(_mindcv, name) for name in _MINDCV}),
    ("mindcv", "vision", {"mindcv vit": _mindcv_vit, "mindcv convnext": _mindcv_convnext}),
)

ARCHITECTURES: tuple[Architecture, ...] = tuple(
    Architecture(name, package, kind, build) for package, kind, builds in _BUILDS for name, build in builds.items()
)

#: Networks that only `quality.architectures.alarms` looks at, first after the rule was mended on others.
ADDED_LAST: tuple[Architecture, ...] = (
    *(Architecture(name, "transformers", "decoder", partial(_decoder, name, **how)) for name, how in _LATE.items()),
    Architecture("albert", "transformers", "encoder", partial(_encoder, "albert", embedding_size=16)),
    Architecture("mpnet", "transformers", "encoder", partial(_encoder, "mpnet")),
    Architecture("dinov2", "transformers", "vision", partial(_images, "dinov2", **_VISION)),
    Architecture("timm repvgg_a0", "timm", "vision", partial(_timm, "repvgg_a0")),
    Architecture("mindcv googlenet", "mindcv", "vision", partial(_mindcv, "googlenet")),
)
