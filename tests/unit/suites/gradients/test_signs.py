"""How far two gradients have the same signs."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from gradient_runs import write_step
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.gradients.findings import SignAgreement, compare_signs
from pytest_msprobe.suites.gradients.run import read_summary


def compare(folder: Path, tested: object, reference: object) -> SignAgreement:
    target = read_summary(write_step(folder / "a", 0, {"w": tested}))
    golden = read_summary(write_step(folder / "b", 0, {"w": reference}))
    return compare_signs(target.rows["w"], target, golden)


KNOWN = {
    "the same": ([[1.0, -2.0], [0.0, 3.0]], [[1.0, -2.0], [0.0, 3.0]], 1.0),
    "one of four": ([1.0, -2.0, 3.0, 4.0], [1.0, -2.0, 3.0, -4.0], 0.75),
    "zeros and tiny negatives": ([0.0, 0.0], [-1e-30, -1e-38], 1.0),
    "zeros and tiny positives": ([0.0, 0.0], [1e-30, 1e-38], 0.0),
    "flipped": ([1.0, -1.0], [-1.0, 1.0], 0.0),
    "NaN counts as not above 0": ([float("nan"), 1.0], [-1.0, 1.0], 1.0),
    "empty": (np.zeros((0, 3)), np.zeros((0, 3)), 0.0),
    "a number": (np.array(2.0), np.array(3.0), 1.0),
}


@pytest.mark.parametrize("case", KNOWN)
def test_known_similarities(tmp_path: Path, case: str) -> None:
    tested, reference, expected = KNOWN[case]
    assert compare(tmp_path, tested, reference).similarity == expected


def test_a_gradient_of_several_chunks(tmp_path: Path) -> None:
    tested = np.ones(2_500_000, np.float32)
    reference = tested.copy()
    reference[[0, 1_048_576, 2_499_999]] = -1
    assert compare(tmp_path, tested, reference) == SignAgreement(2_499_997, 2_500_000)


@given(
    pair=arrays.array_shapes(max_dims=3, max_side=5).flatmap(
        lambda shape: st.tuples(*[arrays.arrays(np.float32, shape, elements=st.floats(-1, 1, width=32))] * 2)
    )
)
def test_similarity_is_a_count(tmp_path_factory: pytest.TempPathFactory, pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = compare(tmp_path_factory.mktemp("run"), *pair)
    same = sum((left > 0) == (right > 0) for left, right in zip(pair[0].flat, pair[1].flat))
    assert Fraction(found.agreeing, found.size) == Fraction(int(same), pair[0].size)
    assert compare(tmp_path_factory.mktemp("run"), *reversed(pair)) == found


def spoil_dtype(file: Path) -> None:
    np.save(file, np.ones(4, np.float32))


def spoil_shape(file: Path) -> None:
    np.save(file, np.ones((2, 2), bool))


def spoil_objects(file: Path) -> None:
    np.save(file, np.array([object()] * 4), allow_pickle=True)


SPOILED = {
    "missing": (Path.unlink, "w.npy is not in "),
    "torn": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "'w.npy' is truncated: it holds 3 of 4 bytes"),
    "empty file": (lambda file: file.write_bytes(b""), "'w.npy' is not a NumPy .npy file"),
    "floats": (spoil_dtype, "'w.npy' holds float32, the record says Bool"),
    "shape": (spoil_shape, "'w.npy' has shape (2, 2), the record says (4,)"),
    "objects": (spoil_objects, "'w.npy' holds pickled objects"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_file_is_one_sentence_with_file_and_parameter(tmp_path: Path, case: str) -> None:
    spoil, text = SPOILED[case]
    target = read_summary(write_step(tmp_path / "a", 3, {"w": np.ones(4)}))
    golden = read_summary(write_step(tmp_path / "b", 3, {"w": np.ones(4)}))
    spoil(tmp_path / "b" / "rank0" / "step3" / "w.npy")
    with pytest.raises(DumpError) as raised:
        compare_signs(target.rows["w"], target, golden)
    assert str(raised.value).startswith(f"{golden.path}: w: signs")
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_never_leads_out_of_the_folder(tmp_path: Path) -> None:
    summary = write_step(tmp_path, 0, {"w": np.ones(4)})
    np.save(tmp_path / "outside.npy", np.ones(4, bool))
    summary.write_text(summary.read_text().replace("\nw,", "\n../../outside,"))
    read = read_summary(summary)
    with pytest.raises(DumpError, match="not a plain file name"):
        compare_signs(read.rows["../../outside"], read, read)


def test_memory_does_not_grow_with_the_gradient(tmp_path: Path) -> None:
    tested = np.ones(8_000_000, np.float32)
    target = read_summary(write_step(tmp_path / "a", 0, {"w": tested}))
    golden = read_summary(write_step(tmp_path / "b", 0, {"w": tested}))
    compare_signs(target.rows["w"], target, golden)
    tracemalloc.start()
    assert compare_signs(target.rows["w"], target, golden).similarity == 1.0
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3_000_000  # one chunk of the comparison, of 1 MB, and change
