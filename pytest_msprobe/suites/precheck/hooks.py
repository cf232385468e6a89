"""The hooks of conftest.py files, asked only where somebody implements them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from msprobe_collector.dump_format import ApiName, Direction
from msprobe_collector.dump_format.values import counted
from pytest_msprobe.engines.protocol import Array, Ending, NotJudged, Output, dtype_names
from pytest_msprobe.engines.reference import Reference, ReferenceEngine
from pytest_msprobe.support import place_of, text_of

if TYPE_CHECKING:
    from pytest_msprobe.numerics.judgement import Standard

_ALTERED = ", altered by pytest_msprobe_outputs"


class Hooks:
    """Asks the hooks of `pytest_msprobe.hookspecs` and holds their answers to the contract.

    Every method raises NotJudged when a hook raises or answers what it may not.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @classmethod
    def if_implemented(cls, config: pytest.Config) -> Hooks | None:
        """The hooks, or None where no plugin and no conftest.py implements any."""
        names = ("reference", "standard", "outputs")
        is_implemented = any(getattr(config.hook, f"pytest_msprobe_{name}").get_hookimpls() for name in names)
        return cls(config) if is_implemented else None

    def reference(self, api: ApiName) -> ReferenceEngine | None:
        """The user's own benchmark of `api`.

        Raises:
            NotJudged: the hook raised or skipped, or answered something else than a Reference, a function or None.
        """
        reference = self._ask("pytest_msprobe_reference", api=api)
        if reference is None:
            return None
        if isinstance(reference, Reference):
            return ReferenceEngine(reference)
        if not callable(reference) or isinstance(reference, type):
            raise _wrong("pytest_msprobe_reference", str(api), reference, "a Reference, a function or None")
        return ReferenceEngine(Reference(reference))

    def standard(self, api: ApiName, direction: Direction, tested: Sequence[Any], default: Standard) -> Standard:
        """The standard for the `tested` values.

        Raises:
            NotJudged: the hook raised or skipped, or answered something else than a Standard or None.
        """
        if not self._config.hook.pytest_msprobe_standard.get_hookimpls():
            return default
        dtypes = dtype_names(*filter(_is_array, tested))
        returned = self._ask("pytest_msprobe_standard", api=api, direction=direction, dtypes=dtypes, default=default)
        if returned is None:
            return default
        if isinstance(returned, type) or not all(hasattr(returned, name) for name in ("name", "off_bound", "judge")):
            wanted = "a Standard, such as CosineMaxAbs(0.99, 1e-3), or None"
            raise _wrong("pytest_msprobe_standard", f"{api} {direction}", returned, wanted)
        standard: Standard = returned
        return standard

    def outputs(self, api: ApiName, tested: tuple[Output, ...]) -> tuple[tuple[Output, ...], str]:
        """(tested outputs, what the label of the device must add because they were altered)."""
        values = self._replacement(api, "forward", [output.value for output in tested])
        if values is None:
            return tested, ""
        return tuple(replace(output, value=value) for output, value in zip(tested, values)), _ALTERED

    def gradients(self, api: ApiName, tested: tuple[Array | None, ...]) -> tuple[tuple[Array | None, ...], str]:
        """The same for gradients."""
        values = self._replacement(api, "backward", list(tested))
        return (tested, "") if values is None else (tuple(values), _ALTERED)

    def _replacement(self, api: ApiName, direction: Direction, values: list[Any]) -> list[Any] | None:
        name = "pytest_msprobe_outputs"
        if not getattr(self._config.hook, name).get_hookimpls():
            return None
        shown = [_read_only(value) for value in values]
        returned = self._ask(name, api=api, direction=direction, outputs=shown)
        if returned is None:
            return None
        where = f"{api} {direction}"
        if not isinstance(returned, (list, tuple)) or len(returned) != len(values):
            raise _wrong(name, where, returned, f"a list of {len(values)}, or None")
        for index, (old, new) in enumerate(zip(values, returned)):
            is_allowed = _is_array(new)
            if not (_is_array(old) and direction == "backward"):
                is_allowed = is_allowed or isinstance(new, (bool, int, float, str))
            if (new is None) != (old is None) or not (new is None or is_allowed):
                wanted = "None, as given" if old is None else "an array"
                raise _wrong(name, f"entry {index} of {where}", new, wanted)
        import numpy as np

        # A NumPy scalar becomes an array of no dimension.
        return [np.asarray(value) if _is_array(value) else value for value in returned]

    def _ask(self, name: str, **arguments: Any) -> Any:
        caller = getattr(self._config.hook, name)
        if not caller.get_hookimpls():
            return None
        status: Ending
        try:
            return caller(config=self._config, **arguments)
        except pytest.skip.Exception as skip:
            status, text = "skip", f"{name}: {skip.msg}"
            skip.__traceback__ = None
        except Exception as error:
            status, text = "error", f"{name} failed: {text_of(error)} ({place_of(error)})"
            # pluggy keeps the exception in a frame of this traceback: a cycle that would keep the arrays alive.
            error.__traceback__ = None
        raise NotJudged(status, text)


def reference_fault(bench: ReferenceEngine, tested: Sequence[Output], reference: Sequence[Output]) -> str:
    """One line on outputs of the user's reference that cannot be those of the tested side, or ""."""
    from pytest_msprobe.cases.call_run import present_outputs

    present, benchmark = present_outputs(tested), present_outputs(reference)
    if len(present) != len(benchmark):
        returned, wanted = counted(len(benchmark), "outputs"), counted(len(present), "outputs")
        return f"{bench.label} returned {returned}, the tested side has {wanted}"
    for actual, expected in zip(present, benchmark):
        returned, wanted = _form(expected), _form(actual)
        if returned != wanted:
            place = ".".join(map(str, actual.path))
            return f"{bench.label} returned {returned} for output {place}, the tested side has {wanted}"
    return ""


def _form(output: Output) -> str:
    shape = getattr(output.value, "shape", None)
    return "a plain Python value" if shape is None else f"shape {shape}"


def _wrong(name: str, where: str, returned: object, wanted: str) -> NotJudged:
    shown = f"{returned!r:.80}"
    if isinstance(returned, (list, tuple)):
        shown = f"a {type(returned).__name__} of {len(returned)}"
    return NotJudged("error", f"{name} returned {shown} for {where}; expected {wanted}")


def _is_array(value: object) -> bool:
    return hasattr(value, "__array_interface__")


def _read_only(value: Any) -> Any:
    if not _is_array(value):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
