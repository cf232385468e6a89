"""Files of older tools are told from damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.unread_files import old_file_in

FILES = {
    "api_stack_dump.pkl": (
        '["Functional_linear_0_forward_input.0", 1, [], "torch.float32", [4, 8], [2.0, -1.0, 0.1]]\n'
        '["Functional_linear_0_forward_output", 1, [], "torch.float32", [4, 16], [1.0, -1.0, 0.1]]\n',
        "is a dump of ptdbg_ascend",
    ),
    "accuracy_checking_result.csv": (
        "API Name,Forward Test Success,Backward Test Success,Message\nFunctional.linear.0,pass,pass,\n",
        "is a table of results; give the dump.json",
    ),
    "compare_result.csv": ("\ufeffNPU Name,Bench Name,NPU Dtype\n", "is a table of results"),
    "forward_info_0.json": (
        '{"Functional*relu*0": {"args": [{"type": "torch.Tensor", "datapath": "a.npy"}], "kwargs": {}}}',
        "is an api_info file",
    ),
    "backward_info_0.json": ('{"Functional*relu*0": [{"type": "torch.Tensor"}]}', "is an api_info file"),
    "dump.json": ('{"data": ', "is not valid JSON"),
    "other.json": ('{"model": {"layers": 3}}', "is not a dump.json of an API dump"),
}


@pytest.mark.parametrize("name", FILES)
def test_one_line_says_what_a_file_is(tmp_path: Path, name: str) -> None:
    text, said = FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DumpError) as caught:
        Dump(tmp_path / name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_of_old_files_is_told(tmp_path: Path) -> None:
    assert old_file_in(tmp_path) == ""
    (tmp_path / "forward_info_3.json").write_text("{}")
    assert "forward_info_3.json is an api_info file" in old_file_in(tmp_path)
