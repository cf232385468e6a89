"""Which engine is the device and which is the benchmark: decided once per run, per dump and per API call."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from glob import glob
from typing import TYPE_CHECKING

from msprobe_collector.dump_format import ApiName, Dump
from pytest_msprobe.engines.protocol import VISIBLE, DeviceSpecification, own_device
from pytest_msprobe.support import how_to_install, is_installed, text_of, version_of

if TYPE_CHECKING:
    from pytest_msprobe.engines.protocol import DeviceEngine, Engine

#: What the benchmark's process needs beside the framework.
NEEDED_BY_CHILD = ("numpy", "msgspec", "ml_dtypes")
_LACKING = (
    "import importlib.util, sys; print('lacks', *(name for name in sys.argv[1:] if not importlib.util.find_spec(name)))"
)
_MOST_SECONDS = 60
_NO_CUDA = "this machine has no NVIDIA GPU, or its PyTorch is built without CUDA; leave it out"
NO_TORCH = f"{how_to_install('torch')}; it covers nearly all of mint"


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the user asked for: see the options of the same names."""

    device: DeviceSpecification
    bench: str
    bench_python: str | None

    @property
    def bench_engine(self) -> str:
        """The name of the engine of the benchmark: `torch` for `torch:cuda`."""
        return self.bench.partition(":")[0]

    def device_target(self) -> str:
        """Where the tested side runs, for dealing out devices: `ascend`, `npu`, `cuda` or `cpu`."""
        if self.device.target is not None:
            return self.device.target
        return "ascend" if self.device.engine in ("auto", "mindspore") and has_ascend() else "cpu"


class Engines:
    """The engines of one process, made when first needed. Making one imports no framework; running it does.

    Attributes:
        choice: what the user asked for.
    """

    def __init__(self, choice: EngineChoice) -> None:
        self.choice = choice
        self._devices: dict[DeviceSpecification, DeviceEngine] = {}

    def device_for(self, dump: Dump, *, runs: bool = False) -> DeviceSpecification:
        """What is tested in `dump`: as chosen; by default Ascend when usable, else recorded values, else a CPU.

        Calls of MSAdapter run on Ascend through MindSpore, as they did in training. With `runs`, it is not recorded
        values unless they are chosen: something that can run.
        """
        chosen = self.choice.device
        if chosen.engine == "auto":
            if dump.framework != "pytorch" and has_ascend():
                return DeviceSpecification("mindspore", "ascend")
            if dump.holds_real_data and not runs:
                return DeviceSpecification("recorded")
            return DeviceSpecification("mindspore" if dump.framework == "mindspore" else "torch", "cpu")
        if chosen.engine == "mindspore" and chosen.target is None:
            return DeviceSpecification("mindspore", "ascend" if has_ascend() else "cpu")
        return chosen

    def tests_no_device(self, dump: Dump) -> bool:
        """Whether the CPU of PyTorch would be both what is tested and the benchmark, and nobody has asked for that."""
        is_torch_cpu = self.device_for(dump) == DeviceSpecification("torch", "cpu")
        return is_torch_cpu and self.choice.device.engine == "auto"

    def device(self, specification: DeviceSpecification) -> DeviceEngine:
        """The engine that runs what `specification` names; not for `recorded`, which belongs to one API call."""
        if specification not in self._devices:
            self._devices[specification] = _make_device(specification)
        return self._devices[specification]

    @cached_property
    def benchmarks(self) -> tuple[Engine, ...]:
        """The float64 engines in the order in which they are asked."""
        from pytest_msprobe.engines.child import ChildEngine
        from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
        from pytest_msprobe.engines.torch_engine import TorchEngine

        named = self.choice.bench_python
        python = os.path.abspath(named) if named else None  # a bare name would be looked for in PATH
        benches: list[Engine] = []
        bench = self.choice.bench
        if self.choice.bench_engine == "torch" or (bench == "auto" and (python or is_installed("torch"))):
            torch = TorchEngine(is_raised=True)
            if bench != self.choice.bench_engine:
                from pytest_msprobe.engines.accelerated import AcceleratedBench

                benches.append(AcceleratedBench(TorchEngine(bench.removeprefix("torch:"), is_raised=True), torch))
            benches.append(ChildEngine(torch, python=python) if python else torch)
        if bench == "mindspore" or (bench == "auto" and is_installed("mindspore")):
            mindspore = MindSporeEngine(is_raised=True)
            # MindSpore has one device target per process: beside an Ascend device its CPU needs a process of its own.
            if bench == "auto":
                python = None
            is_foreign = python or self.choice.device_target() == "ascend"
            benches.append(ChildEngine(mindspore, python=python) if is_foreign else mindspore)
        return tuple(benches)

    def benchmark_for(self, api: ApiName, framework: str) -> Engine | None:
        """The first benchmark that does not refuse `api`, or None. Whether it has every kernel shows when it runs."""
        return next((engine for engine in self.benchmarks if engine.refusal(api, framework) is None), None)

    def missing(self) -> str:
        """Why the engines that the user asked for cannot run on this machine, as one line; "" when they may."""
        if missing := self.missing_device() or self.unusable_bench():
            return missing
        if self.choice.bench_python:
            return ""
        if self.choice.bench != "auto" and not is_installed(self.choice.bench_engine):
            return f"--msprobe-bench={self.choice.bench}: {how_to_install(self.choice.bench_engine)}"
        if not (is_installed("torch") or is_installed("mindspore")):
            return f"there is no benchmark: {how_to_install('torch')}, and neither is MindSpore"
        return ""

    def _missing_accelerator(self) -> str:
        """The same for a benchmark that is not computed on the CPU alone."""
        bench = self.choice.bench
        if bench == self.choice.bench_engine:
            return ""
        if self.choice.bench_python:
            return f"--msprobe-bench={bench}: not with --msprobe-bench-python, which computes on the CPU; leave one out"
        return "" if has_cuda() else f"--msprobe-bench={bench}: {_NO_CUDA}"

    @property
    def refused_by_accelerator(self) -> Mapping[str, str]:
        """Why APIs are computed on the CPU in place of the accelerator of the benchmark, by their names."""
        return getattr(next(iter(self.benchmarks), None), "refused", {})

    def unusable_bench(self) -> str:
        """Why the accelerator or the interpreter of the benchmark cannot run it, as one line; "" when it can."""
        if missing := self._missing_accelerator():
            return missing
        python = self.choice.bench_python
        if not python:
            return ""
        named = f"--msprobe-bench-python={python}"
        needed = (*NEEDED_BY_CHILD, "mindspore" if self.choice.bench == "mindspore" else "torch")
        try:
            command = [os.path.abspath(python), "-c", _LACKING, *needed]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{named}: does not run: {text_of(error)}"
        first, *lacking = ended.stdout.split() or [""]
        if first != "lacks":
            return f"{named}: is not a Python interpreter: it ended with exit code {ended.returncode} and no answer"
        return f"{named}: lacks {', '.join(lacking)}; install that there" if lacking else ""

    def missing_device(self) -> str:
        """The same for the device alone."""
        device = self.choice.device
        engine, target = device.engine, device.target
        if engine in ("mindspore", "torch") and not is_installed(engine):
            return f"--msprobe-device={device}: {how_to_install(engine)}"
        if target in ("ascend", "npu") and not has_ascend() and VISIBLE[target] not in os.environ:
            return f"--msprobe-device={device}: this machine has no Ascend NPU (no /dev/davinci*); leave it out"
        if target == "npu" and not is_installed("torch_npu"):
            return f"--msprobe-device={device}: {how_to_install('torch_npu')}"
        if target == "cuda" and not has_cuda():
            return f"--msprobe-device={device}: {_NO_CUDA}"
        return ""

    def close(self) -> None:
        """End child processes."""
        for engine in (*self.__dict__.get("benchmarks", ()), *self._devices.values()):
            engine.close()

    @cached_property
    def second_opinion(self) -> Engine | None:
        """PyTorch in the dump's own dtypes, for standards that ask what an ordinary run loses; None without it.

        On CUDA where there is one, unless that is what is tested: nobody is his own second opinion.
        """
        if not is_installed("torch"):
            return None
        target = "cuda" if has_cuda() and self.choice.device_target() != "cuda" else "cpu"
        return _make_device(DeviceSpecification("torch", target))


@cache
def has_ascend() -> bool:
    """Whether this machine shows an Ascend NPU: looks for its device files, once, and imports no framework for it."""
    return bool(glob("/dev/davinci[0-9]*"))


@cache
def has_cuda() -> bool:
    """Whether there are an NVIDIA GPU and a PyTorch that was not built for CPUs only; imports no framework for it."""
    return bool(glob("/dev/nvidia[0-9]*")) and not version_of("torch").endswith("+cpu")


def _make_device(specification: DeviceSpecification) -> DeviceEngine:
    # A worker sees one device only, which is number 0 there.
    number = None if own_device() else specification.index
    target = specification.target or "cpu"
    if specification.engine == "torch":
        from pytest_msprobe.engines.torch_engine import TorchEngine

        return TorchEngine(target if number is None else f"{target}:{number}", is_raised=False)
    from pytest_msprobe.engines.mindspore_engine import MindSporeEngine

    return MindSporeEngine({"ascend": "Ascend", "cpu": "CPU"}[target], number, is_raised=False)
