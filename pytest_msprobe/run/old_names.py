"""Old names of options. They go on working for one release, with one warning; then this module goes.

Each is moved to the new name before anything is read, on the command line, in the YAML file and in the ini file alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import pytest

from pytest_msprobe.suites.options import parse_switch

#: The release of pytest-msprobe in which the old names go.
GONE_IN = "0.3.0"


class OldName(NamedTuple):
    """What an option was called.

    Attributes:
        old, new: names with underscores, as in YAML.
        is_flag: whether it needs no value on the command line.
        text_of_true: the text of the new option for a flag that was set, where that is no flag; "" where it is one.
    """

    old: str
    new: str
    is_flag: bool = False
    text_of_true: str = ""

    def now(self, text: Any) -> Any:
        """What the new option is given for `text`. Raises ValueError where a flag was to be true or false."""
        return text if not self.text_of_true else self.text_of_true if parse_switch(str(text)) else ""


#: Of two for one option, the first counts.
OLD_NAMES = (
    OldName("seeds", "draws"),
    OldName("devices", "device_ids"),
    OldName("repeat", "repeat_runs"),
    OldName("strict", "fail_on"),
    OldName("error_data_dir", "error_data"),
    OldName("save_error_data", "error_data", is_flag=True, text_of_true="auto"),
    OldName("overflow_strict", "overflow_fail_reproduced", is_flag=True),
    OldName("gradient_md5", "gradient_fail_md5", is_flag=True),
    OldName("gradient_zero", "gradient_fail_zero", is_flag=True),
)
#: What was given under old names: how messages call it, and how they would under the new name.
_MOVED: pytest.StashKey[dict[str, str]] = pytest.StashKey()


def old_ini_keys() -> list[str]:
    """The old names as they stand in an ini file."""
    return [_key(each.old) for each in OLD_NAMES]


def add_old_names(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Declare the old names; `--help` lists them below its ini options only."""
    for each in OLD_NAMES:
        kind: dict[str, Any] = {"action": "store_const", "const": "true"} if each.is_flag else {}
        group.addoption(flag_of(each.old), help=argparse.SUPPRESS, **kind)
        parser.addini(_key(each.old), f"old name of {_key(each.new)}; goes in {GONE_IN}", default="")


def move_from_command_line(config: pytest.Config) -> None:
    """Give to new options what the command line, or a conftest.py in its place, gives to old ones.

    Raises:
        pytest.UsageError: an option is given under both names, or its value is wrong; so in the functions below.
    """
    given = vars(config.option)
    _move(config, given, _key, flag_of)
    given.update((_key(each.old), None) for each in OLD_NAMES)


def move_from_yaml(config: pytest.Config, content: MutableMapping[str, Any], file: str) -> None:
    """The same for the content of the YAML file, which messages call `file`."""
    _move(config, content, str, lambda name: f"{file}: key {name!r}")


def move_from_ini(config: pytest.Config, texts: MutableMapping[str, str]) -> None:
    """The same for the texts of the ini file, by key, without those that are not given."""
    _move(config, texts, _key, lambda name: f"ini option {_key(name)}")


def as_given(config: pytest.Config, name: str) -> str:
    """`name`, as messages call an option, or the old name under which it was given."""
    return next((old for old, new in config.stash.get(_MOVED, {}).items() if new == name), name)


def warning(config: pytest.Config) -> str:
    """One line on all old names that were given; "" for none."""
    moved = config.stash.get(_MOVED, {}).items()
    renamed = "; ".join(f"{old} is now {new.rpartition(': ')[2]}" for old, new in moved)
    return f"{renamed}; old names go in pytest-msprobe {GONE_IN}" if renamed else ""


def flag_of(name: str) -> str:
    """The option called `name` as it stands on the command line."""
    return f"--msprobe-{name.replace('_', '-')}"


def _key(name: str) -> str:
    return f"msprobe_{name}"


def _move(
    config: pytest.Config, given: MutableMapping[str, Any], key: Callable[[str], str], shown: Callable[[str], str]
) -> None:
    moved, taken = config.stash.setdefault(_MOVED, {}), set()
    for each in OLD_NAMES:
        text = given.pop(key(each.old), None)
        if text is None:
            continue
        old, new = shown(each.old), shown(each.new)
        moved[old] = new
        if each.new in taken:
            continue
        if given.get(key(each.new)) is not None:
            raise pytest.UsageError(f"{old}: is the old name of {new}, which is given as well; leave it out")
        taken.add(each.new)
        try:
            given[key(each.new)] = each.now(text)
        except ValueError as error:
            raise pytest.UsageError(f"{old}: {error}") from None
