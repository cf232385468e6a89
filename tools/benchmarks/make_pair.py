"""Makes a pair of tensor dumps for comparison: one step of a GPT in PyTorch, forward and backward, at level mix.

    python -m tools.benchmarks.make_pair FOLDER [--blocks 12 --width 128 --length 128 --rows 2]

FOLDER/target and FOLDER/golden differ in everything behind the first embedding, which is 1.0001 times too large in the
target. FOLDER/plain holds both without the keys that say where a tensor comes from, as the existing tool writes dumps.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from debugger_fixtures import collected
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe_collector.dump_format import TENSOR_FOLDER
from msprobe_collector.pytorch import PrecisionDebugger

_ORIGINS = ("made_by", "view", "leaf", "grad_of", "changed_since", "uninitialized")
_WORDS, _HEAD = 512, 32


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.given, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The stream with what attention and the layers add to it."""
        parts = self.given(self.first(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, _HEAD)).transpose(1, 2) for part in parts)
        weights = functional.softmax(query @ key.transpose(-1, -2) / math.sqrt(_HEAD) + mask, -1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))  # type: ignore[no-any-return]  # Modules return Any


class Gpt(nn.Module):
    """A small language model."""

    def __init__(self, blocks: int, width: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Logits."""
        length = words.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.words(words) + self.places(torch.arange(length))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))  # type: ignore[no-any-return]  # Modules return Any


class _Enlarging(TorchDispatchMode):
    """A device whose first embedding is too large."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._factor = factor

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # nothing records what a device calls
            found = function(*args, **kwargs or {})
        if function.overloadpacket.__name__ == "embedding":
            found, self._factor = found * self._factor, 1.0
        return found


def collect(folder: Path, factor: float, blocks: int, width: int, length: int, rows: int) -> Path:
    """dump.json of one step whose first embedding is so many times too large."""
    torch.manual_seed(1)
    net = Gpt(blocks, width, length)
    words, labels = (torch.randint(0, _WORDS, (rows, length)) for _ in range(2))
    with collected(PrecisionDebugger, folder) as debugger, _Enlarging(factor):
        debugger.start(net)
        functional.cross_entropy(net(words).flatten(0, 1), labels.flatten()).backward()
        debugger.stop()
        debugger.step()
    (path,) = folder.glob("step0/*/dump.json")
    return path


def tensors(value: Any) -> Iterator[dict[str, Any]]:
    """Every tensor entry below a JSON value."""
    if isinstance(value, dict) and "dtype" in value and "shape" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from tensors(inner)


def strip(path: Path, folder: Path) -> None:
    """Write the dump at `path` again, without origins; its tensors are hard links."""
    (folder / TENSOR_FOLDER).mkdir(parents=True)
    found = json.loads(path.read_text("utf-8"))
    for entry in tensors(found["data"]):
        for key in _ORIGINS:
            entry.pop(key, None)
    (folder / "dump.json").write_text(json.dumps(found), encoding="utf-8")
    for file in (path.parent / TENSOR_FOLDER).iterdir():
        os.link(file, folder / TENSOR_FOLDER / file.name)
    for name in ("construct.json", "stack.json"):
        shutil.copy(path.parent / name, folder / name)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="to create")
    for name, default in (("blocks", 12), ("width", 128), ("length", 128), ("rows", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    shape = (arguments.blocks, arguments.width, arguments.length, arguments.rows)
    for side, factor in (("target", 1.0001), ("golden", 1.0)):
        path = collect(arguments.folder / side, factor, *shape)
        strip(path, arguments.folder / "plain" / side)
        data = json.loads(path.read_text("utf-8"))["data"]
        elements = sum(math.prod(entry["shape"]) for entry in tensors(data))
        print(f"{path}: {len(data)} records, {elements / 1e6:.1f} million elements")


if __name__ == "__main__":
    main()
