"""What networks of other packages leave in a dump.

    python -m tools.architectures [NAME...]

Trains each network of transformers, timm, torchvision, diffusers and mindcv for two steps, with the collector and
without, and writes the table of docs/collector.md. The packages are no dependencies of this project: install
them into an environment of their own (`pip install transformers timm torchvision diffusers mindcv`, with numpy<2).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from tools.architectures.page import main

    sys.exit(main())
