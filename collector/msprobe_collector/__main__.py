"""`python -m msprobe_collector`: runs a training script as it is, and collects steps of it.

- `collect train.py`: of a script that does not know of the collector.
- `as-msprobe train.py`: of a script that calls the existing tool.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from msprobe_collector.configuration import ConfigurationError
from msprobe_collector.msprobe_names import MsprobeIsInstalled, install
from msprobe_collector.recording import process

_DESCRIPTION = (
    "Run a script of PyTorch or MindSpore, which needs no changes, and collect steps of it. A step begins with the "
    "first call of a Module that has parameters, with gradients on, and ends when every optimizer has stepped; of a "
    "script without an optimizer, each forward of the outermost Module is a step. On several ranks: torchrun ... -m "
    "msprobe_collector collect train.py."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 0, 1 where nothing was collected, 2 for wrong arguments. A script that ends by an exception or
        by `sys.exit` ends as it does alone.
    """
    parser = argparse.ArgumentParser(prog="python -m msprobe_collector", description="Collects training steps.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser("collect", help="run a script and collect steps of it", description=_DESCRIPTION)
    stand_in = commands.add_parser(
        "as-msprobe",
        help="run a script that imports msprobe, with the collector under that name",
        description="Run a script written for msProbe as it is: its imports of msprobe get the collector.",
    )
    stand_in.add_argument("--in-its-place", action="store_true", help="also where msprobe is installed")
    for takes_script in (command, stand_in):
        takes_script.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
        takes_script.add_argument("script", metavar="SCRIPT", help="a file, or a module behind -m")
        takes_script.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")
    command.add_argument("--config", metavar="FILE", help="config.json; the options below win over it")
    command.add_argument("--dump-path", metavar="DIR", help="default: msprobe_dump")
    command.add_argument("--task", help="default: tensor; statistics is far smaller; grad_probe: all gradients")
    command.add_argument("--level", help="default: mix")
    command.add_argument("--step", action="append", metavar="N", help="step, or a range such as 3-5; default: 0")
    command.add_argument(
        "--dtype",
        choices=("float64",),
        help="compute the steps in float64, on the CPU unless CUDA_VISIBLE_DEVICES is set: the exact run, which "
        "diagnose --exact=DIR takes",
    )
    command.add_argument("--exit", action="store_true", help="end a training behind the last of these steps")
    command.add_argument("--yes", action="store_true", help="collect a step of more than 20 GB without a question")
    stand_in.set_defaults(command=stand_in)
    command.set_defaults(command=command)
    options = parser.parse_args(arguments)
    if not options.is_module and not Path(options.script).is_file():
        options.command.error(f"{options.script} is no file; name a script, or a module behind -m")
    if options.command is command:
        try:
            return _collect(options)
        except ConfigurationError as error:
            command.error(str(error))
    try:
        install(in_its_place=options.in_its_place)
    except MsprobeIsInstalled as error:
        stand_in.error(str(error))
    process.run(options.script, options.arguments, is_module=options.is_module)
    return 0


def _collect(options: argparse.Namespace) -> int:
    if options.dtype is not None:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    settings = {"task": options.task, "dump_path": options.dump_path, "level": options.level, "step": options.step}
    if options.config is None:
        defaults: dict[str, object] = {"task": "tensor", "dump_path": "msprobe_dump"}
        if options.task != "grad_probe":  # which is for every step, and has no levels
            defaults |= {"level": "mix", "step": ["0"]}
        settings = {name: value or defaults.get(name) for name, value in settings.items()}
    home = f"msprobe_collector.{_framework_of(options)}.unedited_scripts"
    run_script: Callable[..., int] = import_module(home).run_script
    return run_script(
        options.script,
        options.arguments,
        is_module=options.is_module,
        ends_after_steps=options.exit,
        is_exact=options.dtype is not None,
        is_agreed=options.yes,
        config_path=options.config,
        **settings,
    )


def _framework_of(options: argparse.Namespace) -> str:
    """Return the framework that a script imports: MindSpore where it names that alone."""
    spec = find_spec(options.script) if options.is_module else None
    file = Path(options.script) if spec is None else Path(spec.origin or "")
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    names = {name for name in ("torch", "mindspore") if re.search(rf"^\s*(?:from|import) {name}\b", text, re.MULTILINE)}
    return "mindspore" if names == {"mindspore"} else "pytorch"


if __name__ == "__main__":
    sys.exit(main())
