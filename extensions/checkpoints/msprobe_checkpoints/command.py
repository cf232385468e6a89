"""The command `checkpoints`: what differs between two checkpoints."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pytest_msprobe.commands.common import CommandError, stated_errors

#: Seconds between two texts of progress: on a terminal, and in a file or pipe.
_ON_TERMINAL_SECONDS, _ELSEWHERE_SECONDS = 0.2, 30.0


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "checkpoints",
        help="compare two checkpoints",
        description="Compare two checkpoints, tensor by tensor: files or folders of safetensors, torch.save, "
        "torch.distributed.checkpoint, MindSpore or HuggingFace, in any two forms. Nothing in them is run, and no "
        "framework is needed. Exits with 0 when they hold the same, in any layout that is one for all layers; 1 when "
        "something differs; 5 when only what cannot be read may.",
    )
    parser.add_argument("target", metavar="A", type=Path, help="a checkpoint: a file or a folder")
    parser.add_argument("golden", metavar="B", type=Path, help="the checkpoint that differences are relative to")
    parser.add_argument("--all", action="store_true", help="list everything, not the first 20 of each kind")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the whole report as JSON")
    parser.set_defaults(run=compare_checkpoints)


def compare_checkpoints(arguments: argparse.Namespace) -> int:
    """Print what differs; the exit code.

    Raises:
        CommandError: nothing of a checkpoint can be read, or the report cannot be written.
    """
    from msprobe_checkpoints.comparison import compare
    from msprobe_checkpoints.folders import read_checkpoint
    from msprobe_checkpoints.report import as_json, lines

    progress = _Progress()
    with stated_errors():
        sides = [(path, read_checkpoint(path)) for path in (arguments.target, arguments.golden)]
        result = compare(sides[0][1], sides[1][1], progress)
        progress.end()
        sys.stdout.write("".join(f"{line}\n" for line in lines(result, sides, everything=arguments.all)))
        if arguments.json is not None:
            try:
                arguments.json.write_text(as_json(result, sides) + "\n", encoding="utf-8")
            except OSError as error:
                raise CommandError(f"{arguments.json} cannot be written: {error.strerror}") from None
            sys.stdout.write(f"report: {arguments.json}\n")
    return result.exit_code


class _Progress:
    """How much has been compared, on the error stream."""

    def __init__(self) -> None:
        self._begun = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._has_shown = False

    def __call__(self, done: int, total: int) -> None:
        """Show it, where the last time was long ago."""
        now = time.monotonic()
        if now - self._shown < (_ON_TERMINAL_SECONDS if self._is_terminal else _ELSEWHERE_SECONDS):
            return
        self._shown, self._has_shown = now, True
        rate = done / (now - self._begun) / 1e9
        text = f"compared {done / 1e9:.1f} of about {total / 1e9:.1f} GB, {rate:.2f} GB/s"
        sys.stderr.write(f"\r{text}\x1b[K" if self._is_terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Take the line away."""
        if self._is_terminal and self._has_shown:
            sys.stderr.write("\r\x1b[K")
