"""Which names a list admits, and which names may bound a scope."""

from __future__ import annotations

import pytest

from msprobe_collector.configuration import Level, RecordSelection, check_scope, parse_data_mode


def test_a_list_admits_by_substring() -> None:
    selection = RecordSelection(names=("matmul", "relu.0"), tensor_names=("forward",))
    assert selection.lists("Mint.matmul.3.backward")
    assert selection.lists("Functional.relu.0.forward")
    assert not selection.lists("Functional.relu.1.forward")
    assert selection.lists_tensors("Mint.add.0.forward")
    assert not selection.lists_tensors("Mint.add.0.backward")


def test_an_empty_list_admits_all_and_asks_for_no_tensors() -> None:
    assert RecordSelection().lists("Mint.add.0.forward")
    assert not RecordSelection().lists_tensors("Mint.add.0.forward")


API = "MintDistributed.all_reduce.0.backward"
CUSTOM = "my_lib.ops.fused.12.forward"
CELL = "Cell.net.blocks.0.Block.forward.3"


@pytest.mark.parametrize(("level", "name"), [("L1", API), ("L1", CUSTOM), ("L0", CELL), ("mix", API), ("mix", CELL)])
def test_a_scope_has_names_of_its_level(level: Level, name: str) -> None:
    check_scope((name, name), level)


@pytest.mark.parametrize(
    ("level", "name"), [("L1", CELL), ("L0", API), ("mix", "Mint.add.forward"), ("L0", "Cell.n.C.parameters_grad.0")]
)
def test_a_scope_of_other_names_is_refused(level: Level, name: str) -> None:
    with pytest.raises(ValueError, match="record"):
        check_scope((name, name), level)


@pytest.mark.parametrize(
    ("modes", "directions", "parts"),
    [
        (["all"], {"forward", "backward"}, {"input", "output"}),
        ([], {"forward", "backward"}, {"input", "output"}),
        (["forward"], {"forward"}, {"input", "output"}),
        (["output"], {"forward", "backward"}, {"output"}),
        (["backward", "input", "output"], {"backward"}, {"input", "output"}),
    ],
)
def test_a_data_mode_keeps_whole_the_axis_that_it_does_not_name(
    modes: object, directions: object, parts: object
) -> None:
    assert parse_data_mode(modes) == (directions, parts)
