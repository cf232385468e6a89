"""dump_enable, edited while training runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from msprobe_collector.configuration import DumpSwitch
from msprobe_collector.configuration.reader import read_configuration


def switch_of(file: Path) -> DumpSwitch:
    return DumpSwitch(read_configuration(file))


def write(file: Path, **keys: object) -> None:
    file.write_text(json.dumps({"dump_path": "out", **keys}))


def test_the_switch_follows_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    write(file, dump_enable=False)
    switch = switch_of(file)
    assert not switch.is_on()
    write(file, dump_enable=True)
    assert switch.is_on()
    write(file, dump_enable=False)
    assert not switch.is_on()


@pytest.mark.parametrize("text", ["", '{"dump_enable": tr', "{}", "[]", '{"dump_enable": "no"}', b"\xff\xfe"])
def test_a_file_half_written_leaves_the_switch_as_it_was(
    tmp_path: Path, text: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.json"
    write(file, dump_enable=True)
    switch = switch_of(file)
    assert switch.is_on()
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    assert switch.is_on()
    assert "dump_enable" in caplog.text
    write(file, dump_enable=False)
    assert not switch.is_on()


def test_a_file_that_is_gone_leaves_the_switch_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    write(file, dump_enable=True)
    switch = switch_of(file)
    assert switch.is_on()
    file.unlink()
    assert switch.is_on()


def test_without_the_key_nothing_is_watched(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    write(file)
    switch = switch_of(file)
    write(file, dump_enable=False)
    assert switch.is_on()
