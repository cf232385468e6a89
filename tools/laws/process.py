"""What one process of a training does: python -m tools.laws.process FRAMEWORK NAME."""

from __future__ import annotations

import sys


def main(framework: str, name: str) -> None:
    """Run the script of an entry in the current folder, with laws where MSPROBE_LAWS asks for them."""
    # What msprobe_laws.pth of an installed wheel does when a Python process starts.
    from msprobe_collector.laws.start import install

    install()
    from tools.laws.entries import catalogue

    entry = next(one for one in catalogue(framework) if one.name == name)
    entry.train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
