"""The page of coverage: complete, true of the installed frameworks, and up to date."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis import facts
from pytest_msprobe.apis.fact_table import reason_not_judged
from pytest_msprobe.engines.torch_bindings import names
from tools.coverage.__main__ import main
from tools.coverage.page import coverage_page
from tools.coverage.states import CoveredApi, State, covered
from tools.operators.mindspore_surface import PublicApi, public_apis

TYPES = ("Mint", "MintFunctional", "Tensor", "Functional", "Primitive")
MINT = ("mint", "mint.nn.functional", "mint.linalg", "mint.special")


@pytest.fixture(scope="module")
def apis() -> tuple[CoveredApi, ...]:
    pytest.importorskip("mindspore")
    pytest.importorskip("torch")
    return tuple(covered(public_apis()))


def test_the_page_has_every_api(apis: tuple[CoveredApi, ...]) -> None:
    page = coverage_page(apis, {"mindspore": "2.10.0", "torch": "2.13.0"})
    assert [item.api.name for item in apis if f"| {item.api.name} |" not in page] == []


def test_every_api_has_a_state_with_its_ground(apis: tuple[CoveredApi, ...]) -> None:
    assert len(apis) > 2500
    assert [item.api.name for item in apis if not item.by] == []


def test_mint_is_judged(apis: tuple[CoveredApi, ...]) -> None:
    mint = [item for item in apis if item.api.namespace in MINT]
    judged = [item for item in mint if item.state is not State.NONE]
    assert len(mint) > 270
    assert len(judged) / len(mint) >= 0.97, [item.api.name for item in mint if item.state is State.NONE]
    assert [item.api.name for item in mint if "no PyTorch counterpart" in item.by] == []


@pytest.mark.parametrize(("namespace", "share"), [("ops", 0.75), ("Tensor", 0.88), ("Primitive", 0.45)])
def test_no_namespace_falls_back(apis: tuple[CoveredApi, ...], namespace: str, share: float) -> None:
    states = Counter(item.state is not State.NONE for item in apis if item.api.namespace == namespace)
    assert states[True] / states.total() >= share


def test_every_name_appears_once(apis: tuple[CoveredApi, ...]) -> None:
    assert Counter(Counter(item.api for item in apis).values()).keys() == {1}


@pytest.mark.parametrize(
    ("api_type", "name", "state", "by"),
    [
        ("Mint", "softmax", State.TORCH, "torch.softmax"),
        ("Mint", "linalg.inv", State.TORCH, "torch.linalg.inv"),
        ("Functional", "rms_norm", State.REFERENCE, "small.rms_norm"),
        ("Mint", "rand", State.LAW, "uniform"),
        ("Mint", "empty", State.LAW, "uninitialised"),
        ("Primitive", "Betainc", State.MINDSPORE, "CPU float64"),
        ("Primitive", "SigmoidGrad", State.NONE, "a gradient kernel"),
        ("Primitive", "Softmax", State.TORCH, "torch.softmax"),
        (
            "Primitive",
            "Cauchy",
            State.NONE,
            "random by nature: constructor attributes (size, median, sigma) are not in the dump",
        ),
        ("MintDistributed", "all_reduce", State.NONE, "communication"),
        ("Functional", "vmap", State.NONE, "takes a function"),
    ],
)
def test_states(api_type: str, name: str, state: State, by: str) -> None:
    pytest.importorskip("torch")
    (found,) = covered([PublicApi("any", api_type, name)])
    assert found.state is state
    assert found.by.startswith(by)


def test_what_is_not_judged_exists_and_has_no_other_line(apis: tuple[CoveredApi, ...]) -> None:
    generated = importlib.import_module("mindspore.ops.auto_generate")  # what mindspore.ops does not export of it
    known = {f"{item.api.type}.{item.api.name}" for item in apis} | {f"Functional.{name}" for name in dir(generated)}
    listed = [name for name in facts("not_judged").typed() if not name.endswith(".*")]
    assert [name for name in listed if name not in known] == []
    called = {f"{api_type}.{name}" for api_type in TYPES for name in names(api_type)}
    assert [name for name in listed if name in called or name in facts("references").typed()] == []


@pytest.mark.parametrize("name", ["ApplyGradientDescent", "InplaceStopGradient"])
def test_gradient_in_a_name_is_no_gradient_kernel(name: str) -> None:
    assert reason_not_judged(ApiName("Primitive", f"_.{name}", 0)) is None


def test_the_command_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.coverage.make_page", lambda: "the page\n")
    main(["-o", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == "the page\n"
    main([])
    assert "the page" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="cannot be written"):
        main(["-o", str(tmp_path / "no" / "page.md")])
