"""Which APIs evaluate elementary functions, whose kernels are polynomials and not correctly rounded.

APIs that compute coordinates from their sizes (interpolation) lose as much in them.
"""

from __future__ import annotations

#: Relative error that kernels of exp, log, erf and the like are allowed in float32. MindSpore 2.10's CPU exp was
#: measured to be off by up to 57 ulp (3.6e-6) for arguments of a training step.
FLOAT32_ERROR = 2.0**-18

_NAMES = frozenset(
    """
    acos acosh arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh
    binary_cross_entropy binary_cross_entropy_with_logits cdist celu cos cosh cross_entropy ctc_loss
    digamma elu erf erfc erfinv exp exp2 expm1 fast_gelu flash_attention_score float_power
    fused_infer_attention_score gammainc gammaincc gaussian_nll_loss gelu glu grid_sample gumbel_softmax hardsigmoid
    igamma igammac incre_flash_attention interpolate kl_div lgamma log log10 log1p log2 log_softmax logaddexp logaddexp2
    logcumsumexp logdet logit logsigmoid logsumexp lp_pool1d lp_pool2d mish multi_label_soft_margin_loss
    multilabel_soft_margin_loss mvlgamma norm npu_gelu poisson_nll_loss polygamma pow prompt_flash_attention rpow
    selu sigmoid sigmoid_focal_loss silu sin sinc sinh slogdet soft_margin_loss softmax softmin softplus
    speed_fusion_attention swiglu tan tanh tanhshrink vector_norm xlogy
    """.split()
)


def is_elementary(api: str) -> bool:
    """Whether the API of this short name, in-place and dunder forms included, evaluates elementary functions."""
    return api.strip("_").lower() in _NAMES
