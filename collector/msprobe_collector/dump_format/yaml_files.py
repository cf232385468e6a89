"""Text and YAML files that may come from elsewhere: read whole, and never more of them than fits."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe_collector.dump_format.tensors import open_plain
from msprobe_collector.dump_format.values import printable

if TYPE_CHECKING:
    import yaml

_CHUNK_BYTES = 1 << 24


def read_plain(path: Path, *, most_bytes: int | None = None) -> bytes:
    """Return the content of the text file at `path`, undecoded, up to its first NUL byte.

    No text holds NUL. A file that a crash cut off can end with many, and a sparse one of 200 GB begins with them.

    Raises:
        OSError: as `open_plain` does; also for a text of more than `most_bytes`, or larger than this machine's memory.
    """
    limit = most_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with open_plain(path) as file:
        text_bytes = 0
        while chunk := file.read(_CHUNK_BYTES):
            end = chunk.find(b"\0")
            text_bytes += len(chunk) if end < 0 else end
            if text_bytes > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", str(path))
            if end >= 0:
                break
        file.seek(0)
        return file.read(text_bytes)


_MOST_BYTES = 1 << 21
#: Counted with every alias written out; a mapping file of 10,000 layers has 20,000.
_MOST_VALUES = 1_000_000
#: As they stand in the file: the parser takes 40 us for one.
_MOST_WRITTEN = 100_000


class YamlFileError(ValueError):
    """Why a YAML file cannot be used, as the end of a line that begins with its name."""


def read_yaml(path: Path) -> Any:
    """The value in the YAML file at `path`: strings, numbers, lists and objects; nothing else is made.

    Raises:
        YamlFileError: it cannot be read, is larger than 2 MiB or holds more than 100,000 values, is not valid YAML, or
            its aliases expand to more than a million values or for themselves.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Stops at too many values, one after another or inside each other, before they are all read."""

        count = depth = 0

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            """Return the next value.

            Raises:
                YamlFileError: it is one too many.
            """
            self.count += 1
            self.depth += 1
            if self.count > _MOST_WRITTEN:
                raise YamlFileError(f"has more than {_MOST_WRITTEN} values")
            # Values inside values; Python's own limit for recursion is another in each process.
            if self.depth > 100:
                raise YamlFileError("is nested too deeply")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        loader = Loader(read_plain(path, most_bytes=_MOST_BYTES).decode("utf-8-sig"))
        node = loader.get_single_node()
        if node is None:
            return None
        _written_out(node, {})
        return loader.construct_document(node)
    except OSError as error:
        raise YamlFileError(f"cannot be read: {error.strerror}") from None
    except YamlFileError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: dates such as 2024-99-99
        raise YamlFileError(f"is not valid YAML: {printable(' '.join(str(error).split()))}") from None


def _written_out(node: yaml.Node, counted: dict[int, int]) -> int:
    """Return how many values `node` has when every alias is written out."""
    if id(node) in counted:
        if not counted[id(node)]:
            raise YamlFileError("has an alias inside the value that it refers to")
        return counted[id(node)]
    counted[id(node)] = 0
    children = [item for pair in node.value for item in (pair if isinstance(pair, tuple) else (pair,))]
    count = 1 + sum(_written_out(child, counted) for child in children if not isinstance(child, str))
    if count > _MOST_VALUES:
        raise YamlFileError(f"has aliases that stand for more than {_MOST_VALUES} values")
    counted[id(node)] = count
    return count
