"""The table of references: complete, with MindSpore's own signatures, and asked before the other tables."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import reason_not_judged
from pytest_msprobe.engines import references
from pytest_msprobe.engines.torch_bindings import Binding, lookup

#: ops functions that only dispatch by `*args`: their Primitive has the signature.
OVERLOADS = {"gmm", "lightning_indexer", "sparse_flash_attention", "nsa_compress", "nsa_select_attention"}
LINES = facts("references").typed()
NAMES = sorted(LINES)


@pytest.fixture(scope="module")
def mindspore() -> ModuleType:
    module: ModuleType = pytest.importorskip("mindspore")
    return module


def test_every_reference_names_its_source() -> None:
    assert len(NAMES) > 60
    assert all(fact.source for fact in LINES.values())


@pytest.mark.parametrize("api", [api for api in NAMES if api.removeprefix("Functional.") not in OVERLOADS])
def test_a_reference_has_the_parameters_and_defaults_of_mindspore(api: str, mindspore: ModuleType) -> None:
    pytest.importorskip("torch")
    api_type, _, name = api.partition(".")
    found = lookup(api_type, name)
    assert isinstance(found, Binding)
    bound = [form.signature.replace(parameters=_with_values(form.signature)) for form in found.forms]
    signature = bound[0] if bound else inspect.signature(references.function(found.target))
    ours = list(signature.parameters.values())
    theirs = list(inspect.signature(_callable(mindspore, api_type, name)).parameters.values())
    assert [parameter.name for parameter in ours] == [parameter.name for parameter in theirs]
    assert [_shown(parameter.default) for parameter in ours] == [_shown(parameter.default) for parameter in theirs]


def test_lookup_asks_the_references_first() -> None:
    for api in NAMES:
        api_type, _, name = api.partition(".")
        found = lookup(api_type, name)
        assert isinstance(found, Binding)
        assert found.target.startswith("references.")
        assert callable(found.resolve({}))


def test_what_needs_peers_or_caches_says_so() -> None:
    for api_type, name in (
        ("Functional", "all_gather_matmul"),
        ("Primitive", "MatmulAllReduceAddRmsNorm"),
        ("Functional", "moe_distribute_dispatch"),
        ("Primitive", "Mla"),
        ("Functional", "mla"),
    ):
        api = ApiName(api_type, f"held.{name}" if api_type == "Primitive" else name, 0)
        assert "not checkable offline: it" in (reason_not_judged(api) or "")


def test_other_frameworks_keep_their_own_functions() -> None:
    assert lookup("Functional", "rms_norm", "pytorch") == Binding("Functional.rms_norm", "torch.nn.functional.rms_norm")


def test_a_silent_table_leaves_the_api_to_the_others() -> None:
    assert facts("references").find("Functional", "softmax") is None


def test_asking_imports_no_framework() -> None:
    code = (
        "import sys; from pytest_msprobe.engines import references;"
        "assert not {'torch', 'mindspore', 'numpy'} & set(sys.modules), 'a framework was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _with_values(signature: inspect.Signature) -> list[inspect.Parameter]:
    """Parameters whose defaults are values, which a fact line has as expressions."""
    return [
        parameter
        if parameter.default is parameter.empty
        else parameter.replace(default=ast.literal_eval(parameter.default))
        for parameter in signature.parameters.values()
    ]


def _callable(mindspore: ModuleType, api_type: str, name: str) -> Any:
    import mindspore.ops.auto_generate as generated
    import mindspore.ops.operations as operations

    if api_type == "Primitive":
        return (getattr(operations, name, None) or getattr(generated, name))().__call__
    owners = (mindspore.mint,) if api_type == "Mint" else (mindspore.ops, generated)
    return next(found for owner in owners if (found := getattr(owner, name, None)) is not None)


def _shown(default: Any) -> str:
    """A default for comparing: the float16 of both frameworks is `float16`."""
    if default is inspect.Parameter.empty:
        return "no default"
    return repr(default).removeprefix("torch.").removeprefix("mindspore.")
