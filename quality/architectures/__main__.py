"""What networks of other packages leave in a dump.

    python -m quality.architectures [NAME...] [--write-results]

Trains each network of transformers, timm, torchvision, diffusers and mindcv for two steps at level mix with task
tensor, with the collector and without, dropout included, and has a pre-check judge by `backward-error` what it left.
Calls are those of the first step that a function mode above the collector sees computing, layers the calls of Modules
through which gradients flow (of Cells, those around a call with gradients). The packages are no dependencies of this
project: install them into an environment of their own that has PyTorch and MindSpore (`pip install transformers timm
diffusers mindcv "numpy<2"`, and the torchvision that belongs to the PyTorch: 0.28 to 2.13). It takes 15 minutes.
--write-results writes its tables into quality/results.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from quality.architectures.table import main

    sys.exit(main())
