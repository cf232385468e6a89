"""Memory of a device, filled before an operation gets it, so that what it leaves unwritten or overwrites shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_msprobe.engines.protocol import Array

#: Elements of the tensors that stay, before and behind the released ones.
_GUARD = 128
_BYTES = 4


def filled_memory(sizes: Sequence[int], full: Callable[[int], Any], read: Callable[[Any], Array]) -> Callable[[], bool]:
    """What `DeviceEngine.fill_memory` does, by functions of one framework.

    Args:
        sizes: bytes of the tensors that are released.
        full: (number of elements) -> a filled float32 tensor of the device.
        read: a tensor -> its values.
    """
    guards = [full(_GUARD)]
    released = [full(-(-size // _BYTES)) for size in sizes]
    guards.append(full(_GUARD))
    before = read(guards[0]).tobytes()
    released.clear()

    def are_intact() -> bool:
        found = all(read(guard).tobytes() == before for guard in guards)
        guards.clear()
        return found

    return are_intact
