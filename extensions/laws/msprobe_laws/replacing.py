"""What stands in the place of a function of a framework: the function itself, and a look before or after its call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msprobe_collector.recording.guard import Guard


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str, otherwise: Any = None) -> Any:
    """Return an argument of a call, which stands at a place or has a name."""
    return args[place] if len(args) > place else kwargs.get(name, otherwise)


class Replacing:
    """Makes replacements, which do nothing more than the original while `is_away` says that it is not the training."""

    def __init__(self, guard: Guard, is_away: Callable[[], bool]) -> None:
        """Send faults of the looks to `guard`."""
        self._guard, self._is_away = guard, is_away

    def before(self, where: str, look: Callable[..., None]) -> Callable[[Any], Any]:
        """Return what calls `look(args, kwargs)`, and then the original."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def replaced(*args: Any, **kwargs: Any) -> Any:
                if not self._is_away():
                    self._guard.enter(f"laws: {where}", look, args, kwargs)
                return original(*args, **kwargs)

            return replaced

        return make

    def after(self, where: str, look: Callable[..., None]) -> Callable[[Any], Any]:
        """Return what calls the original, and then `look(result, args, kwargs)`."""

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def replaced(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if not self._is_away():
                    self._guard.enter(f"laws: {where}", look, result, args, kwargs)
                return result

            return replaced

        return make
