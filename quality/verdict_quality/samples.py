"""Arguments for MindSpore APIs, taken from PyTorch's OpInfo database and from `large.py`."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np

from msprobe_collector.dump_format import find_dtype, parse_api_name
from pytest_msprobe.apis.fact_table import random_api
from pytest_msprobe.engines.torch_bindings import Binding, MissingInTorch, lookup

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
#: How many of an OpInfo's samples are looked at; some make hundreds of much the same shape.
_LOOKED_AT = 40
_FUNCTIONAL = "nn.functional."


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of one API.

    Attributes:
        name: of the API call, `Mint.matmul.3`.
        arguments, keywords: NumPy arrays (floats as float32), dtypes of dumps, and plain values.
        has_gradient: whether its gradients are to be dumped as well.
    """

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    has_gradient: bool

    def in_dtype(self, dtype: np.dtype[Any]) -> Sample:
        """The same call with every float32 array rounded to `dtype`, so that all dtypes see the same values."""
        arguments = tuple(_rounded(value, dtype) for value in self.arguments)
        keywords = {key: _rounded(value, dtype) for key, value in self.keywords.items()}
        return Sample(self.name, arguments, keywords, self.has_gradient)


def seed_of(*parts: object, material: int = 0) -> int:
    """A seed that depends on nothing but the text of `parts` and the number of the material."""
    return zlib.crc32("/".join(map(str, (*parts, material) if material else parts)).encode())


def opinfo_samples(is_wanted: Callable[[str], bool], *, per_api: int, material: int = 0) -> Iterator[Sample]:
    """Up to `per_api` samples of each OpInfo of every wanted API (`Mint.add`) that MindSpore has, from fixed seeds."""
    counted: dict[str, int] = {}
    for op in _database():
        for api in _mindspore_names(op):
            if not is_wanted(api):
                continue
            number = counted.get(api, 0)
            for arguments, keywords in _arguments_of(op, seed_of(api, material=material), per_api):
                yield Sample(f"{api}.{number}", arguments, keywords, op.supports_autograd)
                number += 1
            counted[api] = number


@cache
def _database() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return tuple(op_db)


@cache
def _known() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Names under mint (dotted for its submodules), mint.nn.functional and Tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mindspore

        mint = mindspore.mint
        plain = {name for name in dir(mint) if callable(getattr(mint, name)) and name[0] != "_"}
        for module in ("linalg", "special"):
            found = getattr(mint, module)
            plain |= {f"{module}.{name}" for name in dir(found) if callable(getattr(found, name)) and name[0] != "_"}
        return frozenset(plain), frozenset(dir(mint.nn.functional)), frozenset(dir(mindspore.Tensor))


def _mindspore_names(op: Any) -> list[str]:
    """`Mint.add`, `MintFunctional.gelu`: where MindSpore has the operation, a Tensor method only if nowhere else."""
    plain, functional, methods = _known()
    names = dict.fromkeys((op.name, *(alias.name for alias in op.aliases)))
    found = [f"Mint.{name}" for name in names if name in plain]
    found += [
        f"MintFunctional.{short}"
        for name in names
        if name.startswith(_FUNCTIONAL) and (short := name.removeprefix(_FUNCTIONAL)) in functional
    ]
    if not found and op.name in methods and "." not in op.name:
        found = [f"Tensor.{op.name}"]
    return [name for name in found if _has_counterpart(name) and not _is_random(name)]


def _is_random(api: str) -> bool:
    """Random and uninitialised APIs have no right result: laws judge them, not standards."""
    return random_api(parse_api_name(f"{api}.0"), "mindspore") is not None


def _has_counterpart(api: str) -> bool:
    import torch

    from pytest_msprobe.engines import adapters

    api_type, _, name = api.partition(".")
    binding = lookup(api_type, name)
    if not isinstance(binding, Binding):
        return False
    try:
        binding.resolve({"torch": torch, "adapters": adapters})
    except MissingInTorch:
        return False
    return True


def _arguments_of(op: Any, seed: int, count: int) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Spread evenly over the op's samples; those that no dump can hold are left out."""
    import torch

    supported = op.supported_dtypes("cpu")
    dtype = next((dtype for dtype in (torch.float32, torch.int64, torch.bool) if dtype in supported), None)
    if dtype is None:
        return []
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # OpInfo draws from the global generators
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = []
        for sample in islice(op.sample_inputs("cpu", dtype), _LOOKED_AT):
            try:
                found.append((tuple(map(_plain, (sample.input, *sample.args))), _plain(dict(sample.kwargs))))
            except TypeError:
                continue
    return [found[place] for place in _spread(len(found), count)]


def _spread(length: int, count: int) -> Iterable[int]:
    """Up to `count` of `length` places, evenly spread, the first always among them."""
    return sorted({round(i * (length - 1) / max(1, count - 1)) for i in range(count)}) if length else ()


def _plain(value: Any) -> Any:
    """A sample's argument as it stands in a dump; TypeError for what no dump holds."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.dtype.is_complex:
            raise TypeError(f"a tensor of {value.layout} and {value.dtype}")
        return value.detach().clone(memory_format=torch.contiguous_format).numpy()
    if isinstance(value, torch.dtype):
        dtype = find_dtype(str(value))
        if dtype is None or dtype.kind == "complex":
            raise TypeError(str(value))
        return dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if value is None or value is Ellipsis or isinstance(value, (bool, int, float, str, slice)):
        return value
    raise TypeError(f"a {type(value).__name__}")


def _rounded(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, np.ndarray):
        with np.errstate(over="ignore"):
            return value.astype(dtype) if value.dtype == np.float32 else value
    if isinstance(value, tuple):
        return tuple(_rounded(item, dtype) for item in value)
    return value
