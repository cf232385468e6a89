"""How many wrong kernels `assert_rounding_only` stops, and how many right ones it refuses.

    python -m quality.kernels [wrong|right|flakes|cost] [--seeds=N] [--minutes=M] [--match=NAME] [--write-results]

wrong, which is the default, and whose table --write-results writes, in which first answers stay: both halves of the
catalogue, and how many of them allclose(1e-2) stops; right: by dtype, with as many seeds as fit into the minutes of
CPU; flakes: kernels of public threads that fixed tolerances refuse now and then; cost: time and runs of the reference
that a judgement takes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_msprobe import rounding_of
from quality.kernels.entries import Draw, Kernel, WrongKernel
from quality.kernels.flakes import KERNELS as FLAKES
from quality.kernels.right import KERNELS as PYTORCH
from quality.kernels.right_second import KERNELS as UNUSUAL
from quality.kernels.triton_kernels import KERNELS as TRITON
from quality.kernels.wrong_first import KERNELS as WRONG_FIRST
from quality.kernels.wrong_second import KERNELS as WRONG_SECOND
from quality.results import Table, how, read

RIGHT = [*PYTORCH, *TRITON, *UNUSUAL]


def say(line: str) -> None:
    """Write one line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer_to(kernel: Kernel | WrongKernel, arguments: Sequence[Any]) -> str:
    """ "" for a pass, else the first line of what is said."""
    try:
        found = rounding_of(kernel.kernel, kernel.reference, *arguments, **kernel.options)
    except AssertionError as error:
        return str(error)
    return found.text.partition("\n")[0]


def _results(function: Callable[..., Any], arguments: Sequence[Any], dtype: torch.dtype) -> list[Tensor]:
    """Outputs, what was written, and gradients of ones, in `dtype` where that is float64."""

    def given(value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        copy = value.detach().to(torch.float64 if dtype == torch.float64 and value.is_floating_point() else value.dtype)
        copy = copy if copy is not value and not value.is_contiguous() else copy.clone()
        return copy.requires_grad_(value.requires_grad)

    copies = [given(value) for value in arguments]
    returned = function(*copies)
    outputs = [value for value in (returned if isinstance(returned, tuple) else (returned,)) if value is not None]
    leaves = [value for value in copies if torch.is_tensor(value) and value.requires_grad]
    outputs += [] if outputs else [value for value in copies if torch.is_tensor(value)]
    carrying = [value for value in outputs if value.requires_grad]
    found = torch.autograd.grad(sum(each.sum() for each in carrying), leaves, allow_unused=True) if carrying else ()
    gradients = [torch.zeros_like(leaf) if each is None else each for each, leaf in zip(found, leaves)]
    return [value.detach().to(torch.float64) for value in (*outputs, *gradients)]


def passes_allclose(
    kernel: WrongKernel, arguments: Sequence[Any], dtype: torch.dtype, *, with_gradients: bool = True
) -> bool:
    """Whether allclose with both tolerances 1e-2 takes it."""
    if not with_gradients:
        arguments = [value.detach() if torch.is_tensor(value) else value for value in arguments]
    try:
        tested, exact = (
            _results(function, arguments, in_)
            for function, in_ in ((kernel.kernel, dtype), (kernel.reference, torch.float64))
        )
        return all(torch.allclose(one, other, rtol=1e-2, atol=1e-2) for one, other in zip(tested, exact, strict=True))
    except (RuntimeError, ValueError):
        return False


def wrong(kernels: Sequence[WrongKernel]) -> Iterator[tuple[str, ...]]:
    """Judge all wrong kernels; yield the row of each, without half and first answer."""
    stopped: Counter[str] = Counter()
    for kernel in kernels:
        for dtype in kernel.dtypes:
            arguments = kernel.inputs(Draw(dtype, 1), kernel.shape)
            answer = answer_to(kernel, arguments)
            kind = "above" if kernel.is_above else "below"
            stopped.update([kind] + ([f"{kind} stopped"] if answer else []))
            by_allclose = []
            for what, with_gradients in (("allclose of outputs", False), ("allclose", True)):
                passes = passes_allclose(kernel, arguments, dtype, with_gradients=with_gradients)
                stopped[f"{kind} {what}"] += not passes
                by_allclose.append("passed" if passes else "stopped")
            name = str(dtype).rpartition(".")[2]
            said = " ".join(answer.partition("rounding: ")[2].split())[:200]
            is_above, final = ("yes" if kernel.is_above else "no"), ("stopped" if answer else "passed")
            yield kernel.name, name, is_above, final, *by_allclose, said
            say(f"{'stopped' if answer else 'MISSED '} {kernel.name} ({name}): {answer[:200]}")
    for kind in ("above", "below"):
        say(
            f"{kind} two roundings: {stopped[f'{kind} stopped']} of {stopped[kind]} stopped; "
            f"allclose(1e-2) stops {stopped[f'{kind} allclose of outputs']}, "
            f"with gradients {stopped[f'{kind} allclose']}"
        )


def _cases(kernels: Sequence[Kernel], seed: int) -> Iterator[tuple[Kernel, torch.dtype, tuple[int, ...]]]:
    """Every kernel in every dtype, seed after seed in another of its shapes."""
    for kernel in kernels:
        yield from ((kernel, dtype, kernel.shapes[seed % len(kernel.shapes)]) for dtype in kernel.dtypes)


def right(kernels: Sequence[Kernel], seeds: int, minutes: float, first: int = 0) -> None:
    """Judge all right kernels under seed after seed."""
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    end = time.process_time() + 60 * minutes
    done = 0
    for seed in range(first, first + seeds):
        for kernel, dtype, shape in _cases(kernels, seed):
            name = str(dtype).rpartition(".")[2]
            answer = answer_to(kernel, kernel.inputs(Draw(dtype, seed), shape))
            counts[name] += 1
            if answer:
                refused[name] += 1
                say(f"REFUSED {kernel.name} ({name}) {shape} seed {seed}: {answer[:300]}")
        done += 1
        if time.process_time() > end:
            break
    say(
        f"{len(kernels)} kernels, {done} seeds: "
        + ", ".join(f"{refused[name]} of {counts[name]} in {name}" for name in counts)
    )


def cost(kernels: Sequence[Kernel]) -> None:
    """Compare a judgement with the reference alone, forward and gradients."""
    for kernel in kernels:
        for dtype in (torch.float32, torch.bfloat16):
            arguments = kernel.inputs(Draw(dtype, 0), kernel.shapes[0])
            runs: list[int] = []

            def counted(*given: Any, kernel: Kernel = kernel, runs: list[int] = runs) -> Any:
                runs.append(1)
                return kernel.reference(*given)

            start = time.perf_counter()
            rounding_of(kernel.kernel, counted, *arguments, **kernel.options)
            judged = time.perf_counter() - start
            start = time.perf_counter()
            _results(kernel.reference, arguments, torch.float64)
            alone = time.perf_counter() - start
            say(f"{kernel.name} {dtype}: {len(runs)} runs of the reference, {judged / alone:.1f} times its time")


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m quality.kernels", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("wrong", "right", "flakes", "cost"), default="wrong")
    parser.add_argument("--write-results", action="store_true", help="write the table in quality/results")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--match", default="")
    asked = parser.parse_args()
    if asked.what == "wrong":
        halves = {"first": WRONG_FIRST, "second": WRONG_SECOND}
        rows = {
            name: list(wrong([kernel for kernel in half if asked.match in kernel.name]))
            for name, half in halves.items()
        }
        if asked.write_results:
            table(rows).write(how("quality.kernels --write-results", "torch"))
    elif asked.what == "right":
        right([kernel for kernel in RIGHT if asked.match in kernel.name], asked.seeds, asked.minutes, asked.first)
    elif asked.what == "flakes":
        right(FLAKES, asked.seeds, asked.minutes, asked.first)
    else:
        cost(large())


def table(halves: Mapping[str, Sequence[tuple[str, ...]]]) -> Table:
    """Return what is said of wrong kernels, beside first answers, which stay."""
    known = {(row["kernel"], row["dtype"]): row["first"] for row in read("kernels")}
    rows = (
        (half, *row[:3], known.get(row[:2], row[3]), *row[3:]) for half, of_half in halves.items() for row in of_half
    )
    head = ("half", "kernel", "dtype", "above two roundings", "first", "final", "allclose(1e-2) of outputs")
    return Table.of("kernels", (*head, "with gradients", "what is said"), rows)


def large() -> list[Kernel]:
    """Some right kernels with sizes of every day."""
    sizes = {
        "softmax online": (256, 1024),
        "layer_norm welford": (256, 512),
        "matmul plain": (256, 512, 256),
        "attention causal": (1, 4, 4, 128, 64),
        "gelu erf": (512, 512),
    }
    kernels = {kernel.name: kernel for kernel in RIGHT}
    return [
        Kernel(name, kernels[name].reference, kernels[name].kernel, kernels[name].inputs, (shape,))
        for name, shape in sizes.items()
    ]


if __name__ == "__main__":
    main()
