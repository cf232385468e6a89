"""What collecting costs on an accelerator, and whether its trainings and their calls are judged rightly.

    python -m quality.on_device [--device cuda] [--peer] [--only small|large] [--write-results]

Costs come first, alone on the machine: a step of a llama (0.13 B parameters, bfloat16, 4 x 1,024 tokens) and of
ResNet-50, bare and with each level and task; with --peer those of the existing tool (package mindstudio-probe) beside
them. Then 11 architectures of transformers, float32: the training bare and collected, a pre-check of what it computed
by `backward-error`, its calls on the device again, and the comparison with the same step on the CPU. PyTorch and
transformers are needed. 7 minutes on one H100; --device cpu is for trying it out, with --only small. Lines are printed
as they come; --write-results writes results/on_device.tsv.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quality.results import Table, how
from tools import clone_environment

NAME = "on_device"
HEAD = ("network", "what", "answer")
SMALL = ("llama", "mixtral", "gpt2", "bert", "mamba", "t5", "whisper", "vit", "resnet", "convnext", "wav2vec2")
_MOST_SECONDS = 300
_LLAMA, _RESNET = "llama of a GPU", "resnet50"
#: (network, dtype, level, task): what costs of collecting are measured for.
COSTS = (
    *((_LLAMA, "bfloat16", level, "statistics") for level in ("L0", "L1", "mix")),
    (_LLAMA, "bfloat16", "L1", "statistics:sketch"),
    (_LLAMA, "bfloat16", "L1", "statistics:md5"),
    (_LLAMA, "bfloat16", "L1", "tensor"),
    (_RESNET, "float32", "L1", "statistics"),
)
_THEIRS = "msprobe.pytorch"

Row = tuple[str, str, str]


def run(command: Sequence[object]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=_MOST_SECONDS, env=clone_environment())


def trained(*words: object) -> dict:
    done = run(("quality.on_device.training", *words))
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["it says nothing"])[-1]}
    found: dict = json.loads(lines[-1])
    return found


def told(found: dict, bare: dict | None = None) -> str:
    """The least and the largest time of a step, the first left out, in seconds, against the least bare one."""
    if "error" in found:
        return found["error"]
    seconds = found["seconds"][1:] or found["seconds"]
    times = f", {min(seconds) / min(bare['seconds'][1:]):.1f} x" if bare and "seconds" in bare else ""
    size = f", {found['bytes'] / 1e9:.2f} GB" if found["bytes"] > 1e9 else ""
    return f"{min(seconds):.3f} to {max(seconds):.3f} s a step{times}{size}"


def costs(device: str, folder: Path, *, has_peer: bool) -> Iterator[Row]:
    bare: dict[str, dict] = {}
    for number, (name, dtype, level, task) in enumerate(COSTS):
        if name not in bare:
            bare[name] = trained(name, device, "-", level, task, dtype, 6)
            yield f"{name}, {dtype}", "bare", told(bare[name])
        steps = 1 if task == "tensor" else 5
        out = folder / f"cost{number}"
        found = trained(name, device, out, level, task, dtype, steps)
        yield f"{name}, {dtype}", f"{level} {task}", told(found, bare[name])
        if has_peer and task == "statistics":
            found = trained(name, device, folder / f"peer{number}", level, task, dtype, steps, _THEIRS)
            yield f"{name}, {dtype}", f"{level} {task}, existing tool", told(found, bare[name])


def answer_of(out: Path, *options: object) -> str:
    """The first line of what a run of pytest or `diagnose` says, with its exit code."""
    answer = out.with_suffix(".answer.json")
    if str(options[0]).startswith("--"):
        own = ("pytest", "-q", "-p", "no:cacheprovider", f"--msprobe-out={out}", f"--msprobe-diagnosis={answer}")
    else:
        own = ("pytest_msprobe", "diagnose", "--json", answer)
    done = run((*own, *options))
    try:
        headline = json.loads(answer.read_text(encoding="utf-8"))["headline"]
    except (OSError, ValueError, KeyError):
        headline = next((line for line in done.stdout.splitlines() if line.startswith(("Right", "Wrong", "Noth"))), "")
    return f"{headline or 'no answer'} (exit code {done.returncode})"


def of_architecture(name: str, device: str, folder: Path) -> list[Row]:
    here, cpu = folder / name / "device", folder / name / "cpu"
    bare = trained(name, device, "-", "mix", "tensor", "float32", 1)
    collected = trained(name, device, here, "mix", "tensor", "float32", 1)
    if "error" in collected:
        return [(name, "training", collected["error"])]
    is_same = bare.get("digest") == collected["digest"]
    rows = [(name, "training", "bit-identical" if is_same else "changed by collecting")]
    standard = "--msprobe-standard=backward-error"
    judged = answer_of(folder / name / "judged", f"--msprobe-dump={here}", standard)
    again = answer_of(folder / name / "again", f"--msprobe-dump={here}", standard, f"--msprobe-device=torch:{device}")
    rows += [(name, "recorded values", judged), (name, "calls on the device again", again)]
    trained(name, "cpu", cpu, "mix", "tensor", "float32", 1)
    return [*rows, (name, "against the CPU", answer_of(folder / name / "pair", here / "step0", cpu / "step0"))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="of PyTorch: cuda, npu, cpu")
    parser.add_argument("--peer", action="store_true", help="measure the existing tool as well")
    parser.add_argument("--only", choices=("small", "large"), help="11 architectures, or what collecting costs")
    parser.add_argument("-k", dest="names", default="", help="only small architectures with this text in their name")
    parser.add_argument("--workers", type=int, default=4, help="architectures at the same time")
    parser.add_argument("--write-results", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[Row] = []

    def take(found: Row) -> None:
        rows.append(found)
        print("\t".join(found), flush=True)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for found in () if options.only == "small" else costs(options.device, folder, has_peer=options.peer):
            take(found)
        names = [name for name in SMALL if options.names in name] if options.only != "large" else []
        with ThreadPoolExecutor(options.workers) as pool:
            for each in pool.map(lambda name: of_architecture(name, options.device, folder), names):
                for found in each:
                    take(found)
    if options.write_results:
        note = f"{device_name(options.device)}; {platform.machine()}"
        Table.of(NAME, HEAD, rows).write(how("quality.on_device --write-results", "torch", "transformers", note=note))
    return 0


def device_name(device: str) -> str:
    import torch

    return "CPU" if device == "cpu" else str(getattr(torch, device.partition(":")[0]).get_device_name())


if __name__ == "__main__":
    sys.exit(main())
