"""References as the torch engine calls them: bound by their line in references.txt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_msprobe.engines import adapters
from pytest_msprobe.engines.torch_bindings import Binding, lookup


def of_line(api: str) -> Callable[..., Any]:
    """The reference of `Functional.name`, as a function of the arguments of MindSpore's API."""
    api_type, _, name = api.partition(".")
    binding = lookup(api_type, name)
    assert isinstance(binding, Binding)
    return binding.resolve({"torch": torch, "adapters": adapters})
