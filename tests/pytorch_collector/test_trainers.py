"""Callbacks for trainers: which steps they collect, and that their numbers are those of the trainer."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from msprobe_collector.trainers import CollectedSteps


def steps_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "dump").glob("step*"))


def names(folder: Path, step: int) -> list[str]:
    return list(json.loads((folder / f"dump/step{step}/proc0/dump.json").read_text())["data"])


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


BATCHES = [torch.full((2, 4), 100.0 if number == 2 else 0.1) for number in range(5)]


def loop(steps: CollectedSteps, model: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    losses = []
    for number, batch in enumerate(BATCHES):
        with steps.collect(model, number) as step:
            step.loss = loss_of(model, batch)
            step.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(step.loss.item())
    return losses


def test_the_step_behind_a_spike_of_the_loss_is_collected(make_debugger, model, tmp_path) -> None:
    steps = CollectedSteps(make_debugger(level="mix"), when=lambda loss: loss > 100)
    losses = loop(steps, model)
    assert [loss > 100 for loss in losses] == [False, False, True, False, False]
    assert steps_of(tmp_path) == ["step3"]
    record = json.loads((tmp_path / "dump/step3/proc0/dump.json").read_text())["data"]["Functional.linear.0.forward"]
    assert record["input_args"][0]["Max"] == pytest.approx(0.1)  # the batch of that step
    assert any(name.startswith("Optimizer.") for name in names(tmp_path, 3))


def test_numbers_of_the_configuration_are_those_of_the_loop(make_debugger, model, tmp_path) -> None:
    loop(CollectedSteps(make_debugger(common={"step": [1, 3]})), model)
    assert steps_of(tmp_path) == ["step1", "step3"]


def test_a_condition_that_raises_ends_no_training(make_debugger, model, tmp_path, caplog) -> None:
    def broken(loss: float) -> bool:
        raise KeyError("loss_of_yesterday")

    assert len(loop(CollectedSteps(make_debugger(), when=broken), model)) == 5
    assert steps_of(tmp_path) == []
    assert "when(loss)" in caplog.text
    assert "loss_of_yesterday" in caplog.text


def test_a_step_that_raises_is_written(make_debugger, model, tmp_path) -> None:
    steps = CollectedSteps(make_debugger())
    with pytest.raises(ZeroDivisionError), steps.collect(model, 0):
        loss_of(model, BATCHES[0]).div(1 // 0)
    assert "Functional.linear.0.forward" in names(tmp_path, 0)


class Accelerator:
    """Steps of an optimizer are those in which this says so."""

    sync_gradients = False


def test_a_step_goes_on_while_gradients_are_accumulated(make_debugger, model, tmp_path) -> None:
    accelerator = Accelerator()
    steps = CollectedSteps(make_debugger(), accelerator=accelerator)
    for number, batch in enumerate(BATCHES[:4]):
        with steps.collect(model, number // 2):
            accelerator.sync_gradients = number % 2 == 1
            loss_of(model, batch).backward()
    assert steps_of(tmp_path) == ["step0", "step1"]
    assert "Functional.linear.3.forward" in names(tmp_path, 1)


def test_a_trainer_that_is_not_there_is_an_import_error() -> None:
    trainers = importlib.import_module("msprobe_collector.trainers")
    with pytest.raises(AttributeError, match="no attribute 'KerasCallback'"):
        _ = trainers.KerasCallback


class Lines(torch.utils.data.Dataset):
    """Five batches of one row, as dictionaries."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((4,), number / 10)}


@pytest.mark.slow
@pytest.mark.needs("transformers")
def test_the_trainer_of_transformers(make_debugger, tmp_path, capfd) -> None:
    from transformers import Trainer, TrainingArguments

    from msprobe_collector.trainers import TransformersCallback

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).square().mean()}

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=1, logging_steps=1, report_to=[],
        use_cpu=True, gradient_accumulation_steps=2, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    heard: list[float] = []

    def after_two(loss: float) -> bool:
        heard.append(loss)
        return len(heard) == 2

    debugger = make_debugger(level="mix")
    callback = TransformersCallback(debugger, when=after_two)
    capfd.readouterr()
    Trainer(Network(), arguments, train_dataset=Lines(), callbacks=[callback]).train()
    assert len(heard) == 4
    assert steps_of(tmp_path) == ["step2"]
    assert "Functional.linear.1.forward" in names(tmp_path, 2)  # the second part of the batch
    assert any(name.startswith("Optimizer.AdamW") for name in names(tmp_path, 2))


@pytest.mark.slow
@pytest.mark.needs("lightning")
@pytest.mark.filterwarnings("ignore")  # its own
def test_the_trainer_of_lightning(make_debugger, tmp_path) -> None:
    import lightning

    from msprobe_collector.trainers import LightningCallback

    class Network(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    debugger = make_debugger(level="mix", common={"step": [1]})
    trainer = lightning.Trainer(
        max_steps=3, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[LightningCallback(debugger)],
    )  # fmt: skip
    trainer.fit(Network(), torch.utils.data.DataLoader(Lines(), batch_size=1))
    assert steps_of(tmp_path) == ["step1"]
    assert {"Functional.linear.1.forward", "Optimizer.AdamW.0.forward"} <= set(names(tmp_path, 1))


@pytest.mark.slow
@pytest.mark.needs("accelerate")
def test_a_loop_of_accelerate(make_debugger, model, tmp_path) -> None:
    from accelerate import Accelerator as Real

    accelerator = Real(cpu=True, gradient_accumulation_steps=2)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    steps = CollectedSteps(make_debugger(common={"step": [1]}), accelerator=accelerator)
    for number, batch in enumerate(BATCHES[:4]):
        with steps.collect(model, number // 2), accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
    assert steps_of(tmp_path) == ["step1"]
    assert {"Functional.linear.3.forward", "Optimizer.AdamW.0.forward"} <= set(names(tmp_path, 1))
