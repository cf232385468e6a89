"""Mutations of JSON values, and a writer for what JSON writers refuse: repeated keys, bare NaN, endless nesting."""

from __future__ import annotations

import copy
import json
import re
from random import Random
from typing import Any

#: Stands for JSON text in a value; `written` puts the text itself there.
_RAW = re.compile(r'"@raw:(\d+)@"')
_TEXTS = (
    "NaN",
    "-Infinity",
    "1e999",
    "-0.0",
    "1" + "0" * 400,
    "1" + "0" * 5000,
    "-" + "9" * 400,
    "[" * 300 + "]" * 300,
    "[" * 100_000,
    "[" * 5000 + "]" * 5000,
    '{"a":' * 3000 + "1" + "}" * 3000,
    '"\\ud800"',
    '"\\u0000"',
    '{"type": "int", "value": 1, "type": "str"}',
    "tru",
    "",
)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, -(2**63), 2**63, 2**64, 10**20, 0.5, 1e+308, 5e-324, "", "x", "NaN",
    "Infinity", "0", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, "mindspore.Tensor", "Float32", "torch.float64",
    "BFloat16", "Int4", "dump", "../../../etc/passwd", "/etc/passwd", "\x1b[31mred\x1b[0m",
    "line\nFAILED forged - line", "=1+1", "\u202eevil", "x" * 200_000,
    {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2**40, 2**40], "Max": 1.0, "Min": 0.0,
        "Mean": 0.5, "Norm": 1.0},
    {"type": "mindspore.Tensor", "dtype": "Int64", "shape": [0, 3], "Max": None, "Min": None,
        "Mean": None, "Norm": None},
    {"type": "slice", "value": [None, 10**30, 0]}, {"type": "int", "value": 10**30},
    {"type": "float", "value": "NaN"}, {"type": "str", "value": "\x00"}, {"type": "ellipsis", "value": "..."},
    {"type": "mindspore.dtype", "value": "Float32"}, {"type": "numpy.ndarray", "dtype": "object", "shape": [2]},
    {"type": "int", "value": True}, {"type": "bool", "value": 1}, {"type": "complex", "value": [1, 2]},
    {"type": "torch.Size", "value": [1, "a"]}, {"class_type": "X", "tensor": {}},
)  # fmt: skip
_NAMES = (
    "", ".", "..", "a", "Mint.add.0.forward", "Mint.add.0.backward", "Mint..0.forward", "Mint.add.-1.forward",
    "Cell.net.fc.Dense.forward.0", "Mint.add.99999999999999999999.forward", "Functional.gather.0.forward",
    "Cell.net.backward.0", "Cell.net.parameters_grad", "x.0.debug", "Mint.os.system.0.forward",
    "Torch.os.system.0.forward", "Mint.__class__.0.forward", "Tensor.__class__.0.forward", "Mint.save.0.forward",
    "Functional.exec.0.forward", "=cmd|' /C calc'!A0.0.forward", "Mint.add.0.forward\nFAILED x",
    "\x1b]0;title\x07.0.forward", "\ud800.0.forward", "Mint." + "x" * 300 + ".0.forward", "a::b[c].0.forward",
    "a/../../b.0.forward", "Mint.add.0.forward.extra", "Primitive.x.forward.0.forward", "Mint.ones.0.forward",
    "Distributed.all_reduce.0.forward", "Tensor.sort.0.forward", "type", "value", "shape", "data_name", "data",
    "task",
)  # fmt: skip


_FIELDS = frozenset({"Max", "Min", "Mean", "Norm", "shape", "dtype", "value", "data_name", "md5", "requires_grad"})


def mutate(document: Any, random: Random) -> None:
    """Change one to six places of `document`, which is an object or a list."""
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        places = list(_places(document))
        if not places:
            return
        holder, key = random.choice(places)
        random.choice(_CHANGES)(holder, key, random, places)


def written(document: Any, random: Random) -> bytes:
    """`document` as JSON text."""
    indent = random.choice((None, 1, 2))
    text = json.dumps(document, indent=indent)
    text = _RAW.sub(lambda match: _TEXTS[int(match[1])], text)
    if random.random() < 0.1:  # a key twice
        keys = list(re.finditer(r'"[^"\\]{1,40}": ', text))
        if keys:
            first, second = random.choice(keys), random.choice(keys)
            text = text[: first.start()] + second.group() + text[first.end() :]
    return text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Any:
    if isinstance(value, dict):
        for key in list(value):
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for index in range(len(value)):
            yield value, index
            yield from _places(value[index])


def _replace(holder: Any, key: Any, random: Random, places: Any) -> None:
    # A copy: what a seed gives must not depend on how the seeds before it changed the value.
    holder[key] = copy.deepcopy(random.choice(_VALUES))


def _field(holder: Any, key: Any, random: Random, places: Any) -> None:
    """Another number, or what is not one, in a field that every suite reads; few of all places are such fields."""
    holder, key = random.choice([place for place in places if place[1] in _FIELDS] or [(holder, key)])
    numbers = (
        10**20,
        -(10**30),
        10**300,
        10**400,
        2**63,
        2**64 - 1,
        1e308,
        True,
        False,
        None,
        "NaN",
        "-Infinity",
        "x",
        [],
    )
    holder[key] = random.choice(
        numbers if key != "shape" else (*numbers, [10**20], [-1], [0], [2**40, 2**40], [1] * 70)
    )


def _raw(holder: Any, key: Any, random: Random, places: Any) -> None:
    holder[key] = f"@raw:{random.randrange(len(_TEXTS))}@"


def _delete(holder: Any, key: Any, random: Random, places: Any) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, random: Random, places: Any) -> None:
    if isinstance(holder, dict):
        name = random.choice(_NAMES)
        renamed = {name if old == key else old: value for old, value in holder.items()}
        holder.clear()
        holder.update(renamed)


def _wrap(holder: Any, key: Any, random: Random, places: Any) -> None:
    holder[key] = random.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 50))


def _swap(holder: Any, key: Any, random: Random, places: Any) -> None:
    other, place = random.choice(places)
    if json.dumps(other[place], default=str).__sizeof__() < 100_000:
        holder[key] = json.loads(json.dumps(other[place]))


def _nudge(holder: Any, key: Any, random: Random, places: Any) -> None:
    if isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = random.choice(
            (-holder[key], holder[key] + 1, holder[key] * 1000, holder[key] + 0.5, str(holder[key]))
        )


_CHANGES = (_field, _field, _replace, _replace, _replace, _raw, _delete, _rename, _wrap, _swap, _nudge, _nudge)
