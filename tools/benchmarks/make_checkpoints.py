"""Makes large checkpoints in two layouts, and measures what comparing them costs.

    python -m tools.benchmarks.make_checkpoints DIR [--layers 24]

Needs the space of two checkpoints: writes `safetensors` (shards with an index), one other layout after the other, and
compares them; then deletes both. The speed of reading is measured on the same files beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

_HIDDEN, _GROUPS, _VOCABULARY = 4096, 8, 32768
_SHARD_BYTES = 2_000_000_000
_LAYERS_IN_FILE = 6
#: The command, and then what the system says of its memory; ru_maxrss of a child counts memory of its parent, too.
_COMPARED = """
import sys
from pytest_msprobe.__main__ import main
code = main(sys.argv[1:])
sys.stderr.write(open("/proc/self/status").read())
sys.exit(code)
"""


def layer(index: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights of a layer, with names as HuggingFace's."""
    random = torch.Generator().manual_seed(index)
    key = _HIDDEN // 4
    shapes = {
        "self_attn.q_proj": (_HIDDEN, _HIDDEN),
        "self_attn.k_proj": (key, _HIDDEN),
        "self_attn.v_proj": (key, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, _HIDDEN),
        "mlp.gate_proj": (11008, _HIDDEN),
        "mlp.up_proj": (11008, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, 11008),
    }
    return {
        f"model.layers.{index}.{name}.weight": torch.randn(shape, generator=random).to(dtype)
        for name, shape in shapes.items()
    }


def fused(weights: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    """The same as Megatron holds them: query, key and value interleaved in groups of heads, gate and up in one."""
    held = {name.rpartition(".")[0].rpartition(".")[2]: weight for name, weight in weights.items()}
    grouped = [held[f"{name}_proj"].reshape(_GROUPS, -1, _HIDDEN) for name in "qkv"]
    prefix = f"decoder.layers.{index}"
    return {
        f"{prefix}.self_attention.linear_qkv.weight": torch.cat(grouped, 1).reshape(-1, _HIDDEN),
        f"{prefix}.self_attention.linear_proj.weight": held["o_proj"],
        f"{prefix}.mlp.linear_fc1.weight": torch.cat([held["gate_proj"], held["up_proj"]]),
        f"{prefix}.mlp.linear_fc2.weight": held["down_proj"],
    }


def embedding(dtype: torch.dtype) -> torch.Tensor:
    """The largest tensor."""
    return torch.randn(_VOCABULARY, _HIDDEN, generator=torch.Generator().manual_seed(-1)).to(dtype)


def write_shards(folder: Path, layers: int, dtype: torch.dtype, *, off: float = 0.0) -> None:
    """Safetensors with an index; `off` is added to every weight of every second layer."""
    folder.mkdir()
    places: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {"model.embed_tokens.weight": embedding(dtype)}
    for index in range(layers):
        weights = layer(index, dtype)
        held.update({name: weight + off if off and index % 2 else weight for name, weight in weights.items()})
        if sum(tensor.nbytes for tensor in held.values()) > _SHARD_BYTES or index == layers - 1:
            file = f"model-{len(set(places.values())):05}.safetensors"
            save_file(held, folder / file)
            places.update(dict.fromkeys(held, file))
            held = {}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def write_distributed(folder: Path, shards: Path) -> None:
    """A folder of torch.distributed.checkpoint, of tensors that stay in the files of `shards`."""
    state = {name: tensor for file in sorted(shards.glob("*.safetensors")) for name, tensor in load_file(file).items()}
    dcp.save(state, checkpoint_id=folder, no_dist=True)


def write_fused(folder: Path, layers: int, dtype: torch.dtype) -> None:
    """Files of torch.save of some layers each, with the names and layouts of Megatron."""
    folder.mkdir()
    state = {"embedding.word_embeddings.weight": embedding(dtype)}
    for index in range(layers):
        state |= fused(layer(index, dtype), index)
        if index % _LAYERS_IN_FILE == _LAYERS_IN_FILE - 1 or index == layers - 1:
            torch.save({"model": state, "iteration": 100}, folder / f"pp_rank_{index // _LAYERS_IN_FILE:02}.pt")
            state = {}


def files_of(path: Path) -> Iterator[Path]:
    """The file, or those of the folder."""
    if path.is_file():
        yield path
    else:
        yield from (one for one in sorted(path.rglob("*")) if one.is_file())


def forget(*paths: Path) -> None:
    """Take the pages of files out of memory."""
    for path in paths:
        for file in files_of(path):
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def read_through(*paths: Path) -> tuple[float, float]:
    """(seconds, gigabytes) of reading files from their beginning to their end."""
    block = memoryview(bytearray(4 << 20))
    start, total = time.perf_counter(), 0
    for path in paths:
        for file in files_of(path):
            with file.open("rb", buffering=0) as stream:
                while count := stream.readinto(block):
                    total += count
    return time.perf_counter() - start, total / 1e9


def main() -> None:
    """Write, measure, delete."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=24, help="of 354 MB in bfloat16 each")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    folder: Path = arguments.folder
    folder.mkdir(parents=True)
    shards = folder / "shards"
    largest = embedding(dtype).nbytes, fused(layer(0, dtype), 0)["decoder.layers.0.mlp.linear_fc1.weight"].nbytes
    others: dict[str, Callable[[Path], None]] = {
        "shards, half of them changed": lambda path: write_shards(path, arguments.layers, dtype, off=0.01),
        "distributed": lambda path: write_distributed(path, shards),
        "fused": lambda path: write_fused(path, arguments.layers, dtype),
    }
    try:
        write_shards(shards, arguments.layers, dtype)
        for name, write in others.items():
            other = folder / name.partition(",")[0].replace("shards", "changed")
            write(other)
            forget(shards, other)
            before = os.times()
            seconds, gigabytes = read_through(shards, other)
            reading = sum(os.times()[:2]) - sum(before[:2])
            forget(shards, other)
            start, before = time.perf_counter(), os.times()
            command = [sys.executable, "-c", _COMPARED, "checkpoints", str(shards), str(other)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            took, after = time.perf_counter() - start, os.times()
            used = sum(after[2:4]) - sum(before[2:4])
            peak = 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", done.stderr)[0])
            sys.stdout.write(
                f"{name}: {gigabytes:.1f} GB in both; read {seconds:.1f} s (processor {reading:.1f} s), "
                f"compared {took:.1f} s (processor {used:.1f} s), {gigabytes / took:.2f} GB/s; "
                f"peak {peak / 1e6:.0f} MB, largest tensor {max(largest) / 1e6:.0f} MB; exit code {done.returncode}: "
                f"{done.stdout.splitlines()[-1]}\n"
            )
            sys.stdout.flush()
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
