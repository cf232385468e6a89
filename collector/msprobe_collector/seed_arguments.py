"""Arguments of `seed_all`, the same for every framework."""

from __future__ import annotations

_MAX_SEED = 2**32 - 1


def check_seed_arguments(seed: object, **flags: object) -> None:
    """Refuse what is no seed and no flag.

    Raises:
        TypeError: `seed` is not an int, or a flag is not a bool.
        ValueError: `seed` is out of range.
    """
    if type(seed) is not int:
        raise TypeError(f"seed_all: seed: {seed!r} is not a whole number")
    if not 0 <= seed <= _MAX_SEED:
        raise ValueError(f"seed_all: seed: {seed} is not from 0 to {_MAX_SEED}")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"seed_all: {name}: {flag!r} is neither True nor False")
