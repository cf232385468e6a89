"""Which PyTorch call has the mathematics of a recorded API call: the tables (`*.txt`) and their reader.

Only names and arguments live here. Neither framework is imported; `adapters` imports PyTorch and is
loaded by the torch engine alone, when it runs something.
"""

from __future__ import annotations

from pytest_msprobe.engines.torch_map.bindings import (
    Binding,
    Form,
    MissingInTorch,
    Refusal,
    lookup,
    names,
)

__all__ = ["Binding", "Form", "MissingInTorch", "Refusal", "lookup", "names"]
