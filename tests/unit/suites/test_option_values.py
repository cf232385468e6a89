"""What the texts of options stand for."""

from __future__ import annotations

import pytest

from pytest_msprobe.suites.gradients import factor
from pytest_msprobe.suites.options import parse_device_ids, parse_positive, parse_shard, parse_timeout


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("4", ("4",)),
        ("4,5,7", ("4", "5", "7")),
        ("0-3", ("0", "1", "2", "3")),
        (" 2 , 0-1 ", ("2", "0", "1")),
    ],
)
def test_lists_of_devices(text: str, found: tuple[str, ...]) -> None:
    assert parse_device_ids(text) == found


@pytest.mark.parametrize("text", ["a", "1;2", "3-1", "-1", "1-", "12345", "1,1", "0-2,1", ",", " , "])
def test_what_is_no_list_of_devices(text: str) -> None:
    with pytest.raises(ValueError, match="device"):
        parse_device_ids(text)


@pytest.mark.parametrize(("text", "found"), [("all", None), ("2/8", (2, 8)), ("1/1", (1, 1))])
def test_shards(text: str, found: tuple[int, int] | None) -> None:
    assert parse_shard(text) == found


@pytest.mark.parametrize("text", ["0/8", "9/8", "2", "2/", "/8", "a/b", "1/10001", "-1/8"])
def test_what_is_not_a_shard(text: str) -> None:
    with pytest.raises(ValueError, match="is not a shard; write 2/8"):
        parse_shard(text)


@pytest.mark.parametrize(("text", "found"), [("auto", None), ("0", 0.0), ("2.5", 2.5)])
def test_time_limits(text: str, found: float | None) -> None:
    assert parse_timeout(text) == found


@pytest.mark.parametrize("text", ["-1", "inf", "nan"])
def test_what_is_not_a_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a number of seconds"):
        parse_timeout(text)


@pytest.mark.parametrize(("text", "why"), [("inf", "a finite number"), ("nan", "a finite number"), ("0", "above 0")])
def test_what_is_no_positive_number(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' is not {why}$"):
        parse_positive(text)


@pytest.mark.parametrize(("text", "why"), [("nan", "not a number"), ("-1", "below 0")])
def test_what_is_no_factor(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}' is {why}$"):
        factor(text)
