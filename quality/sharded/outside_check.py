"""How far runs of `quality.sharded.outside` are from the run on one rank, without anything that is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from quality.sharded.entries import Entry
from quality.sharded.launching import Launch
from quality.sharded.process import RESULT

#: Distances that rounding explains: of gradients, of the norm of all; of parameters, where a gradient is not small.
_LIMITS = {"": (2e-5, 2e-5, 1e-3), "half": (4e-2, 4e-3, 1.0)}


def apart(entry: Entry, launch: Launch) -> Iterator[str]:
    """What of a rank is not what the run on one rank has, with the distance.

    Adam moves a parameter by the sign of its gradient, however small: where that is rounding, parameters may differ.
    """
    whole = _read(launch.logical(entry).parent, 0)
    gradients = [one for name, one in whole.items() if name.startswith("gradients.")]
    norm = float(torch.cat([one.double().flatten() for one in gradients]).norm())
    small = norm / sum(one.numel() for one in gradients) ** 0.5
    of_gradient, of_parameter, share = _LIMITS["half" if entry.settings.get("half") else ""]
    for rank in range(entry.world):
        for name, value, wanted, gradient in _pairs(whole, _read(launch.dump(entry).parent, rank)):
            if wanted.shape != value.shape:
                yield f"{name} of rank {rank} has another shape"
                continue
            difference = (value - wanted).double().abs()
            if name.startswith("gradients."):
                # The gradients of a network whose optimizer has them in one row are those of the rank.
                distance = float(difference.norm()) / norm if entry.settings["run"] != "flat" else 0.0
                limit = of_gradient
            else:
                distance, limit = float((difference * (gradient.abs() > share * small)).max()), of_parameter
            if not distance <= limit:
                yield f"{name} of rank {rank} is {distance:.2g} away"


def _pairs(whole: dict[str, Tensor], own: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """Name, value of the rank, and what the run on one rank has of it, with its gradient."""
    for name, value in own.items():
        kind, _, parameter = name.partition(".")
        if kind in ("gradients", "parameters"):
            dim, index, count = own.get(f"part.{parameter}", torch.tensor([0, 0, 1])).tolist()
            logical = parameter.replace("module.", "")
            names = f"{kind}.{logical}", f"gradients.{logical.replace('ema.', 'net.')}"
            wanted, gradient = (whole[one].chunk(count, dim)[index] for one in names)
            yield name, value, wanted, gradient


def _read(folder: Path, rank: int) -> dict[str, Tensor]:
    values: dict[str, Tensor] = torch.load(folder / RESULT.format(rank=rank))
    return values
