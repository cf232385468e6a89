"""What those who see the calls of a training work with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msprobe_collector.configuration import Configuration
from msprobe_collector.recording.gradients import BackwardCall
from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.manifest import ManifestRecorder
from msprobe_collector.recording.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Session:
    """What a `CallWatch` works with.

    How a call becomes a record (`Recorder` has the details)::

        number = recorder.number("Mint.add")
        record = recorder.begin(f"Mint.add.{number}.forward", "forward", guard.activity.cell)
        recorder.inputs(record, args, kwargs)       # before the call: it may change its arguments
        result = original(*args, **kwargs)          # the caller's own exception passes through
        recorder.outputs(record, result)
        recorder.end(record)                        # also after a call that raised: `end_quietly`

    Its gradients are collected in a `BackwardCall`, whose `on_complete` calls `recorder.backward` with the `step_mark`
    of the forward: gradients that come after the step is over are dropped there. `recording.observing` has observers of
    calls and layers that do all this; they ask for a `GradientTap`.

    Everything that is the collector's own and not the script's call is done by `guard.enter`: nothing of ours raises
    into training. What the script's call raises is never caught for good.

    Attributes:
        configuration: what is collected (`collects_apis`, `collects_cells`, `api_list`, ...).
        recorder: takes the records; record only while `recorder.is_collecting`.
        guard: the border to the training. Its `activity` says what runs in this thread: `is_inside` a recorded call or
            work of ours (then record nothing), and the layers that are open.
        remember: call it with each backward of which several hooks must fire: it is completed at the end of the step
            when some never do.
        staging: a folder that the framework may use for files of its own while a step runs; not created.
        manifest: is shown the calls of the model; None where nobody writes one.
    """

    configuration: Configuration
    recorder: Recorder
    guard: Guard
    remember: Callable[[BackwardCall], None]
    staging: Path
    manifest: ManifestRecorder | None = None
