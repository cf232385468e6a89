"""xdist's side of a run, on the process that hands out the work: places, schedule, and workers that die."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from time import monotonic
from typing import Any

import pytest

from msprobe_collector.dump_format import DIRECTIONS, Direction
from pytest_msprobe.devices import choose_devices, place_workers
from pytest_msprobe.engines.specification import DEVICE_VARIABLE
from pytest_msprobe.precheck.call_index import CallIndex
from pytest_msprobe.reports.resume import LOST, LOST_AGAIN, EarlierRun
from pytest_msprobe.scheduler import CallScheduler

_SPLITTING_MODES = ("loadfile", "loadscope", "loadgroup")
#: xdist gives up after four deaths per worker; a dump may well crash more often, and each death costs one item only.
_MOST_RESTARTS = "1000"


class WorkersPlugin:
    """Registered only where xdist distributes.

    Attributes:
        places: what each worker gets, in the order of their ids.
    """

    def __init__(
        self,
        config: pytest.Config,
        index: CallIndex,
        *,
        earlier: EarlierRun | None,
        target: str,
        wanted: Sequence[str],
        per_device: int,
    ) -> None:
        """Plan for the workers of `config` on `target` (`ascend`, `cuda` or `cpu`); `earlier` is a run to be resumed.

        Raises:
            pytest.UsageError: they do not fit on the devices, or the way of distribution would cost results.
        """
        if config.option.dist in _SPLITTING_MODES:
            raise pytest.UsageError(
                f"--dist {config.option.dist}: a crashing API call would take the rest of its dump with it; "
                f"use --dist load"
            )
        workers = len(config.option.tx or ())
        devices = choose_devices(target, wanted, workers)
        self.places = place_workers(target, devices, workers=workers, per_device=per_device)
        self._index = index
        self._earlier = earlier
        self._scheduler: CallScheduler | None = None
        self._config = config
        self._lost: list[str] = []
        self._begun: dict[str, float] = {}
        if config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = _MOST_RESTARTS

    def header(self) -> list[str]:
        """The map of workers to devices."""
        if not any(place.device for place in self.places):
            return [f"msprobe: {len(self.places)} workers on the CPU"] if self.places else []
        pairs = ", ".join(f"gw{number}: {place.device}" for number, place in enumerate(self.places))
        return [f"msprobe: devices of the workers: {pairs}"]

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Put each worker's device into its environment, where a worker that replaces it finds it again."""
        for spec, place in zip(specs, self.places):
            spec.env = {**place.environment, **(spec.env or {})}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker what is done already; each gets the same, also one that replaces another."""
        node.workerinput["msprobe_done"] = sorted(self._earlier.done) if self._earlier else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> CallScheduler | None:
        """Our own schedule for the modes that deal out items one by one."""
        if config.option.dist not in ("load", "worksteal"):
            return None
        self._scheduler = CallScheduler(config, len(self.places), self._index.cost_of)
        return self._scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """A dead worker's item becomes an error row with what is known, in every report."""
        node = report.node
        how = self._hang(crashitem) or _cause_of_death(node)
        device = (node.gateway.spec.env or {}).get(DEVICE_VARIABLE, "")
        where = f" on device {device}" if device else ""
        again = (
            f", {LOST_AGAIN}" if self._index.is_among(crashitem, self._earlier.lost if self._earlier else ()) else ""
        )
        message = f"the worker process {node.gateway.id}{where} {LOST}{how}{again}; nothing more is known of it"
        report.longrepr = message
        # xdist's own "???" is a phase that pytest-html drops and JUnit calls setup.
        report.when = "call"
        row = self._index.row_of_lost_item(
            crashitem, self._selected(crashitem), message, f"device {device}" if device else ""
        )
        if row is not None:
            report.msprobe_row = row.to_wire()
        self._lost.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """End a lost item with the teardown that its process could not report: pytest-html waits for it."""
        yield
        if report.when == "call" and report.nodeid in self._lost:
            self._lost.remove(report.nodeid)
            teardown = pytest.TestReport(report.nodeid, report.location, {}, "passed", None, "teardown")
            self._config.hook.pytest_runtest_logreport(report=teardown)

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember when a worker said that it begins an item."""
        self._begun[nodeid] = monotonic()

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Forget it when the item ends."""
        self._begun.pop(nodeid, None)

    def _hang(self, node_id: str) -> str:
        """`: it did not end within 60 s` for an item that met its time limit, else ""."""
        limit = self._index.time_limit_seconds(node_id)
        begun = self._begun.pop(node_id, None)
        if limit is None or begun is None or monotonic() - begun < limit:
            return ""
        return f": it did not end within {limit:.3g} s (--msprobe-timeout)"

    def _selected(self, node_id: str) -> list[Direction]:
        scope = node_id.rpartition("::")[0]
        collected = (self._scheduler.collection if self._scheduler is not None else None) or ()
        return [direction for direction in DIRECTIONS if f"{scope}::{direction}" in collected]


def _cause_of_death(node: Any) -> str:
    """`, by SIGABRT` for a process that a signal ended; "" when execnet does not tell."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return ""
    try:
        code = process.wait(timeout=2)
    except Exception:  # whatever execnet's process object is, this is only for the message
        return ""
    if code is not None and code < 0:
        return f", by {signal.Signals(-code).name}"
    return f", with exit code {code}"
