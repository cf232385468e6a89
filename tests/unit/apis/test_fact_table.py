"""The grammar of fact files, and what every file must keep to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from msprobe_collector.dump_format import ApiName, parse_api_name
from pytest_msprobe.apis import FactTable, facts
from pytest_msprobe.apis.fact_table import FOLDER, read

TOPICS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.txt"))


def table(folder: Path, text: str) -> FactTable:
    path = folder / "topic.txt"
    path.write_text(text)
    return read(path)


def text_of(found: FactTable, call: str, framework: str = "mindspore") -> str | None:
    fact = found.of(parse_api_name(call), framework)
    return None if fact is None else fact.text


def test_a_line_of_one_api(tmp_path: Path) -> None:
    (fact,) = table(tmp_path, "# comment\n\nMint.linalg.inv(a, *, b=1) -> call(a); form(b)  # docs 2.10\n").overloads(
        "Mint", "linalg.inv"
    )
    assert (fact.name, fact.parameters) == ("Mint.linalg.inv", "(a, *, b=1)")
    assert (fact.text, fact.source, fact.reason) == ("call(a); form(b)", "docs 2.10", "")


def test_the_most_particular_line_counts(tmp_path: Path) -> None:
    found = table(tmp_path, "top_k -> any\nPrimitive.* -> none: its axis is hidden\nMint.topk -> own\n")
    assert text_of(found, "Mint.topk.0") == "own"
    assert text_of(found, "Tensor.topk.0") == text_of(found, "Functional.top_k.3") == "any"
    fact = found.of(parse_api_name("Primitive.held.TopK.0"))
    assert fact is not None
    assert fact.reason == "its axis is hidden"
    assert text_of(found, "Mint.other.0") is None


@pytest.mark.parametrize("name", ["add", "add_", "Add", "__add__", "__iadd__", "__radd__"])
def test_a_bare_name_speaks_for_every_form(tmp_path: Path, name: str) -> None:
    assert text_of(table(tmp_path, "add -> sum\n"), f"Tensor.{name}.0") == "sum"


def test_a_reflected_and_is_no_random_number() -> None:
    assert facts("random").find("Tensor", "__rand__", "pytorch") is None
    assert facts("random").find("NPU", "rand", "pytorch") is not None


def test_headings(tmp_path: Path) -> None:
    found = table(
        tmp_path,
        "[mindspore Functional -> none: sparse]\ncoo_abs coo_add\nMint.x -> own\n"
        "[pytorch]\nTorch.y -> law\n[-> all]\nz\n",
    )
    # Below a heading with a type every name is of that type.
    assert list(found.typed()) == ["Functional.coo_abs", "Functional.coo_add", "Functional.Mint.x"]
    assert text_of(found, "Functional.coo_add.0") == "none: sparse"
    assert text_of(found, "Functional.coo_add.0", "pytorch") is None
    assert text_of(found, "Torch.y.0", "mindtorch") == "law"
    assert text_of(found, "Torch.y.0") is None
    assert text_of(found, "NPU.z.0") == text_of(found, "NPU.z.0", "pytorch") == "all"


def test_overloads_keep_their_order(tmp_path: Path) -> None:
    found = table(tmp_path, "[Tensor]\nf(a) -> one\nf(b) -> two\n")
    assert [fact.text for fact in found.overloads("Tensor", "f")] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("add -> a\nadd_ -> b\n", "add is listed twice"),
        ("Mint.f(a) -> x\nMint.f -> y\n", "Mint.f is listed twice"),
        ("[mindspork]\n", "line 1: not a heading"),
        ("[Mint\n", "line 1: not a heading"),
        ("\nMint.f(a -> b\n", "line 2: not name(signature) -> fact"),
        ("Mint.f(a)\n", "line 1: not name(signature) -> fact"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"topic\.txt: ") as caught:
        table(tmp_path, text)
    assert words in str(caught.value)


def test_every_file_is_one_of_facts() -> None:
    assert len(TOPICS) > 30
    assert [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".txt"] == []


@pytest.mark.parametrize("topic", TOPICS)
def test_every_file_can_be_read_and_says_what_it_holds(topic: str) -> None:
    found = facts(topic)
    assert (FOLDER / f"{topic}.txt").read_text(encoding="utf-8").startswith("# ")
    assert found.of(ApiName("Mint", "no_such_operator", 0)) is None


def test_asking_loads_no_framework_and_no_numpy() -> None:
    code = (
        "import sys; from pytest_msprobe.apis import fact_table;"
        "from msprobe_collector.dump_format import ApiName; api = ApiName('Mint', 'rand', 0);"
        "fact_table.reason_not_judged(api), fact_table.index_output(api), fact_table.random_api(api, 'pytorch');"
        "assert not {'torch', 'mindspore', 'numpy', 'ml_dtypes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
