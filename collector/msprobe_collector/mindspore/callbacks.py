"""Callbacks for `Model.train`: `MsprobeStep(debugger)` and `MsprobeInitStep()`.

The classes are made when first asked for, since their base is MindSpore's.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from msprobe_collector.recording.guard import FaultLog
from msprobe_collector.trainers import CollectedSteps, When

if TYPE_CHECKING:
    from msprobe_collector.debugger import Debugger


def __getattr__(name: str) -> Any:
    if name in ("MsprobeStep", "MsprobeInitStep"):
        return _classes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _classes() -> dict[str, type]:
    from mindspore.train import Callback

    class MsprobeStep(Callback):  # type: ignore[misc]  # MindSpore has no types
        """Collects each step of `Model.train` whose number the configuration names.

        The network given to `Model` is the model that levels L0 and mix watch. Under data sinking one step of the dump
        is what MindSpore runs between two calls back: train with `dataset_sink_mode=False` to see single steps.
        """

        def __init__(self, debugger: Debugger, when: When | None = None) -> None:
            """Collect with `debugger`; `when` chooses steps by the loss before, see `CollectedSteps`."""
            super().__init__()
            self._steps = CollectedSteps(debugger, when=when)
            self._numbers = when is not None

        def on_train_step_begin(self, run_context: Any) -> None:
            """Start collecting."""
            training = run_context.original_args()
            self._steps.begin(training.network, training.cur_step_num - 1 if self._numbers else None)

        def on_train_step_end(self, run_context: Any) -> None:
            """Write what was collected, and count the step."""
            loss = run_context.original_args().net_outputs
            self._steps.end(loss[0] if isinstance(loss, (tuple, list)) else loss)

        def __exit__(self, *error: object) -> None:
            """Write what was collected when an exception ends training within a step."""
            self._steps.stop()

    class MsprobeInitStep(Callback):  # type: ignore[misc]  # MindSpore has no types
        """Has a training that is resumed number its steps on: `step1000` where it begins with step 1000.

        Put it before `MsprobeStep` in the list of callbacks. The number is the step count with which training begins,
        or, where that is 0, the steps of the epochs that `initial_epoch` passes over. MindSpore's own kernel dump
        (level L2) gets it as well.
        """

        def __init__(self, debugger: Debugger | None = None) -> None:
            """Number the steps of `debugger`, by default the one of this process."""
            super().__init__()
            self._debugger = debugger
            self._is_set = False
            self._faults = FaultLog()

        def on_train_epoch_begin(self, run_context: Any) -> None:
            """Set the number of the first step, before the first epoch."""
            if not self._is_set:
                self._is_set = True
                self._faults.guarded("numbering the steps", self._number, run_context)

        def _number(self, run_context: Any) -> None:
            training = run_context.original_args()
            steps_done = int(training.cur_step_num) or (training.cur_epoch_num - 1) * training.batch_num
            from msprobe_collector.mindspore.framework import PrecisionDebugger

            (self._debugger or PrecisionDebugger.the_one()).set_init_step(steps_done)
            _number_kernel_dump_from(steps_done)

    return {"MsprobeStep": MsprobeStep, "MsprobeInitStep": MsprobeInitStep}


def _number_kernel_dump_from(step: int) -> None:
    # an attribute of the module, not a submodule: importing from it fails
    import mindspore

    set_first_step = getattr(mindspore._c_expression, "_set_init_iter", None)
    if set_first_step is not None:
        set_first_step(step)
