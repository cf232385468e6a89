"""stack.json in both shapes of collector.md section 8, and broken ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from real_dumps import real_dumps

from msprobe_collector.dump_format import CallStacks, Dump, Frame
from msprobe_collector.dump_format.dump import frame_text

DUMPS = real_dumps()
LIBRARY = "File /opt/python/lib/python3.11/site-packages/mindspore/nn/cell.py, line 9, in __call__, \n return out"
INNER = "File /home/me/model.py, line 12, in construct, \n y = mint.add(x, 1)"
OUTER = "File /home/me/train.py, line 40, in <module>, \n step(batch)"
INNER_FRAME = Frame("/home/me/model.py", 12, "construct", "y = mint.add(x, 1)")
OUTER_FRAME = Frame("/home/me/train.py", 40, "<module>", "step(batch)")


def stacks(folder: Path, content: Any) -> CallStacks:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "stack.json").write_bytes(text)
    return CallStacks.beside(folder / "dump.json")


@pytest.mark.parametrize(
    "content",
    [
        {"0": [["A.a.0.forward", "B.b.0.forward"], [LIBRARY, INNER, OUTER]], "1": [["C.c.0.forward"], [OUTER]]},
        {"A.a.0.forward": [LIBRARY, INNER, OUTER], "B.b.0.forward": [LIBRARY, INNER, OUTER], "C.c.0.forward": [OUTER]},
    ],
    ids=["grouped", "by name"],
)
def test_both_shapes_give_the_frames_innermost_first(tmp_path: Path, content: Any) -> None:
    found = stacks(tmp_path, content)
    assert found.problem == ""
    assert found.frames("A.a.0.forward")[1:] == (INNER_FRAME, OUTER_FRAME)
    assert found.frames("B.b.0.forward") == found.frames("A.a.0.forward")
    assert found.frames("C.c.0.forward") == (OUTER_FRAME,)
    assert found.user_frame("A.a.0.forward") == INNER_FRAME
    assert found.frames("D.d.0.forward") == ()
    assert found.user_frame("D.d.0.forward") is None


def test_backwards_of_scripts_own_functions_are_found(tmp_path: Path) -> None:
    torch = "/lib/python3.11/site-packages/torch"
    caller = f"File {torch}/autograd/function.py, line 311, in apply, \n return user_fn(self, *args)"
    own = "File /home/me/model.py, line 9, in backward, \n return grad * x"
    checkpoint = f"File {torch}/utils/checkpoint.py, line 3, in backward, \n detached = run(x)"
    unlike = "File /home/me/model.py, line 4, in forward, \n y = x * x"
    found = stacks(
        tmp_path,
        {
            "0": [["A.a.0.forward"], [checkpoint, caller, OUTER]],
            "1": [["B.b.0.forward"], [unlike, caller, OUTER]],
            "2": [["C.c.0.forward", "C.c.1.forward"], [LIBRARY, own, caller, OUTER]],
            "3": [["D.d.0.forward"], [own, OUTER]],
        },
    )
    assert list(found.written_backwards()) == [Frame("/home/me/model.py", 9, "backward", "return grad * x")]


def test_a_frame_reads_as_file_line_function_source() -> None:
    assert str(INNER_FRAME) == "/home/me/model.py:12, in construct: y = mint.add(x, 1)"


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ("File a b/c, d.py, line 3, in f, \n x = 1", Frame("a b/c, d.py", 3, "f", "x = 1")),
        ("File a.py, line 3, in f\n x = 1", Frame("a.py", 3, "f", "x = 1")),
        ("File a.py, line 3, in f, \n", Frame("", 0, "", "File a.py, line 3, in f,")),
        ("File a.py, line 3, in f, \n call(a,\n  b)", Frame("a.py", 3, "f", "call(a, b)")),
        ("File C:\\me\\a.py, line 3, in <lambda>, \n x", Frame("C:\\me\\a.py", 3, "<lambda>", "x")),
        ("no frame at all", Frame("", 0, "", "no frame at all")),
        (f"File a.py, line {'9' * 5000}, in f, \n x", Frame("", 0, "", f"File a.py, line {'9' * 5000}, in f, x")),
        (
            "File \x1b[2Ja.py, line 3, in f\x07, \n x = '\x1b]0;t\x07'\nFAILED forged",
            Frame("\\x1b[2Ja.py", 3, "f\\x07", "x = '\\x1b]0;t\\x07' FAILED forged"),
        ),
    ],
)
def test_frame_texts_are_cut_or_kept_whole(tmp_path: Path, text: str, frame: Frame) -> None:
    assert stacks(tmp_path, {"X.x.0.forward": [text]}).frames("X.x.0.forward") == (frame,)


@pytest.mark.parametrize(
    "folder",
    [
        "/x/site-packages/torch/nn",
        "/usr/lib/python3/dist-packages/numpy/a",
        "/usr/lib/python3.11",
        "/x/mindspore/ops",
        "/x/torch/nn",
        "/x/torch/_dynamo",
        "C:\\x\\torch_npu\\a",
        "/x/collector/msprobe_collector/pytorch",
    ],
)
def test_library_frames_are_not_the_users(tmp_path: Path, folder: str) -> None:
    frame = f"File {folder}/f.py, line 1, in f, \n x"
    found = stacks(tmp_path, {"X.x.0.forward": [frame, OUTER], "Y.y.0.forward": [frame]})
    assert found.user_frame("X.x.0.forward") == OUTER_FRAME
    assert found.user_frame("Y.y.0.forward") is None


MODEL = "File /x/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py, line 63, in forward, \n q"
MODEL_FRAME = Frame("/x/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", 63, "forward", "q")


@pytest.mark.parametrize("folder", ["/home/me/torch", "/home/me/mindspore/mindformers", "/x/lib/python/mine"])
def test_a_project_may_be_called_as_a_framework(tmp_path: Path, folder: str) -> None:
    found = stacks(tmp_path, {"X.x.0.forward": [LIBRARY, f"File {folder}/train.py, line 1, in f, \n x", OUTER]})
    assert found.user_frame("X.x.0.forward") == Frame(f"{folder}/train.py", 1, "f", "x")


def test_an_installed_models_line_comes_first_and_the_scripts_behind_it(tmp_path: Path) -> None:
    found = stacks(tmp_path, {"X.x.0.forward": [LIBRARY, MODEL, LIBRARY, OUTER], "Y.y.0.forward": [MODEL]})
    frame = found.user_frame("X.x.0.forward")
    assert frame is not None
    assert str(frame) == f"{MODEL_FRAME}, called from {OUTER_FRAME}"
    assert (frame.file, frame.line) == (MODEL_FRAME.file, 63)
    assert frame.told == f"{MODEL_FRAME.told}\n{OUTER_FRAME.told}"
    assert found.user_frame("Y.y.0.forward") == MODEL_FRAME


@pytest.mark.parametrize(
    ("content", "record", "count"),
    [
        ({}, "X.x.0.forward", 0),
        ({"0": []}, "0", 0),  # key "0" that is empty: the older shape
        ({"X.x.0.forward": None}, "X.x.0.forward", 0),
        ({"X.x.0.forward": [INNER, 3, None]}, "X.x.0.forward", 1),
        ({"0": [["X.x.0.forward", 5], [INNER, 7]]}, "X.x.0.forward", 1),
        ({"0": [["X.x.0.forward"], [INNER]], "1": "torn", "2": [["Y"]], "3": ["Y", []]}, "X.x.0.forward", 1),
    ],
)
def test_odd_entries_cost_only_themselves(tmp_path: Path, content: Any, record: str, count: int) -> None:
    found = stacks(tmp_path, content)
    assert found.problem == ""
    assert len(found.frames(record)) == count


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"0": [["X.x', "cannot be read: Input data was truncated"),
        (b"{nonsense", "cannot be read: JSON is malformed"),
        (b'{"a": "\xff"}', "cannot be read: 'utf-8' codec"),
        (b"[" * 100_000, "cannot be read:"),
        (b"[]", "is not an object of call stacks"),
        (b"null", "is not an object of call stacks"),
    ],
)
def test_a_broken_file_gives_no_stacks_and_says_why(tmp_path: Path, content: bytes, problem: str) -> None:
    found = stacks(tmp_path, content)
    assert found.problem.startswith(f"{tmp_path / 'stack.json'} {problem}")
    assert found.frames("X.x.0.forward") == ()


def test_no_file_is_said(tmp_path: Path) -> None:
    assert CallStacks.beside(tmp_path / "dump.json").problem == "the dump has no stack.json"


def test_a_folder_in_place_of_the_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "stack.json").mkdir()
    assert "cannot be read" in CallStacks.beside(tmp_path / "dump.json").problem


@pytest.mark.parametrize("dump", ["gpt_tiny_mix/step0/rank0", "gpt_tiny_statistics/step0/proc0"])
def test_every_forward_record_of_a_real_dump_leads_to_the_users_line(dump: str) -> None:
    read = Dump(DUMPS / dump / "dump.json")
    forwards = [name for name in read.record_names if name.endswith(".forward")]
    assert forwards
    for name in forwards:
        frame = read.stacks.user_frame(name)
        assert frame is not None
        assert frame.file.startswith("/home/train/")
        assert frame.line > 0


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame("/a b/net.py", 7, "construct", "y = f(x)"), "File /a b/net.py, line 7, in construct, \n y = f(x)"),
        (Frame("", 0, "", "strange"), "strange"),
    ],
)
def test_frames_are_written_as_they_are_read(tmp_path: Path, frame: Frame, text: str) -> None:
    assert frame_text(frame) == text
    (tmp_path / "stack.json").write_text(json.dumps({"0": [["Mint.x.0.forward"], [text]]}))
    assert CallStacks.beside(tmp_path / "dump.json").frames("Mint.x.0.forward") == (frame,)
