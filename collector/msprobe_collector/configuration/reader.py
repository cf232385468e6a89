"""config.json and constructor arguments to one Configuration."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msprobe_collector.configuration.api_list import ApiList, read_api_list
from msprobe_collector.configuration.configuration import Configuration, GradientMonitorSettings, KernelSettings
from msprobe_collector.configuration.errors import ConfigurationError
from msprobe_collector.configuration.keys import SECTION_KEYS, TOP_KEYS, WITHOUT_EFFECT, Key
from msprobe_collector.configuration.selection import RecordSelection, check_scope
from msprobe_collector.configuration.tasks import LEVELS, Level, Task

logger = logging.getLogger("msprobe_collector")

DEFAULT_FILE = Path(__file__).with_name("default.json")
_CONSTRUCTOR = "PrecisionDebugger"
_NAME_PATTERN = re.compile(r"name-regex\((.*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Overrides:
    """Arguments of the constructor, as given: each that is not None replaces the key of its name in the file."""

    task: object = None
    dump_path: object = None
    level: object = None
    step: object = None


def read_configuration(config_path: str | os.PathLike[str] | None = None, *, overrides: Overrides) -> Configuration:
    """The configuration of a file (the packaged one when None or empty), its keys replaced by constructor arguments.

    A relative `dump_path` starts from the working folder, a relative `api_list` from the folder of the file. Keys
    without any effect on MindSpore are named in a warning of the logger `msprobe_collector`.

    Raises:
        ConfigurationError: a file cannot be read, a key is unknown, a value is not allowed, or values do not fit each
            other; one line with the place, the value and what is allowed.
    """
    file = _file_of(config_path)
    content = _load(file)
    _check_keys(content, file)
    top = _parse(TOP_KEYS, content, place=str(file), section="") | _parse_overrides(overrides)
    sections = {
        name: _parse(keys, content.get(name, {}), place=str(file), section=name) for name, keys in SECTION_KEYS.items()
    }
    return _build(file, top, sections)


def _file_of(config_path: object) -> Path:
    if config_path is None or config_path == "":
        return DEFAULT_FILE
    if not isinstance(config_path, str | os.PathLike):
        raise ConfigurationError(f"{config_path!r} is not a path", place=_CONSTRUCTOR, field="config_path")
    return Path(os.path.abspath(config_path))


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", place=str(file)) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigurationError(f"is not valid JSON: {error.msg} at {where}", place=str(file)) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text: {error}", place=str(file)) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"holds a {type(content).__name__}, not an object with keys such as task", place=str(file)
        )
    return content


def _check_keys(content: dict[str, Any], file: Path) -> None:
    top_names = [key.name for key in TOP_KEYS]
    _refuse_unknown(content, [*top_names, *SECTION_KEYS], section="", file=file)
    for section, keys in SECTION_KEYS.items():
        part = content.get(section, {})
        if not isinstance(part, dict):
            raise ConfigurationError(f"{part!r} is not an object with keys", place=str(file), field=section)
        _refuse_unknown(part, [key.name for key in keys], section=section, file=file)


def _refuse_unknown(content: Iterable[str], known: list[str], *, section: str, file: Path) -> None:
    idle = [name for name in content if name in WITHOUT_EFFECT[section]]
    if idle:
        logger.warning("%s: without effect here: %s", file, ", ".join(_field(section, name) for name in idle))
    for name in content:
        if name not in known and name not in idle:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigurationError(f"the key is unknown; {hint}", place=str(file), field=_field(section, name))


def _parse(keys: tuple[Key, ...], content: dict[str, Any], *, place: str, section: str) -> dict[str, Any]:
    return {
        key.name: _parse_value(key, content.get(key.name), place=place, field=_field(section, key.name)) for key in keys
    }


def _parse_value(key: Key, value: object, *, place: str, field: str) -> Any:
    given = key.default if value is None else value
    if given is None:
        return None
    try:
        return key.parse(given)
    except ValueError as error:
        raise ConfigurationError(str(error), place=place, field=field) from None


def _parse_overrides(overrides: Overrides) -> dict[str, Any]:
    keys = {key.name: key for key in TOP_KEYS}
    path = overrides.dump_path
    given = {
        "task": overrides.task,
        "level": overrides.level,
        "step": overrides.step,
        "dump_path": os.fspath(path) if isinstance(path, os.PathLike) else path,
    }
    return {
        name: _parse_value(keys[name], value, place=_CONSTRUCTOR, field=name)
        for name, value in given.items()
        if value is not None
    }


def _field(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _build(file: Path, top: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Configuration:
    task: Task = top["task"]
    section = sections[task]
    level = _level(task, top["level"], file)
    summary = section.get("summary_mode", "statistics")
    _check_together(task, level, section, file)
    if top["dump_path"] is None:
        raise ConfigurationError(
            "no folder for the dump is given; give it here or as an argument", place=str(file), field="dump_path"
        )
    return Configuration(
        file=file,
        task=task,
        level=level,
        dump_path=Path(os.path.abspath(top["dump_path"])),
        ranks=top["rank"],
        steps=top["step"],
        extra_info=top["extra_info"],
        async_dump=top["async_dump"],
        precision=top["precision"],
        dump_enable=top["dump_enable"],
        selection=_selection(section),
        summary="statistics" if isinstance(summary, tuple) else summary,
        overflow_limit=sections["overflow_check"]["overflow_nums"],
        api_list=_api_list(top["api_list"], file),
        seed=top["seed"],
        is_deterministic=top["is_deterministic"],
        kernel=KernelSettings(
            device=sections["statistics"]["device"],
            precision=sections["statistics"]["precision"],
            categories=summary if isinstance(summary, tuple) else (),
            check_mode=sections["overflow_check"]["check_mode"],
        ),
        gradients=GradientMonitorSettings(
            level=sections["grad_probe"]["grad_level"],
            parameters=sections["grad_probe"]["param_list"],
            bounds=sections["grad_probe"]["bounds"],
        ),
    )


def _level(task: Task, level: Level | None, file: Path) -> Level:
    allowed = LEVELS[task]
    if level is None or level in allowed:
        return level or allowed[0]
    if task == "structure":
        logger.warning("%s: task structure has no level %s; mix is taken", file, level)
        return "mix"
    raise ConfigurationError(
        f"task {task!r} has no level {level!r}; it has {', '.join(allowed)}", place=str(file), field="level"
    )


def _check_together(task: Task, level: Level, section: dict[str, Any], file: Path) -> None:
    """Refuse values that are right alone and wrong with the task or level."""
    field = "scope"
    try:
        if section.get("scope") is not None:
            check_scope(section["scope"], level)
        field = "summary_mode"
        if isinstance(section.get(field), tuple) and task != "statistics":
            raise ValueError(f"a list of statistics is for task 'statistics', not {task!r}")
        if isinstance(section.get(field), tuple) and level != "L2":
            logger.warning(
                "%s: statistics.summary_mode: level %s writes all statistics, not a list of them", file, level
            )
        if section.get(field) == "fingerprint" and level == "L2":
            raise ValueError("MindSpore's kernel dump computes no fingerprint; take 'md5' at level 'L2'")
        field = "list"
        if level == "L2":
            _check_patterns(section.get(field, ()))
    except ValueError as error:
        raise ConfigurationError(str(error), place=str(file), field=f"{task}.{field}") from None


def _check_patterns(names: tuple[str, ...]) -> None:
    for name in names:
        match = _NAME_PATTERN.fullmatch(name)
        try:
            re.compile(match[1] if match else "")
        except re.error as error:
            raise ValueError(f"{name!r} holds no regular expression: {error}") from None


def _selection(section: dict[str, Any]) -> RecordSelection:
    if "data_mode" not in section:
        return RecordSelection()
    directions, parts = section["data_mode"]
    return RecordSelection(
        scope=section["scope"],
        names=section["list"],
        tensor_names=section.get("tensor_list", ()),
        directions=directions,
        parts=parts,
    )


def _api_list(name: str | None, file: Path) -> ApiList:
    if name is None:
        return ApiList()
    try:
        return read_api_list(file.parent / name)
    except ValueError as error:
        raise ConfigurationError(str(error), place=str(file), field="api_list") from None
