"""Run as a program: trains with exceptions injected into every function of the collector, one after the other.

    python injecting.py {torch|mindspore} FOLDER

Every function of msprobe_collector gets a first statement that may raise. A training says which of them it reaches,
and which it or the framework calls directly: the entries. Then it runs again for each, and the function raises when it
is first called, and in another run when it is called for the middle time. What the training computes and raises has to
stay, every file has to be whole, and the fault has to be said once. Prints what was found as one line of JSON.
"""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import logging
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

PACKAGE = "msprobe_collector"
#: They call what the script or the framework wanted to call, so that what they raise is raised to it. Everything that
#: they call besides is the collector's own work, and is injected.
BORDERS = frozenset(
    {
        # the one border itself
        *("recording.guard.Guard.enter", "recording.guard.FaultLog.guarded", "recording.guard.FaultLog.note"),
        "debugger.singleton_method.__get__",
        "debugger.singleton_method._call",
        "debugger.Debugger.the_one",
        "debugger.Debugger._at_exit",
        "debugger.Work.close",
        "debugger.Debugger.collect",
        # state of a thread, made at its first look at it
        "recording.guard.Activity.__init__",
        "recording.observing.ObservedCall.__init__",
        # in the place of functions and methods
        "recording.observing.CallObserver.wrapped.<locals>.recorded",
        "recording.observing.CallObserver.observe",
        "recording.observing.LayerObserver._recorded.<locals>.recorded",
        "recording.observing.LayerObserver._observe",
        "recording.observing.Waits.seen_wait.<locals>.wait",
        # PyTorch
        "pytorch.calls.CallMode.__torch_function__",
        "pytorch.calls.CallMode.on_again.<locals>.run",
        "pytorch.checkpoints.CheckpointSwaps._noted_pass.<locals>.run",
        "pytorch.checkpoints.CheckpointSwaps._noted_forward.<locals>.forward",
        "pytorch.checkpoints.CheckpointSwaps._repeating_backward.<locals>.backward",
        "pytorch.checkpoints._with.<locals>.run",
        "pytorch.checkpoints.Recomputation.__init__",
        "pytorch.calls.ApiInstallation._without_mode.<locals>.has_torch_function",
        "pytorch.calls.ApiInstallation.in_this_thread",
        "pytorch.communication._call_recorded",
        "pytorch.optimizers.OptimizerSteps._seen_closure.<locals>.computed",
        "pytorch.optimizers.OptimizerSteps._seen_clipping.<locals>.clip",
        "pytorch.communication.PipelineStages._seen.<locals>.work",
        "pytorch.threads_and_graphs.ThreadSwaps._started.<locals>.start",
        "pytorch.threads_and_graphs.ThreadSwaps._submitted.<locals>.submit",
        "pytorch.threads_and_graphs.ThreadSwaps._watch_thread.<locals>.run_once",
        "pytorch.threads_and_graphs.ThreadSwaps._watched.<locals>.run",
        "pytorch.threads_and_graphs.CompiledRegions._loading.<locals>.compile",
        "pytorch.threads_and_graphs.CompiledGraphs._created.<locals>.create",
        "pytorch.threads_and_graphs.CompiledGraphs._watch.<locals>.recording",
        "pytorch.calls.ApiCalls.observe_border",
        "pytorch.threads_and_graphs._hooks_with.<locals>.get",
        "pytorch.threads_and_graphs._hooks_with.<locals>.put",
        "pytorch.threads_and_graphs._Hooks.__init__",
        "pytorch.threads_and_graphs._Hooks.__iter__",
        "pytorch.threads_and_graphs.CompiledRegions._entered",
        "pytorch.threads_and_graphs.CompiledRegions._entered.<locals>.leave",
        # MindSpore
        "mindspore.call_watch.MindSporeCallWatch._originals_in_place",
        "mindspore.discovery.PrimitiveCalls._seen.<locals>.call",
        "mindspore.optimizers.OptimizerCalls._seen.<locals>.call",
        "mindspore.discovery.JitCalls._executor_call.<locals>.call",
        "mindspore.discovery.JitCalls._executor_call.<locals>.call.<locals>.run",
        "mindspore.static_graph.taps.GraphCells._guarded.<locals>.compile_with_taps",
        "mindspore.framework._watched_class.<locals>.call",
        "mindspore.provenance.MindSporeProvenances._grad.<locals>.grad",
        # hooks and callbacks, which hand on
        "mindspore.gradients.MindSporeTap._safely.<locals>.run",
        "mindspore.framework.MindSpore.register_gradient_hook.<locals>.passed_on",
        "mindspore.static_graph.layouts.Layouts.arrive",
        "mindspore.static_graph.taps.GraphRecords.arrive",
        "mindspore.callbacks._classes.<locals>.MsprobeStep.__init__",
        "mindspore.callbacks._classes.<locals>.MsprobeStep.on_train_step_begin",
        "mindspore.callbacks._classes.<locals>.MsprobeStep.on_train_step_end",
        "mindspore.callbacks._classes.<locals>.MsprobeStep.__exit__",
        "mindspore.callbacks._classes.<locals>.MsprobeInitStep.__init__",
        "mindspore.callbacks._classes.<locals>.MsprobeInitStep.on_train_epoch_begin",
        # what a loop or a trainer calls, which hands on to the debugger
        *(f"trainers.CollectedSteps.{name}" for name in ("__init__", "collect", "begin", "end", "stop", "hear")),
        # Python prints what a destructor raises, and goes on
        "pytorch.provenance.Memory.__del__",
        # takes a key out of a dictionary: where that fails nothing could take it out
        "mindspore.static_graph.taps._Tap.uninstall",
        "mindspore.discovery.JitCalls._enter.<locals>.enter",
        "mindspore.discovery.JitCalls._enter.<locals>.enter.<locals>.stand_in",
        "mindspore.discovery.JitCalls._exit.<locals>.leave",
        "mindspore.discovery.JitCalls._run_captured",
        "mindspore.discovery.JitCalls._run_captured.<locals>.run",
        "mindspore.discovery.JitCalls._region",
        # what it raises is what the graphs of the script have raised
        "mindspore.mindspore_internals.wait_for_graphs",
        # hooks, which hand on to Guard.enter and pass the gradient on
        "recording.gradients.ParameterGradients._hook.<locals>.arrived",
        "recording.other_records.SavedValues._watch.<locals>.arrived",
        "pytorch.framework.TorchOptimizers.watch.<locals>.before",
        "pytorch.framework.TorchOptimizers.watch.<locals>.before_some",
        "pytorch.manifest.TorchFacts.watch_optimizers.<locals>.before",
        "pytorch.optimizers.OptimizerSteps._begins",
        "pytorch.optimizers.OptimizerSteps._ended",
        # a thread of its own; one that has died is started anew
        "recording.step_files.WritingQueue._run",
        "gradient_monitor.GradientMonitor._seen",
        "gradient_monitor.GradientMonitor.stop",
    }
)


class Injected(Exception):
    """What no code of anyone expects."""


class Points:
    """The first statements of all functions, and what they do."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.reached: Counter[int] = Counter()
        self.entries: set[int] = set()
        self.is_armed = False
        self.target, self.turn = -1, 0
        self.error: type[BaseException] = Injected
        self._folder = ""

    def add(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def here(self, number: int) -> None:
        """The first statement of each function."""
        if not self.is_armed:
            return
        self.reached[number] += 1
        if self.target < 0:
            caller = sys._getframe(2)
            if f"/{PACKAGE}/" not in caller.f_code.co_filename:
                self.entries.add(number)
        elif number == self.target and self.reached[number] == self.turn:
            raise self.error("injected")

    def arm(self, target: int = -1, turn: int = 0, error: type[BaseException] = Injected) -> None:
        self.reached.clear()
        self.target, self.turn, self.error = target, turn, error
        self.is_armed = True


POINTS = Points()
builtins.__dict__["_point"] = POINTS.here


class Marking(ast.NodeTransformer):
    """Gives every function a first statement."""

    def __init__(self, module: str) -> None:
        self._path = [module.removeprefix(f"{PACKAGE}.")]

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        number = POINTS.add(".".join((*self._path, node.name)))
        self._path += [node.name, "<locals>"]
        self.generic_visit(node)
        del self._path[-2:]
        has_text = ast.get_docstring(node, clean=False) is not None
        node.body.insert(1 if has_text else 0, ast.copy_location(ast.Expr(_call(number)), node.body[0]))
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._path.append(node.name)
        self.generic_visit(node)
        self._path.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        number = POINTS.add(".".join((*self._path, f"<lambda {node.lineno}>")))
        self.generic_visit(node)
        node.body = ast.Subscript(ast.Tuple([_call(number), node.body], ast.Load()), ast.Constant(1), ast.Load())
        return node


def _call(number: int) -> ast.Call:
    return ast.Call(ast.Name("_point", ast.Load()), [ast.Constant(number)], [])


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str):
        tree = Marking(fullname).visit(ast.parse(self.get_data(self.path), self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path=None, target: ModuleType | None = None):
        # Compiled graphs hold the source of these functions.
        if fullname.partition(".")[0] != PACKAGE or "graph_code" in fullname:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


class Said(logging.Handler):
    """Counts what the collector says of injected faults."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def problem_of_files(folder: Path) -> str:
    """ "" when every file of the dump is whole."""
    for file in sorted(folder.rglob("*.json")):
        try:
            json.loads(file.read_text())
        except ValueError as error:
            return f"{file.relative_to(folder)} is not whole: {error}"
    return ""


class Run:
    """Trainings of one framework, by scenario.

    `module.SCENARIOS` has by name the arguments of a PrecisionDebugger and a function of (debugger or None) that trains
    and returns what it computed, as bytes.
    """

    def __init__(self, module: ModuleType, debugger_type, folder: Path) -> None:
        self._module, self._type, self._folder = module, debugger_type, folder
        self._said = Said()
        logger = logging.getLogger(PACKAGE)
        logger.addHandler(self._said)
        logger.propagate = False
        self.done: set[int] = set()
        self.entries: set[str] = set()
        self.injections = self.missed = 0
        self.problems: list[str] = []

    def scenario(self, name: str) -> None:
        _, train = self._module.SCENARIOS[name]
        bare = _outcome(train, None)
        POINTS.target = -1
        seen = self._collected(name)
        found, reached = seen[0], Counter(POINTS.reached)
        if found != bare:
            self.problems.append(f"{name}: the training differs without any fault: {str(found)[:300]}")
        if self._said.lines:
            self.problems.append(f"{name}: without any fault it says {self._said.lines[:3]}")
        self.entries |= {POINTS.names[number] for number in POINTS.entries}
        errors = itertools.cycle((Injected, MemoryError, RecursionError))
        for number in sorted(reached.keys() - self.done):
            self.done.add(number)
            if POINTS.names[number] in BORDERS:
                continue
            # Every other one in the middle of the training, where more is in place.
            turn = 1 if number % 2 else (reached[number] + 1) // 2
            self._inject(name, bare, number, turn, next(errors))

    def _inject(self, scenario: str, bare: object, number: int, turn: int, error: type[BaseException]) -> None:
        # The collector looks through the objects of the process for optimizers: those of the framework are many.
        gc.freeze()
        found, problem = self._collected(scenario, number, turn, error)
        self.injections += 1
        where = f"{scenario}: {error.__name__} in call {turn} of {POINTS.names[number]}"
        if found != bare:
            self.problems.append(f"{where}: the training differs: {str(found)[:300]}")
        if problem:
            self.problems.append(f"{where}: {problem}")
        self.missed += POINTS.reached[number] < turn
        said = [line for line in self._said.lines if "injected" in line]
        if POINTS.reached[number] >= turn and len(said) != 1 and "recording.guard." not in POINTS.names[number]:
            self.problems.append(f"{where}: said {len(said)} times: {self._said.lines[:4]}")

    def _collected(self, scenario: str, number: int = -1, turn: int = 0, error=Injected) -> tuple[object, str]:
        arguments, train = self._module.SCENARIOS[scenario]
        self._said.lines.clear()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        config = self._folder.parent / "config.json"
        config.write_text(json.dumps({"dump_path": str(self._folder), **arguments}))
        self._type._instance = None
        debugger = self._type(str(config))
        POINTS.arm(number, turn, error)
        found = _outcome(train, debugger)
        debugger._at_exit()
        POINTS.is_armed = False
        reached = Counter(POINTS.reached)
        lines = list(self._said.lines)
        debugger._at_exit()  # a fault at the end may have left something in place
        POINTS.reached, self._said.lines = reached, [line for line in lines if not _is_usual(line)]
        return found, problem_of_files(self._folder)


def _is_usual(line: str) -> bool:
    return " records of step " in line or line.startswith(
        ("nothing was collected", "no record had", "torch.compile: of compiled code")
    )


def _outcome(train, debugger) -> object:
    try:
        return train(debugger)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main(framework: str, folder: Path) -> None:
    sys.meta_path.insert(0, Finder())
    module = importlib.import_module(f"injected_{framework}")
    run = Run(module, module.PrecisionDebugger, folder / "dump")
    for name in sys.argv[3:] or module.SCENARIOS:
        run.scenario(name)
        print(f"{time.process_time():5.1f} s of CPU, {run.injections} injections after {name}", file=sys.stderr)
    print(
        json.dumps(
            {
                "entries": sorted(run.entries),
                "functions": sorted(POINTS.names[n] for n in run.done),
                "unreached": sorted(name for n, name in enumerate(POINTS.names) if n not in run.done),
                "injections": run.injections,
                "missed": run.missed,
                "problems": run.problems,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
