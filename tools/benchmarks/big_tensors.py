"""Writes the tensors of the dump that `make_big --tensors` makes, as MindSpore's CPU kernels compute them.

Values are as those of a training are: rows (tokens) have a part in common, so that the terms of a sum over them are
not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np

from msprobe_collector.dump_format import TENSOR_FOLDER, parse_api_name
from tools.benchmarks.bare import mindspore_function

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
#: Calls whose second operand is of the size of a weight, so that their outputs are of the size of their first one.
_PRODUCTS = ("linear", "matmul", "bmm", "conv2d")
_WEIGHT = np.float32(1 / 32)


def write_tensors(records: Json, folder: Path) -> int:
    """Run every call of `records`, write its arrays below `folder`, and put their names and statistics into `records`.

    Returns:
        Bytes of all arrays.
    """
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_device("CPU")
    (folder / TENSOR_FOLDER).mkdir()
    generator, written = np.random.default_rng(1), 0
    for forward in [name for name in records if name.endswith(".forward")]:
        backward = forward.replace(".forward", ".backward")
        record, gradient = records[forward], records.get(backward, {})
        inputs = [_drawn(entry, generator) for entry in _tensors(record["input_args"])]
        if any(product in forward for product in _PRODUCTS):
            inputs[1:] = [array * _WEIGHT for array in inputs[1:]]
        incoming = [0.01 * _drawn(entry, generator) for entry in gradient.get("input", ())]
        output, gradients = _run(forward, record["input_args"], inputs, incoming)
        for entries, arrays, place in (
            (record["input_args"], inputs, f"{forward}.input"),
            (record["output"], [output], f"{forward}.output"),
            (gradient.get("input", ()), incoming, f"{backward}.input"),
            (gradient.get("output", ()), gradients, f"{backward}.output"),
        ):
            for at, (entry, array) in enumerate(zip(_tensors(entries), arrays, strict=True)):
                entry.update(_statistics(array), shape=list(array.shape), data_name=f"{place}.{at}.npy")
                np.save(folder / TENSOR_FOLDER / entry["data_name"], array)
                written += array.nbytes
    return written


def _run(
    name: str, arguments: Sequence[Any], inputs: Sequence[Array], incoming: Sequence[Array]
) -> tuple[Array, list[Array]]:
    """(output, gradients of all inputs where there is an incoming one)."""
    api = parse_api_name(name.removesuffix(".forward"))
    function = mindspore_function(mindspore, api)

    def forward(*tensors: Any) -> Any:
        left = iter(tensors)
        return function(*[_argument(value, left) for value in arguments])

    tensors = [mindspore.Tensor(array) for array in inputs]
    output = forward(*tensors).asnumpy()
    if not incoming:
        return output, []
    operation = mindspore.ops.GradOperation(get_all=True, sens_param=True)
    return output, [found.asnumpy() for found in operation(forward)(*tensors, mindspore.Tensor(incoming[0]))]


def _argument(value: Any, tensors: Any) -> Any:
    return next(tensors) if "shape" in value else value["value"]


def _tensors(entries: Sequence[Any]) -> list[Json]:
    return [entry for entry in entries if isinstance(entry, dict) and "shape" in entry]


def _drawn(entry: Json, generator: np.random.Generator) -> Array:
    """Values for an entry: uniform where its statistics say positive, else rows with a part in common."""
    shape = tuple(entry["shape"])
    if entry["Min"] > 0:
        return generator.uniform(entry["Min"], entry["Max"], shape).astype(np.float32)
    array: Array = generator.standard_normal(shape, np.float32)
    array += generator.standard_normal(shape[-1:], np.float32)
    array *= np.float32(0.5)
    return array


def _statistics(array: Array) -> Json:
    wide = array.astype(np.float64).ravel()
    figures = {"Max": wide.max(), "Min": wide.min(), "Mean": wide.mean(), "Norm": np.sqrt(wide @ wide)}
    return {key: float(figure) for key, figure in figures.items()}
