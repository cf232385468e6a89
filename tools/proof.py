"""Freezes what users see of this project, so that a refactoring can be proven to change nothing.

    python -m tools.proof FOLDER                     # before the change and after it, into two folders
    python -m tools.proof FOLDER --only NAME [NAME ...]
    diff -r before after                             # is then empty

FOLDER gets a folder for each run of `TABLE`: what each of its commands printed, the ids that it collected, and the
files that it wrote: rows, tables, JUnit XML, pages with their data unpacked, dumps; of arrays and pictures the digest.
What differs from run to run (times, temporary folders, hosts, process ids) is masked, and so are our modules in
tracebacks. The code beside this script is what runs, whichever copy is installed; it takes the extra `test`.

counts.json is apart: how often a few costly functions are called, which may fall and not grow. They are found by their
names, so that modules may move; a count that became 0 may be a function that got another name.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
#: Folders of the packages of this clone, and the files of these packages.
SOURCES = [str(ROOT / name) for name in ("", "collector", "extensions/laws", "extensions/checkpoints")]
PACKAGES = tuple(f"{ROOT}/{name}/" for name in ("pytest_msprobe", "collector", "extensions"))
sys.path.insert(0, str(ROOT / "tests"))

from page_reader import page_content, page_rows  # noqa: E402

RECORDED = "--msprobe-dump=gpt_tiny_tensor"
STRICT = f"{RECORDED} --msprobe-max-abs=1e-6"
DIAGNOSIS = "--msprobe-diagnosis=out1/diagnosis.json"
HTML = "--html=out1/report.html"
PAIR = "--msprobe-dump=target --msprobe-golden=golden"
GRADIENTS = "--msprobe-gradients=gradients/target"
FEW = f"{RECORDED} -k 'softmax or exp or matmul.0'"
STANDARDS = "fused absolute-threshold ulp binary thousandth accumulative-error".split()
STANDARDS += "mere-mare mixed-tolerance msprobe".split()
TEMPLATES = ("ci", "custom_api", "gate", "known_issues", "thresholds")
BAD, WORKERS = "bad_input", "workers"
#: Commands below the name of their run. `pytest` is run with all reports, in a folder for each command: out1, out2, ...
TABLE = f"""
precheck
    pytest {RECORDED} -v {HTML} --self-contained-html
statistics
    pytest --msprobe-dump=gpt_tiny_statistics --msprobe-device=torch:cpu
float16
    pytest --msprobe-dump=gpt_tiny_float16 --msprobe-standard=backward-error
mindspore
    pytest {RECORDED} --msprobe-device=mindspore:cpu
mix
    pytest --msprobe-dump=gpt_tiny_mix --msprobe-standard=backward-error -rs
seeds
    pytest --msprobe-dump=gpt_tiny_statistics --msprobe-draws=3 -k 'softmax or matmul or exp'
edge_cases
    pytest --msprobe-dump=gpt_tiny_statistics --msprobe-edge-cases --msprobe-max-memory=16GB -k '(softmax or \
        matmul.0 or exp) and not large'
    pytest {RECORDED} --msprobe-edge-cases --msprobe-device=torch:cpu --msprobe-max-memory=16GB -k '(chunk or \
        gather) and not large' --msprobe-error-data=auto
failures
    pytest {STRICT} --msprobe-error-data=auto --msprobe-reproducers=out1/reproducers {HTML} -rA
    pytest --msprobe-dump=out1/error_data
    python out1/reproducers/Mint.exp.0.py
benchmarks
    pytest {FEW} --msprobe-bench=mindspore
    pytest {FEW} --msprobe-bench-python={sys.executable}
workers
    pytest {STRICT} -n 2
    pytest {PAIR} --msprobe-diagnosis=out2/diagnosis.json -n 2
last_failed
    pytest {STRICT} -p cacheprovider
    pytest {STRICT} -p cacheprovider --lf
resume_rows
    pytest {STRICT} -x
    pytest {STRICT} --msprobe-resume=out1/rows.jsonl
resume_table
    pytest {STRICT} -x
    pytest {STRICT} --msprobe-resume=out1/accuracy_checking_result_*.csv
shards
    pytest {STRICT} --msprobe-shard=1/2
    pytest {STRICT} --msprobe-shard=2/2
    msprobe merge out1/rows.jsonl out2/rows.jsonl -o out3 --page out3/page.html
page
    pytest {STRICT}
    msprobe page out1/rows.jsonl -o out2/page.html
accounting
    pytest {PAIR} {DIAGNOSIS} {HTML} -rx
distances
    pytest {PAIR} --msprobe-accounting=off {DIAGNOSIS}
tables
    pytest {PAIR} --msprobe-inherited=fail --msprobe-xlsx --msprobe-result-column=accuracy
    pytest {PAIR} --msprobe-fuzzy --msprobe-noise=target --msprobe-distance=Float32=1e-3
other_model
    pytest {RECORDED} --msprobe-golden=target
figures_only
    pytest --msprobe-dump=target_statistics --msprobe-golden=golden_statistics {DIAGNOSIS}
    pytest --msprobe-dump=gpt_tiny_statistics --msprobe-golden=gpt_tiny_tensor
overflow
    pytest --msprobe-dump=overflow_attention --msprobe-suite=overflow {HTML} -rs
    pytest --msprobe-dump=overflow_attention --msprobe-suite=overflow --msprobe-overflow-fail-reproduced
gradients
    pytest {GRADIENTS} --msprobe-golden=gradients/golden {HTML}
    pytest {GRADIENTS} --msprobe-golden=gradients/golden --msprobe-gradient-items=step
    pytest {GRADIENTS} --msprobe-gradient-turbulence=0.01 --msprobe-gradient-warmup=1
repeat
    pytest {RECORDED} --msprobe-suite=repeat --msprobe-repeat-runs=3 -k 'matmul or softmax' \
        --msprobe-device=mindspore:cpu
collectors
    python {{repo}}/collector/examples/gpt/train.py --steps=1 --weights=weights.npz
    python {{repo}}/collector/examples/gpt_torch/train.py --steps=1 --weights=weights.npz
    pytest --msprobe-dump=gpt_dump --msprobe-golden=gpt_torch_dump --msprobe-diagnosis=out3/diagnosis.json
bad_input
    pytest --msprobe-dump=absent
    pytest --msprobe-dump=cut_record
    pytest --msprobe-dump=cut_tensor
    pytest --msprobe-dump=cut_tensor --msprobe-golden=gpt_tiny_tensor
    pytest {RECORDED} --msprobe-standard=backwards-error
    pytest {RECORDED} --msprobe-suite=prechek
    pytest {RECORDED} --msprobe-device=mindspor:cpu
    pytest {RECORDED} --msprobe-max-abs=small
    pytest {RECORDED} --msprobe-shard=3/2
    pytest {RECORDED} --msprobe-golden=absent
    pytest {RECORDED} --msprobe-fuzzy
    pytest {PAIR} --msprobe-distance=Float33=1
    pytest --msprobe-gradients=gpt_tiny_tensor
    pytest {RECORDED} --msprobe-resume=absent.jsonl
    pytest {RECORDED} -k nothing
    msprobe merge absent -o out
    msprobe page cut_record/step0/proc0/dump.json -o page.html
    msprobe conftest absent
commands
    python -m pytest --help
    python -m pytest --markers
    msprobe --help
    msprobe conftest
    msprobe coverage
    python {{script}} --options-page
"""


def _runs() -> dict[str, list[str]]:
    """The commands of `TABLE` and some that are made alike."""
    runs: dict[str, list[str]] = {"standards": [f"pytest {FEW} --msprobe-standard={name}" for name in STANDARDS]}
    for name in TEMPLATES:
        options = RECORDED if name == "gate" else STRICT
        runs[f"template_{name}"] = [f"msprobe conftest {name}", f"pytest {options} -k exp -rx -p cacheprovider"]
    for block in re.split(r"\n(?=\S)", TABLE.strip()):
        name, *commands = block.splitlines()
        runs[name] = [command.strip() for command in commands]
    return runs


RUNS = _runs()
#: Options of pytest by the counts that are kept of it.
COUNTED = {
    "precheck": "--msprobe-dump=gpt_tiny_tensor",
    "accounting": PAIR,
    "distances": f"{PAIR} --msprobe-accounting=off",
}
FUNCTIONS = ("TensorFolder.load", "TorchEngine.forward", "measure_pair", "measure")
PLAIN = "-c /dev/null --rootdir=. -p no:hypothesispytest -p no:pytest_cov".split()
DIGESTED = {".npy", ".npz", ".pt", ".png"}
#: Folders that a run needs not keep: what it was given, and what frameworks and Python leave.
LEFT_OUT = {"__pycache__", ".pytest_cache", "tmp", "kernel_meta", "rank_0"}
_OURS = r"(?:pytest_msprobe|msprobe_collector|msprobe_laws|msprobe_checkpoints|conftest_templates)"
MASKS = tuple(
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"/[\w./+-]*/(?:site-packages|lib/python3\.\d+)/", "<python>/"),
        (r"(?<=_)20\d{12}(?!\d)", "<time>"),
        (r"^\[(WARNING|ERROR)\] (\w+)\([^)]*\):[-:.\d]+", r"[\1] \2"),
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?[.\d]*(\+00:00| UTC)?", "<time>"),
        (r"\b\d\d-\w{3}-\d{4} at \d\d:\d\d:\d\d", "<time>"),
        (r"(?<= took )[^.<\n]+(?=\.</p>)|\b\d\d:\d\d:\d\d\b|\b\d+ ms\b", "<duration>"),
        (r'("seconds": ?)[-\d.e]+|( time=)"[\d.]+"', r"\1\2<duration>"),
        (r"\b(in|took) [\d.]+ ?s(econds)?\b( \(\d+:\d\d:\d\d\))?", r"\1 <duration>"),
        (r'("host": ?|hostname=)"[^"]*"', r"\1<host>"),
        (r"\b0x[0-9a-f]{6,}", "<address>"),
        (r"(?<![A-Za-z])proc[1-9]\d*", "proc<pid>"),
        (
            rf"(?:<repo>/|<python>/\S*/)?(?:collector/|extensions/\w+/)?{_OURS}/[\w/]+\.py(:\d+|\", line \d+)?",
            "<module>",
        ),
        (rf"^((?:E +)?){_OURS}(?:\.\w+)*\.(?=\w+(: |$))", r"\1"),
        (r"([=_-])\1{3,}", r"\1\1\1"),  # filled up to the width, which the masked texts had a part of
    )
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what to write; it must not hold these runs yet")
    names = [*RUNS, "counts"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    arguments = parser.parse_args()
    wanted: list[str] = arguments.only
    if present := [name for name in wanted if (arguments.folder / name).exists()]:
        raise SystemExit(f"{arguments.folder} has {', '.join(present)} already; name another folder")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="msprobe-proof-") as temporary, ThreadPoolExecutor(2) as pool:
        inputs = Path(temporary).resolve() / "inputs"
        _make_inputs(inputs)
        jobs = [pool.submit(_keep, name, inputs, arguments.folder / name) for name in wanted if name in RUNS]
        for job in jobs:
            print(job.result(), flush=True)
        if "counts" in wanted:
            counts = {name: _counts(options, inputs, name) for name, options in COUNTED.items()}
            (arguments.folder / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")
            print("counts")


def _make_inputs(folder: Path) -> None:
    """Everything that commands may name: the dumps of tests/dumps, some without tensors, and two that are cut off."""
    dumps = ROOT / "tests" / "dumps"
    for name in ("gpt_tiny_tensor", "gpt_tiny_statistics", "overflow_attention", "gradients"):
        shutil.copytree(dumps / name, folder / name)
    for name in ("gpt_tiny_float16", "gpt_tiny_mix", "gpt_perturbed/dumps"):
        with tarfile.open(dumps / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    for name in ("target", "golden"):
        _strip(folder / name, folder / f"{name}_statistics")
    for name in ("cut_record", "cut_tensor"):
        shutil.copytree(folder / "gpt_tiny_tensor", folder / name)
    _cut(folder / "cut_record/step0/proc0/dump.json")
    _cut(folder / "cut_tensor/step0/proc0/dump_tensor_data/Mint.exp.0.forward.input.0.npy")


def _strip(dump: Path, copy: Path) -> None:
    """Make `copy` of a dump that holds statistics only."""
    shutil.copytree(dump, copy, ignore=shutil.ignore_patterns("dump_tensor_data"))
    for path in copy.rglob("dump.json"):
        text = re.sub(r',\s*"data_name": "[^"]*"', "", path.read_text().replace('"tensor"', '"statistics"', 1))
        path.write_text(text)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _keep(name: str, inputs: Path, target: Path) -> str:
    """The line to print when the run `name` has been kept in `target`."""
    target.mkdir()
    given = {path.name for path in inputs.iterdir() if path.name in " ".join(RUNS[name])}
    with tempfile.TemporaryDirectory(prefix="msprobe-proof-") as temporary:
        folder = Path(temporary).resolve()
        for dump in given:
            shutil.copytree(inputs / dump, folder / dump)
        (folder / "tmp").mkdir()
        for number, command in enumerate(RUNS[name], 1):
            _keep_command(name, number, command, folder, target)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        _keep_files(
            [path for path in files if not {*path.relative_to(folder).parts} & {*given, *LEFT_OUT}], folder, target
        )
    return name


def _keep_command(name: str, number: int, command: str, folder: Path, target: Path) -> None:
    """Run a command in `folder`; what it prints, and the ids that it collects, are then in `target`."""
    first, *words = shlex.split(command.replace("{repo}", str(ROOT)).replace("{script}", __file__))
    words = [_expanded(word, folder) for word in words]
    if first == "pytest":
        words = ["-m", "pytest", *PLAIN, *words]
        if "cacheprovider" not in words:  # the template known_issues asks for --lf, which it brings
            words += ["-p", "no:cacheprovider"]
        if name != BAD:
            quiet = ["-q"] * (2 if "-v" in words else 1)
            ids = _printed([*words, f"--msprobe-out=ids{number}", "--collect-only", *quiet], folder)
            _write(target / f"ids{number}.txt", ids, folder)
        out = f"out{number}"
        (folder / out).mkdir(exist_ok=True)
        words += [f"--msprobe-out={out}", f"--msprobe-jsonl={out}/rows.jsonl", f"--msprobe-page={out}/page.html"]
        words.append(f"--junitxml={out}/junit.xml")
    elif first == "msprobe":
        words = ["-m", "pytest_msprobe", *words]
    _write(
        target / f"printed{number}.txt", f"$ {command}\n{_printed(words, folder)}", folder, is_sorted=name == WORKERS
    )


def _expanded(word: str, folder: Path) -> str:
    """`word`, whose value may be a pattern of one file."""
    option, _, pattern = word.partition("=")
    return f"{option}={next(folder.glob(pattern)).relative_to(folder)}" if "*" in pattern else word


def _printed(words: list[str], folder: Path) -> str:
    """Everything that Python with these arguments prints, and how it ends."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
    )
    return f"{done.stdout}\n[stderr]\n{done.stderr}\n[exit code {done.returncode}]\n"


def _environment(folder: Path) -> dict[str, str]:
    """That of this process without what pytest takes from there; the code beside this script comes first."""
    dropped = re.compile(r"PYTEST_|COV_|MSPROBE_|PY_COLORS$|NO_COLOR$|FORCE_COLOR$|CI$|BUILD_NUMBER$")
    kept = {name: value for name, value in os.environ.items() if not dropped.match(name)}
    paths = os.pathsep.join(SOURCES)
    return {
        **kept,
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "100",
        "TMPDIR": str(folder / "tmp"),
    }


def _keep_files(paths: list[Path], folder: Path, target: Path) -> None:
    """Keep the text of each file in `target`, and one list of all, with the digest of those that have none."""
    listed = []
    for path in paths:
        name = _masked(str(path.relative_to(folder)), folder)
        if path.suffix in DIGESTED:
            listed.append(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
            continue
        listed.append(name)
        _write(target / name, _text(path, is_sorted=target.name == WORKERS), folder, is_sorted=target.name == WORKERS)
    (target / "files.txt").write_text("".join(f"{line}\n" for line in sorted(listed)))


def _text(path: Path, *, is_sorted: bool) -> str:
    """What a file holds, as text whose lines can be compared."""
    if path.suffix == ".xlsx":
        return "\n".join(_cells(path))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl" and is_sorted:  # the first row to arrive from each worker tells of the run
        rows = [json.loads(line) for line in text.splitlines()]
        runs = [row.pop("run") for row in rows]
        return "\n".join(json.dumps(part) for part in (*rows, *runs))
    if path.suffix == ".xml":
        return re.sub(r"(?=<(testcase|property |/testsuite|failure|skipped))", "\n", text)
    if 'id="rows"' in text:
        if is_sorted:
            return "\n".join(json.dumps(row) for row in page_rows(path))
        return re.sub(r'(<script id="rows"[^>]*>)[^<]*', r"\1", text) + _json(page_content(path))
    if found := re.search(r'data-jsonblob="([^"]*)"', text):
        return text.replace(found[1], "") + _json(json.loads(html.unescape(found[1])))
    return text


def _json(value: object) -> str:
    """`value` line by line, without its times."""
    return json.dumps(_timeless(value), indent=1, ensure_ascii=False)


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: "<duration>" if key == "seconds" else _timeless(part) for key, part in value.items()}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def _cells(path: Path) -> Iterator[str]:
    """Each cell of a workbook with its colour."""
    import openpyxl  # of the extra `test`; the other runs need it not

    for sheet in openpyxl.load_workbook(path):
        for row in sheet.iter_rows():
            for cell in row:
                yield f"{sheet.title} {cell.coordinate} {cell.fill.fgColor.rgb} {cell.value!r}"


def _write(path: Path, text: str, folder: Path, *, is_sorted: bool = False) -> None:
    """Write the masked text, with its lines in order where they have none of their own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_sorted:
        text = re.sub(r"^[.FExs]+ +\[ *\d+%\]$|(?<=\[gw)\d", "", text, flags=re.MULTILINE)
    lines = _masked(text, folder).splitlines()
    path.write_text("".join(f"{line}\n" for line in (sorted(lines) if is_sorted else lines)), encoding="utf-8")


def _masked(text: str, folder: Path) -> str:
    """`text` without what differs from run to run of the same code."""
    places = {
        os.path.relpath(ROOT, folder): "<repo>",
        os.path.relpath("/dev/null", folder): "/dev/null",
        str(folder): "<run>",
        sys.prefix: "<python>",
        str(ROOT): "<repo>",
    }
    for place, name in places.items():
        text = text.replace(place, name)
    for pattern, replacement in MASKS:
        text = pattern.sub(replacement, text)
    return text


class Counts:
    """How often functions of this project are called, and which files of tensors are opened."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.loaded: set[tuple[str, str]] = set()
        self.opened: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """See `sys.setprofile`."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGES):
            name = _name(frame)
            if name in FUNCTIONS:
                self.calls[name] += 1
            if name == "TensorFolder.load":
                tensors, value = (frame.f_locals[argument] for argument in frame.f_code.co_varnames[:2])
                self.loaded.add((str(getattr(tensors, "folder", "")), str(getattr(value, "data_name", value))))

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`."""
        if event == "open" and str(arguments[0]).endswith((".npy", ".pt")):
            self.opened[str(arguments[0])] += 1

    def result(self) -> dict[str, int]:
        """The counts by what they count."""
        return {
            **{name: self.calls[name] for name in FUNCTIONS},
            "TensorFolder.load: different files": len(self.loaded),
            "files of tensors opened": self.opened.total(),
            "different files of tensors opened": len(self.opened),
        }


def _name(frame: FrameType) -> str:
    """`Class.method` or the name of a function, also in Python 3.10, which has no qualified names here."""
    code = frame.f_code
    owner = frame.f_locals.get("self") if not hasattr(code, "co_qualname") else None
    return getattr(code, "co_qualname", code.co_name if owner is None else f"{type(owner).__name__}.{code.co_name}")


def _counts(options: str, inputs: Path, name: str) -> dict[str, int]:
    """The counts of one run of pytest with `options`."""
    target = inputs.parent / f"{name}.json"
    words = [
        __file__,
        "--count",
        str(target),
        *PLAIN,
        "-p",
        "no:cacheprovider",
        f"--msprobe-out={inputs.parent / name}",
    ]
    done = subprocess.run(
        [sys.executable, *words, *shlex.split(options)],
        cwd=inputs,
        env=_environment(inputs),
        capture_output=True,
        text=True,
        check=False,
    )
    if not target.exists():
        raise SystemExit(f"{name}: no counts:\n{done.stdout}{done.stderr}")
    counts: dict[str, int] = json.loads(target.read_text())
    return counts


def _count(target: Path, options: list[str]) -> None:
    """Run pytest here and write the counts into `target`."""
    import pytest

    counts = Counts()
    sys.addaudithook(counts.audit)
    threading.setprofile(counts)
    sys.setprofile(counts)
    try:
        pytest.main(options)
    finally:
        sys.setprofile(None)
    target.write_text(json.dumps(counts.result()))


def _print_options_page() -> None:
    """Print the page of options that the site has, without MkDocs."""
    for name in ("mkdocs", "mkdocs.config", "mkdocs.config.defaults", "mkdocs.exceptions", "mkdocs.structure.files"):
        sys.modules[name] = mock.MagicMock()
    sys.path.insert(0, str(ROOT / "docs"))
    import site_pages

    print("\n".join(site_pages._options()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        _count(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:] == ["--options-page"]:
        _print_options_page()
    else:
        main()
