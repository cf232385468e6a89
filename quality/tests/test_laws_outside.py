"""Scripts that were written without the laws: mistakes change what is trained, own optimizers are right without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from quality.laws import outside_right, outside_violations as outside  # noqa: E402
from quality.laws.entries import Entry, catalogue  # noqa: E402

ENTRIES = [entry for entry in catalogue("torch") if ".outside_" in entry.train.__module__]
PLANTED = [entry for entry in ENTRIES if not entry.is_clean]
ALONE = [entry for entry in PLANTED if entry.ranks == 1]


def trained(script: Callable[..., Any], runs: int, **settings: bool) -> Any:
    for _ in range(runs):
        made = script(**settings)
    values = made.parameters() if isinstance(made, torch.nn.Module) else made
    return torch.cat([value.detach().flatten().double() for value in values])


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("entry", ALONE, ids=lambda entry: entry.folder)
def test_a_mistake_changes_what_is_trained(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = entry.train.__wrapped__  # type: ignore[attr-defined]
    results = []
    for folder, settings in (("wrong", {}), ("right", {"right": True})):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        results.append(trained(script, entry.runs, **settings))
    wrong, right = results
    assert torch.isfinite(wrong).all()
    assert wrong.shape != right.shape or (wrong - right).norm() > 1e-4 * right.norm()


@pytest.mark.parametrize(
    ("own", "of_torch"),
    [
        (
            lambda some: outside.AdamW(some, 1e-2, 0.1),
            lambda some: torch.optim.AdamW(some, 1e-2, (0.9, 0.99), weight_decay=0.1),
        ),
        (lambda some: outside.ListedAdam(some, 1e-2, True), lambda some: torch.optim.Adam(some, 1e-2)),
        (
            lambda some: outside.SGD(some, 0.05, momentum=0.9, dampening=0.5, weight_decay=0.05),
            lambda some: torch.optim.SGD(some, 0.05, 0.9, 0.5, 0.05),
        ),
        (lambda some: outside.Lion(some, 1e-3), lambda some: outside_right.Lion(some, 1e-3)),
    ],
    ids=["AdamW", "Adam", "SGD", "Lion"],
)
def test_own_optimizers_without_a_fault_are_right(own: Callable[..., Any], of_torch: Callable[..., Any]) -> None:
    weights = []
    for kind in (own, of_torch):
        model = outside._network()
        outside._fit(model, kind(list(model.parameters())))
        weights.append(torch.cat([value.detach().flatten() for value in model.parameters()]))
    assert (weights[0] - weights[1]).abs().max() < 1e-6


def test_there_are_enough_of_each_kind() -> None:
    assert len(PLANTED) >= 40
    assert sum(entry.is_clean and "repaired" not in entry.name for entry in ENTRIES) >= 30
    assert all(entry.at and entry.wrong.endswith(".") for entry in PLANTED)
