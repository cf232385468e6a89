"""Tensors outside the dump: read only from folders that the user named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import Dump, DumpError, FieldPath, TensorValue, find_dtype

PLACE = FieldPath("dump.json", "Mint.add.0.forward", "input_args[0]")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the dump with a good tensor, x.npy."""
    folder = tmp_path / "outside"
    folder.mkdir()
    np.save(folder / "x.npy", np.arange(3, dtype=np.float32))
    return folder


def load(dump: Dump) -> np.ndarray[Any, Any]:
    value = TensorValue(find_dtype("Float32"), (3,), None, None, None, None, "x.npy")
    return dump.tensors.load(value, PLACE)


def write(tmp_path: Path, recorded: str | None) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir(exist_ok=True)
    content = {"task": "tensor", "framework": "mindspore", "dump_data_dir": recorded, "data": {}}
    (folder / "dump.json").write_text(json.dumps(content))
    return folder / "dump.json"


def refusal(dump: Dump) -> str:
    with pytest.raises(DumpError) as caught:
        load(dump)
    return str(caught.value)


def test_a_recorded_folder_outside_is_named_and_not_read(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, str(outside))
    assert refusal(Dump(path)).endswith(
        f"'x.npy' is not in {path.parent / 'dump_tensor_data'}; dump_data_dir is {outside}, outside the dump, and is "
        f"not followed; allow it with --msprobe-data-dir={outside}"
    )
    assert load(Dump(path, [outside])).tolist() == [0, 1, 2]
    assert load(Dump(path, [tmp_path / "other", tmp_path])).tolist() == [0, 1, 2]


def test_a_recorded_folder_inside_the_dump_is_read(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, str(tmp_path / "dump" / "elsewhere"))
    outside.rename(path.parent / "elsewhere")
    assert load(Dump(path)).tolist() == [0, 1, 2]


def test_a_recorded_link_inside_the_dump_that_leads_out_is_not_read(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, str(tmp_path / "dump" / "elsewhere"))
    (path.parent / "elsewhere").symlink_to(outside)
    assert "outside the dump" in refusal(Dump(path))


def test_files_beside_the_dump_come_before_a_folder_that_may_not_be_read(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, str(outside))
    (path.parent / "dump_tensor_data").mkdir()
    np.save(path.parent / "dump_tensor_data" / "x.npy", np.ones(3, np.float32))
    assert load(Dump(path)).tolist() == [1, 1, 1]


def test_a_linked_tensor_folder_is_read_only_when_named(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, None)
    beside = path.parent / "dump_tensor_data"
    beside.symlink_to(outside)
    assert refusal(Dump(path)).endswith(
        f"{beside} is a link to {outside}, outside the dump, and is not followed; "
        f"allow it with --msprobe-data-dir={outside}"
    )
    assert load(Dump(path, [outside])).tolist() == [0, 1, 2]


def test_a_linked_tensor_file_is_read_only_when_its_folder_is_named(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, None)
    (path.parent / "dump_tensor_data").mkdir()
    (path.parent / "dump_tensor_data" / "x.npy").symlink_to(outside / "x.npy")
    assert "is a link that leads out of" in refusal(Dump(path))
    assert load(Dump(path, [outside])).tolist() == [0, 1, 2]


def test_a_dump_that_is_reached_through_a_link_is_whole(tmp_path: Path, outside: Path) -> None:
    path = write(tmp_path, str(tmp_path / "dump" / "dump_tensor_data"))
    outside.rename(path.parent / "dump_tensor_data")
    (tmp_path / "link").symlink_to(path.parent)
    assert load(Dump(tmp_path / "link" / "dump.json")).tolist() == [0, 1, 2]


@pytest.mark.parametrize("recorded", ["relative", "", "/none/of/this", "\0/tmp", None])
def test_other_recorded_folders_are_passed_over(tmp_path: Path, recorded: str | None) -> None:
    assert refusal(Dump(write(tmp_path, recorded))).endswith("; copy dump_tensor_data beside dump.json")
