"""Rule files: what they say, and what is wrong with them."""

from __future__ import annotations

import pytest

from pytest_msprobe.suites.overflow.values import RuleError, read_rules


def test_built_in_rules():
    rules = read_rules(None)
    assert rules.of("Mint.empty", "mindspore").covers("output.0")
    assert rules.of("Mint.empty", "mindspore").covers("output.0.1")
    assert not rules.of("Mint.empty", "mindspore").covers("input.0")
    assert rules.of("MintDistributed.recv", "mindspore").covers("input.tensor")
    assert not rules.of("Distributed.all_gather_into_tensor", "mindspore").covers("input.0")
    assert rules.of("Distributed.all_gather_into_tensor", "pytorch").covers("input.0")
    assert rules.of("Tensor.masked_fill_", "mindspore").covers("input.0")
    assert not rules.of("MintDistributed.batch_isend_irecv", "mindspore").covers("input.0.1")
    assert not rules.of("Mint.add", "mindspore").covers("output.0")


def test_own_rules_come_before(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("- apis: [Mint.empty, Custom.alloc]\n  outputs: [1]\n")
    rules = read_rules(path)
    assert not rules.of("Mint.empty", "mindspore").covers("output.0")
    assert rules.of("Custom.alloc", "pytorch").covers("output.1")
    assert rules.of("Mint.empty_like", "mindspore").covers("output.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("apis: x", "expected a list of entries with apis"),
        ("- 3", "entry 1: expected the keys apis"),
        ("- apis: [A]\n  outputs: [0]\n- api: [B]", "entry 2: unknown key 'api'; known are apis"),
        ("- apis: A\n  outputs: [0]", "entry 1: key 'apis': expected a list of names, found 'A'"),
        ("- apis: [A]\n  outputs: 0", "entry 1: key 'outputs': expected a list of positions and names of keywords"),
        ("- apis: [A]", "entry 1: needs apis, and inputs or outputs"),
        ("[", "is not valid YAML"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, text, words):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(RuleError, match=r"rules\.yaml") as caught:
        read_rules(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
