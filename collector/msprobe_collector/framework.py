"""What the framework-free part of the collector asks of a framework.

`debugger`, `collection`, `recording`, `gradient_monitor` and `dump_format` know a framework by these protocols only;
`mindspore/` implements them. To add another framework, implement

- `Framework`: names, the rank of this process, what a layer is, and what cannot be collected;
- `dump_format.writing.encoding.FrameworkValues`: tensors to NumPy;
- `CallWatch`: how calls, layers, gradients and communication are seen between `install` and `uninstall`;
- `OptimizerAccess`, for the gradient monitor;

and derive a debugger from `debugger.Debugger` that gives the `Framework`. `mindspore/framework.py` is the example.

None of these may load the framework before it is needed: a `Framework` is made together with the debugger, and its
constructor imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msprobe_collector.configuration import Configuration, Refusal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from msprobe_collector.dump_format.writing.encoding import FrameworkValues
    from msprobe_collector.recording.manifest import RunFacts
    from msprobe_collector.recording.session import Session


class CallWatch(Protocol):
    """Sees the calls of a training and turns them into records; made at the first `start`.

    Between `uninstall` and `install` nothing of it may be left on the framework or on the script's objects but what
    takes gradients of calls that were recorded before.
    """

    def prepare(self, models: Sequence[Any]) -> None:
        """Prepare for a step before all else of each `start`, also in steps that are not collected (taps on graphs).

        Must not raise.
        """

    def watch(self, models: Sequence[Any], *, on_root_forward: Callable[[], None] | None) -> None:
        """A step is collected from now on: find what is to be seen. `install` follows.

        Args:
            models: the layers that were given to `start`; may be empty at level L1.
            on_root_forward: to be called before each forward of the first model, before it is recorded; None when
                nobody counts them.
        """

    def install(self) -> None:
        """See calls from now on. May be called when it is in already."""

    def uninstall(self) -> None:
        """See no more calls: every name holds what it held before. May be called when it is out already."""

    def settle(self) -> None:
        """Wait for what was started and has not been recorded yet (graphs)."""

    def end_step(self) -> None:
        """The step is over: write what waits (parameter gradients, calls nobody waited for), drop what is left."""

    def remove(self) -> None:
        """Collecting has ended for good: leave nothing behind."""

    def add_api(self, owner: Any, name: str, call: str) -> None:
        """Record calls of `owner.name` as `call` too, under this name also when it is recorded already."""

    def remove_api(self, owner: Any, name: str) -> bool:
        """Undo `add_api`. False when it was not added."""


class NoOptimizer(Refusal, TypeError):
    """What `monitor` was given is no optimizer of the framework."""


class OptimizerAccess(Protocol):
    """How the gradient monitor sees an optimizer."""

    def names(self, optimizer: Any) -> tuple[str, ...]:
        """Names of its parameters, in the order in which `watch` shows their gradients.

        Raises:
            NoOptimizer: it is not an optimizer of this framework; one line that begins with `monitor:`.
        """

    def warning(self) -> str:
        """What cannot be seen in the present mode, or ""."""

    def watch(self, optimizer: Any, show: Callable[[Callable[[], Any]], None]) -> Callable[[], None]:
        """Before each update call `show` with what gives the list or tuple of gradients; returns what ends that."""

    def values(self, gradient: Any) -> npt.NDArray[np.floating[Any]]:
        """The gradient as an array of a float dtype that NumPy has (bfloat16 as float32).

        Raises:
            TypeError: it has no such form.
            ComputationFailed: the script's own computation raised.
        """


class KernelDump(Protocol):
    """The framework's own dump of kernels (level L2)."""

    def start(self) -> None:
        """Dump from here on."""

    def stop(self) -> None:
        """Dump no more."""

    def step(self) -> None:
        """The next step begins."""


class Framework(Protocol):
    """One framework.

    Attributes:
        name: `framework` in dump.json.
        layer: what it calls a layer, for messages: `Cell`.
    """

    name: str
    layer: str

    @property
    def values(self) -> FrameworkValues:
        """Reader of the framework's values."""

    @property
    def outside(self) -> Callable[[], AbstractContextManager[object]]:
        """Makes the context in which the collector works: modes and tracers of the script do not see what it does.

        Asked for when the framework may be loaded; entered around all of `Guard.enter`, so it has to be cheap.
        """

    def rank(self) -> int | None:
        """This process's rank in the framework's communication; None before that is initialised."""

    def ranks(self) -> dict[str, object] | None:
        """Who this process is among the others, as JSON values; None before communication is initialised.

        `{"world_size": 4, "rank": 1, "groups": {"tp": {"ranks": [0, 1], "index": 1}, ...}}`: of each process group of
        this process its global ranks in the order of the group, and the place of this process among them. The group
        of all is `world`; others have the name of their dimension of a mesh, else `group_0_1`.
        """

    def is_helper(self) -> bool:
        """Whether this process runs the script but trains nothing (msrun's scheduler)."""

    def is_layer(self, value: Any) -> bool:
        """Whether `value` is a layer."""

    def instead_of(self, value: Any) -> str:
        """What to do where `value`, which is no layer, was given as one."""

    def refusal(self, level: str, *, has_token_range: bool) -> str:
        """Why nothing can be collected at `level` in the present mode, as one line; "" when it can."""

    def tensor_like(self, tensor: Any, array: npt.NDArray[Any]) -> Any:
        """A new tensor of `array`, with the dtype of `tensor` and on its device."""

    def change_parameters(self, layer: Any, change: Callable[[Any], Any]) -> None:
        """Give each parameter of `layer` the values of `change(parameter)`, in place."""

    def register_gradient_hook(self, tensor: Any, hook: Callable[[Any], None]) -> Callable[[], None] | None:
        """Call `hook` with the gradient of `tensor` when it comes; what ends that, None when `tensor` takes none."""

    def seed_all(self, seed: int, *, is_deterministic: bool) -> None:
        """What the keys `seed` and `is_deterministic` of config.json ask for: as the framework's own `seed_all`."""

    def watch_calls(self, session: Session) -> CallWatch:
        """Prepare to see calls, for the whole run of the process."""

    def run_facts(self) -> RunFacts:
        """What is asked of one step's run.json."""

    def kernel_dump(self, configuration: Configuration) -> KernelDump | None:
        """Prepare level L2; None where there is none. Raises ConfigurationError for a task that needs it."""

    def optimizers(self) -> OptimizerAccess:
        """Access to the framework's optimizers."""
