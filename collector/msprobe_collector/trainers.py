"""Callbacks that collect steps of a trainer: of Transformers, Lightning, accelerate and loops of your own, MindSpore.

Which steps are collected, config.json says by their numbers, which are those of the trainer, also after a checkpoint.
With `when`, a step is collected if the loss of the one before it asks for it::

    debugger = PrecisionDebugger("config.json")
    Trainer(..., callbacks=[TransformersCallback(debugger)])
    lightning.Trainer(..., callbacks=[LightningCallback(debugger, when=lambda loss: loss > 8)])
    steps = CollectedSteps(debugger, accelerator=accelerator)
    for number, batch in enumerate(loader):
        with steps.collect(model, number) as step:
            step.loss = train(batch)

MindSpore's is `msprobe_collector.mindspore.MsprobeStep(debugger, when=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msprobe_collector.debugger import Debugger

#: What is asked of the loss of a step: whether the step after it is collected.
When = Callable[[float], bool]


class CollectedSteps:
    """Collects steps of a loop that tells it where they begin and end.

    Attributes:
        loss: of the step that has ended; what a loop assigns is given to `when`.
    """

    def __init__(self, debugger: Debugger, *, when: When | None = None, accelerator: Any = None) -> None:
        """Collect with `debugger`.

        Args:
            debugger: which says what is collected, and in which steps.
            when: Whether the step behind one of this loss is collected. None collects whatever config.json names. What
                it raises is a fault that is noted, and collects nothing.
            accelerator: of accelerate; a step goes on while its gradients are accumulated.
        """
        self._debugger, self._when, self._accelerator = debugger, when, accelerator
        self._is_open = self._is_wanted = False
        self.loss: Any = None

    @contextmanager
    def collect(self, model: Any, number: int) -> Iterator[CollectedSteps]:
        """Collect the block, which is step `number`, or the next part of it."""
        self.begin(model, number)
        try:
            yield self
        except BaseException:
            self.stop()
            raise
        if self._accelerator is None or self._accelerator.sync_gradients:
            self.end(self.loss)

    def begin(self, model: Any, number: int | None) -> None:
        """Begin step `number` of `model`, or the next one where it is None, unless a step is open."""
        if self._is_open or not (self._when is None or self._is_wanted):
            return
        self._is_open = True
        if number is not None:
            self._debugger.set_init_step(number)
        chosen = self._debugger.model  # what the script has chosen itself is kept: a part of the model, or several
        self._debugger.start(model if chosen is None else chosen)

    def end(self, loss: Any = None) -> None:
        """End the step, and ask whether the next one is wanted after a step of this `loss`."""
        if self._is_open:
            self.stop()
            self._debugger.step()
        self._is_wanted = False
        self.hear(loss)

    def stop(self) -> None:
        """Write what was collected of a step that does not end as it should."""
        if self._is_open:
            self._is_open = False
            self._debugger.stop()

    def hear(self, loss: Any) -> None:
        """Ask whether the next step is wanted after a step of this `loss`; None asks nothing."""
        if self._when is not None and loss is not None:
            when, loss = self._when, getattr(loss, "detach", lambda: loss)()
            self._is_wanted = bool(self._debugger.faults.guarded("when(loss)", lambda: when(float(loss))))


def __getattr__(name: str) -> Any:
    makers = {"TransformersCallback": _transformers, "LightningCallback": _lightning}
    if name not in makers:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return makers[name]()


@cache
def _transformers() -> type:
    from transformers import TrainerCallback

    class TransformersCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]  # may be missing
        """Collects steps of the Trainer of Transformers; `when` hears each loss that it logs (`logging_steps=1`)."""

        def __init__(self, debugger: Debugger, when: When | None = None) -> None:
            self._steps = CollectedSteps(debugger, when=when)

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            """Begin the step."""
            self._steps.begin(model, state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """End the step."""
            self._steps.end()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            """Hear the loss."""
            self._steps.hear((logs or {}).get("loss"))

    return TransformersCallback


@cache
def _lightning() -> type:
    from lightning.pytorch import Callback

    class LightningCallback(Callback):  # type: ignore[misc, unused-ignore]  # may be missing
        """Collects steps of the Trainer of Lightning; a step ends with that of an optimizer."""

        def __init__(self, debugger: Debugger, when: When | None = None) -> None:
            super().__init__()
            self._steps = CollectedSteps(debugger, when=when)
            self._number = 0

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            """Begin the step, or go on with it while gradients are accumulated."""
            self._number = trainer.global_step
            self._steps.begin(pl_module, self._number)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            """End the step where an optimizer has stepped."""
            if trainer.global_step > self._number:
                self._steps.end(outputs["loss"] if isinstance(outputs, dict) else outputs)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Write what was collected."""
            self._steps.stop()

    return LightningCallback
