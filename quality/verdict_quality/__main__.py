"""How often the verdicts are wrong: false alarms on right outputs, and planted faults that pass.

    python -m quality.verdict_quality [--dtypes float32 bfloat16] [--standards cosine-maxabs] [--fraction 0.1]
                                    [--apis "*softmax" Mint.bmm.1001] [--faults "scale 5 %"] [--material 1]
                                    [--list] [--write-results]

Every record is a forward or a backward of an API that MindSpore and PyTorch share. Its arguments come from PyTorch's
OpInfo database (small shapes) or are calls in the sizes of a language model (large shapes), from fixed seeds. Random
and uninitialised APIs are left out: no standard judges them. Ideal outputs are the float64 result rounded once to the
dtype; honest kernels are textbook formulas in NumPy in realistic sizes, with tensors of the dtype in and out and
float32 inside; PyTorch CPU and MindSpore CPU are what these kernels return, whose alarms may be real. A fault is
planted into one ideal output or gradient at a time; kinds of faults by size: quality/verdict_quality/tables.py.
--write-results writes the tables into quality/results.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def _parsed() -> argparse.Namespace:
    from quality.verdict_quality.faults import CATALOGUE
    from quality.verdict_quality.judging import STANDARDS
    from quality.verdict_quality.quality import DEVICES
    from quality.verdict_quality.samples import DTYPES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--standards", nargs="+", choices=STANDARDS, default=list(STANDARDS))
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=list(DEVICES))
    parser.add_argument("--faults", nargs="*", choices=CATALOGUE, default=list(CATALOGUE), metavar="FAULT")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the APIs, 0 to 1 (default: 1)")
    parser.add_argument("--apis", nargs="+", default=[], help="patterns of names: Mint.add*, Mint.bmm.1001")
    parser.add_argument("--per-api", type=int, default=3, help="samples of each OpInfo (default: 3)")
    parser.add_argument("--material", type=int, default=0, help="number of the material: other APIs, inputs and places")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print each false alarm and each miss as well")
    parser.add_argument("--write-results", action="store_true", help="write the tables in quality/results")
    return parser.parse_args()


def main() -> None:
    """The command line."""
    os.environ.setdefault("GLOG_v", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = _parsed()
    from quality.results import how
    from quality.verdict_quality import tables
    from quality.verdict_quality.quality import Figures, Slice, measure_alone

    asked = Slice(
        dtypes=tuple(options.dtypes),
        standards=tuple(options.standards),
        devices=tuple(options.devices),
        faults=tuple(options.faults),
        fraction=options.fraction,
        per_api=options.per_api,
        material=options.material,
        apis=tuple(options.apis),
    )
    figures = Figures((), ())
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for share in pool.map(measure_alone, asked.shares(2 * options.processes)):
            figures += share
    found = tables.tables_of(figures)
    print("\n".join(table.text for table in found))
    if options.list:
        print("\n".join(tables.lists(figures)))
    note = f"{options.fraction:.1%} of the APIs of material {options.material}"
    for table in found if options.write_results else ():
        table.write(how("quality.verdict_quality --write-results", "torch", "mindspore", "numpy", note=note))


if __name__ == "__main__":
    main()
