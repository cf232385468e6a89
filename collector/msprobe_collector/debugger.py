"""What a training script says to the collector, whatever its framework.

- Methods that can be called on the class of a debugger too.
- What `start` and `perturb` take, checked.
- Arguments of `seed_all`, the same for every framework.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from msprobe_collector import logger
from msprobe_collector.configuration import Configuration, Refusal, RowSlice
from msprobe_collector.configuration.reader import read_configuration
from msprobe_collector.framework import Framework
from msprobe_collector.recording.folders import prepare_dump_path, show_messages, write_empty_run
from msprobe_collector.recording.guard import Activity, FaultLog, Guard
from msprobe_collector.recording.process import is_failure

if TYPE_CHECKING:
    from typing_extensions import Self

    from msprobe_collector.collection import Collection
    from msprobe_collector.gradient_monitor import GradientMonitor

_P = ParamSpec("_P")
_R = TypeVar("_R")


class singleton_method(Generic[_P, _R]):  # noqa: N801  # a decorator, as `classmethod` is
    """A method that can be called on the class too: it is then that of the one debugger of this process.

    What the script does wrong is raised (`DebuggerError`, and TypeError for arguments that the method does not have);
    what goes wrong in the method is a fault of the collector, which `Guard.enter` keeps away from training. The method
    returns None then, or its argument `inputs`.
    """

    def __init__(self, method: Callable[Concatenate[Debugger, _P], _R]) -> None:
        self._method = method
        self._signature = inspect.signature(method)
        self.__doc__ = method.__doc__

    def __get__(self, debugger: Debugger | None, owner: type[Debugger]) -> Callable[_P, _R]:
        # The one is asked for when it is called: scripts look with hasattr() before they make it.
        return functools.partial(self._call, debugger, owner)

    def _call(self, debugger: Debugger | None, owner: type[Debugger], /, *args: Any, **kwargs: Any) -> Any:
        debugger = debugger or owner.the_one()
        try:
            bound = self._signature.bind(debugger, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._method.__name__}(): {error}") from None
        bound.apply_defaults()
        where, guard = f"{self._method.__name__}()", debugger._guard
        guard.enter(where, debugger._learn_outside)
        return guard.enter(where, self._method, *bound.args, otherwise=bound.arguments.get("inputs"))


class DebuggerError(Refusal):
    """A call of PrecisionDebugger that cannot be done; one line."""


def checked_models(model: Any, framework: Framework) -> list[Any]:
    """The layers that were given: one, a list or tuple of them, or none.

    Raises:
        DebuggerError: one of them is not a layer of the framework.
    """
    if model is None:
        return []
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    for item in models:
        if not framework.is_layer(item):
            raise DebuggerError(f"start(): the model is a {type(item).__name__}; {framework.instead_of(item)}")
    return models


def checked_token_range(token_range: Sequence[int] | None) -> tuple[int, int] | None:
    """(first, last) of a token range, or None for none.

    Raises:
        DebuggerError: it is not [first, last] with 0 <= first <= last.
    """
    if token_range is None:
        return None
    whole = isinstance(token_range, (list, tuple)) and all(type(number) is int for number in token_range)
    if not whole or len(token_range) != 2 or not 0 <= token_range[0] <= token_range[1]:
        raise DebuggerError(f"start(): token_range {token_range!r} is not [first, last] with 0 <= first <= last")
    return token_range[0], token_range[1]


def rows_of_request(scheduled: Mapping[str, int] | None, request: str | None) -> RowSlice | None:
    """Rows of a batch that belong to a request; None where none is asked for, or it is not in the batch, which warns.

    Raises:
        DebuggerError: `scheduled` is not a number of rows for each request.
    """
    if scheduled is None:
        return None
    if not isinstance(scheduled, Mapping) or not all(type(count) is int and count >= 0 for count in scheduled.values()):
        raise DebuggerError(f"start(): scheduled_tokens {scheduled!r} is not a number of rows for each request")
    if request is None:
        return None
    if not scheduled.get(request):
        logger.warning("request_id %r is not among scheduled_tokens; whole values are collected", request)
        return None
    names = list(scheduled)
    begin = sum(scheduled[name] for name in names[: names.index(request)])
    return RowSlice(0, sum(scheduled.values()), begin, begin + scheduled[request])


def check_rank(rank: Any) -> None:
    """Refuse what is no rank; None stands for that of the communication.

    Raises:
        DebuggerError: it is not a whole number from 0.
    """
    if rank is not None and (type(rank) is not int or rank < 0):
        raise DebuggerError(f"start(): rank_id {rank!r} is not a whole number from 0")


def check_perturbation(roundings: Any, seed: Any) -> None:
    """Refuse what is no number of roundings and no seed.

    Raises:
        DebuggerError: one of them is not.
    """
    if type(roundings) is not int or not 1 <= roundings <= 2**20:
        raise DebuggerError(f"perturb(): roundings {roundings!r} is not a whole number from 1 to {2**20}")
    if type(seed) is not int or seed < 0:
        raise DebuggerError(f"perturb(): seed {seed!r} is not a whole number from 0")


def custom_call(module: Any, api: str, api_prefix: str | None) -> str:
    """What records call `module.api`: `{api_prefix}.{api}`; the prefix is the module's name by default.

    Raises:
        DebuggerError: there is no such callable, or the prefix is not text.
    """
    if not isinstance(api, str) or not callable(getattr(module, api, None)):
        raise DebuggerError(f"register_custom_api(): {module!r} has no callable {api!r}")
    if api_prefix is not None and not isinstance(api_prefix, str):
        raise DebuggerError(f"register_custom_api(): the prefix {api_prefix!r} is not text")
    return f"{api_prefix or getattr(module, '__name__', type(module).__name__)}.{api}"


_MADE_AGAIN = "this process has a PrecisionDebugger with other arguments already: it continues, these are ignored"
_STARTED_AGAIN = "start() was called again before stop(): collection continues with the model that it had"


@functools.cache  # once, though a script passes it in every step
def warn_without_effect(argument: str) -> None:
    """Say that an `argument` of the existing tool does nothing here."""
    logger.warning("%s is without effect here", argument)


class Config:
    """What other projects read and assign as `debugger.config` and `debugger.service.config`.

    These are two: several read the first as a prefix and assign folders below it to the second, which is written to.
    """

    def __init__(self, configuration: Configuration, service: Config | None = None) -> None:
        """Begin with what the configuration says. What is assigned holds for `service` too."""
        self.task, self.level = configuration.task, configuration.level
        self._dump_path, self._service = str(configuration.dump_path), service

    @property
    def dump_path(self) -> str:
        """The root of the dump; what is assigned holds from the next `start` on.

        Raises:
            ConfigurationError: what is assigned cannot be written to.
        """
        return self._dump_path

    @dump_path.setter
    def dump_path(self, folder: str | os.PathLike[str]) -> None:
        path = Path(os.path.abspath(folder))
        prepare_dump_path(path)
        self._dump_path = str(path)
        if self._service is not None:
            self._service.dump_path = path


class Service:
    """What other projects reach as `debugger.service`: the folder of the next steps, and their call numbers."""

    def __init__(self, debugger: Debugger, config: Config) -> None:
        self._debugger, self.config = debugger, config

    def reset_status(self) -> None:
        """Close the files, so that call numbers begin anew, without counting a step."""
        self._debugger.close_files()


class Work:
    """What does the work of a debugger: the collection of records, or the framework's dump of its own kernels.

    Attributes:
        configuration: what is collected.
        made: the collection; None until it is needed.
    """

    def __init__(self, configuration: Configuration, framework: Framework, guard: Guard) -> None:
        """Make what must be there before the framework's runtime begins."""
        self._framework, self._guard = framework, guard
        self._process, self._began, self._is_noted = os.getpid(), time.time(), False
        self.made: Collection | None = None
        #: Exceptions that were there when the step began, and so do not end it.
        self._errors_before: tuple[BaseException | None, ...] = ()
        is_kernel_dump = configuration.level == "L2" and configuration.task != "grad_probe"
        self._kernels = framework.kernel_dump(configuration) if is_kernel_dump else None
        if is_kernel_dump and self._kernels is None:
            logger.warning("level L2 is a dump of MindSpore's kernels; level mix is taken")
            configuration = replace(configuration, level="mix")
        self.configuration = configuration

    @property
    def collects(self) -> bool:
        """Whether there are records: gradients are a monitor's, and level L2 is the framework's own dump."""
        return self.configuration.task != "grad_probe" and self.configuration.level != "L2"

    @property
    def collection(self) -> Collection:
        """Made when it is first needed, since it loads the framework."""
        if self.made is None:
            from msprobe_collector.collection import Collection

            self.made = Collection(self.configuration, self._framework, self._guard)
        return self.made

    def write_to(self, folder: str) -> None:
        """Write the next steps below another root."""
        if folder != str(self.configuration.dump_path):
            self.configuration = replace(self.configuration, dump_path=Path(folder))
            if self.made is not None:
                self.made.write_to(self.configuration.dump_path)

    def check_start(self, models: Sequence[Any], *, has_token_range: bool) -> None:
        """Refuse a start without the models that the configuration or a token range needs.

        Raises:
            DebuggerError: there are none, or the framework refuses to collect so.
        """
        if not models and (self.configuration.collects_cells or has_token_range):
            what = "token_range" if has_token_range else f"level {self.configuration.level}"
            raise DebuggerError(f"start() got no model, which {what} needs: start(net)")
        if self.collects:
            problem = self._framework.refusal(self.configuration.level, has_token_range=has_token_range)
            if problem:
                raise DebuggerError(f"start(): {problem}")

    def start(self, step: int, models: Sequence[Any], **options: Any) -> None:
        """See `Collection`."""
        self._errors_before = (sys.exc_info()[1], _last_error())
        if self.collects:
            self.collection.start(step, models, **options)
        elif self._kernels is not None:
            self._kernels.start()

    def stop(self) -> None:
        """See `Collection`."""
        if self.collects:
            self.collection.stop()
        elif self._kernels is not None:
            self._kernels.stop()

    def end_step(self) -> None:
        """Stop and end the step."""
        if self.collects:
            self.collection.stop()
            self.collection.close_step()
        elif self._kernels is not None:
            self._kernels.step()

    def note_error(self, error: BaseException | None) -> None:
        """Note that `error` ends the step that runs: it is handled as the step is stopped, or has ended the script."""
        before, self._errors_before = self._errors_before, ()
        if error is None or self.made is None:
            return
        if is_failure(error) and all(error is not earlier for earlier in before):
            self.made.note_error(error)

    def close(self, error: BaseException | None, *, is_in_step: bool) -> None:
        """End for good; `error` has ended the script, where it is not None."""
        if self.made is not None:
            if is_in_step:
                self._guard.enter("ending the collection", self.note_error, error)
            self._guard.enter("ending the collection", self.made.close)
        if error is not None:
            self._guard.enter("ending the collection", self.note_empty_run, error)

    def note_empty_run(self, error: BaseException | None) -> None:
        """See `Debugger`."""
        is_empty = self.made is None or not self.made.has_written
        is_of_this = self.collects and self._process == os.getpid() and not self._framework.is_helper()
        if is_empty and is_of_this and not self._is_noted:
            self._is_noted = True
            logger.warning("%s", write_empty_run(self.configuration, self._began, error))


class Debugger:
    """Collects what the APIs and layers of a training compute; the base of each framework's `PrecisionDebugger`.

    A process has one debugger of a framework; making it again with the same arguments, or none, gives the first::

        debugger = PrecisionDebugger("config.json")
        for batch in dataset:
            debugger.start(net)
            loss, gradients = train(batch)
            debugger.stop()
            debugger.step()

    Attributes:
        model: what the last `start` was given; `MsprobeStep` goes on with it.
        script_error: the exception that has ended the script, as who runs it says; None asks Python, which keeps those
            that nothing caught.

    Methods can be called on the class too. Between `stop` and `start` the framework is untouched: every name holds the
    callable that it held before.
    """

    #: The one of this process; other projects look here, too.
    _instance: ClassVar[Any] = None
    _given_model: Any = None
    _arguments: tuple[object, ...]

    @staticmethod
    def _make_framework() -> Framework:
        raise NotImplementedError("take the PrecisionDebugger of a framework: msprobe_collector.mindspore")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """The one of this process."""
        return super().__new__(cls) if cls._instance is None else cls.the_one()

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: list[int | str] | None = None,
        model: Any = None,
    ) -> None:
        """Read the configuration and create the dump's root folder.

        Args:
            config_path: config.json; the packaged one (task statistics, level L1) when it is None.
            task: wins over the file, as do the others.
            dump_path: root folder of the dump.
            level: L0, L1, mix, debug or L2.
            step: numbers of the steps to collect, or ranges "a-b".
            model: what `start` takes where it is given none.

        Raises:
            ConfigurationError: something in it is wrong, or dump_path cannot be written.
        """
        if model is not None:
            self._given_model = model
        arguments = (config_path, task, dump_path, level, step)
        if type(self)._instance is not None:
            if any(argument is not None for argument in arguments) and arguments != self._arguments:
                logger.warning(_MADE_AGAIN)
            return
        show_messages()
        self._arguments = arguments
        configuration = read_configuration(config_path, task=task, dump_path=dump_path, level=level, step=step)
        prepare_dump_path(configuration.dump_path)
        self._framework = self._make_framework()
        self._guard = Guard(Activity(), FaultLog())
        if configuration.seed is not None or configuration.is_deterministic:
            self._framework.seed_all(configuration.seed or 0, is_deterministic=configuration.is_deterministic)
        self._work = Work(configuration, self._framework, self._guard)
        self._step = 0
        self.model: Any = None
        self._is_started = False
        self._started_step = -1  # -1: none was
        self.script_error: BaseException | None = None
        self._gradients: GradientMonitor | None = None
        self._perturbations = 0
        self.service = Service(self, Config(self.configuration))
        self.config = Config(self.configuration, self.service.config)
        type(self)._instance = self
        atexit.register(self._at_exit)

    @classmethod
    def the_one(cls) -> Self:
        """The debugger of this process.

        Raises:
            DebuggerError: none was made yet.
        """
        if cls._instance is None:
            raise DebuggerError("there is no PrecisionDebugger yet; make one first: PrecisionDebugger('config.json')")
        debugger: Self = cls._instance
        return debugger

    @property
    def configuration(self) -> Configuration:
        """What is collected."""
        return self._work.configuration

    @property
    def written_tensors(self) -> tuple[int, int]:
        """Number and bytes of the tensors that were saved so far."""
        return (0, 0) if self._work.made is None else self._work.made.written_tensors

    @property
    def faults(self) -> FaultLog:
        """Where faults of functions that a script hands over are noted."""
        return self._guard.faults

    @singleton_method
    def start(
        self,
        model: Any = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: Mapping[str, int] | None = None,
    ) -> None:
        """Collect from here on, if the configuration wants this step of this rank.

        Args:
            model: layer (Cell), or list or tuple of them; levels L0 and mix need it, and MindSpore's Primitives are
                found in it.
            token_range: (first, last) forward of the (first) model to collect, both included, counted from 0 per step.
            rank_id: rank of this process, for a training that does not initialise communication.
            scheduled_tokens: number of rows of each request in the batch, in their order: those of the configuration's
                `request_id` are collected.

        Raises:
            DebuggerError: an argument is wrong.
        """
        rows = rows_of_request(scheduled_tokens, self.configuration.request_id)
        model = self._given_model if model is None else model
        models = checked_models(model, self._framework)
        span = checked_token_range(token_range)
        check_rank(rank_id)
        if self._is_started:
            if model is not None and models != checked_models(self.model, self._framework):
                logger.warning(_STARTED_AGAIN)
            return
        self._work.check_start(models, has_token_range=span is not None)
        self._work.write_to(self.service.config.dump_path)
        self._is_started, self._started_step = True, self._step
        self.model = model
        self._work.start(self._step, models, token_range=span, rank=rank_id, rows=rows)

    @singleton_method
    def stop(self) -> None:
        """Collect no more until the next start(); what was collected is on disk then.

        Gradients of what ran before still arrive until step(). It warns in a step without a start().
        """
        if self._started_step != self._step:
            logger.warning("stop() was called without start(): there is nothing to stop")
        if not self._is_started:
            return
        self._end_started()
        self._work.stop()

    @singleton_method
    def step(self, dump: bool = True) -> None:
        """End the training step: the next one gets a folder of its own.

        Args:
            dump: False takes the step for one that did not happen, such as a run that only warms up: nothing of it
                stays on the disk, and it is not counted.

        Raises:
            DebuggerError: start() was never called.
        """
        if not dump:
            self._is_started = False
            if self._work.made is not None:
                self._work.made.discard_step()
            return
        if self._started_step < 0 and self.configuration.level != "debug" and not self._guard.faults.has_any:
            raise DebuggerError("step() was called before any start()")
        self._end_started()
        self._work.end_step()
        self._step += 1

    @singleton_method
    def close_files(self) -> None:
        """Stop, and begin call numbers anew: what comes next in this step replaces what is there, or goes elsewhere."""
        self._is_started = False
        if self._work.made is not None:
            self._work.end_step()

    @singleton_method
    def forward_backward_dump_end(self) -> None:
        """Do what `stop` does, under the name that it had in the existing tool."""
        self.stop()

    @contextmanager
    def collect(
        self, model: Any = None, *, token_range: Sequence[int] | None = None, rank_id: int | None = None
    ) -> Iterator[Self]:
        """One training step as a context: start(model), the block, stop() and step(), also when the block raises."""
        self.start(model, token_range, rank_id)
        try:
            yield self
        finally:
            if self._is_started:
                self.stop()
            self.step()

    @singleton_method
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Write a value to debug.json (level debug, task statistics or tensor; nothing elsewhere).

        Args:
            variable: tensor, number, text, or list, tuple or dict of them and of None. Anything else is warned
                about and skipped.
            name: the entry is `{name}.{n}.debug`, n counting from 0 in each step.
            save_backward: also write the tensors' gradients as `{name}_grad.{n}.debug` when they arrive.
        """
        if self.configuration.level == "debug" and self.configuration.task in ("statistics", "tensor"):
            self._work.collection.open_step(self._step)
            self._work.collection.saved.save(variable, name, save_backward=save_backward)

    @singleton_method
    def perturb(self, inputs: Any, roundings: int = 1, seed: int = 0) -> Any:
        """`inputs` with each floating element moved by up to `roundings` ULP, up or down at random.

        For a noise run (pytest --msprobe-noise): what rounding alone does. A script moves the same elements every time,
        further calls others. Zeros, NaN and infinities stay.

        Args:
            inputs: tensor, NumPy array, or list, tuple or dict of them: new ones are returned, outside of any gradient
                graph. Of a layer (Cell) the parameters are moved in place, for batches of whole numbers.
            roundings: at least 1.
            seed: chooses another movement.

        Raises:
            DebuggerError: an argument is wrong.
        """
        from msprobe_collector.perturbation import Perturbation

        check_perturbation(roundings, seed)
        self._perturbations += 1
        change = Perturbation(self._framework, roundings=roundings, seed=seed, call=self._perturbations)
        inputs = change.of(inputs)
        if not change.moved:
            logger.warning("perturb() found no floating numbers to move; give it the %s", self._framework.layer)
        return inputs

    @singleton_method
    def set_init_step(self, step: int) -> None:
        """Number the next step `step`, as after loading a checkpoint.

        Raises:
            DebuggerError: `step` is not a whole number from 0 on.
        """
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise DebuggerError(f"set_init_step({step!r}): expected a whole number from 0")
        self._step = step

    @singleton_method
    def register_custom_api(self, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Collect calls of `module.api` as `{api_prefix}.{api}.{n}`; the prefix is the module's name by default.

        Raises:
            DebuggerError: there is no such callable, or the prefix is not text.
        """
        call = custom_call(module, api, api_prefix)
        self._work.collection.add_api(module, api, call)

    @singleton_method
    def restore_custom_api(self, module: Any, api: str) -> None:
        """Collect calls of `module.api` no more. Where they were not registered, it only warns."""
        if not self._work.collection.remove_api(module, api):
            logger.warning("restore_custom_api(): %r of %r is not registered: there is nothing to restore", api, module)

    @singleton_method
    def monitor(self, optimizer: Any) -> None:
        """Write statistics of the gradients that `optimizer` receives (task grad_probe).

        With PyTorch a Module stands for the optimizers of its parameters.
        """
        from msprobe_collector.gradient_monitor import GradientMonitor

        self._gradients = GradientMonitor(self.configuration, self._framework)
        self._gradients.monitor(optimizer)

    def _end_started(self) -> None:
        if self._is_started:
            self._work.note_error(sys.exc_info()[1])
        self._is_started = False

    def _learn_outside(self) -> None:
        self._guard.outside = self._framework.outside

    def _at_exit(self) -> None:
        error = self.script_error if self.script_error is not None else _last_error()
        self._work.close(error, is_in_step=self._is_started)

    def note_empty_run(self, error: BaseException | None = None) -> None:
        """Say and write that this run has collected nothing, where that is so; `error` has ended it."""
        self._work.note_empty_run(error)


def _last_error() -> BaseException | None:
    """The last exception that nothing handled, which Python keeps when it ends a script."""
    return getattr(sys, "last_value", None)


_MAX_SEED = 2**32 - 1


def check_seed_arguments(seed: object, **flags: object) -> None:
    """Refuse what is no seed and no flag.

    Raises:
        TypeError: `seed` is not an int, or a flag is not a bool.
        ValueError: `seed` is out of range.
    """
    if type(seed) is not int:
        raise TypeError(f"seed_all: seed: {seed!r} is not a whole number")
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"seed_all: seed: {seed} is not from 0 to {_MAX_SEED}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"seed_all: {name}: {flag!r} is neither True nor False")
