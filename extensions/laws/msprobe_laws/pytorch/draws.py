"""What a PyTorch training draws and gets: dropout masks, labels, averages of parameters."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.law import Unchecked, Violation
from msprobe_laws.observation import DropoutMask, Labels
from msprobe_laws.pytorch.models import TorchRunning, is_away, is_triangular, looks_back
from msprobe_laws.pytorch.tensors import first, some
from msprobe_laws.replacing import Replacing, argument
from msprobe_laws.session import LawSession
from msprobe_laws.signals import width_of_targets
from msprobe_laws.training import EMA_DECAY
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF, unit_roundoff
from pytest_msprobe.numerics.expected import Absolute, Relative

#: Elements of a mask.
_MASK = 512


class Draws:
    """Sees dropout, attention, cross entropy and averages."""

    def __init__(self, session: LawSession, guard: Guard, running: TorchRunning) -> None:
        """See nothing yet."""
        self._session, self._guard, self._running = session, guard, running
        self._label_calls = 0
        #: Layer, dropped elements and elements that tell of the first mask since a step; empty before one was drawn.
        self.first_mask: dict[str, str] = {}

    def put_calls(self, swaps: MethodSwaps) -> None:
        """Replace what compiled code could call."""
        swaps.put(functional, "dropout", self._seen_dropout)
        replacing = Replacing(self._guard, functools.partial(is_away, self._guard))
        swaps.put(functional, "scaled_dot_product_attention", replacing.before("attention", self._attention))
        swaps.put(functional, "cross_entropy", replacing.before("cross entropy", self._cross_entropy))

    def put(self, swaps: MethodSwaps) -> None:
        """Replace the rest."""
        swaps.put(torch.optim.swa_utils.AveragedModel, "update_parameters", self._seen_average)

    def _seen_dropout(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or not p or type(input) is not torch.Tensor or is_away(self._guard):
                return original(input, p, training, inplace)
            before = self._guard.enter("laws: dropout", first, input, _MASK)
            result = original(input, p, training, inplace)
            if before is not None:
                self._guard.enter("laws: dropout", self._dropped, before, result, p)
            return result

        return dropout

    def _dropped(self, before: Any, result: torch.Tensor, rate: float) -> None:
        telling = before != 0
        dropped = (first(result, _MASK) == 0) & telling
        modules = self._running.parts
        place, source = self._running.place_of_dropout(modules[-1] if modules else None, sys._getframe(3))
        is_training = modules[-1].training if modules else True
        if is_training and modules and not modules[0].training and not result.requires_grad:
            # A layer that its model does not hold stays in training mode.
            is_training = any(inner is modules[-1] for inner in modules[0].modules())
        if not self.first_mask and is_training and not self._running.backward:
            bits = (np.packbits(mask).tobytes().hex() for mask in (dropped, telling))
            self.first_mask = dict(zip(("place", "dropped", "known"), (place, *bits)))
        self._session.mask(DropoutMask(place, dropped, telling, rate, is_training, self._running.backward > 0, source))

    def _attention(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        rate = argument(args, kwargs, 4, "dropout_p", 0.0)
        mask = argument(args, kwargs, 3, "attn_mask")
        self._running.is_causal |= bool(argument(args, kwargs, 5, "is_causal")) or is_triangular(mask)
        modules = self._running.parts
        if rate and modules:
            drops = np.array([not modules[-1].training])
            self._session.mask(
                DropoutMask(self._running.path_of(modules[-1]), drops, drops, rate, modules[-1].training)
            )

    def _cross_entropy(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._running.tokens is not None:
            self._label_calls += 1
            if self._label_calls <= 16 or self._label_calls % 64 == 0:
                target = argument(args, kwargs, 1, "target")
                self._compare_labels(target, argument(args, kwargs, 4, "ignore_index", -100))

    def _compare_labels(self, target: Any, ignored: int) -> None:
        tokens = self._running.tokens
        if tokens is None or not isinstance(target, torch.Tensor) or target.is_floating_point():
            return
        width = width_of_targets(tokens.shape, target.numel())
        if not width:
            return
        rows, length = tokens.shape
        most = max(1, min(rows, (1 << 15) // length))
        some = target.reshape(-1)[: most * width].cpu().numpy()
        is_causal = self._running.is_causal or any(looks_back(root) for _, root in self._running.roots())
        self._session.labels(Labels(tokens[:most].cpu().numpy(), some, ignored, is_causal))

    # Averages

    def _seen_average(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update_parameters(averaged: Any, model: nn.Module) -> Any:
            if is_away(self._guard):
                return original(averaged, model)
            before = self._guard.enter("laws: an average begins", _samples_of, averaged)
            result = original(averaged, model)
            if before is not None:
                self._guard.enter("laws: an average ends", self._averaged, averaged, model, before)
            return result

        return update_parameters

    def _averaged(self, averaged: Any, model: nn.Module, before: dict[str, Any]) -> None:
        share = _share_of(averaged)
        if share is None:
            self._session.say(
                EMA_DECAY, type(averaged).__name__, Unchecked("its averaging function does not say a decay")
            )
            return
        after, now = _samples_of(averaged), _samples_of(model)
        findings = []
        for name, value in now.items():
            if name not in before or before[name].size != value.size or name not in after:
                continue
            right = before[name] + share * (value - before[name])
            tolerance = Relative.SHORT_SUMS * (np.abs(before[name]) + np.abs(value)) + Absolute.ZERO_OF_FLOAT32
            if getattr(model.get_parameter(name), "dtype", None) in (torch.float16, torch.bfloat16):
                tolerance = tolerance * unit_roundoff("bfloat16") / FLOAT32_ROUNDOFF
            size = float(np.max(np.abs(after[name] - right) / tolerance, initial=0.0))
            if size > 1:
                message = f"the average is not {1 - share:g} of itself and {share:g} of the parameter"
                findings.append(Violation(EMA_DECAY, name, message, size))
        self._session.say(EMA_DECAY, type(averaged).__name__, findings)


def _samples_of(model: nn.Module) -> dict[str, Any]:
    inner = model.module if isinstance(model, torch.optim.swa_utils.AveragedModel) else model
    return {
        name: some(item, 64).double().cpu().numpy().copy()
        for name, item in inner.named_parameters()
        if type(item.data) is torch.Tensor and item.is_floating_point()
    }


def _share_of(averaged: Any) -> float | None:
    """Return the share of the parameter in its new average; None where the averaging function does not tell it."""
    count = int(averaged.n_averaged) - 1
    if count <= 0:
        return 1.0
    chosen = averaged.multi_avg_fn or averaged.avg_fn
    if chosen is None:
        return 1.0 / (count + 1)
    chosen = getattr(chosen, "__wrapped__", chosen)
    names = getattr(getattr(chosen, "__code__", None), "co_freevars", ())
    cells = getattr(chosen, "__closure__", None) or ()
    decay = next((cell.cell_contents for name, cell in zip(names, cells) if name == "decay"), None)
    return 1 - float(decay) if isinstance(decay, (int, float)) else None
