"""A benchmark for an API of your own, which neither PyTorch nor MindSpore knows.

The record names in dump.json say what to compare: `Custom.rms_norm.3.forward` has api.type "Custom" and api.short
"rms_norm". Such a call is checked on recorded values, so dump with task "tensor".
"""

import numpy as np

from pytest_msprobe.api import Reference


def rms_norm(x, weight, eps=1e-6):
    """What the API computes. Tensors arrive as float64 arrays; several outputs are returned as a tuple."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rms_norm_gradients(incoming, x, weight, eps=1e-6):
    """Gradients of the arguments: one entry per positional argument, in order; None for one without gradient."""
    (g,) = incoming  # one array per output
    size = x.shape[-1]
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    dx = scale * (g * weight - x * scale**2 * np.sum(g * weight * x, axis=-1, keepdims=True) / size)
    dweight = np.sum(g * x * scale, axis=tuple(range(x.ndim - 1)))
    # By position, so that it does not matter whether a call gives eps.
    return {0: dx, 1: dweight}


REFERENCES = {
    ("Custom", "rms_norm"): Reference(rms_norm, rms_norm_gradients),
}


def pytest_msprobe_reference(api):
    return REFERENCES.get((api.type, api.short))  # None: PyTorch or MindSpore computes it
