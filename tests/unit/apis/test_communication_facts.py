"""What communication calls do: in line with what the collector leaves alone and with the installed frameworks."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml

import msprobe_collector
from msprobe_collector.dump_format import is_communication
from pytest_msprobe.apis import facts

HOOKED = Path(msprobe_collector.__file__).parent / "mindspore" / "hooked_apis.yaml"


def test_what_the_collector_never_records_of_communication_is_local() -> None:
    denied = yaml.safe_load(HOOKED.read_text(encoding="utf-8"))["deny"]["mindspore.mint.distributed"].split()
    kinds = {name: fact.text if (fact := facts("communication").word(name)) else "" for name in denied}
    assert kinds == dict.fromkeys(denied, "local")


@pytest.mark.parametrize("module", ["mindspore.mint.distributed", "torch.distributed"])
def test_messages_exist_in_both_frameworks(module: str) -> None:
    pytest.importorskip(module.partition(".")[0])
    installed = importlib.import_module(module)
    for name in ("send", "isend", "recv", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"):
        assert hasattr(installed, name)
        fact = facts("communication").word(name)
        assert fact is not None
        assert fact.text in ("send", "receive", "messages")


def test_types_of_records_that_move_values() -> None:
    assert is_communication("MintDistributed.all_reduce.0.forward")
    assert is_communication("Distributed")
    assert not is_communication("Mint.matmul.0.forward")
    assert not is_communication("Cell.Distributed.0.forward")
