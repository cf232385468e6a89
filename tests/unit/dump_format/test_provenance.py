"""Where a tensor comes from, as dumps say it."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_collector.dump_format.records import decode_value
from msprobe_collector.dump_format.values import UNKNOWN, Provenance, TensorValue

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 2.0, "Min": -1.0, "Mean": 0.5}
MAKER = "Torch.chunk.0.forward.output.1"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, UNKNOWN),
        ({"made_by": MAKER}, Provenance(MAKER)),
        ({"made_by": MAKER, "changed_since": True, "view": "4,2x1"}, Provenance(MAKER, True, "4,2x1")),
        ({"leaf": "head.weight"}, Provenance(leaf="head.weight")),
        ({"leaf": ""}, Provenance(leaf="")),
        ({"grad_of": "head.weight"}, Provenance(grad_of="head.weight")),
        ({"uninitialized": True}, Provenance(is_uninitialized=True)),
        ({"made_by": 7, "leaf": True, "view": ["x"], "grad_of": None, "uninitialized": 1}, UNKNOWN),
    ],
)
def test_the_keys_of_a_tensor_say_where_it_comes_from(keys: dict[str, Any], expected: Provenance) -> None:
    value = decode_value(TENSOR | keys)
    assert isinstance(value, TensorValue)
    assert value.provenance == expected
