"""Give the real dumps of tests/dumps in one folder, those that are archives unpacked.

Made by mindstudio-probe 26.2.0 on MindSpore 2.10 CPU (PyNative) in one training step of a two-layer GPT (RMS norm,
attention, gated MLP; hidden 32, 2 heads, sequence 16, batch 2, vocabulary 64), forward and backward. Paths inside were
rewritten to /home/train/..., so that `dump_data_dir` points nowhere, as after any copy between machines.

- quickstart: statistics, L1, 1 record (`Mint.where.0`), dump.json alone;
- gpt_tiny_statistics, gpt_tiny_tensor: L1, float32, 180 records, 90 API calls; gpt_tiny_float16: tensors in float16;
- gpt_tiny_mix: tensors at level mix, 236 records: 90 API calls, Cells, parameters and their gradients;
- gpt_perturbed/dumps.tar.xz: target and golden, 176 records each; golden has block 0's down-projection weight times
  1 + 0.02 N(0,1), and mint.norm replaced by NumPy;
- overflow_attention: tensors, float16, 14 records, made by our own collector; its loss is NaN;
- noise/dumps.tar.xz: fingerprints of golden run, noise run, one wrong `silu`, and all sums in another order, made by
  `python -m tools.benchmarks.noise FOLDER`;
- gradients/target and gradients/golden: five steps watched by our gradient monitor (`python tests/gradient_runs.py
  tests/dumps/gradients`): in target, from step 3, the gradient of `tanh` has the wrong sign in 2 of 16 units.

`msprobe_26.2.0/` in each of the first five is the CSV pair that `msprobe acc_check` wrote for it (benchmark: PyTorch in
the dump's own dtype, limit 0.001); it checks 74 of the 90 API calls. Archives were packed with `tar --sort=name
--mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar -C tests/dumps -cf - NAME | xz -9e`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

COMMITTED = Path(__file__).parent / "dumps"
_ARCHIVE = ".tar.xz"


@cache
def real_dumps() -> Path:
    """A temporary folder with everything in tests/dumps; `NAME.tar.xz` there is the folder `NAME` here.

    It is made once per machine, user and content of tests/dumps, and gets its name when it is complete, so that several
    processes may ask at the same time.
    """
    folder = Path(tempfile.gettempdir()) / f"pytest-msprobe-dumps-{os.getuid()}-{_digest()}"
    if not folder.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))
        _fill(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder}: belongs to another user; remove it, or set TMPDIR")
    return folder


def _fill(folder: Path) -> None:
    for source in COMMITTED.iterdir():
        if source.name.endswith(_ARCHIVE):
            with tarfile.open(source) as archive:
                archive.extractall(folder, filter="data")
        elif source.is_dir():
            shutil.copytree(source, folder / source.name)


def _digest() -> str:
    """Changes with any file of tests/dumps."""
    digest = hashlib.sha256()
    for path in sorted(COMMITTED.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(COMMITTED)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
