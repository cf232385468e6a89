"""Two dumps compared through real pytest runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from comparison_dumps import unpack_perturbed
from dump_builder import DumpBuilder

X = np.linspace(-1, 2, 12, dtype=np.float32)


@pytest.fixture(scope="session")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_perturbed(tmp_path_factory.mktemp("perturbed"))


def pair(folder: Path, *, drift: float = 1.0, more: str = "") -> tuple[str, str]:
    """Options for a target and a golden dump below `folder`; `more` is a call that only that side has."""
    for side, factor in (("target", drift), ("golden", 1.0)):
        builder = DumpBuilder(folder / side / "step0" / "rank0")
        builder.call("Mint.op.0", [X], [X], incoming=[X], gradients=[X * np.float32(factor)])
        if more == side:
            builder.call("Mint.more.0", [X], [2 * X])
        builder.write()
    return f"--msprobe-dump={folder / 'target'}", f"--msprobe-golden={folder / 'golden'}"


def test_the_true_cause_is_named_first(pytester: pytest.Pytester, perturbed: Path) -> None:
    result = pytester.runpytest(f"--msprobe-dump={perturbed / 'target'}", f"--msprobe-golden={perturbed / 'golden'}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=38, failed=1, xfailed=137)
    result.stdout.fnmatch_lines(
        [
            "176 operations matched, 0 only in the target, 0 only in the golden dump",
            "table: *compare_result_rank0_*.csv",
            "advice: *advisor_rank0_*.txt",
            "Wrong: an input of Primitive.dense.Dense.4*, 1.94 % off, train_gpt.py:16",
            "follows from it: 137 records, *",
        ]
    )


@pytest.mark.slow
def test_workers_write_the_same_table(pytester: pytest.Pytester, perturbed: Path) -> None:
    options = (f"--msprobe-dump={perturbed / 'target'}", f"--msprobe-golden={perturbed / 'golden'}", "--tb=no", "-q")
    pytester.runpytest(*options, "--msprobe-out=one")
    workers = ("--msprobe-out=two", "-n2", "-p", "xdist")
    pytester.runpytest(*options, *workers).assert_outcomes(passed=38, failed=1, xfailed=137)
    tables = [next((pytester.path / name).glob("compare_result_*.csv")).read_text() for name in ("one", "two")]
    assert tables[0] == tables[1]


def test_without_a_table_the_answer_is_the_same(pytester: pytest.Pytester) -> None:
    options = (*pair(pytester.path, drift=1.01), "--tb=no")
    answers = [
        pytester.runpytest(*options, "--msprobe-diagnosis=found.json", "--msprobe-out=out", *more)
        and json.loads((pytester.path / "found.json").read_text())
        for more in (["--msprobe-table=off", "--msprobe-jsonl=rows.jsonl"], [])
    ]
    assert answers[0] == answers[1]
    assert len(list((pytester.path / "out").glob("compare_result_*"))) == 1  # of the second run
    result = pytester.runpytest(*options, "--msprobe-resume=rows.jsonl", "--msprobe-out=none")
    result.stdout.fnmatch_lines(["*no table: the run that is continued had --msprobe-table=off; give it here as well*"])
    assert not (pytester.path / "none").exists()
    result = pytester.runpytest(*options, "--msprobe-table=off", "--msprobe-xlsx")
    result.stderr.fnmatch_lines(["*--msprobe-xlsx: has no effect with --msprobe-table=off"])


def test_node_ids_outcomes_and_rows(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(*pair(pytester.path, drift=1.01), "--msprobe-jsonl=rows.jsonl", "-v")
    result.stdout.fnmatch_lines(
        [
            "target/step0/rank0/dump.json::Mint.op.0::forward PASSED*",
            "target/step0/rank0/dump.json::Mint.op.0::backward FAILED*",
            "*Mint.op.0.backward.output.0 Float32 (12,): Relative distance 0.01 is above 0.0001.*",
            "*its inputs agree: the difference arises here*",
        ]
    )
    rows = [json.loads(line) for line in (pytester.path / "rows.jsonl").read_text().splitlines()]
    assert [(row["name"], row["direction"], row["status"]) for row in rows] == [
        ("Mint.op.0", "forward", "pass"),
        ("Mint.op.0", "backward", "error"),
    ]
    assert rows[1]["outputs"][1]["max_rel"] == pytest.approx(0.01, rel=1e-4)


def test_one_item_can_be_named(pytester: pytest.Pytester) -> None:
    options = pair(pytester.path, drift=1.01)
    result = pytester.runpytest(options[1], "target/step0/rank0/dump.json::Mint.op.0::backward")
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("side", ["target", "golden"])
def test_what_only_one_side_has_and_nothing_uses_is_not_judged(pytester: pytest.Pytester, side: str) -> None:
    options = pair(pytester.path, more=side)
    result = pytester.runpytest(*options, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED *unmatched: *", "Right as far as judged: 2 calls; unmatched: *"])
    assert pytester.runpytest(*options, "--msprobe-strict").ret == pytest.ExitCode.TESTS_FAILED


def test_a_rank_without_partner_is_named_and_the_others_are_compared(pytester: pytest.Pytester) -> None:
    options = pair(pytester.path)
    DumpBuilder(pytester.path / "target" / "step0" / "rank7").call("Mint.op.0", [X], [X]).write()
    DumpBuilder(pytester.path / "golden" / "step0" / "rank5").call("Mint.op.0", [X], [X]).write()
    result = pytester.runpytest(*options)
    result.assert_outcomes(passed=2, errors=1)
    assert result.ret != pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*has no golden dump for step 0 rank 7*",
            "not compared: *rank5/dump.json: no target dump for this golden dump",
        ]
    )


def test_ranks_are_put_side_by_side(pytester: pytest.Pytester) -> None:
    for side, factor in (("target", 1.01), ("golden", 1.0)):
        for rank in (0, 1):
            folder = pytester.path / side / "step0" / f"rank{rank}"
            DumpBuilder(folder).call("Mint.op.0", [X], [X * np.float32(factor)]).write()
    result = pytester.runpytest("--msprobe-dump=target", "--msprobe-golden=golden", "--msprobe-out=out", "-v")
    result.assert_outcomes(failed=2)
    figures = "  1 operation matched, 0 only in the target, 0 only in the golden dump"
    result.stdout.fnmatch_lines([line for rank in (0, 1) for line in (f"target/step0/rank{rank}/dump.json:", figures)])
    (merged,) = (pytester.path / "out").glob("multi_ranks_compare_merge_EucDist_*.csv")
    assert merged.read_text(encoding="utf-8-sig").splitlines()[0] == "NPU Name,rank0,rank1"


def test_the_page_begins_with_the_answer(pytester: pytest.Pytester) -> None:
    pytester.runpytest(*pair(pytester.path, drift=1.01), "--html=page.html", "--self-contained-html")
    page = (pytester.path / "page.html").read_text(encoding="utf-8")
    assert ">Comparison of dumps</title>" in page
    assert page.index("Wrong: differs first in Mint.op.0 backward") < page.index("compared with")


BAD = [
    (["--msprobe-golden=nowhere"], "--msprobe-golden=*nowhere: there is no such file or folder"),
    (["--msprobe-golden=."], "--msprobe-golden=*: holds no dump.json*"),
    (["--msprobe-suite=comparison"], "*--msprobe-suite=comparison needs --msprobe-golden=PATH*"),
    (
        ["--msprobe-suite=compare"],
        "*--msprobe-suite: 'compare' is none of auto, precheck, comparison, gradients, overflow, repeat, sharded, laws",
    ),
    (["--msprobe-accept=shape"], "*--msprobe-accept: 'shape' is none of dtype, requires_grad, *, unaccounted"),
    (
        ["--msprobe-distance=Int8=1"],
        "*--msprobe-distance: 'Int8=1': 'Int8' is not a floating dtype; write Float32=1e-4",
    ),
    (["--msprobe-layer-mapping=no.yaml"], "*--msprobe-layer-mapping: 'no.yaml' is not a file; give a mapping in YAML"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda value: str(value)[:30])
def test_wrong_options_are_one_sentence(pytester: pytest.Pytester, options: list[str], words: str) -> None:
    DumpBuilder(pytester.path / "target").call("Mint.op.0", [X], [X]).write()
    (pytester.path / "target").rename(pytester.path.parent / f"{pytester.path.name}-target")
    result = pytester.runpytest(f"--msprobe-dump={pytester.path.parent / (pytester.path.name + '-target')}", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{words}"])


def test_a_golden_dump_without_targets_says_what_to_name(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(pair(pytester.path)[1])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*name the dumps to compare with it by --msprobe-dump=PATH"])


def test_dumps_without_values_are_a_collection_error(pytester: pytest.Pytester) -> None:
    options = pair(pytester.path)
    golden = pytester.path / "golden/step0/rank0/dump.json"
    golden.write_text(json.dumps({**json.loads(golden.read_text()), "task": "structure"}))
    result = pytester.runpytest(*options)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*golden/step0/rank0/dump.json: task: a dump of task 'structure' holds no values*"])


def test_an_empty_step_is_a_collection_error(pytester: pytest.Pytester) -> None:
    for side in ("target", "golden"):
        DumpBuilder(pytester.path / side).write()
    result = pytester.runpytest("--msprobe-dump=target", "--msprobe-golden=golden")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*hold no record; dump a step that runs*"])


def test_a_wrong_key_in_a_mapping_names_file_and_key(pytester: pytest.Pytester) -> None:
    (pytester.path / "apis.yaml").write_text("- ms_api: Mint.op\n  pt_ap: Torch.op\n")
    result = pytester.runpytest(*pair(pytester.path), "--msprobe-api-mapping=apis.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*apis.yaml: entry 1: unknown key 'pt_ap'; did you mean 'pt_api'?*"])


def test_a_mix_dump_compares_its_cells_too(pytester: pytest.Pytester, dumps: Path) -> None:
    mix = dumps / "gpt_tiny_mix"
    result = pytester.runpytest(f"--msprobe-dump={mix}", f"--msprobe-golden={mix}")
    result.assert_outcomes(passed=236)
    result.stdout.fnmatch_lines(["Right: all compared values of 236 operations are equal, bit by bit"])


def test_no_framework_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import sys\ndef pytest_unconfigure():\n"
        "    print('loaded:', [name for name in ('torch', 'mindspore', 'pandas') if name in sys.modules])\n"
    )
    result = pytester.runpytest_subprocess(*pair(pytester.path))
    result.stdout.fnmatch_lines(["loaded: []"])


def test_tensor_files_of_pytorch_are_read(pytester: pytest.Pytester) -> None:
    import torch

    options = pair(pytester.path)
    dump = pytester.path / "golden/step0/rank0/dump.json"
    text = dump.read_text().replace('"mindspore"', '"pytorch"').replace("mindspore.Tensor", "torch.Tensor")
    dump.write_text(text.replace('"Float32"', '"torch.float32"').replace(".npy", ".pt").replace("Mint.op", "Torch.op"))
    for file in dump.parent.rglob("*.npy"):
        torch.save(torch.from_numpy(np.load(file)), str(file.with_suffix(".pt")).replace("Mint.op", "Torch.op"))
    result = pytester.runpytest(*options)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["values: 4 pass"])
