"""The commands `make` and `run`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from quality.evals.making import make
from quality.evals.questions import Eval, read
from quality.evals.scoring import SCORES, read_answer, score

#: Asked where no program is named.
DIAGNOSE = [sys.executable, "-m", "pytest_msprobe", "diagnose", "{dump}", "{golden}", "--json={json}"]
MOST_LINES, MOST_BYTES = 12, 4096


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, or 1 where fewer answers are right than --at-least or an answer is too long.
    """
    parser = argparse.ArgumentParser(prog="python -m quality.evals", description="Dumps with planted faults")
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="write the dumps of the evals")
    runner = commands.add_parser("run", help="ask a program about each dump; what is missing is written first")
    for command in (maker, runner):
        command.add_argument("folder", type=Path, metavar="DIR")
        command.add_argument("names", nargs="*", metavar="NAME", help="evals; all unless given")
        command.add_argument("--held-out", action="store_true", help="also those of quality/evals/held_out.json")
    runner.add_argument("--results", type=Path, metavar="FILE", help="write all answers as JSON")
    runner.add_argument("--at-least", type=int, default=0, metavar="N", help="exit with 1 for fewer right answers")
    given = sys.argv[1:] if arguments is None else arguments
    own, program = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = parser.parse_args(own)
    known = read(is_held_out_too=bool(options.held_out or options.names))
    chosen = [one for one in known if not options.names or one.name in options.names]
    if unknown := set(options.names) - {one.name for one in chosen}:
        parser.error(f"no such eval: {', '.join(sorted(unknown))}")
    for one in chosen:
        make(one, options.folder)
    if options.command == "make":
        return 0
    return _run(chosen, options, program or DIAGNOSE)


def ask(asked: Eval, root: Path, program: list[str], timeout: float = 300) -> dict[str, Any]:
    """What a program says about one eval: its answer, the score, and the size of what it wrote.

    In its arguments `{dump}`, `{golden}`, `{question}` and `{json}` (a file for it to write) are replaced; an argument
    with `{golden}` is left out where there is no golden run.
    """
    folder = (root / asked.name).resolve()
    written = folder / "answer.json"
    written.unlink(missing_ok=True)
    places = {"dump": folder / "target", "golden": folder / "golden", "question": asked.question, "json": written}
    command = []
    for argument in program:
        if "{golden}" in argument and not asked.has_golden:
            continue
        for name, place in places.items():
            argument = argument.replace(f"{{{name}}}", str(place))
        command.append(argument)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=timeout)
        text, status, error = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        text, status, error = "", None, f"no answer in {timeout:g} s"
    output = written.read_text() if written.exists() else text
    answer = read_answer(output)
    return {
        "name": asked.name,
        "suite": asked.suite,
        "score": score(asked, answer),
        "answer": list(answer.names),
        "is_sure": answer.is_sure,
        "right": asked.answer,
        "exit": status,
        "text": text,
        "lines": lines_of_answer(text),
        "bytes": len(output.encode()) if written.exists() else 0,
        "error": error[-2000:],
        "json": output if written.exists() else "",
    }


def lines_of_answer(text: str) -> int:
    """How many lines the answer has: what stands behind the last empty line."""
    return len(text.strip().rpartition("\n\n")[2].splitlines())


def _run(chosen: list[Eval], options: argparse.Namespace, program: list[str]) -> int:
    results = []
    for one in chosen:
        result = ask(one, options.folder, program)
        results.append(result)
        said = result["answer"][0][:60]
        print(f"{result['score']:18} {one.suite:10} {one.name:38} {said}", flush=True)
        if options.results:
            options.results.write_text(json.dumps(results, indent=1))
    counts = Counter(result["score"] for result in results)
    print(f"{len(results)} evals: " + ", ".join(f"{counts[score]} {score}" for score in SCORES))
    lines, size = (max(result[key] for result in results) for key in ("lines", "bytes"))
    print(f"longest answer: {lines} lines (of {MOST_LINES}), {size} bytes of JSON (of {MOST_BYTES})")
    return int(counts["right"] < options.at_least or lines > MOST_LINES or size > MOST_BYTES)
