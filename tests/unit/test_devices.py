from __future__ import annotations

import os

import pytest

from pytest_msprobe.devices import choose_devices, parse_devices, place_workers, visible_devices


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("", ()),
        ("4", ("4",)),
        ("4,5,7", ("4", "5", "7")),
        ("0-3", ("0", "1", "2", "3")),
        (" 2 , 0-1 ", ("2", "0", "1")),
    ],
)
def test_lists_of_devices(text: str, devices: tuple[str, ...]) -> None:
    assert parse_devices(text) == devices


@pytest.mark.parametrize("text", ["a", "1;2", "3-1", "-1", "1-", "12345", "1,1", "0-2,1"])
def test_what_is_no_list_of_devices(text: str) -> None:
    with pytest.raises(ValueError, match="device"):
        parse_devices(text)


def test_the_callers_own_list_is_respected() -> None:
    assert visible_devices("ascend", {"ASCEND_RT_VISIBLE_DEVICES": "6, 7"}) == ("6", "7")
    assert visible_devices("cuda", {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert visible_devices("cuda", {}) is None


def test_devices_are_dealt_from_the_callers_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "6,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    devices = choose_devices("ascend", (), workers=2)
    places = place_workers("ascend", devices, workers=2, per_device=1)
    assert [place.device for place in places] == ["6", "7"]
    assert [place.environment["ASCEND_RT_VISIBLE_DEVICES"] for place in places] == ["6", "7"]
    assert choose_devices("ascend", ("7",), workers=1) == ("7",)
    with pytest.raises(pytest.UsageError, match="device 5 does not exist here; visible are: 6, 7"):
        choose_devices("ascend", ("5",), workers=1)


def test_without_a_list_devices_are_counted_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert choose_devices("cuda", (), workers=3) == ("0", "1", "2")
    assert choose_devices("cpu", (), workers=3) == ()


@pytest.mark.parametrize("per_device", [1, 2, 3])
def test_no_device_gets_more_workers_than_allowed(per_device: int) -> None:
    devices = ("4", "5")
    places = place_workers("ascend", devices, workers=2 * per_device, per_device=per_device)
    assert all([place.device for place in places].count(device) == per_device for device in devices)
    with pytest.raises(pytest.UsageError, match=f"use at most -n {2 * per_device}"):
        place_workers("ascend", devices, workers=2 * per_device + 1, per_device=per_device)


def test_threads_are_divided_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert {place.environment["OMP_NUM_THREADS"] for place in place_workers("cpu", (), workers=3, per_device=1)} == {
        "2"
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert all(
        "OMP_NUM_THREADS" not in place.environment for place in place_workers("cpu", (), workers=3, per_device=1)
    )
