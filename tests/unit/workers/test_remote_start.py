"""Which host a worker of `--tx` belongs to, and what is said of what is wrong there."""

from __future__ import annotations

import os
from pathlib import Path

import execnet
import pytest

from pytest_msprobe.workers.hosts import check_devices, host_of, last_line
from pytest_msprobe.workers.remote_start import StartReport, StartRequest, settle

HOSTS = {
    "popen": "",
    "popen//python=python3//chdir=/tmp": "",
    "ssh=npu1": "npu1",
    "ssh=me@npu1//python=/opt/venv/bin/python": "npu1",
    "ssh=-F /home/me/config me@npu1": "npu1",
    "ssh=-p 2222 me@127.0.0.1": "127.0.0.1:2222",
    "ssh=127.0.0.1 -p2223": "127.0.0.1:2223",
    "ssh=-o Port=22 -tt npu1": "npu1",
    "ssh=npu1//ssh_config=/home/me/config": "npu1",
    "ssh=--strange npu1": "--strange npu1",
    "ssh=-v": "-v",
    "socket=10.0.0.2:8888": "10.0.0.2:8888",
    "vagrant_ssh=box": "box",
    "popen//via=hop": "npu9",
    "popen//via=stranger": "stranger",
}


@pytest.mark.parametrize("text", HOSTS)
def test_the_host_of_a_worker(text: str) -> None:
    proxies = {"hop": execnet.XSpec("id=hop//ssh=me@npu9")}
    assert host_of(execnet.XSpec(text), proxies) == HOSTS[text]


def started(machine: str, devices: list[str] | None = None) -> StartReport:
    return StartReport(machine, "/p", [], {}, [], [], devices, has_ascend=True)


def test_one_device_under_two_names_of_its_machine() -> None:
    first = ("a", "0", started("m"))
    check_devices([first, ("a", "1", started("m"))], "ascend")
    check_devices([first, ("b", "1", started("m"))], "ascend")
    check_devices([first, ("b", "0", started("other"))], "ascend")
    check_devices([first, ("b", "0", started("m"))], "cpu")
    with pytest.raises(pytest.UsageError, match="--tx: a and b are one machine, whose device 0 would"):
        check_devices([first, ("b", "0", started("m"))], "ascend")


def test_a_device_that_a_host_does_not_show() -> None:
    check_devices([("a", "3", started("m", None))], "cuda")
    with pytest.raises(pytest.UsageError, match="device 3 does not exist on a; visible are: none"):
        check_devices([("a", "3", started("m", []))], "cuda")


def test_the_sentence_of_a_worker_that_could_not_start() -> None:
    error = "Traceback:\n  File x\n_pytest.config.exceptions.UsageError: --msprobe-seed: 'x' is not a number\n\n"
    assert last_line(error) == "--msprobe-seed: 'x' is not a number"
    assert last_line(EOFError()) == "EOFError"


def request(root: Path, *, mirror: str = "", moves: bool = True) -> StartRequest:
    return StartRequest(
        root=str(root),
        mirror=mirror,
        folder=str(root / "sub"),
        moves=moves,
        dumps=[str(root / "step0" / "dump.json"), "/elsewhere/dump.json"],
        evidence={"error data": str(root / "out")},
        target="ascend",
        variable="ASCEND_RT_VISIBLE_DEVICES",
        environment={"ASCEND_RT_VISIBLE_DEVICES": "3"},
        sharers=3,
    )


def test_what_is_inside_rootdir_is_found_in_its_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ASCEND_RT_VISIBLE_DEVICES", "2,3"), ("OMP_NUM_THREADS", "5"), ("PYTEST_ADDOPTS", "-x")):
        monkeypatch.setenv(name, value)
    mirror = tmp_path / "a mirror"
    for folder in ("step0", "sub", "out/old"):
        (mirror / folder).mkdir(parents=True)
    (mirror / "step0" / "dump.json").touch()
    monkeypatch.chdir(tmp_path)
    found = settle(request(tmp_path / "here", mirror="a mirror"))
    assert found.root == str(mirror)
    assert found.dumps == [str(mirror / "step0" / "dump.json"), "/elsewhere/dump.json"]
    assert found.missing == ["/elsewhere/dump.json"]
    assert found.occupied == [str(mirror / "out")]
    assert found.devices == ["2", "3"]
    assert Path.cwd() == mirror / "sub"
    assert os.environ["PYTEST_ADDOPTS"] == f"-x --rootdir='{mirror}'"
    assert os.environ["ASCEND_RT_VISIBLE_DEVICES"] == "3"
    assert os.environ["OMP_NUM_THREADS"] == "5"


def test_without_the_mirror_everything_is_at_the_same_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTEST_ADDOPTS"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    found = settle(request(tmp_path, mirror="nowhere", moves=False))
    assert (found.root, found.dumps[0]) == (str(tmp_path), str(tmp_path / "step0" / "dump.json"))
    assert Path.cwd() == tmp_path
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["PYTEST_ADDOPTS"] == f"--rootdir={tmp_path}"
