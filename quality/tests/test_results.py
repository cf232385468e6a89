"""quality/results against the catalogues and the programs that write it, and README.md against quality/results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from quality import results
from quality.accounting import table as accounting
from quality.accounting.held_out import catalogue as held_out
from quality.architectures import alarms, networks, table as architectures
from quality.laws import table as laws
from quality.laws.entries import catalogue as catalogue_of_laws
from quality.results import Table, read
from quality.sharded import catalogue as sharded, table as sharded_table
from tools import ROOT
from tools.__main__ import programs

FOLDER = ROOT / "quality"
#: Text of README.md, without what wraps its lines.
README = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())


def row(*cells: object) -> str:
    return " ".join(f"| {' | '.join(map(str, cells))} |".split())


def counted(texts: Iterable[str]) -> tuple[int, int]:
    """The sums of `A of B ...`."""
    pairs = [re.match(r"(\d+) of (\d+)", text) for text in texts]
    numbers = [(int(pair[1]), int(pair[2])) for pair in pairs if pair]
    return sum(first for first, _ in numbers), sum(second for _, second in numbers)


def names(table: str, column: str) -> list[str]:
    return [row[column] for row in read(table)]


def test_a_table_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    table = Table.of("some", ("what", "number"), [('a "b"\tc', 1), ("", 2)])
    assert table.text == 'what\tnumber\na "b" c\t1\n\t2\n'
    table.write(results.how("quality.some", "numpy", note="a part"))
    assert read("some") == [{"what": 'a "b" c', "number": "1"}, {"what": "", "number": "2"}]
    first = (tmp_path / "results" / "some.tsv").read_text().partition("\n")[0]
    assert re.fullmatch(r"# \d{4}-\d\d-\d\d: python -m quality\.some; numpy [\d.]+; a part", first)


def test_each_table_is_of_a_program_and_has_its_columns() -> None:
    commands = dict(programs(FOLDER))
    for file in results.FOLDER.iterdir():
        first, head, *rows = file.read_text(encoding="utf-8").splitlines()
        command = re.match(r"# [\w() -]+: (python -m [\w.]+) --write-results", first)
        assert command, file
        assert command[1] in commands, file
        assert {row.count("\t") for row in rows} == {head.count("\t")}, file
    empty = (
        *sharded_table.tables_of([]),
        laws.table_of([]),
        alarms.network_table([]),
        alarms.alarm_table([]),
        architectures.network_table([]),
        architectures.reason_table([]),
    )
    for table in empty:
        assert tuple(read(table.name)[0]) == table.head


def test_tables_have_each_entry_of_the_catalogues_once() -> None:
    pairs = [*accounting.CAUSES, *accounting.CLEAN]
    assert names("accounting", "pair") == [pair.name for pair in pairs]
    assert names("accounting_held_out", "pair") == [pair.name for pair in (*held_out.CAUSES, *held_out.CLEAN)]
    assert sorted(names("networks", "network")) == sorted(one.name for one in networks.ARCHITECTURES)
    assert names("alarms_on_networks", "network")[2:] == [one.name for one in alarms.NETWORKS]
    entries = sharded.everything()
    assert names("sharded_right_runs", "right run") == [one.name for one in entries if one.change is None]
    assert len(names("sharded_bugs", "bug")) == sum(one.change is not None for one in entries)


@pytest.mark.needs("mindspore")
def test_the_table_of_laws_has_each_entry_of_its_catalogue() -> None:
    for framework in ("torch", "mindspore"):
        known = {one.name for one in catalogue_of_laws(framework)} - {"causal language model of transformers"}
        assert {line["training"] for line in read("laws") if line["framework"] == framework} == known


def test_the_page_has_the_rates_of_verdicts() -> None:
    faults = read("faults_by_size")
    for standard, words in (("backward-error", "`backward-error`"), ("cosine-maxabs", "default rule")):
        cells = []
        for dtype in ("float32", "float16", "bfloat16"):
            of_these = [one for one in faults if (one["standard"], one["dtype"]) == (standard, dtype)]
            cells.append("{} of {}".format(*counted(one["visible: caught"] for one in of_these)))
        assert row(f"visible faults caught: {words}", *cells) in README
    (patterns,) = (one["named rightly"] for one in read("fault_patterns") if one["fault"] == "all of these")
    assert f"named rightly: {patterns.partition(' (')[0]} caught" in README
    sizes = [(one["half"], one["dtype"], one["visible: caught"].partition(" (")[0]) for one in read("at_size_faults")]
    for dtype in ("float32", "float16", "bfloat16"):
        halves = [caught for half in ("first", "held out") for at, of, caught in sizes if (at, of) == (half, dtype)]
        assert row(f"visible faults caught, {dtype}", *halves) in README


def test_the_page_has_the_rates_of_networks() -> None:
    sums = {line["half"]: line for line in read("alarms_on_networks") if line["network"] == "all"}

    def both(half: str, dtype: str) -> tuple[str, int]:
        """Items with an alarm of all judged ones in two steps, and those that are faults of a kernel."""
        cells = [re.fullmatch(r"(\d+)(?: \+ (\d+))? / (\d+)", sums[half][f"{dtype}, step {step}"]) for step in (0, 20)]
        found, known, judged = (sum(int(cell[at] or 0) for cell in cells if cell) for at in (1, 2, 3))
        return f"{found} of {judged}", known

    halves = ("seen", "held out")
    assert row("items with an alarm, float32", *(both(half, "float32")[0] for half in halves)) in README
    assert row("items with an alarm, half dtypes", *(both(half, "half dtype")[0] for half in halves)) in README
    kernels = [both(half, "half dtype")[1] for half in halves]
    assert row("gradients that PyTorch's layer_norm adds up in bfloat16, a fault of the kernel", *kernels) in README
    table = read("networks")
    assert {line["bits"] for line in table} == {"same"}
    of_mindspore = sum(line["package"] == "mindcv" for line in table)
    counts = [f"{number} of {number}" for number in (len(table) - of_mindspore, of_mindspore)]
    assert row("trainings bit-identical", *counts) in README


def test_the_page_has_the_rates_of_catalogues() -> None:
    for table, label in (("accounting", "own: small GPT and CNN"), ("accounting_held_out", "held out: other networks")):
        kinds = Counter(line["right"] for line in read(table) if line["kind"] == "clean")
        planted = [line for line in read(table) if line["kind"] != "clean"]
        said = f"{sum(line['right'] == 'yes' for line in planted)} of {len(planted)}; {kinds['no']} of {kinds.total()}"
        assert re.search(rf"\| {label} \|[^|]*\| {said} \|", README), label
    bugs = Counter((line["bug"].startswith("held out"), line["answer"]) for line in read("sharded_bugs"))
    for half, is_held_out in (("seen", False), ("held out", True)):
        all_of_half = sum(count for (at, _), count in bugs.items() if at is is_held_out)
        said = f"{bugs[is_held_out, 'right']} of {all_of_half}"
        assert re.search(rf"\| bugs named at the right record, {half} \|[^|]*\| {said} \|", README)
    blamed = names("sharded_right_runs", "blamed")
    assert f"| {sum(map(bool, blamed))} of {len(blamed)} | | values of right runs placed" in README
    placed = "{} of".format(counted(names("sharded_right_runs", "values placed"))[0])
    assert f"values of right runs placed | | {placed}" in README
    for framework, title in (("torch", "PyTorch"), ("mindspore", "MindSpore")):
        broken = [line for line in read("laws") if (line["framework"], line["half"]) == (framework, "seen")]
        broken = [line for line in broken if line["law"]]
        said = f"{sum(line['answer'] == 'right' for line in broken)} of {len(broken)}"
        assert re.search(rf"\| violations named, {title} \|[^|]*\| {said} \|", README)


def test_the_page_names_each_table_and_program_once_and_is_one_page() -> None:
    for file in results.FOLDER.iterdir():
        assert file.stem in README or file.stem.startswith("at_size_"), file
    for command, _ in programs(FOLDER):
        assert command in README, command
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 2500
    assert max(map(len, text.splitlines())) <= 120
    assert [path.name for path in FOLDER.rglob("*.md")] == ["README.md"]
    assert not list((ROOT / "tools").rglob("*.md"))
