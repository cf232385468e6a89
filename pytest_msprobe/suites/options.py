"""How an option is declared, what its text may be, and the options of more than one suite.

Each parser gives the value of a text, or a ValueError that says why not. Option modules import nothing but this: pytest
loads them in every project.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from msprobe_collector.dump_format.values import abbreviated

if TYPE_CHECKING:
    from pytest_msprobe.engines.protocol import DeviceSpecification


#: What options are about, by the keys of `Option.question`, in the order of lists.
OPTION_QUESTIONS = {
    "what": "what is judged",
    "how": "by which rule",
    "where": "on which device, against which benchmark",
    "write": "what is written",
    "part": "which part of it, and how to go on",
}

T = TypeVar("T")
_Chosen = TypeVar("_Chosen", bound="Options")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting under its three names: `--msprobe-NAME`, ini `msprobe_NAME`, YAML key `NAME` (with underscores).

    Attributes:
        metavar: how help shows its value.
        help: one line on what it does; its suites and its default are added.
        parse: its value for a text; raises ValueError, which says why not and what is allowed.
        default: the text that is used when it is not given.
        name: see above; "" for that of the field.
        bare: the value of a flag that takes none on the command line; "" for an option that needs one.
        is_path: whether its value is a path, which workers get as an absolute one.
        is_list: whether it may be repeated, and is a list in YAML and one value per line in an ini file.
        is_yaml_only: whether it stands in the YAML file of --msprobe-config only; `parse` then gets (YAML value, file).
        question: the key in `OPTION_QUESTIONS` of what it answers, by which lists of options are grouped.
        is_common: whether `pytest --help` lists it; `python -m pytest_msprobe options` lists all.
    """

    metavar: str
    help: str
    parse: Callable[..., Any]
    default: str = ""
    name: str = ""
    bare: str = ""
    is_path: bool = False
    is_list: bool = False
    is_yaml_only: bool = False
    question: str = "how"
    is_common: bool = False

    @property
    def flag(self) -> str:
        """Name of the option on the command line."""
        return f"--msprobe-{self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """Name of the option in ini files and in pytest's option namespace."""
        return f"msprobe_{self.name}"

    def default_value(self) -> Any:
        """Value of the option when nothing gives it."""
        if self.is_list:
            return ()
        return self.parse(None, "") if self.is_yaml_only else self.parse(self.default)


class Options:
    """Base of frozen dataclasses whose fields are options: `seed: int = option("N", "seed of inputs", seed, "0")`.

    An option is declared there and nowhere else: its names, help, parser and default. Command line, ini, YAML and the
    page of all options are made from `declared()`, the values from `of()`. A field that holds another such dataclass
    has the options of that one in its place. Of several bases the options of the last one come first, as fields do.
    """

    _parts: ClassVar[dict[str, Option | type[Options]]]

    def __init_subclass__(cls) -> None:
        cls._parts = {}
        for base in reversed(cls.__mro__[1:]):
            cls._parts |= vars(base).get("_parts", {})
        for name, declared in list(vars(cls).items()):
            if isinstance(declared, Option):
                cls._parts[name] = option = replace(declared, name=declared.name or name)
                setattr(cls, name, field(default_factory=option.default_value))
            elif isinstance(declared, Field) and declared.default_factory is not MISSING:
                cls._parts[name] = cast("type[Options]", declared.default_factory)

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """The options, in the order of the fields."""
        options: list[Option] = []
        for part in cls._parts.values():
            options += [part] if isinstance(part, Option) else part.declared()
        return tuple(options)

    @classmethod
    def of(cls: type[_Chosen], values: Mapping[str, Any], /, **others: Any) -> _Chosen:
        """The settings in `values`, parsed values of all options by name; `others` are fields that are no options."""
        for name, part in cls._parts.items():
            others[name] = values[part.name] if isinstance(part, Option) else part.of(values)
        return cls(**others)


def option(metavar: str, help: str, parse: Callable[..., T], default: str = "", **more: Any) -> T:
    """An `Option` as a field of `Options`; to type checkers, the value that `parse` gives."""
    return cast(T, Option(metavar, help, parse, default, **more))


def flag(help: str, **more: Any) -> bool:
    """An option that takes no value on the command line."""
    return option("", help, parse_switch, "false", bare="true", **more)


def choice(words: Sequence[str], help: str, **more: Any) -> str:
    """An option that is one of `words`, by default the first."""
    return option("|".join(words), help, one_of(*words), words[0], **more)


def new_file(help: str, *, is_common: bool = True) -> Path | None:
    """An option that names a file to write."""
    return option("FILE", help, parse_new_file, question="write", is_common=is_common)


_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """Bytes, from a number with a unit.

    Raises:
        ValueError: it is not such a number, or 0.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or float(match["number"]) == 0:
        raise ValueError(f"{text!r} is not a size; use a number with KB, MB, GB or TB, such as 16GB")
    return int(float(match["number"]) * _UNITS[match["unit"].upper()])


def parse_memory(text: str) -> int:
    """Bytes; `auto` is a share of this machine's memory."""
    if text == "auto":
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.8)
    return parse_size(text)


def parse_timeout(text: str) -> float | None:
    """Seconds, 0 for no limit, None for `auto`.

    Raises:
        ValueError: it is neither `auto` nor a finite number from 0 on.
    """
    if text == "auto":
        return None
    value = parse_number(text)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is neither a number of seconds (0 or more) nor auto")
    return value


def parse_shard(text: str) -> tuple[int, int] | None:
    """(number, count) of `2/8`; None for `all`.

    Raises:
        ValueError: it is not of this form, or the number is not from 1 to the count, which is at most 10,000.
    """
    if text == "all":
        return None
    first, _, last = text.partition("/")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 10_000):
        raise ValueError(f"{text!r} is not a shard; write 2/8 for the second of eight")
    return int(first), int(last)


def parse_path(text: str) -> Path:
    """An absolute path that the file system can hold, whether something is there or not.

    Raises:
        ValueError: no file system can hold it: too long, or with a NUL.
    """
    try:
        os.lstat(text)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # who reads or writes there says so
    except OSError as error:
        raise ValueError(f"{abbreviated(text)} cannot be a path: {error.strerror}") from None
    return Path(os.path.abspath(text))


def parse_optional_path(text: str) -> Path | None:
    """An absolute path, or None for none."""
    return parse_path(text) if text else None


def parse_folder(text: str) -> Path:
    """A folder that exists, written as an absolute path, so that it is the same one in every process of a run.

    Raises:
        ValueError: the path is relative, or no folder is there.
    """
    if not os.path.isabs(text):
        raise ValueError(f"{abbreviated(text)} is not an absolute path; write the folder in full")
    if not parse_path(text).is_dir():
        raise ValueError(f"{abbreviated(text)} is not a folder")
    return Path(text)


def parse_new_file(text: str) -> Path | None:
    """An absolute path that is not a folder, or None for none.

    Raises:
        ValueError: a folder is there.
    """
    path = parse_optional_path(text)
    if path is not None and path.is_dir():
        raise ValueError(f"{text!r} is a folder; name a file")
    return path


def parse_switch(text: str) -> bool:
    """Truth value of a word: true, yes, on, 1; false, no, off, 0 or nothing.

    Raises:
        ValueError: it is another word.
    """
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("", "false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def parse_device_ids(text: str) -> tuple[str, ...]:
    """Ids of devices, of a list such as `4,5,6,7` or `0-3`; empty for all that are visible.

    Raises:
        ValueError: it is not such a list, or names a device twice.
    """
    if text == "all visible":
        return ()
    mistake = ValueError(f"{text!r} is not a list of device ids; write 4,5,6,7 or 0-3")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if text.strip() and not parts:
        raise mistake
    ids: dict[str, None] = {}
    for part in parts:
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise mistake
        for number in range(int(match[1]), int(match[2] or match[1]) + 1):
            if str(number) in ids:
                raise ValueError(f"{text!r} names device {number} twice; several workers per device: see --help")
            ids[str(number)] = None
    return tuple(ids)


def parse_seed(text: str) -> int:
    """A whole number from 0 on.

    Raises:
        ValueError: it is not such a number.
    """
    if not text.strip().isdecimal():
        raise ValueError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def parse_count(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        ValueError: it is not such a number.
    """
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def parse_cosine(text: str) -> float:
    """A bound from -1 up to, but not, 1.

    Raises:
        ValueError: it is not such a number.
    """
    value = parse_number(text)
    if not -1 <= value < 1:
        raise ValueError(f"{text!r} is not a cosine limit; use a number x with -1 <= x < 1")
    return value


def parse_positive(text: str) -> float:
    """A finite number above 0.

    Raises:
        ValueError: it is not such a number.
    """
    value = parse_number(text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    if value <= 0:
        raise ValueError(f"{text!r} is not above 0")
    return value


def parse_number(text: str) -> float:
    """A number, as `float` reads it: NaN and infinities too.

    Raises:
        ValueError: it is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def one_of(*words: str) -> Callable[[str], str]:
    """The parser of an option that is one of `words`."""

    def parse(text: str) -> str:
        """The word as it is.

        Raises:
            ValueError: it is not one of `words`.
        """
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def _device(text: str) -> DeviceSpecification:
    """The device under test."""
    from pytest_msprobe.engines.protocol import parse_device

    return parse_device(text)


def _bench(text: str) -> str:
    """The engine of the benchmark."""
    from pytest_msprobe.engines.protocol import parse_bench

    return parse_bench(text)


def existing_file(wanted: str) -> Callable[[str], Path | None]:
    """The parser of an option that names an existing file, which is `wanted`; None for none."""

    def parse(text: str) -> Path | None:
        """The absolute path of the file, None for none.

        Raises:
            ValueError: no file is there.
        """
        path = parse_optional_path(text)
        if path is not None and not path.is_file():
            raise ValueError(f"{text!r} is not a file; give {wanted}")
        return path

    return parse


def parse_interpreter(text: str) -> str | None:
    """An executable file, or None for none.

    Raises:
        ValueError: the file is missing or cannot be executed.
    """
    if text and not os.access(text, os.X_OK):
        raise ValueError(f"{text!r} is not an executable file; give the path of a Python interpreter")
    return text or None


GOLDEN = option(
    "PATH",
    "compare with this dump.json or folder of dumps or, with --msprobe-gradients, with this folder of gradients",
    parse_optional_path,
    is_path=True,
    question="what",
    is_common=True,
)
NOISE = option(
    "PATH",
    "give each value its own tolerance from this dump: the golden or logical run again, inputs moved by "
    "debugger.perturb",
    parse_optional_path,
    is_path=True,
    is_common=True,
)
DATA_DIR = cast(
    "tuple[Path, ...]",
    option(
        "DIR",
        "absolute folder outside the dump whose tensor files may be read (dump_data_dir, or the target of a link); "
        "may be repeated",
        parse_folder,
        is_list=True,
        question="what",
    ),
)
SEED = option(
    "N",
    "seed of the random inputs, which are drawn where the dump holds no tensors: other inputs, not more of them",
    parse_seed,
    "0",
    question="where",
)
BENCH = option(
    "BENCH",
    "what computes the float64 benchmark: auto, torch, torch:cuda or mindspore; auto: the first of torch and mindspore "
    "on the CPU that can, for each API call; torch:cuda: a GPU, for each API on which the CPU agrees with it",
    _bench,
    "auto",
    question="where",
    is_common=True,
)
BENCH_PYTHON = option(
    "FILE",
    "compute the benchmark with this Python interpreter, in a process of its own",
    parse_interpreter,
    question="where",
)
MAX_MEMORY_BYTES = option(
    "SIZE",
    "do not compute API calls that may need more memory, such as 16GB; auto: 80 % of the memory of this machine",
    parse_memory,
    "auto",
    name="max_memory",
    question="where",
)
DEVICE = option(
    "DEVICE",
    "what is tested: auto, recorded, mindspore[:cpu|:ascend[:ID]] or torch[:cpu|:cuda[:ID]|:npu[:ID]]; recorded: the "
    "values in the dump (not in repeat); auto: Ascend where the machine has it, else recorded where the "
    "dump holds tensors, else the CPU of the dump's framework",
    _device,
    "auto",
    question="where",
    is_common=True,
)
DEVICE_IDS = option(
    "IDS",
    "ids of the devices that the workers of -n get, such as 4,5,6,7 or 0-3 (of a single process the id stands in "
    "--msprobe-device); all visible: those of "
    "ASCEND_RT_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, else all",
    parse_device_ids,
    "all visible",
    question="where",
    is_common=True,
)
WORKERS_PER_DEVICE = option("K", "how many workers may share a device", parse_count, "1", question="where")
REMOTE_ROOT = option(
    "DIR", "with --tx ssh=..., folder on the other hosts that corresponds to rootdir", str, question="where"
)


@dataclass(frozen=True)
class DeviceOptions(Options):
    """What is tested, and by how many workers."""

    device: DeviceSpecification = DEVICE
    device_ids: tuple[str, ...] = DEVICE_IDS
    workers_per_device: int = WORKERS_PER_DEVICE
    remote_root: str = REMOTE_ROOT


@dataclass(frozen=True)
class BenchOptions(Options):
    """What computes the benchmark."""

    bench: str = BENCH
    bench_python: str | None = BENCH_PYTHON


@dataclass(frozen=True)
class InputOptions(Options):
    """What API calls are computed from."""

    seed: int = SEED
    max_memory_bytes: int = MAX_MEMORY_BYTES
    data_dir: tuple[Path, ...] = DATA_DIR
