"""How far runs of `quality.sharded.outside` are from the run on one rank, without anything that is judged."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from quality.sharded.entries import Entry
from quality.sharded.launching import Launch
from quality.sharded.process import RESULT

#: Distances that rounding explains.
_FLOAT, _HALF = 2e-5, 4e-2


def apart(entry: Entry, launch: Launch) -> Iterator[str]:
    """What of a rank is not what the run on one rank has, with the distance.

    A gradient is measured by the norm of all gradients; a parameter where the gradient is not within rounding, by the
    step of the optimizer.
    """
    whole = torch.load(launch.logical(entry).parent / RESULT.format(rank=0))
    gradients = {name: one for name, one in whole.items() if name.startswith("gradients.")}
    norm = torch.stack([one.double().square().sum() for one in gradients.values()]).sum().sqrt()
    mean = norm / sum(one.numel() for one in gradients.values()) ** 0.5
    limit = _HALF if entry.settings.get("half") else _FLOAT
    for rank in range(entry.world):
        own = torch.load(launch.dump(entry).parent / RESULT.format(rank=rank))
        for name, value in own.items():
            kind, _, parameter = name.partition(".")
            if kind not in ("gradients", "parameters") or (kind, entry.settings["run"]) == ("gradients", "flat"):
                continue
            logical = parameter.replace("module.", "")
            part = own.get(f"part.{parameter}", torch.tensor([0, 0, 1])).tolist()
            wanted = _part(whole.get(f"{kind}.{logical}"), part)
            if wanted is None or wanted.shape != value.shape:
                yield f"{name} of rank {rank} has no counterpart"
                continue
            difference = (value - wanted).double().abs()
            if kind == "gradients":
                distance = float(difference.norm() / norm)
            else:
                gradient = _part(whole.get(f"gradients.{logical.replace('ema.', 'net.')}"), part)
                is_known = (
                    torch.ones_like(value, dtype=torch.bool) if gradient is None else gradient.abs() > 1e-3 * mean
                )
                if limit == _HALF:
                    is_known &= torch.ones_like(is_known) if gradient is None else gradient.abs() > mean
                distance = float((difference * is_known).max() / 1e-2) * (1e-2 if limit == _FLOAT else 1e-1)
            if not distance <= limit:
                yield f"{name} of rank {rank} is {distance:.2g} away"


def _part(whole: torch.Tensor | None, part: list[int]) -> torch.Tensor | None:
    if whole is None:
        return None
    dim, index, count = part
    return whole.chunk(count, dim)[index] if count > 1 else whole
