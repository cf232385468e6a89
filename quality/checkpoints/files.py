"""Writes tensors into checkpoints of each form."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from quality.checkpoints.models import State

Writer = Callable[[Path, State], Path]


def _apart(state: Mapping[str, Tensor]) -> State:
    """Return tensors that share no memory, as safetensors wants them."""
    return {name: value.detach().clone().contiguous() for name, value in state.items()}


def safetensors(path: Path, state: State) -> Path:
    """Write one file."""
    file = path.with_suffix(".safetensors")
    save_file(_apart(state), file)
    return file


def safetensors_shards(path: Path, state: State, count: int = 3) -> Path:
    """Write a folder with an index, as transformers does."""
    path.mkdir()
    names = list(state)
    size = -(-len(names) // count)
    places = {}
    for part in range(count):
        file = f"model-{part + 1:05}-of-{count:05}.safetensors"
        own = names[part * size : (part + 1) * size]
        save_file(_apart({name: state[name] for name in own}), path / file)
        places |= dict.fromkeys(own, file)
    total = sum(value.numel() * value.element_size() for value in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return path


def torch_file(path: Path, state: Mapping[str, Any]) -> Path:
    """Write one file of torch.save."""
    file = path.with_suffix(".pt")
    torch.save(dict(state), file)
    return file


def torch_legacy(path: Path, state: State) -> Path:
    """Write one file in the form before PyTorch 1.6."""
    file = path.with_suffix(".bin")
    torch.save(_apart(state), file, _use_new_zipfile_serialization=False)
    return file


def wrapped(path: Path, state: State) -> Path:
    """Write one file that a training has saved, below a key and with its step."""
    return torch_file(path, {"state_dict": state, "step": 1000, "lr": 1e-4})


def distributed(path: Path, state: State) -> Path:
    """Write a folder of torch.distributed.checkpoint."""
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is one process
        checkpoint.save(_apart(state), checkpoint_id=str(path), no_dist=True)
    return path


def mindspore(path: Path, state: State) -> Path:
    """Write a .ckpt of MindSpore."""
    import mindspore as ms

    file = path.with_suffix(".ckpt")
    ms.save_checkpoint([{"name": name, "data": ms.Tensor(value.numpy())} for name, value in state.items()], str(file))
    return file


def ranks(path: Path, parts: Sequence[State], name: str = "mp_rank_{:02}/model_optim_rng.pt", key: str = "") -> Path:
    """Write a folder in which each rank has a file; tensors stand below `key`."""
    for rank, part in enumerate(parts):
        file = path / name.format(rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        state = _apart(part)
        if file.suffix == ".safetensors":
            save_file(state, file)
        else:
            torch.save({key: state} if key else state, file)
    return path
