from __future__ import annotations

from pathlib import Path

import pytest

from pytest_msprobe.suites.comparison.mapping import (
    MappingError,
    read_api_mapping,
    read_layer_mapping,
    read_names,
)
from pytest_msprobe.suites.comparison.matching import canonical_operation, canonical_parameter

BAD = [
    (
        read_api_mapping,
        "- ms_api: a\n  pt_api: b\n  ms_arg: [0]\n",
        "entry 1: unknown key 'ms_arg'; did you mean 'ms_args'?",
    ),
    (read_api_mapping, "- ms_api: a\n", "key 'pt_api': expected the name of an API, found None"),
    (read_api_mapping, "- ms_api: a\n  pt_api: b\n  ms_args: [0, 1]\n  pt_args: [0]\n", "equally many positions"),
    (read_api_mapping, "- ms_api: a\n  pt_api: b\n  ms_args: [0]\n", "equally many positions"),
    (read_api_mapping, "just words", "expected a list of entries"),
    (read_names, "a: 3\n", "key 'a': expected a name, found 3"),
    (read_names, "- a\n", "expected names and names, found list"),
    (read_layer_mapping, "Net: [a]\n", "key 'Net': expected names and names, found list"),
    (read_layer_mapping, "a: {b: c\n", "is not valid YAML"),
]


@pytest.mark.parametrize(("read", "text", "words"), BAD)
def test_a_bad_mapping_names_file_and_key(tmp_path: Path, read, text: str, words: str) -> None:
    path = tmp_path / "mapping.yaml"
    path.write_text(text)
    with pytest.raises(MappingError) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("__add__", "add"),
        ("add_", "add"),
        ("Dense", "linear"),
        ("equal", "eq"),
        ("swapaxes", "transpose"),
        ("LayerNorm", "layer_norm"),
        ("BatchMatMul", "bmm"),
        ("__truediv__", "div"),
        ("asnumpy", "numpy"),
        ("cauchy", "cauchy_"),
        ("fill_diagonal", "fill_diagonal_"),
        ("gather_elements", "gather"),
        ("bidense", "bilinear"),
    ],
)
def test_both_frameworks_words_for_one_operation_are_equal(left: str, right: str) -> None:
    assert canonical_operation(left) == canonical_operation(right)


@pytest.mark.parametrize(("left", "right"), [("gamma", "weight"), ("beta", "bias"), ("moving_mean", "running_mean")])
def test_both_frameworks_words_for_one_parameter_are_equal(left: str, right: str) -> None:
    assert canonical_parameter(left) == canonical_parameter(right)


def test_different_operations_stay_different() -> None:
    words = ("add", "sub", "mul", "div", "matmul", "linear", "mean", "sum", "eq", "ne", "lt", "le", "gt", "ge")
    assert len({canonical_operation(word) for word in words}) == len(words)
