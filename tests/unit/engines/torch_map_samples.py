"""The calls of torch_map_samples.txt: one per line, `Type.name(arguments)`, arguments in the names defined here.

Behind `  # no` stands what no test can compare: values (the CPU of MindSpore refuses the call), gradients (one of the
frameworks has none, though an argument is of floats), names (MindSpore does not show its parameters).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from msprobe_collector.dump_format import ApiName, find_dtype
from msprobe_collector.mindspore.discovery import constructor_attributes
from pytest_msprobe.engines.protocol import Call

_RANDOM = np.random.Generator(np.random.PCG64(7))


@dataclass(frozen=True)
class Dtype:
    """A dtype by its name."""

    name: str


@dataclass(frozen=True)
class Parameter:
    """An array that MindSpore wants as a Parameter."""

    array: np.ndarray


@dataclass(frozen=True)
class Sample:
    """One call of one API. Arrays become tensors of either framework."""

    text: str
    api_type: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: dict[str, Any] | None = None
    refused: frozenset[str] = frozenset()

    @property
    def attributes(self) -> dict[str, Any] | None:
        """What the collector records of a Primitive that was made with `given`."""
        return None if self.given is None else _attributes(self.name, self.given)


def f(*shape: int) -> np.ndarray:
    """Normal."""
    return np.asarray(_RANDOM.standard_normal(shape), np.float32)


def u(*shape: int) -> np.ndarray:
    """Uniform in 0.1..0.9."""
    return _RANDOM.uniform(0.1, 0.9, shape).astype(np.float32)


def i(high: int, *shape: int) -> np.ndarray:
    """Integers below `high`."""
    return _RANDOM.integers(0, high, shape).astype(np.int32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def longs(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def scalar(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)


def distinct(*shape: int) -> np.ndarray:
    return _RANDOM.permutation(int(np.prod(shape))).reshape(shape).astype(np.float32)


def signs(*shape: int) -> np.ndarray:
    return np.sign(f(*shape))


def grid(*shape: int) -> np.ndarray:
    return np.clip(f(*shape), -0.9, 0.9)


def parameter(array: np.ndarray) -> Parameter:
    return Parameter(array)


X, Y, P, BOOL, D = f(3, 4), f(3, 4), u(3, 4), f(3, 4) > 0, distinct(3, 4)
INT, INT2, ROWS, LABELS = i(9, 3, 4) + 1, i(5, 3, 4) + 1, ints(2, 0), i(4, 3)
CUBE, SQUARE, TALL = f(2, 3, 4), f(4, 4) + 3 * np.eye(4, dtype=np.float32), f(4, 3)
SPD = (SQUARE @ SQUARE.T).astype(np.float32)
LOGP = np.log(u(3, 4) / 4).astype(np.float32)
LINE, IMAGE, VOLUME = f(2, 3, 8), f(2, 3, 6, 6), f(1, 2, 5, 5, 5)
ONE_HOT, CHOLESKY, SORTED = np.eye(4, dtype=np.float32)[:3], np.linalg.cholesky(SPD).astype(np.float32), np.sort(f(6))
HALF, FLOAT, DOUBLE = Dtype("float16"), Dtype("float32"), Dtype("float64")


def read_samples(name: str = "torch_map_samples.txt") -> list[Sample]:
    """All lines of a file. Random arrays depend on the line alone, so lines can be added anywhere."""
    global _RANDOM
    samples = []
    for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        line, _, refused = line.partition("  # no ")
        _RANDOM = np.random.Generator(np.random.PCG64(list(line.encode())))
        call = ast.parse(line, mode="eval").body
        assert isinstance(call, ast.Call)
        api_type, _, name = ast.unparse(call.func).partition(".")
        args = tuple(_value(node) for node in call.args)
        kwargs = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
        if api_type == "Primitive":  # what stands by name is given to the constructor
            given, kwargs = kwargs, {}
        else:
            given = None
        samples.append(Sample(line, api_type, name, args, kwargs, given, frozenset(filter(None, refused.split(", ")))))
    return samples


class Refused(Exception):
    """A framework does not compute what a test of samples compares."""


def in_groups(samples: Iterable[Sample]) -> pytest.MarkDecorator:
    """Give a test the samples of one type and first letter at a time: an item for each of 2,000 costs more than it."""
    ordered = sorted(samples, key=_group)
    groups = {name: list(members) for name, members in itertools.groupby(ordered, _group)}
    return pytest.mark.parametrize("samples", groups.values(), ids=groups)


def _group(sample: Sample) -> str:
    return f"{sample.api_type} {sample.name[0].lower()}"


def compare_each(
    samples: list[Sample], compared: str, compare: Callable[[Sample], None], deviations: Iterable[str] = ()
) -> None:
    """Compare each sample; one that is refused and does not say so, or says so and is not, fails as well."""
    failures = []
    for sample in samples:
        try:
            compare(sample)
        except Refused as refused:
            if compared not in sample.refused:
                failures.append(f"{sample.text}: not compared, which `# no {compared}` would allow: {refused}")
            continue
        except Exception as error:
            if sample.text not in deviations:
                failures.append(f"{sample.text}: {type(error).__name__}: {error}")
            continue
        if compared in sample.refused or sample.text in deviations:
            failures.append(f"{sample.text}: agrees, although it is listed as no {compared} or a deviation")
    assert not failures, "\n".join(failures)


def _attributes(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All attributes of the Primitive, as our collector records them."""
    import mindspore

    return constructor_attributes(mindspore_api(mindspore, "Primitive", name, **given))


def _value(node: ast.expr) -> Any:
    return eval(compile(ast.Expression(node), "sample", "eval"), globals())  # our own file


def as_call(sample: Sample, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None) -> Call:
    """The call as engines take it, with other arguments when they are given."""
    # The attribute that held a Primitive stands before its class in a record.
    name = f"_.{sample.name}" if sample.api_type == "Primitive" else sample.name
    given = (sample.args if args is None else args, sample.kwargs if kwargs is None else kwargs)
    attributes = _argument(sample.attributes)
    return Call(ApiName(sample.api_type, name, 0), "mindspore", *_argument(given), attributes=attributes)


def _argument(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_argument(item) for item in value)
    if isinstance(value, dict):
        return {key: _argument(item) for key, item in value.items()}
    if isinstance(value, Dtype):
        return find_dtype(value.name)
    if isinstance(value, Parameter):
        return value.array
    return np.array(value) if isinstance(value, np.generic) else value


def attribute(owner: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        owner = getattr(owner, name)
    return owner


def mindspore_api(mindspore: ModuleType, api_type: str, name: str, **attributes: Any) -> Any:
    if api_type == "Primitive":
        import mindspore.ops.auto_generate as generated
        import mindspore.ops.operations as operations

        return (getattr(operations, name, None) or getattr(generated, name))(**attributes)
    owner = {"Mint": "mint", "MintFunctional": "mint.nn.functional", "Functional": "ops", "Tensor": "Tensor"}[api_type]
    return attribute(mindspore, f"{owner}.{name}")
