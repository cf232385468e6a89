"""The keys of config.json: what each may be, and its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from msprobe_collector.configuration import values
from msprobe_collector.configuration.number_ranges import parse_number_ranges, parse_steps
from msprobe_collector.configuration.selection import parse_data_mode, parse_scope
from msprobe_collector.configuration.tasks import Level, Task


@dataclass(frozen=True, slots=True)
class Key:
    """One key: how a JSON value is read (ValueError when it cannot be) and the JSON value used when it is missing.

    A default of None stands as it is, unread.
    """

    name: str
    parse: Callable[[object], Any]
    default: Any = None


TASKS = get_args(Task)

TOP_KEYS = (
    Key("task", values.one_of(*TASKS), "statistics"),
    Key("level", values.one_of(*get_args(Level))),
    Key("dump_path", values.path),
    Key("rank", parse_number_ranges, []),
    Key("step", parse_steps, []),
    Key("extra_info", values.boolean, True),
    Key("async_dump", values.boolean, False),
    Key("precision", values.one_of("low", "high"), "low"),
    Key("dump_enable", values.boolean),
    Key("api_list", values.path),
    Key("seed", values.seed),
    Key("is_deterministic", values.boolean, False),
)

_SELECTION = (
    Key("scope", parse_scope, []),
    Key("list", values.texts, []),
    Key("data_mode", parse_data_mode, ["all"]),
)
_SUMMARY = Key("summary_mode", values.summary_mode, "statistics")

SECTION_KEYS: dict[str, tuple[Key, ...]] = {
    "statistics": (
        *_SELECTION,
        _SUMMARY,
        Key("tensor_list", values.texts, []),
        Key("device", values.one_of("host", "device"), "host"),
        Key("precision", values.one_of("high", "low"), "high"),
    ),
    "tensor": (*_SELECTION, _SUMMARY),
    "structure": _SELECTION,
    "overflow_check": (
        *_SELECTION,
        Key("overflow_nums", values.overflow_limit, 1),
        Key("check_mode", values.one_of("aicore", "atomic", "all"), "all"),
    ),
    "exception_dump": _SELECTION,
    "grad_probe": (
        Key("grad_level", values.one_of("L0", "L1", "L2"), "L1"),
        Key("param_list", values.parameter_names, []),
        Key("bounds", values.bounds, [-1, 0, 1]),
    ),
}

#: Keys that files for the existing tool hold and that mean nothing here: they are for PyTorch, for other programs, or
#: documented but never read.
WITHOUT_EFFECT = {
    "": {
        "risk_level",
        "custom_op_namespaces",
        "load",
        "acc_check",
        "diff_check",
        "nan_check",
        "run_ut",
        "free_benchmark",
        "enable_dataloader",
    },
    "statistics": set(),
    "tensor": {"file_format", "bench_path", "diff_nums"},
    "structure": set(),
    "overflow_check": set(),
    "exception_dump": {"file_format"},
    "grad_probe": set(),
}
