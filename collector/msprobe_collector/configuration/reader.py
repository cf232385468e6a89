"""config.json and constructor arguments, checked once and folded into one Configuration.

- What configuration files of the existing tool say that this collector does not do, and what
  stands for it. No key of these files ends a training: what is without effect is named once, with
  the reason.
- What a key's value may be: each function gives the meaning of a JSON value, or a ValueError that says why not.
- The keys of config.json: what each may be, and its default.
- Keys of the existing tool that are without effect here: none ends a training, each is named once,
  with the reason.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

from msprobe_collector import logger
from msprobe_collector.configuration import (
    LEVELS,
    ApiList,
    Configuration,
    ConfigurationError,
    GradientMonitorSettings,
    KernelSettings,
    Level,
    RecordSelection,
    RowSlice,
    Task,
    check_scope,
    parse_data_mode,
    parse_number_ranges,
    parse_scope,
    parse_steps,
    read_api_list,
)

_LATER = "tensors are checked after the training, by pytest --msprobe-dump"
_KERNELS = "it belongs to Ascend's own dump"
_NOT_SENT = "values stay on this machine; copy the dump"

#: Keys without effect, by their section ("" is the top), and why.
_WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "": {
        "risk_level": "all calls are collected; key list names some",
        "custom_op_namespaces": "register_custom_api() names an operator",
        "load": "no dump is loaded into a training",
        "acc_check": _LATER,
        "diff_check": "two dumps are compared by pytest --msprobe-golden",
        "nan_check": "task overflow_check collects calls with NaN and Inf",
        "run_ut": _LATER,
        "free_benchmark": "what rounding does is measured by two runs, with pytest --msprobe-noise",
        "enable_dataloader": "call start(), stop() and step(), or run the script by msprobe_collector collect",
        "acl_config": _KERNELS,
        "xor": "summary_mode names the checksum",
    },
    "statistics": {"file_format": "tensors are .npy", "acl_config": _KERNELS},
    "tensor": {
        "file_format": "tensors are .npy",
        "backward_input": _KERNELS,
        "acl_config": _KERNELS,
        "online_run_ut": _LATER,
        "online_run_ut_recompute": _LATER,
        "nfs_path": _NOT_SENT,
        "host": _NOT_SENT,
        "port": _NOT_SENT,
        "tls_path": _NOT_SENT,
        "rank_list": "key rank stands at the top",
    },
    "structure": {"summary_mode": "a structure has no values"},
    "overflow_check": {"summary_mode": "records have statistics"},
    "exception_dump": {"file_format": _KERNELS, "summary_mode": _KERNELS},
}

#: Tasks that the collector does not have, and what does their work.
_TASKS = {
    "free_benchmark": _WITHOUT_EFFECT[""]["free_benchmark"],
    "run_ut": _LATER,
    "acc_check": _LATER,
    "diff_check": _WITHOUT_EFFECT[""]["diff_check"],
}

#: Keys that only the file of a monitor of a whole training has at its top.
_MONITOR = frozenset(
    "targets print_struct module_ranks ur_distribution mv_distribution xy_distribution mg_direction wg_distribution "
    "param_distribution cc_distribution cc_log_only alert format ops eps ndigits step_interval start_step "
    "collect_times dynamic_on all_xy forward_only backward_only squash_name stack_info append_output monitor_mbs_grad "
    "cc_codeline cc_pre_hook step_count_per_record recording_l2_features monitor_v2 mg_distribution sa_order "
    "framework output_dir monitors stop_step async_write patch_optimizer_step micro_batch_number "
    "grad_acc_steps".split()
)


def translated(content: dict[str, Any], arguments: dict[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a file and the constructor's arguments, without what only the existing tool knows.

    The logger `msprobe_collector` names what is without effect, and why. A task that the collector does not have
    becomes one that collects only what `save` is given.
    """
    content = {name: value for name, value in content.items() if value != "" or name not in ("task", "level")}
    if monitor := sorted(_MONITOR & content.keys()):
        logger.warning(
            "%s: without effect here: %s: this is the file of a monitor of a whole training; "
            "task grad_probe, or PrecisionDebugger.monitor(optimizer), watches gradients",
            place,
            ", ".join(monitor),
        )
        content = {name: value for name, value in content.items() if name not in _MONITOR}
    task = arguments.get("task", content.get("task"))
    if task == "nan_check":
        logger.warning("%s: task nan_check is called overflow_check here, which is taken", place)
        content, arguments = {**content, "task": "overflow_check"}, _without(arguments, "task")
    elif task in _TASKS:
        logger.warning("%s: task %s is without effect here, so nothing is collected: %s", place, task, _TASKS[task])
        content = {**content, "task": "statistics", "level": "debug"}
        arguments = _without(arguments, "task", "level")
    content = _without_idle(content, "", place)
    for name, value in content.items():
        if isinstance(value, dict):
            content[name] = _section(value, name, place)
    return content, arguments


def _section(section: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    content = _without_idle(section, name, place)
    if content.get("summary_mode") == "xor":
        logger.warning("%s: %s.summary_mode: 'fingerprint', another checksum, stands for 'xor'", place, name)
        content["summary_mode"] = "fingerprint"
    return content


def _without_idle(content: dict[str, Any], section: str, place: str) -> dict[str, Any]:
    reasons = _WITHOUT_EFFECT.get(section, {})
    if idle := [name for name in content if name in reasons]:
        prefix = f"{section}." if section else ""
        named = "; ".join(f"{prefix}{name} ({reasons[name]})" for name in idle)
        logger.warning("%s: without effect here: %s", place, named)
    return _without(content, *idle)


def _without(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


_PARAMETER_NAME = re.compile(r"[A-Za-z0-9_.]+", re.ASCII)

#: Statistics of the kernel dump, as config.json names them.
CATEGORIES = (
    "max",
    "min",
    "mean",
    "l2norm",
    "count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "negative zero count",
    "positive zero count",
    "hash",
    "md5",
)


def one_of(*allowed: str) -> Callable[[object], str]:
    """Return a function that gives one of the texts `allowed`."""

    def parse(value: object) -> str:
        """Return the text as it is.

        Raises:
            ValueError: it is not one of `allowed`.
        """
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
        return value

    return parse


def boolean(value: object) -> bool:
    """True or false.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def path(value: object) -> str:
    """Return a path as text.

    Raises:
        ValueError: it is not text, is blank, or holds a NUL.
    """
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{value!r} is not a path")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Texts of a list, none of them empty.

    Raises:
        ValueError: it is not such a list.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError(f"{value!r} is not a list of names")
    return tuple(value)


def parameter_names(value: object) -> tuple[str, ...]:
    """Names of parameters.

    Raises:
        ValueError: it is not a list of names, or one holds other characters than letters, digits, `_` and `.`.
    """
    names = texts(value)
    for name in names:
        if _PARAMETER_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is not a parameter name: letters, digits, '_' and '.' are allowed")
    return names


def summary_mode(value: object) -> str | tuple[str, ...]:
    """`statistics`, `md5`, `fingerprint` or `sketch`, or, for level L2, a list of statistics.

    Raises:
        ValueError: it is none of them, an empty list, or a list with something else than a statistic.
    """
    if isinstance(value, list):
        wrong = [item for item in value if item not in CATEGORIES]
        if wrong or not value:
            raise ValueError(f"{(wrong or [value])[0]!r} is not a statistic; known are {', '.join(CATEGORIES)}")
        return tuple(value)
    modes = ("statistics", "md5", "fingerprint", "sketch")
    if value not in modes:
        raise ValueError(f"{value!r} is none of {', '.join(modes)}, nor, for level L2, a list of statistics")
    return str(value)


def seed(value: object) -> int:
    """Return a seed of 32 bits.

    Raises:
        ValueError: it is not a whole number from 0 to 2**32 - 1.
    """
    if type(value) is not int or not 0 <= value < 2**32:
        raise ValueError(f"{value!r} is not a whole number from 0 to {2**32 - 1}")
    return value


def overflow_limit(value: object) -> int | None:
    """Most records to collect; None for -1 (no limit).

    Raises:
        ValueError: it is neither -1 nor a whole number from 1 on.
    """
    if type(value) is not int or (value < 1 and value != -1):
        raise ValueError(f"{value!r} is not a whole number from 1 on, nor -1 for no limit")
    return None if value == -1 else value


def row_slices(value: object) -> tuple[RowSlice, ...]:
    """Parts of tensors.

    Raises:
        ValueError: it is not a list of objects with dim, size, begin and end, 0 <= begin < end <= size.
    """
    keys = {"dim", "size", "begin", "end"}
    if not isinstance(value, list) or not all(isinstance(item, dict) and item.keys() == keys for item in value):
        raise ValueError(f'{value!r} is not a list such as [{{"dim": 0, "size": 8, "begin": 0, "end": 4}}]')
    for item in value:
        is_whole = all(type(number) is int and number >= 0 for number in item.values())
        if not is_whole or not item["begin"] < item["end"] <= item["size"]:
            raise ValueError(f"{item!r} is not 0 <= begin < end <= size, with a dim from 0 on")
    return tuple(RowSlice(**item) for item in value)


def bounds(value: object) -> tuple[float, ...]:
    """Strictly ascending finite numbers within int64.

    Raises:
        ValueError: it is not a list of numbers, one lies outside of int64 or is not finite, or they do not ascend.
    """
    if not isinstance(value, list) or not value or not all(type(item) in (int, float) for item in value):
        raise ValueError(f"{value!r} is not a list of numbers, such as [-1, 0, 1]")
    if not all(math.isfinite(item) and -(2**63) <= item < 2**63 for item in value):
        raise ValueError(f"{value!r} leaves the range of int64")
    if any(lower >= upper for lower, upper in pairwise(value)):
        raise ValueError(f"{value!r} does not ascend strictly")
    return tuple(value)


class Key(NamedTuple):
    """One key: how a JSON value is read (ValueError when it cannot be) and the JSON value used when it is missing.

    A default of None stands as it is, unread.
    """

    parse: Callable[[object], Any]
    default: Any = None


Keys = dict[str, Key]
TASKS = get_args(Task)

TOP_KEYS: Keys = {
    "task": Key(one_of(*TASKS), "statistics"),
    "level": Key(one_of(*get_args(Level))),
    "dump_path": Key(path),
    "rank": Key(parse_number_ranges, []),
    "step": Key(parse_steps, []),
    "extra_info": Key(boolean, True),
    "async_dump": Key(boolean, False),
    "optimizer": Key(boolean, True),
    "precision": Key(one_of("low", "high"), "low"),
    "dump_enable": Key(boolean),
    "api_list": Key(path),
    "seed": Key(seed),
    "is_deterministic": Key(boolean, False),
}

_SELECTION: Keys = {"scope": Key(parse_scope, []), "list": Key(texts, []), "data_mode": Key(parse_data_mode, ["all"])}
_SUMMARY: Keys = {"summary_mode": Key(summary_mode, "statistics")}
_PARTS: Keys = {"slice": Key(row_slices, []), "request_id": Key(path)}

SECTION_KEYS: dict[str, Keys] = {
    "statistics": {
        **_SELECTION,
        **_SUMMARY,
        "tensor_list": Key(texts, []),
        "device": Key(one_of("host", "device"), "host"),
        "precision": Key(one_of("high", "low"), "high"),
        **_PARTS,
    },
    "tensor": {
        **_SELECTION,
        **_SUMMARY,
        **_PARTS,
        "bench_path": Key(path),
        "diff_nums": Key(overflow_limit, 1),
    },
    "structure": _SELECTION,
    "overflow_check": {
        **_SELECTION,
        "overflow_nums": Key(overflow_limit, 1),
        "check_mode": Key(one_of("aicore", "atomic", "all"), "all"),
    },
    "exception_dump": _SELECTION,
    "grad_probe": {
        "grad_level": Key(one_of("L0", "L1", "L2"), "L1"),
        "param_list": Key(parameter_names, []),
        "bounds": Key(bounds, [-1, 0, 1]),
    },
}

DEFAULT_FILE = Path(__file__).with_name("default.json")
_CONSTRUCTOR = "PrecisionDebugger"
_NAME_PATTERN = re.compile(r"name-regex\((.*)\)", re.DOTALL)


def read_configuration(config_path: str | os.PathLike[str] | None = None, **arguments: object) -> Configuration:
    """The configuration of a file (the packaged one when None or empty), its keys replaced by constructor arguments.

    Each of the `arguments` task, dump_path, level and step that is not None replaces the key of its name.

    A relative `dump_path` starts from the working folder, a relative `api_list` from the folder of the file. Keys of
    the existing tool that are without effect are named in a warning of the logger `msprobe_collector`.

    Raises:
        ConfigurationError: a file cannot be read, a key is unknown (of a section for another task that only warns), a
            value is not allowed, or values do not fit each other; one line with the place, the value and what is
            allowed.
    """
    file = _file_of(config_path)
    settings = {name: value for name, value in arguments.items() if value is not None}
    content, settings = translated(_load(file), settings, str(file))
    for field, hint in _unknown(content, [*TOP_KEYS, *SECTION_KEYS], section=""):
        raise ConfigurationError(f"the key is unknown; {hint}", place=str(file), field=field)
    top = _parse(TOP_KEYS, content, place=str(file), section="")
    for name, value in settings.items():
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        top[name] = _parse_value(TOP_KEYS[name], text, place=_CONSTRUCTOR, field=name)
    _check_sections(content, file, task=top["task"])
    sections = {
        name: _parse(keys, content.get(name, {}), place=str(file), section=name) for name, keys in SECTION_KEYS.items()
    }
    return _build(file, top, sections)


def _file_of(config_path: object) -> Path:
    if config_path is None or config_path == "":
        return DEFAULT_FILE
    if not isinstance(config_path, str | os.PathLike) or "\0" in os.fsdecode(config_path):
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
    except (ValueError, RecursionError) as error:  # numbers and nesting beyond what Python takes
        raise ConfigurationError(f"cannot be read: {error}", place=str(file)) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"holds a {type(content).__name__}, not an object with keys such as task", place=str(file)
        )
    return content


def _check_sections(content: dict[str, Any], file: Path, *, task: Task) -> None:
    for section, keys in SECTION_KEYS.items():
        part = content.get(section, {})
        if not isinstance(part, dict):
            raise ConfigurationError(f"{part!r} is not an object with keys", place=str(file), field=section)
        for field, hint in _unknown(part, list(keys), section=section):
            if section == task:
                raise ConfigurationError(f"the key is unknown; {hint}", place=str(file), field=field)
            logger.warning("%s: %s: the key is unknown, and its section is not used by task %r", file, field, task)


def _unknown(content: Iterable[str], fields: list[str], *, section: str) -> Iterator[tuple[str, str]]:
    """(field, what may be meant) of each key that is none of the `fields`."""
    for name in content:
        if name in fields:
            continue
        near = get_close_matches(name, fields, n=1)
        if not section and name in SECTION_KEYS["statistics"]:
            hint = f'it belongs into the section of the task: {{"task": "tensor", "tensor": {{"{name}": ...}}}}'
        else:
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(fields)}"
        yield _field(section, name), hint


def _parse(keys: Keys, content: dict[str, Any], *, place: str, section: str) -> dict[str, Any]:
    return {
        name: _parse_value(key, content.get(name), place=place, field=_field(section, name))
        for name, key in keys.items()
    }


def _parse_value(key: Key, value: object, *, place: str, field: str) -> Any:
    chosen = key.default if value is None else value
    if chosen is None:
        return None
    try:
        return key.parse(chosen)
    except ValueError as error:
        raise ConfigurationError(str(error), place=place, field=field) from None


def _field(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _build(file: Path, top: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Configuration:
    task: Task = top["task"]
    section = sections[task]
    level = _level(task, top["level"], file)
    summary, bench = section.get("summary_mode", "statistics"), section.get("bench_path")
    categories: tuple[str, ...] = ()
    if isinstance(summary, tuple):
        categories, summary = summary, "statistics"
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
        optimizer=top["optimizer"],
        precision=top["precision"],
        dump_enable=top["dump_enable"],
        selection=_selection(section),
        summary=summary,
        slices=section.get("slice", ()),
        request_id=section.get("request_id"),
        bench_path=bench and Path(os.path.abspath(bench)),
        most_differences=sections["tensor"]["diff_nums"],
        overflow_limit=sections["overflow_check"]["overflow_nums"],
        api_list=_api_list(top["api_list"], file),
        seed=top["seed"],
        is_deterministic=top["is_deterministic"],
        kernel=KernelSettings(
            device=sections["statistics"]["device"],
            precision=sections["statistics"]["precision"],
            categories=categories,
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
        if section.get(field) in ("fingerprint", "sketch") and level == "L2":
            raise ValueError(f"MindSpore's kernel dump computes no {section[field]}; take 'md5' at level 'L2'")
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
