"""The pairs of MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from quality.accounting.foreign.pairs import Pair
from quality.accounting.foreign.torch_pairs import EITHER, REWIRED

_MINT = "mindspore.mint"
_FUNCTIONS = "mindspore.mint.nn.functional"


def _pair(kind: str, network: str, what: str, target: dict[str, Any], **more: Any) -> Pair:
    from quality.accounting.foreign.cells import CellWay

    name = f"mindspore {network}: {what}"
    is_reordered = bool(len(name) % 2)
    ways = CellWay(**{"is_reordered": is_reordered, **target}), CellWay(**more.pop("golden", {}))
    return Pair(name, kind, "mindspore", f"mindspore {network}", *ways, **more)


def _kernel(network: str, function: str, call: int, how: str = "factor") -> Pair:
    what = f"{function.rpartition('.')[2]} {call} {how}"
    return _pair("kernel", network, what, {"kernel": (function, call, how)}, place="kernel")


def _planted(kind: str, network: str, place: str, forms: tuple[str, ...] = ("{}",), **more: Any) -> Pair:
    return _pair(kind, network, place, {"planted": place, **more}, place=place, forms=forms)


def _edited(kind: str, network: str, what: str, edit: Callable[[Any, Any], None], *expected: str) -> Pair:
    return _pair(kind, network, what, {"edit": edit}, expected=expected)


def _weight(name: str) -> Callable[[Any, Any], None]:
    def edit(net: Any, batch: Any) -> None:
        import mindspore

        (parameter,) = (one for one in net.get_parameters() if one.name == name)
        value = parameter.asnumpy().copy()
        value.reshape(-1)[5] += 0.4
        parameter.set_data(mindspore.Tensor(value))

    return edit


def _batch(name: str, change: Callable[[Any], None]) -> Callable[[Any, Any], None]:
    def edit(net: Any, batch: Any) -> None:
        import mindspore

        value = batch[name].asnumpy().copy()
        change(value.reshape(-1))
        batch[name] = mindspore.Tensor(value)

    return edit


def _one_more(flat: Any) -> None:
    flat[3] = (flat[3] + 1) % 5


def _layer(number: int, kind: str, **values: Any) -> Callable[[Any, Any], None]:
    """Attributes of a Cell, by the name of its class."""

    def edit(net: Any, batch: Any) -> None:
        cells = [cell for _, cell in net.cells_and_names() if type(cell).__name__ == kind]
        for name, value in values.items():
            assert getattr(cells[number], name) != value, (kind, number, name)
            setattr(cells[number], name, value)

    return edit


def _norm(number: int, **values: Any) -> Callable[[Any, Any], None]:
    def edit(net: Any, batch: Any) -> None:
        from mindspore import ops

        cells = [cell for _, cell in net.cells_and_names() if type(cell).__name__ == "BatchNorm2d"]
        cells[number].bn_train = ops.BatchNorm(is_training=True, **{"momentum": 0.1, "epsilon": 1e-5, **values})

    return edit


def _causes() -> Iterator[Pair]:
    yield _kernel("decoder", f"{_FUNCTIONS}.softmax", 1)
    yield _kernel("decoder", f"{_FUNCTIONS}.linear", 6, "tile")
    yield _kernel("decoder", f"{_MINT}.rsqrt", 3, "low")
    yield _kernel("decoder", f"{_MINT}.matmul", 2, "tail")
    yield _kernel("decoder", "mindspore.ops.gelu", 1, "gradient")
    yield _kernel("decoder", f"{_FUNCTIONS}.softmax", 2, "gradient")
    yield _kernel("gated", f"{_MINT}.tanh", 4, "tile")
    yield _kernel("gated", f"{_MINT}.sigmoid", 3, "low")
    yield _kernel("gated", f"{_MINT}.tanh", 2, "gradient")
    yield _kernel("pictures", "mindspore.ops.leaky_relu", 0, "tail")
    yield _kernel("pictures", "mindspore.ops.hardswish", 0)
    yield _kernel("pictures", "Primitive Conv2D", 1, "tile")
    yield _kernel("pictures", "Primitive MaxPool", 0)
    yield _kernel("mindcv mobilenet_v1", "Primitive Conv2D", 5, "tile")
    yield _kernel("mindcv mobilenet_v1", "Primitive BatchNorm", 4)
    yield _kernel("mindcv repvgg", "Primitive Conv2D", 3)
    for place in ("scale 1", "other activation 2", "label smoothing"):
        yield _planted("formula", "decoder", place)
    yield _planted("formula", "decoder", "skip left out", EITHER)
    yield _planted("formula", "pictures", "max for mean")
    yield _edited("formula", "decoder", "eps of a norm", _layer(2, "Norm", eps=1e-2), "Mint.add.4")
    yield _edited(
        "formula",
        "mindcv mobilenet_v1",
        "eps of a batch norm",
        _norm(3, epsilon=1e-2),
        "Primitive.bn_train.BatchNorm.3",
    )
    yield _planted("rewired", "decoder", "q and k exchanged 1", REWIRED)
    yield _planted("rewired", "decoder", "values of another part 1", REWIRED)
    yield _planted("rewired", "pictures", "order of a cat", REWIRED)
    yield _planted("rewired", "gated", "gates exchanged 3", REWIRED)
    yield _planted("rewired", "gated", "steps in reverse", REWIRED)
    yield _planted("dtype", "decoder", "step through float16 1")
    name = "blocks.1.up.weight"
    yield _edited("data", "decoder", "one weight", _weight(name), f"parameter {name}")
    yield _edited("data", "pictures", "one weight", _weight("narrow.weight"), "parameter narrow.weight")
    yield _edited("data", "gated", "one word", _batch("ids", _one_more), "batch")
    yield _edited("data", "decoder", "one label", _batch("labels", _one_more), "batch")
    yield _edited("data", "mindcv mixer", "one pixel", _batch("pixels", _one_more), "batch", "constant")
    layers: dict[str, Any] = {"golden": {"level": "L0"}, "answer": "unaccounted", "expected": ("*blocks.1*",)}
    target = {"level": "L0", "is_reordered": True}
    yield _pair("uncomputable", "decoder", "scale 1, layers only", {**target, "planted": "scale 1"}, **layers)


def _clean() -> Iterator[Pair]:
    def pair(network: str, what: str, target: dict[str, Any], golden: dict[str, Any] | None = None) -> Pair:
        return _pair("clean", network, what, target, golden=golden or {}, answer="nothing")

    for network in ("decoder", "gated", "pictures"):
        yield pair(network, "another order", {"is_reordered": True})
    for network in ("decoder", "pictures", "mindcv mobilenet_v1"):
        yield pair(network, "float16 against float32", {"dtype": "float16", "is_reordered": False})
    yield pair("decoder", "float16, another order", {"dtype": "float16", "is_reordered": True}, {"dtype": "float16"})
    yield pair("mindcv mixer", "float16 against float32", {"dtype": "float16", "is_reordered": False})


def pairs() -> tuple[Pair, ...]:
    """All of them; imports MindSpore."""
    return (*_causes(), *_clean())
