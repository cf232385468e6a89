"""The tables of the PyTorch counterparts: well formed, complete for mint, and numerically what MindSpore computes."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch_map_samples import attribute, mindspore_api

from pytest_msprobe.apis import Fact, facts
from pytest_msprobe.apis.fact_table import FOLDER
from pytest_msprobe.engines import torch_bindings
from pytest_msprobe.engines.torch_bindings import (
    Binding,
    MissingAttributes,
    MissingInTorch,
    NoCounterpart,
    lookup,
    names,
)

ENGINES = Path(torch_bindings.__file__).parent
API_TYPES = ("Mint", "MintFunctional", "Tensor", "Functional", "Primitive")
ENTRIES = [(api_type, name) for api_type in API_TYPES for name in names(api_type)]


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def mindspore() -> ModuleType:
    module: ModuleType = pytest.importorskip("mindspore")
    module.runtime.launch_blocking()
    return module


@pytest.fixture(scope="module")
def roots(torch: ModuleType) -> dict[str, object]:
    from pytest_msprobe.engines import adapters

    return {"torch": torch, "adapters": adapters}


class TestTables:
    @pytest.mark.parametrize("api_type", API_TYPES)
    def test_every_line_has_a_call_or_a_reason(self, api_type: str) -> None:
        listed = facts(torch_bindings._TABLE_OF_TYPE[api_type]).typed()
        assert {name.partition(".")[0] for name in listed} == {api_type}
        assert [name for name, fact in listed.items() if not fact.text] == []

    def test_every_entry_resolves_in_the_installed_torch(self, roots: dict[str, object]) -> None:
        for api_type, name in ENTRIES:
            found = lookup(api_type, name)
            if isinstance(found, Binding):
                found.resolve(roots)

    def test_names_of_a_call_are_parameters_or_roots(self) -> None:
        for api_type, name in ENTRIES:
            found = lookup(api_type, name)
            for form in found.forms if isinstance(found, Binding) else ():
                used = {node.id for node in ast.walk(form.expression) if isinstance(node, ast.Name)}
                assert used <= {*form.signature.parameters, "torch", "adapters", "references"}, form.text

    def test_adapters_exist_and_are_used(self, roots: dict[str, Any]) -> None:
        used = {
            name
            for table in (*torch_bindings._TABLE_OF_TYPE.values(), torch_bindings._NPU)
            for name in re.findall(r"adapters\.(\w+)", (FOLDER / f"{table}.txt").read_text(encoding="utf-8"))
        }
        assert used == set(roots["adapters"].FUNCTIONS)

    def test_adapters_are_what_their_modules_define_and_not_what_these_import(self, roots: dict[str, Any]) -> None:
        adapters = roots["adapters"]
        places = ("arguments", "arrays", "elementwise", "layers")
        defined = [
            node.name
            for place in places
            for node in ast.parse((ENGINES / f"adapters/{place}.py").read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        ]
        assert sorted(defined) == sorted(adapters.FUNCTIONS)
        for name in ("torch", "functional", "Tensor", "find_dtype", "math", "T", "_per_axis"):
            with pytest.raises(AttributeError):
                getattr(adapters, name)

    def test_signatures_name_the_parameters_of_mindspore(self, mindspore: ModuleType) -> None:
        checked = 0
        for api_type, name in ENTRIES:
            found = lookup(api_type, name)
            if isinstance(found, NoCounterpart):
                continue
            theirs = _mindspore_parameters(mindspore, api_type, name)
            if theirs is None:
                continue
            checked += 1
            for form in found.forms:
                # A table may hold more forms than inspect shows, but at least one with exactly these parameters.
                ours = [
                    name
                    for name in list(form.signature.parameters)[api_type == "Tensor" :]
                    if api_type != "Primitive" or name not in form.attributes
                ]
                if ours == theirs:
                    break
            else:
                pytest.fail(f"{api_type}.{name}{theirs}: {[form.text for form in found.forms]}")
        assert checked > 850

    def test_lines_of_primitives_name_every_attribute(self, mindspore: ModuleType) -> None:
        checked = 0
        for name in names("Primitive"):
            found = lookup("Primitive", name)
            if isinstance(found, NoCounterpart) or not any(form.attributes for form in found.forms):
                continue
            parameters = list(inspect.signature(_primitive_class(mindspore, name).__init__).parameters)[1:]
            assert found.forms[0].attributes == parameters, name
            checked += 1
        assert checked > 70

    def test_primitives_with_constructor_arguments_are_known(self, mindspore: ModuleType) -> None:
        import mindspore.ops.auto_generate as generated
        import mindspore.ops.operations as operations

        left_out = {"Primitive", "PrimitiveWithInfer", "Custom", "Morph", "PyFunc"}
        unknown = [
            name
            for module in (operations, generated)
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, mindspore.ops.Primitive)
            and not name.startswith("_")
            and len(inspect.signature(value.__init__).parameters) > 1
            and name not in left_out
            and name not in names("Primitive")
        ]
        assert unknown == []

    def test_importing_the_tables_imports_no_framework(self) -> None:
        code = (
            "import sys; from pytest_msprobe.engines.torch_bindings import lookup;"
            "lookup('Mint', 'add'); lookup('Functional', 'max');"
            "assert not {'torch', 'mindspore', 'numpy'} & set(sys.modules), 'a framework was imported'"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestLookup:
    @pytest.mark.parametrize(
        ("module", "api_type", "prefix"),
        [
            ("mint", "Mint", ""),
            ("mint.nn.functional", "MintFunctional", ""),
            ("mint.linalg", "Mint", "linalg."),
            ("mint.special", "Mint", "special."),
        ],
    )
    def test_every_public_mint_name_has_a_counterpart(
        self,
        mindspore: ModuleType,
        roots: dict[str, object],
        module: str,
        api_type: str,
        prefix: str,
    ) -> None:
        owner = attribute(mindspore, module)
        routines = [name for name in dict.fromkeys(owner.__all__) if inspect.isroutine(getattr(owner, name, None))]
        # mint.__all__ also repeats the names of its submodules, which mint itself does not have.
        assert routines
        for name in routines:
            found = lookup(api_type, prefix + name)
            if isinstance(found, Binding):
                found.resolve(roots)
            else:
                assert name in names(api_type)

    def test_submodules_of_mint_may_be_dotted(self) -> None:
        found = lookup("Mint", "nn.functional.sigmoid_")
        assert isinstance(found, Binding)
        assert found.target == "torch.sigmoid_"
        assert lookup("Mint", "linalg.qr") == Binding("Mint.linalg.qr", "torch.linalg.qr")

    @pytest.mark.parametrize(
        ("api_type", "name", "target"),
        [
            ("Torch", "softmax", "torch.softmax"),
            ("Functional", "softmax", "torch.nn.functional.softmax"),
            ("Tensor", "mean", "torch.Tensor.mean"),
            ("VF", "lstm", "torch._VF.lstm"),
            ("Aten", "mm", "torch.ops.aten.mm"),
        ],
    )
    @pytest.mark.parametrize("framework", ["pytorch", "mindtorch"])
    def test_names_of_pytorch_stay(
        self, roots: dict[str, object], framework: str, api_type: str, name: str, target: str
    ) -> None:
        found = lookup(api_type, name, framework)
        assert found == Binding(f"{api_type}.{name}", target)
        assert callable(found.resolve(roots))

    @pytest.mark.parametrize(
        ("api_type", "name", "framework", "reason"),
        [
            ("NPU", "npu_no_such", "pytorch", "no reference is known"),
            ("Distributed", "all_reduce", "mindspore", "no PyTorch counterpart is known for type Distributed"),
            ("MintDistributed", "all_reduce", "mindspore", "no PyTorch counterpart is known for type"),
            ("Functional", "no_such_op", "mindspore", "not a known operator of mindspore.ops"),
            ("Primitive", "Meshgrid", "mindspore", r"no counterpart .* its attributes \(indexing\)"),
            ("Primitive", "NoSuchClass", "mindspore", "not a known operator of mindspore.ops"),
            ("Primitive", "DynamicBlockQuant", "mindspore", "no PyTorch counterpart in the table"),
            ("Functional", "eig", "mindspore", "not a known operator of mindspore.ops"),
            ("Mint", "no_such_function", "mindspore", "not a known operator of mindspore.mint"),
            ("Torch", "no_such_function", "pytorch", "not a known operator of torch"),
            ("Mint", "add", "jax", "framework jax"),
        ],
    )
    def test_refusals_give_the_reason(self, api_type: str, name: str, framework: str, reason: str) -> None:
        found = lookup(api_type, name, framework)
        assert isinstance(found, NoCounterpart)
        assert re.search(reason, found.reason)


class TestBinding:
    def test_arguments_that_do_not_fit_say_so(self, roots: dict[str, object]) -> None:
        found = lookup("Functional", "softmax")
        assert isinstance(found, Binding)
        with pytest.raises(TypeError, match=r"Functional\.softmax: the recorded arguments do not fit .*'input'"):
            found.bound((), {}, roots)()

    def test_kinds_choose_among_overloads(self, torch: ModuleType, roots: dict[str, object]) -> None:
        found = lookup("Tensor", "transpose")
        assert isinstance(found, Binding)
        x = torch.zeros(2, 3, 4)
        assert found.bound((x, 0, 2), {}, roots)().shape == (4, 3, 2)  # type: ignore[attr-defined]
        assert found.bound((x, 1, 2, 0), {}, roots)().shape == (3, 4, 2)  # type: ignore[attr-defined]
        assert found.bound((x, (1, 2, 0)), {}, roots)().shape == (3, 4, 2)  # type: ignore[attr-defined]

    def test_a_type_error_of_the_call_itself_is_not_taken_for_a_misfit(self, roots: dict[str, object]) -> None:
        found = lookup("Functional", "sin")
        assert isinstance(found, Binding)
        with pytest.raises(TypeError, match="must be Tensor"):
            found.bound(("text",), {}, roots)()

    def test_a_name_that_torch_lacks(self, roots: dict[str, object]) -> None:
        found = Binding("Mint.no_such_function", "torch.no_such_function")
        with pytest.raises(MissingInTorch, match=r"no torch\.no_such_function"):
            found.bound((), {}, roots)()

    def test_a_method_that_torch_lacks(self, torch: ModuleType, roots: dict[str, object]) -> None:
        form = torch_bindings._form("f", Fact("Tensor.f", "(input, n=-1)", "input.no_such_method([n, *(n, 2)])"))
        with pytest.raises(MissingInTorch, match="no_such_method"):
            Binding("Tensor.f", "torch", (form,)).bound((torch.zeros(1),), {}, roots)()

    def test_tables_cannot_hold_other_code(self) -> None:
        with pytest.raises(ValueError, match="BinOp is not allowed"):
            torch_bindings._form("f", Fact("Tensor.f", "(x)", "x + 1"))


def _mindspore_parameters(mindspore: ModuleType, api_type: str, name: str) -> list[str] | None:
    try:
        callee = mindspore_api(mindspore, api_type, name)
        signature = inspect.signature(callee.__call__ if api_type == "Primitive" else callee)
    except (TypeError, ValueError, AttributeError):
        return None
    parameters = list(signature.parameters.values())[api_type == "Tensor" :]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    if any(parameter.kind is parameter.VAR_POSITIONAL and parameter.name == "args" for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]


def _primitive_class(mindspore: ModuleType, name: str) -> Any:
    import mindspore.ops.auto_generate as generated
    import mindspore.ops.operations as operations

    return getattr(operations, name, None) or getattr(generated, name)


class TestFunctionsOfTorchNpu:
    def test_every_line_resolves(self, torch: ModuleType, roots: dict[str, object]) -> None:
        listed = facts("torch_calls/npu").typed("pytorch")
        assert len(listed) > 25
        for name in listed:
            found = lookup("NPU", name.partition(".")[2], "pytorch")
            assert isinstance(found, Binding)
            found.resolve(roots)
            form = found.forms[0]
            used = {node.id for node in ast.walk(form.expression) if isinstance(node, ast.Name)}
            assert used <= {*form.signature.parameters, "torch", "adapters", "references"}, form.text

    def test_attention_takes_the_arguments_of_torch_npu(self, torch: ModuleType, roots: dict[str, object]) -> None:
        found = lookup("NPU", "npu_fusion_attention", "pytorch")
        assert isinstance(found, Binding)
        q, k, v = (torch.rand(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
        mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
        given = {"scale": 0.5, "atten_mask": mask, "pre_tockens": 5, "next_tockens": 0}
        outputs = found.bound((q, k, v, 3, "BNSD"), given, roots)()
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, ~mask, scale=0.5)
        assert isinstance(outputs, tuple)
        torch.testing.assert_close(outputs[0], expected)
        assert len(outputs) == 7

    @pytest.mark.parametrize(("mode", "pairs"), [("half", [(0, 2), (1, 3)]), ("interleave", [(0, 1), (2, 3)])])
    def test_rotary_modes(self, torch: ModuleType, roots: dict[str, object], mode: str, pairs: list[Any]) -> None:
        found = lookup("NPU", "npu_rotary_mul", "pytorch")
        assert isinstance(found, Binding)
        x, cos, sin = (torch.rand(1, 1, 2, 4, dtype=torch.float64) for _ in range(3))
        expected = x * cos
        for a, b in pairs:
            expected[..., a] -= x[..., b] * sin[..., a]
            expected[..., b] += x[..., a] * sin[..., b]
        torch.testing.assert_close(found.bound((x, cos, sin, mode), {}, roots)(), expected)


class TestAttributes:
    def test_they_are_used(self, torch: ModuleType, roots: dict[str, object]) -> None:
        found = lookup("Primitive", "MatMul")
        assert isinstance(found, Binding)
        x, y = torch.rand(3, 3), torch.rand(3, 3)
        given = {"transpose_a": False, "transpose_b": True}
        assert torch.equal(found.bound((x, y), {}, roots, given)(), x @ y.T)

    def test_without_them_a_call_says_which_are_missing(self, torch: ModuleType, roots: dict[str, object]) -> None:
        found = lookup("Primitive", "Softmax")
        assert isinstance(found, Binding)
        with pytest.raises(MissingAttributes, match=r"\(axis\) are not in the dump; msprobe_collector records them"):
            found.bound((torch.rand(3),), {}, roots)()
        with pytest.raises(MissingAttributes, match=r"\(axis\)"):
            found.bound((torch.rand(3),), {}, roots, {"dim": 0})()


class TestWhatShapesTell:
    def test_a_transpose_that_alone_fits(self, torch: ModuleType, roots: dict[str, object]) -> None:
        found = lookup("Primitive", "MatMul")
        assert isinstance(found, Binding)
        x, weight = torch.rand(2, 3), torch.rand(5, 3)  # as nn.Dense calls it
        assert torch.equal(found.bound((x, weight), {}, roots)(), x @ weight.T)
        assert torch.equal(found.bound((x.T, weight.T), {}, roots)(), x @ weight.T)

    def test_several_that_fit_are_refused(self, torch: ModuleType, roots: dict[str, object]) -> None:
        found = lookup("Primitive", "BatchMatMul")
        assert isinstance(found, Binding)
        with pytest.raises(NotImplementedError, match="transpose_a and transpose_b are not in the dump"):
            found.bound((torch.zeros(2, 3, 3), torch.zeros(2, 3, 3)), {}, roots)()
