"""How users name devices and benchmarks."""

from __future__ import annotations

import pytest

from pytest_msprobe.engines.protocol import DeviceSpecification, parse_bench, parse_device


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("auto", ("auto", None, None)),
        ("recorded", ("recorded", None, None)),
        ("mindspore", ("mindspore", None, None)),
        ("mindspore:cpu", ("mindspore", "cpu", None)),
        ("mindspore:ascend", ("mindspore", "ascend", None)),
        ("mindspore:ascend:3", ("mindspore", "ascend", 3)),
        ("torch", ("torch", None, None)),
        ("torch:cpu", ("torch", "cpu", None)),
        ("torch:cuda:0", ("torch", "cuda", 0)),
        ("torch:cuda:4095", ("torch", "cuda", 4095)),
        ("torch:npu", ("torch", "npu", None)),
        ("torch:npu:3", ("torch", "npu", 3)),
        (" MindSpore:Ascend:07 ", ("mindspore", "ascend", 7)),
    ],
)
def test_a_device_is_engine_target_and_id(text: str, parts: tuple[str, str | None, int | None]) -> None:
    assert parse_device(text) == DeviceSpecification(*parts)
    assert parse_device(str(DeviceSpecification(*parts))) == DeviceSpecification(*parts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "cpu",
        "cuda:0",
        "jax",
        "torch:",
        "torch:ascend",
        "mindspore:cuda",
        "mindspore:3",
        "auto:cpu",
        "recorded:0",
        "torch:cuda:0:1",
    ],
)
def test_another_device_is_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a device; use auto, recorded, mindspore\[:cpu") as caught:
        parse_device(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "torch:cuda:",
        "torch:cuda:x",
        "torch:cuda:-1",
        "torch:cuda:4096",
        "torch:cuda:1.0",
        "torch:cpu:0",
        "mindspore:cpu:1",
        "torch:cuda:\u0663",
        "torch:cuda:\u00b2",
        f"torch:cuda:{'9' * 5000}",
    ],
    ids=lambda text: text[:20],
)
def test_another_device_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no valid device id; use auto, .* with ID from 0 to 4095"):
        parse_device(text)


@pytest.mark.parametrize(("text", "name"), [("auto", "auto"), (" Torch", "torch"), ("mindspore", "mindspore")])
def test_a_benchmark_is_one_word(text: str, name: str) -> None:
    assert parse_bench(text) == name


@pytest.mark.parametrize("text", ["", "recorded", "torch:cpu", "numpy"])
def test_another_benchmark_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a benchmark; use auto, torch, torch:cuda or mindspore"):
        parse_bench(text)
