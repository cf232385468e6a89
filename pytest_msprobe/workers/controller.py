"""xdist's side of a run, on the process that hands out the work: places, schedule, and workers that die."""

from __future__ import annotations

import os
import signal
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count
from pathlib import Path
from socket import gethostname
from time import monotonic
from typing import Any

import execnet
import pytest
from xdist.report import report_collection_diff
from xdist.workermanage import parse_tx_spec_config

from msprobe_collector.dump_format.values import counted
from pytest_msprobe.engines.process import EXIT_CODE
from pytest_msprobe.engines.protocol import VISIBLE
from pytest_msprobe.reports.other_tools import are_read, properties
from pytest_msprobe.reports.resume import LOST, LOST_AGAIN, EarlierRun
from pytest_msprobe.run.record_index import RecordIndex
from pytest_msprobe.suites.contract import WorkerPlacement
from pytest_msprobe.workers.hosts import (
    WorkerPlace,
    check_devices,
    distinct_devices,
    host_of,
    last_line,
    naming_lost_hosts,
    place_workers,
    refuse_arguments,
    send_ahead,
    starts_in_default_folder,
)
from pytest_msprobe.workers.remote_start import StartReport, StartRequest

#: xdist's worker starts an item only when it holds the next one, or knows that there is none.
_FEWEST_HELD = 2


class CallScheduler:
    """An xdist scheduler whose unit of work is a group of records: the directions of a call share inputs and forward.

    Units go out largest estimated cost first, one at a time, whenever a worker is about to run dry. A worker is
    committed to the unit after the one it runs, because of `_FEWEST_HELD`; everything else stays free for others. Of a
    group whose records belong to several devices, those of each device are a unit, which only its workers get.

    Attributes:
        collection: node ids of all items, once every worker has collected the same ones.
    """

    def __init__(
        self, config: pytest.Config, worker_count: int, index: RecordIndex, device_of: Callable[[Any], str | None]
    ) -> None:
        """A scheduler for `worker_count` workers; `index` tells units and costs, `device_of` a worker's device."""
        self._config = config
        self._worker_count = worker_count
        self._index = index
        self._device_of = device_of
        self._collections: dict[Any, Sequence[str]] = {}
        self._held: dict[Any, list[int]] = {}
        #: Units that wait, by their devices; None for those that any worker may get.
        self._units: dict[str | None, deque[list[int]]] = defaultdict(deque)
        self.collection: Sequence[str] | None = None

    @property
    def nodes(self) -> list[Any]:
        """All workers that take part."""
        return list(self._held)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every initial worker has collected."""
        return len(self._collections) >= self._worker_count

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left that a worker could not do with what it holds."""
        return (
            self.collection_is_completed
            and not any(self._units.values())
            and all(len(held) < _FEWEST_HELD for held in self._held.values())
        )

    @property
    def has_pending(self) -> bool:
        """Whether an item is waiting or running."""
        return any(self._units.values()) or any(self._held.values())

    def add_node(self, node: Any) -> None:
        """A worker has started."""
        assert node not in self._held
        self._held[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """A worker has collected. One that replaces another and collected something else gets no work."""
        if self.collection is not None and list(collection) != list(self.collection):
            self._report_difference(node, collection)
            return
        self._collections[node] = collection

    def schedule(self) -> None:
        """Make units of the collection and give every worker its first; later, give work to workers that joined."""
        if self.collection is None:
            first = next(iter(self._collections.values()))
            for node, collection in self._collections.items():
                if list(collection) != list(first):
                    self._report_difference(node, collection)
                    return
            self.collection = first
            for unit in self._sorted_units():
                self._units[self._device(unit)].append(unit)
        for node in self.nodes:
            self._feed(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """A worker has finished an item."""
        self._held[node].remove(item_index)
        self._feed(node)

    def mark_test_pending(self, item: str) -> None:
        """Run an item (again), before everything else."""
        assert self.collection is not None
        unit = [list(self.collection).index(item)]
        self._units[self._device(unit)].appendleft(unit)
        for node in self.nodes:
            self._feed(node)

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Part of xdist's protocol that is never asked for: this scheduler does not take work back.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    def remove_node(self, node: Any) -> str | None:
        """A worker has gone. The item that it was running, when it crashed in one; the others that it held go back."""
        held = self._held.pop(node)
        if self.collection is None:
            self._collections.pop(node, None)
        if not held:
            return None
        assert self.collection is not None
        crashed, *others = held
        for unit in reversed(self._grouped(others)):
            self._units[self._device(unit)].appendleft(unit)
        for remaining in self.nodes:
            self._feed(remaining)
        return self.collection[crashed]

    def _feed(self, node: Any) -> None:
        if node.shutting_down or (self.collection is not None and node not in self._collections):
            return
        held = self._held[node]
        while len(held) < _FEWEST_HELD:
            waiting = self._units[self._device_of(node)] or self._units[None]
            if not waiting:
                node.shutdown()
                return
            unit = waiting.popleft()
            held.extend(unit)
            node.send_runtest_some(unit)

    def _device(self, unit: Sequence[int]) -> str | None:
        assert self.collection is not None
        return self._index.device_of(self.collection[unit[0]])

    def _sorted_units(self) -> list[list[int]]:
        assert self.collection is not None
        collection = self.collection
        units = self._grouped(range(len(collection)))
        return sorted(units, key=lambda unit: -self._index.cost_of(list(map(collection.__getitem__, unit))))

    def _grouped(self, indices: Sequence[int]) -> list[list[int]]:
        """`indices` by the group and the device of their records, in order of appearance."""
        assert self.collection is not None
        groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        for index in indices:
            node_id = self.collection[index]
            groups[self._index.scope_of(node_id), self._index.device_of(node_id)].append(index)
        return list(groups.values())

    def _report_difference(self, node: Any, collection: Sequence[str]) -> None:
        first = self.collection if self.collection is not None else next(iter(self._collections.values()))
        text = report_collection_diff(list(first), list(collection), "the first worker", node.gateway.id)
        report = pytest.CollectReport(nodeid=node.gateway.id, outcome="failed", longrepr=text, result=[])
        self._config.hook.pytest_collectreport(report=report)


def exit_code(node: Any) -> int | None:
    """Exit code of a worker on this machine, negative for a signal; None when execnet does not tell."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if process is None:
        return None
    try:
        code: int = process.wait(timeout=2)
    except Exception:  # whatever execnet's process object is, this is only for the message
        return None
    return code


def cause_of_death(code: int | None) -> str:
    """`, by SIGABRT` for a process that a signal ended; "" when it is not known."""
    if code is None:
        return ""
    if code >= 0:
        return f", with exit code {code}"
    try:
        return f", by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f", by signal {-code}"


#: Ways of xdist to distribute that cost results, and why.
_REFUSED_MODES = {
    **dict.fromkeys(
        ("loadfile", "loadscope", "loadgroup"), "a crashing API call would take the rest of its dump with it"
    ),
    "each": "every worker would judge every record, and one check would have several verdicts",
}
#: How often a worker is started in place of one that is gone, before it is taken for hopeless.
_MOST_STARTS = 4
#: xdist gives up after four deaths per worker; a dump may well crash more often, and each death costs one item only.
_MOST_RESTARTS = "1000"


def _replaced_mode(config: pytest.Config) -> str:
    """What --dist was before it became `load`, and why; "" where it stays.

    The settings of a project are for its tests. On the command line the mode is meant for this run.

    Raises:
        pytest.UsageError: the command line has a mode that would cost results.
    """
    mode = config.option.dist
    if mode not in _REFUSED_MODES:
        return ""
    if any(str(argument).startswith("--dist") for argument in config.invocation_params.args):
        raise pytest.UsageError(f"--dist {mode}: {_REFUSED_MODES[mode]}; use --dist load")
    config.option.dist = "load"
    return f"{mode}: {_REFUSED_MODES[mode]}"


def _trying_again(setup_node: Callable[..., Any], group: Any) -> Callable[..., Any]:
    """The `setup_node` of xdist, which starts a worker on this machine again when its process ends while it starts."""

    def try_again(spec: Any, put_event: Callable[..., Any]) -> Any:
        """The worker.

        Raises:
            pytest.UsageError: it ends every time.
        """
        for _ in range(_MOST_STARTS):
            try:
                return setup_node(spec, put_event)
            except (EOFError, OSError):
                if not spec.popen:
                    raise
                spec.id = None  # execnet knows the gateway that is gone by the old one
                group.allocate_id(spec)
        raise pytest.UsageError(
            f"a worker's process ended {_MOST_STARTS} times while it started; continue this run with --msprobe-resume"
        )

    return try_again


class WorkersPlugin:
    """Registered only where xdist distributes.

    Attributes:
        places: what each worker gets, in the order of their ids.
        devices: names of theirs, each once.
        earlier: the run that is continued; None for none.
    """

    def __init__(
        self,
        config: pytest.Config,
        dumps: Sequence[Path],
        placement: WorkerPlacement,
        index: RecordIndex,
    ) -> None:
        """Plan for the workers of `config`, which judge `dumps`, as `placement` wants it.

        Raises:
            pytest.UsageError: they do not fit on the devices, or the way of distribution would cost results.
        """
        self._replaced = _replaced_mode(config)
        number = placement.device_index
        if number is not None:
            raise pytest.UsageError(
                f"--msprobe-device: one device, {number}, for all workers; "
                f"leave its number out, and give each worker its own with --msprobe-device-ids={number}"
            )
        specs = [execnet.XSpec(text) for text in parse_tx_spec_config(config)]
        proxies: dict[str, Any] = {str(spec.id): spec for spec in map(execnet.XSpec, config.getoption("px") or ())}
        hosts = [host_of(spec, proxies) for spec in specs]
        here, cores = hosts.count(""), len(os.sched_getaffinity(0))
        may_have_devices = placement.open_engine and (here < len(hosts) or placement.compares_devices)
        if placement.devices and placement.target == "cpu" and not may_have_devices:
            raise pytest.UsageError(
                f"--msprobe-device-ids={','.join(placement.devices)}: nothing is run on a device here; "
                "leave the option out, or name another device in --msprobe-device"
            )
        # More workers than this for a core of the CPU are a mistake.
        if here > 8 * cores and placement.target == "cpu":
            raise pytest.UsageError(f"-n {here}: this machine has {counted(cores, 'cores')}; use -n {cores}")
        if any(hosts):
            if placement.remote_root is None:
                raise pytest.UsageError("--tx: this suite has workers on this machine only; use -n")
            refuse_arguments(config)
        self.places = place_workers(
            hosts, target=placement.target, wanted=placement.devices, per_device=placement.workers_per_device
        )
        self.devices = distinct_devices(self.places)
        numbers = count()
        self._names = [spec.id or f"gw{next(numbers)}" for spec in specs]
        self._placement = placement
        self._dumps = dumps
        self._index = index
        self.earlier: EarlierRun | None = None
        self._scheduler: CallScheduler | None = None
        self._config = config
        self._place_of: dict[int, WorkerPlace] = {}
        self._started: dict[Any, StartReport] = {}
        self._collected: set[Any] = set()
        self._lost: list[str] = []
        self._judged: dict[Any, str] = {}  # the last item of each worker whose row is here
        self._begun: dict[str, float] = {}
        self._failed_starts = 0
        if config.option.maxworkerrestart is None:
            config.option.maxworkerrestart = _MOST_RESTARTS

    def header(self) -> list[str]:
        """The map of workers to devices and hosts."""
        others = {place.host: place.sharers for place in self.places if place.host}
        if any(place.device for place in self.places):
            devices = (f"{place.device} on {place.host}".removesuffix(" on ") for place in self.places)
            pairs = ", ".join(map("{}: {}".format, self._names, devices))
            lines = [f"msprobe: devices of the workers: {pairs}"]
        else:
            lines = [f"msprobe: {counted(len(self.places), 'workers')} on the CPU"]
            if others:
                lines[0] += f" ({', '.join(f'{workers} on {host}' for host, workers in others.items())})"
            here, cores = len(self.places) - sum(others.values()), len(os.sched_getaffinity(0))
            if here > cores:
                lines.append(f"msprobe: -n {here}: this machine has {counted(cores, 'cores')}; use -n {cores}")
        if others and self._evidence:
            lines.append(f"msprobe: {' and '.join(self._evidence)} are written on the host that ran the check")
        if self._replaced:
            lines.append(f"msprobe: --dist load in place of {self._replaced}")
        return lines

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionstart(self) -> Generator[None, None, None]:
        """Start the workers; one line for a host that cannot be reached."""
        with naming_lost_hosts():
            yield
        sessions: Any = self._config.pluginmanager.get_plugin("dsession")
        manager = sessions.nodemanager
        manager.setup_node = _trying_again(manager.setup_node, manager.group)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Run; the same sentence for a host that is gone when a worker is to be replaced."""
        with naming_lost_hosts():
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Put each worker's device into its environment, where a worker that replaces it finds it again."""
        for spec, place in zip(specs, self.places):
            self._place_of[id(spec)] = place  # xdist keeps the specs, and gives them to replacements
            if not place.host:
                spec.env = {**place.environment, **(spec.env or {})}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker what it needs to know; each gets the same, also one that replaces another."""
        worker_input = node.workerinput
        worker_input["msprobe_done"] = sorted(self.earlier.done) if self.earlier else []
        place = self._place(node)
        worker_input["msprobe_sharers"] = place.sharers
        worker_input["msprobe_devices"] = list(self.devices)
        worker_input["msprobe_dumps"] = list(map(str, self._dumps))
        worker_input["msprobe_evidence"] = self._evidence
        if place.host:
            started = send_ahead(node.gateway, self._request(node, place), host=place.host)
            self._check(node, place, started)
            worker_input["msprobe_dumps"] = started.dumps
            worker_input["msprobe_evidence"] = started.evidence

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """Remember which workers could begin."""
        self._collected.add(node)
        self._failed_starts = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """End the run when a worker cannot even collect: the next one could not, either, unless others have.

        Raises:
            pytest.UsageError: with what it said.
        """
        if error is None or error == "keyboard-interrupt" or node in self._collected:
            return
        self._failed_starts += 1
        if self._collected and self._failed_starts < _MOST_STARTS:
            return
        where = " on ".join(filter(None, (node.gateway.id, self._place(node).host)))
        raise pytest.UsageError(f"the worker {where} could not start: {last_line(error)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> CallScheduler | None:
        """Make our own schedule for the modes that assign items one by one."""
        if config.option.dist not in ("load", "worksteal"):
            return None
        self._scheduler = CallScheduler(config, len(self.places), self._index, lambda node: self._place(node).name)
        return self._scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """A dead worker's item becomes an error row with what is known, in every report."""
        node = report.node
        place = self._place(node)
        if self._judged.get(node) == crashitem:
            # Its verdict is here already: one check has one verdict, and the others of this worker go to the next one.
            report.when, report.outcome, report.longrepr = "teardown", "passed", None
            return
        # On another host, only the connection has an exit code.
        code = None if place.host else exit_code(node)
        how = self._hang(crashitem, code) or cause_of_death(code)
        device = f"device {place.device}" if place.device else ""
        where = " on ".join(filter(None, (node.gateway.id, device, place.host)))
        is_lost_again = self.earlier is not None and self._index.is_among(crashitem, self.earlier.lost)
        again = f", {LOST_AGAIN}" if is_lost_again else ""
        message = f"the worker process {where} {LOST}{how}{again}; nothing more is known of it"
        report.longrepr = message
        # xdist's own "???" is a phase that pytest-html drops and JUnit calls setup.
        report.when = "call"
        row = self._index.row_of_lost_item(
            crashitem, self._selected(crashitem), message, device=device, host=place.host or gethostname()
        )
        if row is not None:
            report.msprobe_row = row.to_wire()
            if are_read(self._config):
                report.user_properties = list(properties(row))
        self._lost.append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, None, None]:
        """Name dumps and hosts as they are called here; end a lost item with the teardown that its process owes.

        pytest-html waits for that one.
        """
        node = getattr(report, "node", None)
        started = self._started.get(node)
        wire = report.__dict__.get("msprobe_row")
        if wire is not None and report.nodeid not in self._lost:
            self._judged[node] = report.nodeid
        if started is not None and wire is not None:
            here = dict(zip(started.dumps, map(str, self._dumps)))
            wire["dump"] = here.get(wire["dump"], wire["dump"])
            wire["host"] = self._place(report.node).host
        yield
        if report.when == "call" and report.nodeid in self._lost:
            self._lost.remove(report.nodeid)
            teardown = pytest.TestReport(
                report.nodeid,
                report.location,
                {},
                "passed",
                None,
                "teardown",
                user_properties=report.user_properties,  # JUnit reads them off this one
            )
            teardown.node = report.node  # type: ignore[attr-defined]  # to JUnit, another worker's is another test
            self._config.hook.pytest_runtest_logreport(report=teardown)

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Remember when a worker said that it begins an item."""
        self._begun[nodeid] = monotonic()

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Forget it when the item ends."""
        self._begun.pop(nodeid, None)

    def _hang(self, node_id: str, code: int | None) -> str:
        """`: it did not end within 60 s` for an item that met its time limit, else ""."""
        limit = self._index.time_limit_seconds(node_id)
        started = self._begun.pop(node_id, None)
        if limit is None or started is None or monotonic() - started < 0.8 * limit or code not in (None, EXIT_CODE):
            return ""
        return f": it did not end within {limit:.3g} s (--msprobe-timeout)"

    def _place(self, node: Any) -> WorkerPlace:
        return self._place_of[id(node.gateway.spec)]

    @property
    def _evidence(self) -> Mapping[str, str]:
        return {kind: str(folder) for kind, folder in self._placement.evidence.items()}

    def _request(self, node: Any, place: WorkerPlace) -> StartRequest:
        return StartRequest(
            root=str(self._config.rootpath),
            mirror=self._placement.remote_root or "",
            folder=str(self._config.invocation_params.dir),
            moves=starts_in_default_folder(node.gateway.spec),
            dumps=list(map(str, self._dumps)),
            evidence=dict(self._evidence),
            target=self._placement.target,
            variable=VISIBLE.get(self._placement.target, ""),
            environment=dict(place.environment),
            sharers=place.sharers,
        )

    def _check(self, node: Any, place: WorkerPlace, started: StartReport) -> None:
        self._started[node] = started
        has_begun = self._scheduler is not None and self._scheduler.collection is not None
        if started.occupied and not has_begun:
            raise pytest.UsageError(f"{place.host}: {started.occupied[0]} there holds something; remove it there first")
        engine = self._placement.open_engine
        if engine and started.has_ascend and self._placement.target != "ascend":
            raise pytest.UsageError(
                f"--msprobe-device={engine}: {place.host} has Ascend NPUs and this machine has none; "
                f"say which is meant, for example --msprobe-device=mindspore:ascend"
            )
        places = map(self._place, self._started)
        devices = [(other.host, other.device, report) for other, report in zip(places, self._started.values())]
        check_devices(devices, self._placement.target)

    def _selected(self, node_id: str) -> list[str]:
        """Items of this run that belong to the same group."""
        scope = self._index.scope_of(node_id)
        collected = (self._scheduler.collection if self._scheduler is not None else None) or ()
        return [other for other in collected if other == scope or other.startswith(f"{scope}::")]
