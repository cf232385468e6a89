"""The operator of torchvision that its detection networks need, where its compiled ones do not load.

The wheels of torchvision on PyPI are built for CUDA; beside a build of PyTorch for the CPU their library does not load,
and torchvision cannot be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def make_importable() -> None:
    """Define what `import torchvision` looks for, unless its own library loads."""
    import torch

    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or "torchvision" in sys.modules:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch.library.impl("torchvision::nms", "CPU", _kept)
        from torchvision.ops import boxes

        boxes._assert_has_ops = lambda: None


def _kept(boxes: Any, scores: Any, limit: float) -> Any:
    """Indices of boxes that no better one overlaps by more than `limit`, best first."""
    import torch
    from torchvision.ops import box_iou

    waiting, kept = torch.argsort(scores, descending=True, stable=True), []
    while waiting.numel():
        kept.append(waiting[0])
        overlaps = box_iou(boxes[waiting[:1]], boxes[waiting[1:]])[0]
        waiting = waiting[1:][overlaps <= limit]
    return torch.stack(kept) if kept else waiting
