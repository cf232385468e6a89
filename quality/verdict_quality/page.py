"""The pages docs/verdict_quality.md, of right outputs, and docs/verdict_quality_faults.md, of faulty ones."""

from __future__ import annotations

from importlib import metadata

from quality.verdict_quality import tables
from quality.verdict_quality.quality import Figures

_RIGHT = """\
# How good the verdicts are

Written by `python -m quality.verdict_quality --write-docs`; change the command, not this page. {versions}

Every record is a forward or a backward of an API that MindSpore and PyTorch share. Its arguments come from PyTorch's
OpInfo database (small shapes) or are calls in the sizes of a language model (large shapes), from fixed seeds.
Random and uninitialised APIs are left out: no standard judges them.
Calls above a million elements have [a page of their own](verdict_quality_at_size.md).

## Right outputs

*Ideal* outputs are the float64 result rounded once to the dtype: what a perfect device returns. Those of PyTorch CPU in
the dump's dtype have the rounding errors of a good device, from the benchmark's own library; MindSpore CPU is another
device, which lacks kernels for about half of the APIs (unjudged). An alarm on these two may be a real fault of theirs.

{verdicts}

*Honest kernels* are textbook formulas in NumPy in realistic sizes, with tensors of the dtype in and out and float32
inside: gelu, softmax, log_softmax of confident rows, cross_entropy, normalisations, products, flash attention and more.

APIs with false alarms:

{alarms}

Unjudged, MindSpore CPU left out:

{unjudged}
"""

_FAULTY = """\
# Faulty outputs: what the verdicts catch

Written by `python -m quality.verdict_quality --write-docs`; change the command, not this page. {versions}

[Right outputs](verdict_quality.md), and of what records these are made, have a page of their own.

## Faults by size

One fault at a time in one ideal output or gradient, in records whose ideal outputs pass.

- *Below rounding*: no element is further off than to its neighbour among the numbers of its dtype. Not judged.
- *Hidden*: moving every input by one rounding of its dtype moves the exact result as far. No rule can tell such a fault
  from a device that rounds its inputs once; catching it is luck.
- *Kept*: larger, but rounding what the forward keeps for its gradients moves the exact result as far: tanh's gradient
  is 1 - y² of the y that a device has stored. No rule can tell these either.
- *Inside*: larger, but moving each result of float32 arithmetic inside the operation by up to one rounding moves the
  exact result as far ([Monte Carlo arithmetic](backward_error.md)), sums by what adding their terms one by
  one leaves. [Honest kernels](verdict_quality.md) are as far off.
- *Kernels*: float32 results of exp, log and the like that are off by no more than MindSpore's own exp on CPU is, up to
  41 roundings of element and input, 7 in the root mean square.
- *Visible*: all others. The columns to the right split them by their size, in roundings of the element and of the
  inputs together.

{faults}

## Faults by kind

Visible faults that were caught, by kind. Rounding towards zero counts from 64 elements on that it moves:

{catalogue}

## Low precision inside

Honest kernels again, with intermediate results (scores, sums, means, exponentials) rounded to the half dtype of
their tensors, where that shows in the result. Where it stays below what rounding of the inputs does no rule can tell,
unless inputs are known to be exact (`fused`). *Kept* are apart here as well: gradients that are no further off than
rounding of what the forward keeps takes those of exact inputs. *All* is the stricter count, which excuses none of them.

{narrow}

## Patterns

Of the visible faults above that were caught and that leave a pattern, those which the phrase in the message names
rightly. An output of one element has no pattern, and counts here all the same.

{naming}
"""


def pages_of(figures: Figures, *, fraction: float = 1.0, material: int = 0) -> dict[str, str]:
    """The pages in Markdown by the name of their file; `fraction` of the APIs in small shapes were looked at."""
    of = f" of material {material}" if material else ""
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "mindspore", "numpy"))
    versions = f"Measured with {packages}{f', on {fraction:.1%} of the APIs' if fraction < 1 else ''}{of}."
    return {
        "verdict_quality.md": _RIGHT.format(
            versions=versions,
            verdicts=tables.verdict_table(figures),
            alarms=tables.alarm_table(figures),
            unjudged=tables.unjudged_table(figures),
        ),
        "verdict_quality_faults.md": _FAULTY.format(
            versions=versions,
            faults=tables.fault_table(figures),
            catalogue=tables.catalogue_table(figures),
            narrow=tables.narrow_table(figures),
            naming=tables.naming_table(figures),
        ),
    }
