"""Which Cell an API call ran in: construct.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from msprobe_collector.dump_format.errors import DumpError
from msprobe_collector.dump_format.files import read_plain
from msprobe_collector.dump_format.truncated_files import decoded_whole


def read_construct(path: Path) -> dict[str, str | None]:
    """Parent of every record in a construct.json: the Cell that it ran in, or None at the top.

    A Megatron entry `[parent, micro_step]` gives its parent. Empty for level L1, which records no parents.

    Raises:
        DumpError: the file cannot be read or has another form.
    """
    try:
        decoded = decoded_whole(read_plain(path))
    except OSError as error:
        raise DumpError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DumpError(f"is not valid JSON: {error}", file=str(path)) from None
    if not isinstance(decoded, dict):
        raise DumpError(f"expected an object of parents, found {type(decoded).__name__}", file=str(path))
    return {child: _parent(parent, child, path) for child, parent in decoded.items() if child != _MICRO_STEPS}


_MICRO_STEPS = "megatron_micro_step_number"


def _parent(encoded: object, child: str, path: Path) -> str | None:
    if isinstance(encoded, list) and encoded:
        encoded = encoded[0]
    if encoded is None or isinstance(encoded, str):
        return encoded
    raise DumpError(f"expected the name of the parent or null, found {encoded!r}", file=str(path), record=child)
