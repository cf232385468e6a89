"""Files that are recognised and not read: dumps of kernels, and what tools wrote that came before msProbe."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

#: `{OpType}.{OpName}.{task}.{stream}.{timestamp}.{input|output}.{slot}.{format}.npy`, as MindSpore documents it.
_FILE = re.compile(r"[^.]+\..+\.\d+\.\d+\.\d+\.(input|output)\..+\.npy")
_STATISTICS = "statistic.csv"
_MOST_NAMES = 100_000

#: What to say of a dump of kernels, after its path.
NOT_READ = (
    "holds a dump of kernels (level L2 or static graph), which nothing here reads or compares; dump at level L0, L1 or "
    "mix, which give a dump.json"
)


def is_of_kernel_dump(name: str) -> bool:
    """Return whether a file of this name belongs to a kernel dump."""
    return name == _STATISTICS or _FILE.fullmatch(name) is not None


def holds_kernel_dump(folder: Path) -> bool:
    """Whether `folder`, or one below it, holds files of a kernel dump; looks at 100,000 names at most."""
    names = (name for _, _, names in os.walk(folder) for name in names)
    return any(is_of_kernel_dump(name) for name in islice(names, _MOST_NAMES))


_RESULT = re.compile(rb"\xef\xbb\xbf?(?:API Name|API Type|NPU Name),|(?:API Name|API Type|NPU Name),")
_PTDBG = re.compile(rb'\s*\[\s*"[^"]+",\s*\d')
_API_INFO = re.compile(rb'\s*\{\s*"\w+[.*][\w.*]+":\s*(?:\{\s*"args":|\[)')

#: Names in a folder of files of older tools, and what such files are.
_NAMES = (("*.pkl", "ptdbg"), ("forward_info*.json", "api_info"), ("backward_info*.json", "api_info"))
_WHAT = {
    "result": "is a table of results; give the dump.json that it was made of",
    "ptdbg": "is a dump of ptdbg_ascend, which came before msProbe and had no dump.json; collect the step again: "
    "python -m msprobe_collector collect SCRIPT",
    "api_info": "is an api_info file of the accuracy checker that came before msProbe; collect the step again: "
    "python -m msprobe_collector collect SCRIPT",
}


def what_old_file(text: bytes) -> str:
    """Return what the content `text` of a file is that an older tool wrote; "" of anything else."""
    forms = (("result", _RESULT), ("ptdbg", _PTDBG), ("api_info", _API_INFO))
    return next((_WHAT[kind] for kind, form in forms if form.match(text)), "")


def old_file_in(folder: Path) -> str:
    """Return which file in a folder without a dump.json an older tool wrote, and what it is; "" where there is none."""
    for pattern, kind in _NAMES:
        for file in sorted(folder.glob(pattern))[:1]:
            return f"holds no dump.json; {file.name} {_WHAT[kind]}"
    return ""
