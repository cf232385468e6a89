"""Reproducers: a script and its values for every failing API call, in a folder that the processes of a run share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pytest_msprobe.evidence.evidence import Evidence, dump_folder, file_stem
from pytest_msprobe.evidence.evidence_folder import EvidenceFolder, make_folder, write_file
from pytest_msprobe.evidence.reproducer_script import write_reproducer
from pytest_msprobe.evidence.script_call import NoScript


class Reproducers:
    """Writes `<API call>.py` and `<API call>.npz`; the script of a failing backward runs the forward as well."""

    def __init__(self, folder: EvidenceFolder, dumps: Sequence[Path]) -> None:
        """A writer into `folder`, with one sub-folder for each of `dumps` when there are several."""
        self._folder = folder
        self._dumps = dumps

    def save(self, evidence: Evidence) -> str:
        """See `EvidenceWriter.save`."""
        stem = file_stem("-".join(filter(None, (str(evidence.api), evidence.edge_case))))
        try:
            made = write_reproducer(evidence, stem)
        except NoScript as reason:
            return f"reproducer: none, {reason}"
        place = self._folder.root / dump_folder(Path(evidence.dump), self._dumps)
        script = place / f"{stem}.py"
        text = made.text.encode()
        with self._folder.locked() as state:
            is_new = not script.exists()
            if not is_new and evidence.gradients is None:
                return f"reproducer: {script}"  # that of the backward, which holds the forward
            if not self._folder.take(state, sum(array.nbytes for array in made.arrays.values()) + len(text)):
                return "reproducer: not written, --msprobe-error-data-limit is used up"
            state.saved += is_new
        make_folder(place)
        write_file(place / f"{stem}.npz", lambda file: np.savez(file, **made.arrays))
        write_file(script, partial(_write_text, text))
        return f"reproducer: {script}"


def _write_text(text: bytes, file: BinaryIO) -> None:
    file.write(text)
