"""Dropout without effect, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: What stood in each name of torch.nn.functional before. Filled while dropout is removed.
_originals: dict[str, Any] = {}
_NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def remove_dropout() -> None:
    """Let dropout pass its input on until `restore_dropout`.

    Reached are the layers of `torch.nn` and `torch.nn.functional`, unless imported by name before. Dropout inside fused
    operators (scaled_dot_product_attention, LSTM layers) stays: set its probability to 0 in the script.
    """
    from torch.nn import functional

    if not _originals:
        for name in _NAMES:
            _originals[name] = getattr(functional, name)
            setattr(functional, name, _without_effect(name))


def restore_dropout() -> None:
    """Put dropout back."""
    if _originals:
        from torch.nn import functional

        while _originals:
            name, original = _originals.popitem()
            setattr(functional, name, original)


def _without_effect(name: str) -> Callable[..., Any]:
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return input

    dropout.__name__ = name
    return dropout
