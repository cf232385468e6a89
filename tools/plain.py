"""Counts what makes code hard to read, and fails where a count has grown: python -m tools.plain [--write].

The counts stand in tools/plain.tsv, a row for each package. `--write` replaces them; do so after
a change that lowers one. A count is no rule for a single place: where a statement needs two
comprehensions, another one can do without.
"""

from __future__ import annotations

import argparse
import ast
import collections
import csv
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".tsv")
PACKAGES = {
    "plugin": ROOT / "pytest_msprobe",
    "collector": ROOT / "collector" / "msprobe_collector",
    "laws": ROOT / "extensions" / "laws" / "msprobe_laws",
    "checkpoints": ROOT / "extensions" / "checkpoints" / "msprobe_checkpoints",
}
#: Names that say nothing of what a variable holds.
VAGUE = {"found", "one", "each", "own", "told", "known", "given", "seen", "left"}
LONGEST_CLASS, LONGEST_LINE = 300, 99
#: What grows with the code is counted in 1,000 of its lines, without blank ones.
PER_LINES = ("comprehensions", "conditional expressions")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def statements(tree: ast.AST) -> Iterator[list[ast.expr]]:
    """Yield the expressions of every statement, without those of the statements inside it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            waiting: list[ast.AST] = [node]
            expressions: list[ast.expr] = []
            while waiting:
                children = [*ast.iter_child_nodes(waiting.pop())]
                expressions += (child for child in children if isinstance(child, ast.expr))
                waiting += (child for child in children if not isinstance(child, ast.stmt))
            yield expressions


def is_number(node: ast.expr | None) -> bool:
    """Return whether an expression is made of numbers alone."""
    leaves = (ast.Constant, ast.operator, ast.unaryop, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.expr_context)
    if node is None or not all(isinstance(part, leaves) for part in ast.walk(node)):
        return False
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return constants != [] and all(type(value) in (int, float) for value in constants)


def counts(text: str) -> collections.Counter[str]:
    """Return the counts of one module."""
    tree, count = ast.parse(text), collections.Counter[str]()
    lines = text.splitlines()
    count["lines"] = sum(line.strip() != "" for line in lines)
    count["long lines"] = sum(len(line) > LONGEST_LINE for line in lines)
    for expressions in statements(tree):
        count["dense statements"] += sum(isinstance(part, COMPREHENSIONS) for part in expressions) > 1
        count["dense statements"] += sum(isinstance(part, ast.IfExp) for part in expressions) > 1
    for node in ast.walk(tree):
        count["comprehensions"] += isinstance(node, COMPREHENSIONS)
        count["conditional expressions"] += isinstance(node, ast.IfExp)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            count["vague names"] += (node.arg if isinstance(node, ast.arg) else node.id) in VAGUE
        if isinstance(node, ast.ClassDef):
            count["long classes"] += (node.end_lineno or 0) - node.lineno >= LONGEST_CLASS
    assignments = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    count["numeric constants"] = sum(is_number(node.value) for node in assignments)
    return count


def repeated_class_names() -> dict[str, list[Path]]:
    """Return the files of every class name that more than one file of the packages defines."""
    files = collections.defaultdict(list)
    for path in (path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path)
    return {name: paths for name, paths in files.items() if len(paths) > 1}


def table() -> dict[tuple[str, str], int]:
    """Return all counts, by package and by what is counted."""
    rows = {("all", "repeated class names"): len(repeated_class_names())}
    for package, folder in PACKAGES.items():
        total = collections.Counter[str]()
        for path in sorted(folder.rglob("*.py")):
            total.update(counts(path.read_text()))
        lines = total.pop("lines")
        for what in PER_LINES:
            total[what] = round(1000 * total[what] / lines)
        rows.update({(package, what): number for what, number in total.items()})
    return rows


def main() -> int:
    """Print what has grown; return 1 if anything has."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the table of counts")
    now = table()
    if parser.parse_args().write:
        with TABLE.open("w", newline="") as file:
            rows = csv.writer(file, delimiter="\t", lineterminator="\n")
            rows.writerows((*key, number) for key, number in now.items())
        return 0
    with TABLE.open(newline="") as file:
        before = {(package, what): int(number) for package, what, number in csv.reader(file, delimiter="\t")}
    grown = [key for key in now if now[key] > before.get(key, 0)]
    for package, what in grown:
        sys.stdout.write(f"{package}: {what} grew from {before.get((package, what), 0)} to {now[package, what]}\n")
    return int(grown != [])


if __name__ == "__main__":
    sys.exit(main())
