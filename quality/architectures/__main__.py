"""What networks of other packages leave in a dump.

    python -m quality.architectures [NAME...]

Trains each network of transformers, timm, torchvision, diffusers and mindcv for two steps, with the collector and
without, and writes the table of docs/networks.md. The packages are no dependencies of this project: install
them into an environment of their own that has PyTorch and MindSpore (`pip install transformers timm diffusers mindcv
"numpy<2"`, and the torchvision that belongs to the PyTorch: 0.28 to 2.13). It takes 15 minutes.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from quality.architectures.page import main

    sys.exit(main())
