"""Whether backward-error sees outputs that are wrong as a whole, for every API that has a sample.

    python -m quality.verdict_quality.signal [--apis "Mint.f*" Functional.interpolate] [--dtypes float32 bfloat16]
                                            [--processes 2] [--list]

Each output and gradient of floats is judged as zeros, 20 % too large, and with its elements moved by one place; each
must be refused or not judged. A tolerance as large as the signal passes them: that of a result which jumps, where
rounding an argument or an intermediate result makes it another one. A fault that changes the result by less than a
thousandth is left out. The right result, rounded once, must not be refused.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from msprobe_collector.dump_format import DIRECTIONS, Direction, parse_api_name
from pytest_msprobe.apis.fact_table import random_api
from pytest_msprobe.numerics.standards.backward_error import BackwardError
from pytest_msprobe.verdicts import Status
from quality.verdict_quality.dumps import write_dump
from quality.verdict_quality.judging import Judge
from quality.verdict_quality.recordings import Recording, attempt, is_float, record
from quality.verdict_quality.samples import DTYPES, Sample, opinfo_samples
from tools import TESTS

FAULTS: dict[str, Callable[[Any], Any]] = {
    "right": lambda array: array,
    "zeros": np.zeros_like,
    "x 1.2": lambda array: (array.astype(np.float64) * 1.2).astype(array.dtype),
    "moved": lambda array: np.roll(array.reshape(-1), 1).reshape(array.shape),
}
#: A fault that changes a result by less is none.
_VISIBLE = 1e-3
#: Gradients of rows of two elements, which are 0 but for rounding: zeros are as right.
_ROUNDING = ("OpInfo MintFunctional.group_norm.1", "OpInfo MintFunctional.layer_norm.1")


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one result with one fault."""

    text: str
    direction: Direction
    place: int
    fault: str
    status: Status

    @property
    def is_missed(self) -> bool:
        """Whether a wrong result passed, or the right one did not."""
        is_rounding = self.text in _ROUNDING and self.direction == "backward"
        return not is_rounding and self.status == ("error" if self.fault == "right" else "pass")


def samples() -> list[tuple[str, Sample]]:
    """The calls of torch_map_samples.txt that need no constructor, by their text, and those of OpInfo."""
    sys.path.append(str(TESTS / "unit" / "engines"))
    from torch_map_samples import as_call, read_samples

    database = opinfo_samples(lambda api: True, per_api=2)
    found = [(f"OpInfo {sample.name}", sample) for sample in database if not is_random(sample.name)]
    for sample in read_samples():
        call = as_call(sample)
        name = f"{sample.api_type}.{sample.name}.0"
        if sample.given is None and not is_random(name):
            found.append((sample.text, Sample(name, call.arguments, call.keywords, has_gradient=True)))
    return found


def is_random(name: str) -> bool:
    """Whether a call of this name draws random numbers."""
    return random_api(parse_api_name(name), "mindspore") is not None


def judged(text: str, sample: Sample, dtype: str = "float32") -> Iterator[Judged]:
    """The verdict on each result of a sample with each fault."""
    recording = attempt(partial(record, sample, DTYPES[dtype]))
    if recording is None:
        return
    with tempfile.TemporaryDirectory(prefix="signal-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A recording with what PyTorch's kernels return would be another question.
        recording = replace(recording, native=None)
        judge = Judge(write_dump(Path(folder), [(recording, recording.ideal)]))
        for direction in DIRECTIONS[: 1 + bool(recording.wanted)]:
            yield from _of_direction(text, recording, direction, judge)


def _of_direction(text: str, recording: Recording, direction: Direction, judge: Judge) -> Iterator[Judged]:
    results: Sequence[Any] = recording.ideal.gradients
    if direction == "forward":
        results = [output.value for output in recording.ideal.outputs]
    for place, right in enumerate(results):
        if not isinstance(right, np.ndarray) or not is_float(right) or not right.size:
            continue
        for fault, change in FAULTS.items():
            wrong = change(right)
            if fault != "right" and not _is_visible(wrong, right):
                continue

            def altered(values: list[Any], place: int = place, wrong: Any = wrong) -> list[Any]:
                return [wrong if at == place else value for at, value in enumerate(values)]

            verdict = judge.verdict(recording.name, direction, BackwardError.name, altered=altered)
            yield Judged(text, direction, place, fault, verdict.status)


def _is_visible(wrong: Any, right: Any) -> bool:
    wide = right.astype(np.float64)
    finite = np.isfinite(wide)
    off = np.abs(np.where(finite, wrong.astype(np.float64) - wide, 0)).max()
    return bool(off > _VISIBLE * np.abs(np.where(finite, wide, 0)).max())


def _judged_all(task: tuple[str, Sample, str]) -> list[Judged]:
    return attempt(lambda: list(judged(*task))) or []


def main() -> None:
    """The command line; exit code 1 where a fault passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apis", nargs="+", default=["*"], metavar="PATTERN", help='names: "Mint.f*"')
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32"])
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--list", action="store_true", help="print each fault that passed")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = [
        (text, sample, dtype)
        for text, sample in samples()
        if any(fnmatchcase(sample.name.rpartition(".")[0], pattern) for pattern in options.apis)
        for dtype in options.dtypes
    ]
    counts: Counter[tuple[str, str]] = Counter()
    missed = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for found in pool.map(_judged_all, wanted, chunksize=8):
            counts.update((one.fault, one.status) for one in found)
            missed += [one for one in found if one.is_missed]
    for (fault, status), count in sorted(counts.items()):
        print(f"{fault}: {count} {status}")
    for one in missed if options.list else ():
        print(f"{one.fault}: {one.status} {one.text} {one.direction} {one.place}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
