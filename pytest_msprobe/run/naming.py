"""Whether a run has something to judge: all that a project without dumps pays for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_msprobe.run import keys

_NAMING = ("dump", "config", "golden", "suite", "gradients")


def names_a_dump(config: pytest.Config) -> bool:
    """Whether options, ini, YAML or a plain argument name something to judge."""
    return (
        bool(getattr(config, "workerinput", {}).get("msprobe_dumps"))
        or any(config.getoption(f"msprobe_{name}") or config.getini(f"msprobe_{name}") for name in _NAMING)
        or any(path.name == "dump.json" for path in named_paths(config))
    )


def named_paths(config: pytest.Config) -> list[Path]:
    """Paths that the command line named, or that a run put there; not those of testpaths."""
    if config.args_source != pytest.Config.ArgsSource.ARGS and keys.RUN not in config.stash:
        return []
    folder = config.invocation_params.dir
    return [Path(os.path.abspath(folder / argument.partition("::")[0])) for argument in config.args]
