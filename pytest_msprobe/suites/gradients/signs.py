"""How far two gradients have the same signs. Files are read without trusting them; large ones are mapped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe_collector.dump_format import Place, TensorFolder, TensorValue, find_dtype
from pytest_msprobe.suites.gradients.step_summary import GradientRow, StepSummary

#: Elements compared at a time: the only temporary, whatever the size of the gradient.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class SignAgreement:
    """Elements of two gradients that are above 0 in both, or in neither, and elements in all."""

    agreeing: int
    size: int

    @property
    def similarity(self) -> float:
        """Share of the elements that agree; 0 where there are none, as in the existing tool."""
        return self.agreeing / self.size if self.size else 0.0


def compare_signs(row: GradientRow, target: StepSummary, golden: StepSummary) -> SignAgreement:
    """The agreement of the signs of one gradient, which has the same shape on both sides.

    Raises:
        DumpError: a file is missing, torn, or not bool values of that shape.
    """
    import numpy as np

    tested, reference = _signs(row, target), _signs(row, golden)
    agreeing = 0
    for start in range(0, row.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        agreeing += int(np.count_nonzero(tested[part] == reference[part]))
    return SignAgreement(agreeing, row.size)


def _signs(row: GradientRow, summary: StepSummary) -> Any:
    folder, name, place = signs_folder(summary.path), f"{row.name}.npy", Place(str(summary.path), row.name, "signs")
    if not (folder / name).exists():
        raise place.fault(f"{name} is not in {folder}; copy that folder as well")
    value = TensorValue(find_dtype("Bool"), row.shape, None, None, None, None, data_name=name)
    return TensorFolder(folder).load(value, place).reshape(-1)


def signs_folder(summary: Path) -> Path:
    """The folder `step{step}` that belongs to a summary file."""
    return summary.with_name(f"step{summary.stem.rpartition('_')[2]}")
