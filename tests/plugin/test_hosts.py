"""Two hosts: two real sshd on loopback, with two devices each. What a page of the docs says of hosts is run, too."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from dump_builder import DumpBuilder
from report_reader import Reports

import msprobe_collector
import pytest_msprobe
from pytest_msprobe.reports.jsonl import read_json_lines

PAGE = Path(__file__).parents[2] / "docs" / "ci.md"
A = np.arange(6, dtype=np.float32).reshape(2, 3)
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
HOSTS = ("hosta", "hostb")
#: Each worker says who it is, where, and with what.
DIARY = (
    "import os\n"
    "def pytest_runtest_setup(item):\n"
    "    names = 'PYTEST_XDIST_WORKER', 'SSH_CONNECTION', 'PYTEST_MSPROBE_DEVICE', 'OMP_NUM_THREADS'\n"
    "    with open({diary!r}, 'a') as file:\n"
    "        print(*(os.environ[name].split()[-1] for name in names), os.getcwd(), file=file)\n"
)

Run = Callable[..., pytest.RunResult]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    """(a configuration of ssh that knows `hosta` and `hostb`, the ports of their sshd)."""
    if SSHD is None or not shutil.which("ssh") or not shutil.which("ssh-keygen"):
        pytest.skip("sshd, ssh and ssh-keygen are not all installed (Debian: openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd wants it, and Debian makes it when the service starts
    numbers = {host: free_port() for host in HOSTS}
    lines = [f"Host {host}\n  Port {port}\n" for host, port in numbers.items()]
    (folder / "config").write_text(
        "".join(lines) + f"Host *\n  HostName 127.0.0.1\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n"
        "  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    servers = [sshd(folder, port) for port in numbers.values()]
    try:
        for host in HOSTS:
            await_host(folder, host)
        yield folder / "config", numbers
    finally:
        for server in servers:
            server.terminate()
            server.wait()


def sshd(folder: Path, port: int) -> subprocess.Popen[bytes]:
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    assert SSHD is not None
    return subprocess.Popen([SSHD, "-D", "-f", "/dev/null", "-E", str(folder / f"log{port}"), *options])


def await_host(folder: Path, host: str) -> None:
    for _ in range(100):
        answer = subprocess.run(["ssh", "-F", folder / "config", host, "true"], capture_output=True, check=False)
        if answer.returncode == 0:
            return
        time.sleep(0.1)
    logs = "".join(path.read_text() for path in folder.glob("log*"))
    pytest.skip(f"sshd on loopback lets nobody in: {answer.stderr.decode()} {logs[-500:]}")


@pytest.fixture
def run(pytester: pytest.Pytester, ports: tuple[Path, dict[str, int]]) -> Run:
    """Runs pytest on the dump step0, with workers that start in the folders hosta and hostb; a number each."""
    # As on a host whose Python needs an environment first.
    python = pytester.path / "remote_python"
    sources = [str(Path(package.__file__ or "").parents[1]) for package in (pytest_msprobe, msprobe_collector)]
    python.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={shlex.quote(os.pathsep.join(sources))}\nunset OMP_NUM_THREADS\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    (pytester.path / "pytest.ini").write_text("[pytest]\n")

    def run_on_hosts(*arguments: str, workers: tuple[int, int] = (2, 2)) -> pytest.RunResult:
        texts = []
        for host, number in zip(HOSTS, workers):
            (pytester.path / host).mkdir(exist_ok=True)
            ssh = f"-F {ports[0]} {host}"
            environment = f"env:PYTEST_ADDOPTS={os.environ['PYTEST_ADDOPTS']}"
            if number:
                texts += ["--tx", f"{number}*ssh={ssh}//python={python}//chdir={pytester.path / host}//{environment}"]
        return pytester.runpytest_subprocess("--msprobe-dump=step0", "--dist=load", *texts, *arguments)

    return run_on_hosts


def dump_of(folder: Path, calls: int = 6, *, wrong: int | None = None) -> None:
    builder = DumpBuilder(folder)
    for number in range(calls):
        builder.call(f"Mint.neg.{number}", [A], [A if number == wrong else -A], incoming=[A], gradients=[-A])
    builder.write()


def test_two_hosts_with_two_devices_each(
    pytester: pytest.Pytester, run: Run, ports: tuple[Path, dict[str, int]], reports: Reports
) -> None:
    dump_of(pytester.path / "step0", wrong=2)
    # hostb has the dump under another folder, hosta where it is here.
    shutil.copytree(pytester.path / "step0", pytester.path / "hostb" / "mirror" / "step0")
    for root in (pytester.path, pytester.path / "hostb" / "mirror"):
        (root / "conftest.py").write_text(DIARY.format(diary=str(pytester.path / "diary")))
    result = run(
        "--msprobe-device-ids=4,5",
        "--msprobe-remote-root=mirror",
        "--msprobe-jsonl=r.jsonl",
        "--msprobe-error-data=auto",
    )
    result.assert_outcomes(passed=11, failed=1)
    result.stdout.fnmatch_lines(
        [
            "msprobe: devices of the workers: gw0: 4 on hosta, gw1: 5 on hosta, gw2: 4 on hostb, gw3: 5 on hostb",
            "msprobe: error data are written on the host that ran the check",
        ]
    )
    rows = [row for _, row in read_json_lines(pytester.path / "r.jsonl")]
    assert {row.dump for row in rows} == {str(pytester.path / "step0" / "dump.json")}
    assert {(row.host, row.device) for row in rows} == {
        (host, f"recorded values (device {device})") for host in HOSTS for device in "45"
    }
    assert sorted(row.node_id for row in rows) == sorted(
        f"step0/dump.json::Mint.neg.{number}::{direction}"
        for number in range(6)
        for direction in ("forward", "backward")
    )
    assert len(reports.results) == 6
    (failing,) = [row for row in rows if row.status == "error"]
    home = {"hosta": pytester.path, "hostb": pytester.path / "hostb" / "mirror"}[failing.host]
    assert (home / "error_data" / "dump.json").is_file()

    diary = {tuple(line.split()) for line in (pytester.path / "diary").read_text().splitlines()}
    threads = str(max(1, (os.cpu_count() or 1) // 2))
    number_of = {str(port): host for host, port in ports[1].items()}
    assert {(name, number_of[port], device, count, Path(folder)) for name, port, device, count, folder in diary} == {
        ("gw0", "hosta", "4", threads, pytester.path / "hosta"),
        ("gw1", "hosta", "5", threads, pytester.path / "hosta"),
        ("gw2", "hostb", "4", threads, pytester.path / "hostb"),
        ("gw3", "hostb", "5", threads, pytester.path / "hostb"),
    }


def test_a_worker_starts_where_the_run_was_started(
    pytester: pytest.Pytester, ports: tuple[Path, dict[str, int]]
) -> None:
    dump_of(pytester.path / "step0", calls=1)
    pytester.makeconftest(DIARY.format(diary=str(pytester.path / "diary")).replace("os.environ[name]", "name"))
    home = pytester.path / "home"
    home.mkdir()
    python = pytester.path / "remote_python"
    # Where xdist lets it start belongs to no test.
    python.write_text(f'#!/bin/sh\ncd {home}\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    sources = os.pathsep.join(str(Path(p.__file__ or "").parents[1]) for p in (pytest_msprobe, msprobe_collector))
    text = f"ssh=-F {ports[0]} hosta//python=env PYTHONPATH={sources} {python}"
    result = pytester.runpytest_subprocess("--msprobe-dump=step0", "--dist=load", "--tx", text)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["msprobe: 1 worker on the CPU (1 on hosta)"])
    assert {line.split()[-1] for line in (pytester.path / "diary").read_text().splitlines()} == {str(pytester.path)}
    assert [path.name for path in home.iterdir()] == ["pyexecnetcache"]


def test_a_remote_worker_that_dies_or_hangs_costs_one_item(
    pytester: pytest.Pytester, run: Run, reports: Reports
) -> None:
    dump_of(pytester.path / "step0")
    # With all that a first check would import, or a busy machine's meets the limit, too.
    pytester.makeconftest(
        "import os, time, torch\n"
        "import pytest_msprobe.engines.adapters, pytest_msprobe.suites.precheck.check\n"
        "def pytest_runtest_call(item):\n"
        "    if 'neg.1::backward' in item.nodeid: os.abort()\n"
        "    if 'neg.3::forward' in item.nodeid:\n"
        "        torch.neg = lambda *given: time.sleep(60)\n"
    )
    result = run("--msprobe-device-ids=0", "--msprobe-timeout=4", "--junitxml=r.xml", workers=(1, 1))
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (10, 2)
    for call, how in (("Mint.neg.1", ";"), ("Mint.neg.3", ": it did not end within 4 s (--msprobe-timeout);")):
        message = reports.results[call]["Message"]
        assert re.search(
            rf"the worker process gw\d on device 0 on host[ab] died in this check{re.escape(how)}", message
        )
    cases = list(ElementTree.parse(pytester.path / "r.xml").iter("testcase"))
    assert len(cases) == 12
    (dead,) = [case for case in cases if case.find("failure") is not None and "neg.1" in case.get("name", "")]
    assert {entry.get("name"): entry.get("value") for entry in dead.iter("property")} == {
        "api": "Mint.neg.1",
        "dump": str(pytester.path / "step0" / "dump.json"),
        "direction": "backward",
        "device": "device 0",
        "verdict": "error",
    }


def without_dump_on_hostb(folder: Path) -> None:
    (folder / "hostb" / "mirror").mkdir(parents=True)


def with_yaml_here_only(folder: Path) -> None:
    (folder / "settings.yaml").write_text("seed: 3\n")


def with_old_error_data(folder: Path) -> None:
    (folder / "hostb" / "mirror" / "error_data" / "old").mkdir(parents=True)
    shutil.copytree(folder / "step0", folder / "hostb" / "mirror" / "step0")


MISTAKES: dict[str, tuple[Callable[[Path], None] | None, list[str], str]] = {
    "no dump there": (
        without_dump_on_hostb,
        ["--msprobe-remote-root=mirror"],
        "hostb: {path}/hostb/mirror/step0/dump.json does not exist there; --msprobe-remote-root=mirror corresponds to",
    ),
    "no such folder there": (
        lambda folder: shutil.move(folder / "step0", folder / "elsewhere"),
        ["--msprobe-dump=elsewhere"],
        "--msprobe-dump={path}/step0: there is no such file or folder",
    ),
    "settings that are not there": (
        with_yaml_here_only,
        ["--msprobe-config=settings.yaml"],
        "could not start: --msprobe-config=settings.yaml: cannot be read",
    ),
    "error data of another run": (
        with_old_error_data,
        ["--msprobe-remote-root=mirror", "--msprobe-error-data=auto"],
        "hostb: {path}/hostb/mirror/error_data there holds something; remove it there first",
    ),
    "a path as an argument": (None, ["step0/dump.json"], "a path is part of its option, as in --msprobe-dump=step0/"),
    "rootdir twice": (None, ["--msprobe-remote-root=m", "--rootdir=."], "leave --rootdir out"),
    "more workers than devices": (
        None,
        ["--msprobe-device-ids=4"],
        "2 workers on hosta, 1 device (4) with 1 worker each; use at most 1 there, or",
    ),
    "one machine under two names": (
        None,
        ["--msprobe-device=mindspore:ascend", "--msprobe-device-ids=0,1"],
        "--tx: hosta and hostb are one machine, whose device 0 would get a worker from each",
    ),
    "a host that does not answer": (
        None,
        ["--tx", "ssh=-p 1 127.0.0.1"],
        "--tx: ssh=-p 1 127.0.0.1 cannot be reached; what ssh says stands above",
    ),
    "no such Python there": (
        None,
        ["--tx", "ssh=-F {config} hosta//python=/nowhere/python"],
        "--tx: a worker's Python did not start; what it says stands above",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_ends_the_run(
    pytester: pytest.Pytester, run: Run, ports: tuple[Path, dict[str, int]], mistake: str
) -> None:
    prepare, arguments, sentence = MISTAKES[mistake]
    dump_of(pytester.path / "step0", calls=1)
    if prepare:
        prepare(pytester.path)
    result = run(*(argument.replace("{config}", str(ports[0])) for argument in arguments))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert sentence.format(path=pytester.path) in line
    assert "INTERNALERROR" not in result.stdout.str()


def test_the_device_that_a_host_does_not_have(
    pytester: pytest.Pytester, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump_of(pytester.path / "step0", calls=1)
    python = pytester.path / "remote_python"
    python.write_text(python.read_text().replace("unset", "export ASCEND_RT_VISIBLE_DEVICES=6,7\nunset"))
    result = run("--msprobe-device=mindspore:ascend", workers=(1, 0))
    assert "--msprobe-device-ids: device 0 does not exist on hosta; visible are: 6, 7" in result.stderr.str()


def test_memory_is_shared_by_the_workers_of_one_host(pytester: pytest.Pytester, run: Run, reports: Reports) -> None:
    builder = DumpBuilder(pytester.path / "step0", real=False).call("Mint.neg.0", [A], [-A])
    builder.records["Mint.neg.0.forward"]["input_args"][0]["shape"] = [10**9, 3]
    builder.write()
    run("--msprobe-max-memory=4GB").assert_outcomes(skipped=1)
    assert "--msprobe-max-memory=2GB" in reports.results["Mint.neg.0"]["Message"]


#: A device in NumPy: number 1 of hostb computes something else.
SICK = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from fakes.engine import FakeEngine
from pytest_msprobe.engines import selection
from pytest_msprobe.engines.protocol import own_device

class Device(FakeEngine):
    def forward(self, call, *, differentiate):
        is_sick = os.getcwd().endswith("hostb") and own_device() == "1"
        self.fault = "flips the same bit always" if is_sick else "none"
        return super().forward(call, differentiate=differentiate)

selection._make_device = lambda specification: Device()
"""


def test_devices_of_several_hosts_are_compared(pytester: pytest.Pytester, run: Run) -> None:
    dump_of(pytester.path / "step0", calls=2)
    pytester.makeconftest(SICK)
    result = run("--msprobe-suite=repeat", "--msprobe-device-ids=0,1", "--msprobe-jsonl=r.jsonl")
    result.assert_outcomes(passed=15, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    others = "devices hosta-0, hosta-1 and hostb-0"
    result.stdout.fnmatch_lines(
        [
            "device hostb-1 differs from the others in 4 of 4 results",
            f"  Mint.neg.0 forward: device hostb-1 against {others}: output.0 within *",
            "the devices do not compute the same: device hostb-1 differs in 4 of 4 results*with its host alone in --tx",
        ]
    )
    rows = [row for _, row in read_json_lines(pytester.path / "r.jsonl")]
    assert {(row.part.partition("-device")[2], row.host, row.device.partition(" (")[2]) for row in rows} == {
        (f"{host}-{device}", host, f"device {device})") for host in HOSTS for device in "01"
    }


# The page.


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def shell(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a script in the test's folder, where `pytest` and `python` are those of this run."""
    tools = pytester.path / "tools"
    tools.mkdir()
    for name, words in (("pytest", [sys.executable, "-m", "pytest"]), ("python", [sys.executable])):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (tools / name).chmod(0o755)

    def run_script(script: str, **variables: str) -> None:
        environment = {**os.environ, **variables, "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run_script


def rows_of_shards(folder: Path) -> Counter[str]:
    return Counter(row.node_id for path in folder.glob("*.jsonl") for _, row in read_json_lines(path))


@pytest.mark.slow
def test_shards_and_merge_of_the_page(pytester: pytest.Pytester, shell: Callable[..., None]) -> None:
    dump_of(pytester.path / "step0", calls=4)
    (script,) = [block for block in blocks("bash") if "--msprobe-shard=1/2" in block]
    shell(f"set -e\n{script}")
    assert len(Reports(pytester.path / "merged").results) == 4


@pytest.mark.slow
def test_the_slurm_job_of_the_page(pytester: pytest.Pytester, shell: Callable[..., None]) -> None:
    dump_of(pytester.path / "step0", calls=5, wrong=1)
    (script,) = [block for block in blocks("bash") if "#SBATCH" in block]
    (count,) = re.findall(r"--array=1-(\d+)", script)
    for number in range(1, int(count) + 1):
        shell(script, SLURM_ARRAY_TASK_ID=str(number), SLURM_ARRAY_TASK_COUNT=count)
    seen = rows_of_shards(pytester.path / "rows")
    assert len(seen) == 10
    assert set(seen.values()) == {1}


@pytest.mark.slow
def test_the_kubernetes_job_of_the_page(pytester: pytest.Pytester, shell: Callable[..., None]) -> None:
    dump_of(pytester.path / "step0", calls=5, wrong=1)
    (job,) = map(yaml.safe_load, blocks("yaml"))
    spec = job["spec"]
    assert (job["apiVersion"], job["kind"], spec["completionMode"]) == ("batch/v1", "Job", "Indexed")
    assert spec["completions"] == spec["parallelism"]
    (container,) = spec["template"]["spec"]["containers"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["workingDir"] in mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in spec["template"]["spec"]["volumes"]
    }
    command, flag, script = container["command"]
    assert (command, flag) == ("bash", "-c")
    for index in range(spec["completions"]):
        shell(script, JOB_COMPLETION_INDEX=str(index), HOSTNAME=f"pod-{index}")
    seen = rows_of_shards(pytester.path / "rows")
    assert len(seen) == 10
    assert set(seen.values()) == {1}


def test_every_block_of_the_page_is_tried_or_a_way_to_say_tx() -> None:
    assert len(blocks("yaml")) == 1
    for block in blocks("bash"):
        assert "--msprobe-shard=" in block or "merge" in block or "--tx" in block
    for block in blocks("bash"):
        for text in re.findall(r'--tx "?((?:\d+\*)?ssh=[^"\s]+)', block):
            assert re.fullmatch(r"\d+\*ssh=\S+//python=\S+", text)
