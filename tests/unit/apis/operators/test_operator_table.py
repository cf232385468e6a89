"""The tables of callable operators: what the command gives for the installed frameworks, and nothing that acts."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from pytest_msprobe.apis.operators import Framework, find_operator, operator_names, unknown_operator
from tools.operators.mindspore_surface import OPERATORS
from tools.operators.tables import (
    FOLDER,
    Table,
    excluded,
    mindspore_surface,
    mindspore_table,
    torch_table,
)
from tools.operators.torch_surface import public_operators

#: None of these may ever come into a table, whatever a reviewer overlooks.
ACTING = """
    save load from_file hub compile os set_ set_default_dtype set_num_threads manual_seed tofile tensordump TensorDump
    print_ Print Custom PyFunc PyExecute apply_ map_ map2_ share_memory_ storage untyped_storage data_ptr from_dlpack
    frombuffer register_hook backward jit ops classes serialization all_reduce AllReduce Send Receive GetNext
    DumpGradient Generator
    offload set_device_address flush_from_cache vmap grad while_loop WhileLoop cond_ pin_memory cuda load_state_dict
""".split()


@pytest.mark.parametrize(("framework", "make"), [("mindspore", mindspore_table), ("torch", torch_table)])
def test_the_table_is_what_the_command_gives(framework: str, make: object) -> None:
    pytest.importorskip(framework)
    family = "_".join(metadata.version(framework).split(".")[:2])
    committed = FOLDER / f"{framework}_{family}.txt"
    if not committed.exists():
        pytest.skip(f"there is no table of {framework} {family}")
    assert callable(make)
    table: Table = make()
    assert table.file == committed.name
    assert names_of(table.text) == names_of(committed.read_text(encoding="utf-8")), (
        "run: python -m tools.operators -o pytest_msprobe/apis/operators"
    )


def names_of(text: str) -> dict[str, list[str]]:
    """Names by head of their section: the version in the first lines may differ in its last number."""
    sections = [section.partition("\n") for section in text.split("\n\n")[1:]]
    return {head: names.split() for head, _, names in sections}


@pytest.mark.parametrize("framework", ["mindspore", "torch"])
def test_nothing_in_a_table_acts_on_anything_but_values(framework: Framework) -> None:
    names = {name for _, name in operator_names(framework)}
    assert names & set(ACTING) == set()
    assert not [name for name in names if name.startswith(("set_", "_jit", "from_", "load", "save", "register"))]


def test_the_only_private_names_are_operators_of_python_core_operators_and_those_of_optimizers_and_modules() -> None:
    private = [
        (kind, name)
        for framework in ("mindspore", "torch")
        for kind, name in operator_names(framework)
        if name.rpartition(".")[2].startswith("_")
    ]
    others = [name for kind, name in private if kind not in ("Aten", "Tensor")]
    known = ("_foreach_", "_amp_", "_fused_", "_weight_norm", "_pack_padded_sequence", "_pad_packed_sequence")
    assert [name for name in others if not name.startswith(known)] == []
    assert [name for kind, name in private if kind == "Tensor" and name not in OPERATORS] == []


def test_every_exclusion_excludes_something() -> None:
    pytest.importorskip("mindspore")
    pytest.importorskip("torch")
    surface = {("mindspore", api.name) for api in mindspore_surface()}
    surface |= {("torch", api.name) for api in public_operators()}
    assert [entry for entry in excluded() if (entry[0], entry[1].rpartition(".")[2]) not in surface] == []
    assert all(reason and framework in ("mindspore", "torch") for (framework, _), reason in excluded().items())


@pytest.mark.parametrize(
    ("framework", "api_type", "name", "path"),
    [
        ("mindspore", "Mint", "linalg.inv", "mindspore.mint.linalg.inv"),
        ("mindspore", "Mint", "nn.functional.relu", "mindspore.mint.nn.functional.relu"),
        ("mindspore", "MintFunctional", "relu", "mindspore.mint.nn.functional.relu"),
        ("mindspore", "Tensor", "__add__", "mindspore.Tensor.__add__"),
        ("mindspore", "Primitive", "Abs", "mindspore.ops.Abs"),
        ("torch", "Torch", "linalg.inv", "torch.linalg.inv"),
        ("torch", "Aten", "_softmax", "torch.ops.aten._softmax"),
        ("mindspore", "Mint", "os.system", None),
        ("mindspore", "Mint", "linalg", None),
        ("mindspore", "Mint", "", None),
        ("mindspore", "Mint", "abs add", None),
        ("mindspore", "Torch", "abs", None),
        ("torch", "Mint", "abs", None),
        ("torch", "Torch", "nn.functional.relu.__globals__", None),
        ("torch", "NPU", "abs", None),
    ],
)
def test_a_name_gives_a_path_of_the_table_or_nothing(
    framework: Framework, api_type: str, name: str, path: str | None
) -> None:
    assert find_operator(framework, api_type, name) == path


def test_what_is_not_known_says_of_what_and_what_to_do() -> None:
    assert unknown_operator("mindspore", "Mint").startswith("not a known operator of mindspore.mint; ")
    assert unknown_operator("torch", "Aten").startswith("not a known operator of torch.ops.aten; ")
    assert "pytest_msprobe_reference" in unknown_operator("torch", "Torch")


def test_asking_a_table_imports_no_framework_and_no_numpy() -> None:
    check = (
        "import sys; from pytest_msprobe.apis.operators import find_operator; find_operator('torch', 'Torch', 'abs');"
        "print([m for m in ('numpy', 'torch', 'mindspore') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_plugin_reads_no_table_until_a_name_is_asked_for() -> None:
    check = "import sys, pytest_msprobe.plugin; print([m for m in sys.modules if 'msprobe.apis.operators' in m])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
