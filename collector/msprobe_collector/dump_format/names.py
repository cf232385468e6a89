"""Record names: the meaning of `Mint.linalg.inv.0.forward` or `Cell.net.Dense.forward.3`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")

#: API types that the existing collectors write, each with what it records.
API_TYPES = {
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "MintDistributed": "mindspore.mint.distributed",
    "Tensor": "Tensor methods",
    "Functional": "mindspore.ops, or torch.nn.functional in a PyTorch dump",
    "Primitive": "Primitive instances on a Cell",
    "Distributed": "communication functions",
    "Jit": "jit functions",
    "Torch": "torch functions",
    "Aten": "torch.ops.aten",
    "VF": "torch._VF",
    "NPU": "torch_npu functions",
}
_CELL_TYPES = frozenset({"Cell", "Module"})
_COMMUNICATION_TYPES = frozenset({"MintDistributed", "Distributed"})
_MAX_NUMBER_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ApiName:
    """Name of an API call: `Mint.linalg.inv.0` is type `Mint`, api `linalg.inv`, number 0."""

    type: str
    api: str
    number: int

    def __str__(self) -> str:
        return f"{self.type}.{self.api}.{self.number}"

    @property
    def primitive_class(self) -> str:
        """Class of a Primitive: `Conv2D` in `Primitive.conv.Conv2D.0`, whose `conv` is the attribute that held it."""
        return self.short

    @property
    def table_name(self) -> str:
        """The name under which tables of APIs know it: the class for a Primitive, else the api."""
        return self.primitive_class if self.type == "Primitive" else self.api

    @property
    def short(self) -> str:
        """The callable's own name, without the module path or the holding attribute: `inv`, `Conv2D`, `matmul`."""
        return self.api.rpartition(".")[2]


def split_record_name(text: str) -> tuple[str, Direction] | None:
    """(API call's name, direction) of an API record's full name, or None when `text` is not such a name.

    Only cuts the text, since a collection of 100,000 names has no time for more; see `parse_api_name`.
    """
    call, _, last = text.rpartition(".")
    if last == "forward" or last == "backward":
        front, _, number = call.rpartition(".")
        if number.isdecimal() and number.isascii() and len(number) <= _MAX_NUMBER_DIGITS and "." in front.strip("."):
            return call, "forward" if last == "forward" else "backward"
    return None


def is_cell_record(text: str) -> bool:
    """Whether `text` names a Cell (or Module) record, which other suites read: a call, backward or its gradients."""
    return text.partition(".")[0] in _CELL_TYPES


def is_communication(text: str) -> bool:
    """Whether `text`, a name or its type alone, names something that moves values between processes."""
    return text.partition(".")[0] in _COMMUNICATION_TYPES


def parse_api_name(call: str) -> ApiName:
    """The parts of an API call's name that `split_record_name` has accepted."""
    api_type, _, rest = call.partition(".")
    api, _, number = rest.rpartition(".")
    return ApiName(api_type, api, int(number))


def name_fault(text: str) -> str:
    """One line on why `text` is not a record name."""
    parts = text.split(".")
    if parts[-1] not in DIRECTIONS:
        return f"the record name {text!r} does not end in .forward or .backward"
    if len(parts) < 3 or not parts[-2].isdecimal():
        return f"the record name {text!r} has no call number before .{parts[-1]}"
    return f"the record name {text!r} is not <type>.<api>.<number>.{parts[-1]}"
