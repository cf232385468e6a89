from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_msprobe.workers import remote_start
from pytest_msprobe.workers.hosts import check_index, choose_devices, place_workers
from pytest_msprobe.workers.remote_start import visible_devices


def test_the_callers_own_list_is_respected() -> None:
    assert visible_devices("ascend", "ASCEND_RT_VISIBLE_DEVICES", {"ASCEND_RT_VISIBLE_DEVICES": "6, 7"}) == ("6", "7")
    assert visible_devices("cuda", "CUDA_VISIBLE_DEVICES", {"CUDA_VISIBLE_DEVICES": ""}) == ()


@pytest.mark.parametrize(
    ("target", "pattern", "listed", "usable"),
    [
        ("cuda", "CUDA_FILES", "0,1,2", ("0", "1")),
        ("cuda", "CUDA_FILES", "2,0", ()),
        ("cuda", "CUDA_FILES", "-1", ()),
        ("cuda", "CUDA_FILES", "GPU-8932f937,0", ("GPU-8932f937", "0")),
        ("ascend", "ASCEND_FILES", "6,7", ("6", "7")),
        ("npu", "ASCEND_FILES", "0,1,2", ("0", "1")),  # as a container counts them
    ],
)
def test_a_list_ends_in_front_of_a_device_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, pattern: str, listed: str, usable: tuple[str, ...]
) -> None:
    monkeypatch.setattr(remote_start, pattern, f"{tmp_path}/device[0-9]*")
    for number in (6, 7):
        (tmp_path / f"device{number}").touch()
    assert visible_devices(target, "LISTED", {"LISTED": listed}) == usable


def test_a_machine_none_of_whose_devices_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(pytest.UsageError, match="no device of cuda can be used here: CUDA_VISIBLE_DEVICES is '-1'"):
        check_index("cuda", 0)
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(remote_start, "ASCEND_FILES", f"{tmp_path}/davinci[0-9]*")
    (tmp_path / "davinci0").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for target in ("ascend", "npu"):
        with pytest.raises(pytest.UsageError, match=f"no device of {target} .* you may not open .*davinci0"):
            place_workers([""], target=target, wanted=(), per_device=1)


def test_devices_of_cuda_are_counted_by_their_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(remote_start, "CUDA_FILES", f"{tmp_path}/nvidia[0-9]*")
    assert visible_devices("cuda", "CUDA_VISIBLE_DEVICES", {}) is None
    for name in ("nvidia5", "nvidiactl"):
        (tmp_path / name).touch()
    assert visible_devices("cuda", "CUDA_VISIBLE_DEVICES", {}) == ("0",)
    with pytest.raises(pytest.UsageError, match=r"-n 3: 3 workers, 1 device .0. with 1 worker each; use at most -n 1"):
        place_workers([""] * 3, target="cuda", wanted=(), per_device=1)


@pytest.mark.parametrize("target", ["ascend", "npu"])
def test_devices_are_dealt_from_the_callers_list(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "6,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    places = place_workers(["", ""], target=target, wanted=(), per_device=1)
    assert [place.device for place in places] == ["6", "7"]
    assert [place.environment["ASCEND_RT_VISIBLE_DEVICES"] for place in places] == ["6", "7"]
    assert choose_devices(target, ("7",), workers=1) == ("7",)
    with pytest.raises(pytest.UsageError, match="device 5 does not exist here; visible are: 6, 7"):
        choose_devices(target, ("5",), workers=1)


def test_without_a_list_devices_are_counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(remote_start, "CUDA_FILES", "/nowhere/nvidia[0-9]*")
    assert choose_devices("cuda", (), workers=3) == ("0", "1", "2")
    assert choose_devices("cpu", (), workers=3) == ()


@pytest.mark.parametrize("per_device", [1, 2, 3])
def test_no_device_gets_more_workers_than_allowed(per_device: int) -> None:
    devices = ("4", "5")
    places = place_workers([""] * 2 * per_device, target="cpu", wanted=devices, per_device=per_device)
    assert all([place.device for place in places].count(device) == per_device for device in devices)
    with pytest.raises(pytest.UsageError, match=f"use at most -n {2 * per_device}"):
        place_workers([""] * (2 * per_device + 1), target="cpu", wanted=devices, per_device=per_device)


def test_each_host_deals_out_its_own_devices_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    hosts = ["a", "", "b", "a", "", "", "b"]
    places = place_workers(hosts, target="cpu", wanted=("4", "5", "6"), per_device=1)
    assert [(place.host, place.device, place.sharers) for place in places] == [
        ("a", "4", 2),
        ("", "4", 3),
        ("b", "4", 2),
        ("a", "5", 2),
        ("", "5", 3),
        ("", "6", 3),
        ("b", "5", 2),
    ]
    # What another host has is divided there.
    assert [place.environment.get("OMP_NUM_THREADS") for place in places] == [None, "2", None, None, "2", "2", None]
    with pytest.raises(
        pytest.UsageError, match=r"3 workers on a, 2 devices \(4, 5\) with 1 worker each; use at most 2 th"
    ):
        place_workers(["a"] * 3, target="cpu", wanted=("4", "5"), per_device=1)


def test_devices_of_another_host_are_counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "6,7")
    places = place_workers(["a", "", "a"], target="ascend", wanted=(), per_device=1)
    assert [place.device for place in places] == ["0", "6", "1"]


def test_the_device_of_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "6,7")
    check_index("ascend", 1)
    with pytest.raises(pytest.UsageError, match="there is no ascend:2; visible are: 6, 7, counted from ascend:0"):
        check_index("ascend", 2)
    check_index("cpu", 5)


def test_threads_are_divided_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    places = place_workers([""] * 3, target="cpu", wanted=(), per_device=1)
    assert {place.environment["OMP_NUM_THREADS"] for place in places} == {"2"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    places = place_workers([""] * 3, target="cpu", wanted=(), per_device=1)
    assert not any("OMP_NUM_THREADS" in place.environment for place in places)
