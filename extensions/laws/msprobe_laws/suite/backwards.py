"""What the backward passes of a dump gave to each parameter, and where that became 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property

from msprobe_collector.dump_format import Dump, DumpError
from msprobe_collector.dump_format.leaves import Leaf, flatten
from msprobe_collector.dump_format.records import GRADIENTS, Operation
from msprobe_collector.dump_format.values import ARGUMENTS, KEYWORDS, LEAF

#: By the name of a parameter: place in the file of the record that holds it, and the gradient.
Given = dict[str, list[tuple[int, Leaf]]]


class Backwards:
    """The gradients that the records of a dump hold of parameters, before they are added up."""

    def __init__(self, dump: Dump) -> None:
        """Read nothing yet."""
        self._dump = dump

    def to(self, parameter: str) -> Sequence[tuple[int, Leaf]]:
        """Return (place in the file, gradient), in order: of each pass, as layers have it, else of each call."""
        # A model's own parameters stand in no layer inside it, and level L1 has no layers.
        return self._of_layers.get(parameter) or self._of_calls.get(parameter) or ()

    @cached_property
    def _of_layers(self) -> Given:
        """From records `Module.{path}.{Class}.parameters_grad.{k}`."""
        gradients: Given = {}
        for place, name in enumerate(self._dump.record_names):
            operation = Operation.of(name, place)
            if operation.phase == GRADIENTS:
                layer = operation.name.partition(".")[2].rpartition(".")[0]
                for leaf in self._leaves(name):
                    gradients.setdefault(f"{layer}.{leaf.path}", []).append((place, leaf))
        return gradients

    @cached_property
    def _of_calls(self) -> Given:
        """From what calls that got a parameter gave back for it."""
        of_parameters: Given = {}
        mark = f'"{LEAF}"'.encode()
        for place, name in enumerate(self._dump.record_names):
            operation = Operation.of(name, place)
            if operation.phase != "backward" or operation.holds_calls:
                continue
            forward = f"{operation.call}.forward"
            if forward not in self._dump or mark not in self._dump.raw(forward):
                continue
            gradients = {leaf.path.removeprefix("other_gradients."): leaf for leaf in self._leaves(name)}
            for path, argument in _gradient_paths(self._leaves(forward)):
                parameter, maker = argument.provenance.leaf, argument.provenance.made_by.partition(".forward")[0]
                # Of a view that a call has made, that call gives the gradient back.
                if parameter and path in gradients and f"{maker}.backward" not in self._dump:
                    of_parameters.setdefault(parameter, []).append((place, gradients[path]))
        return of_parameters

    def _leaves(self, record: str) -> list[Leaf]:
        with suppress(DumpError):
            return flatten(self._dump.record(record))
        return []


def _gradient_paths(leaves: Sequence[Leaf]) -> Iterator[tuple[str, Leaf]]:
    """Return (path of its gradient in the backward record, argument) of the tensors that a call got."""
    index = 0
    for leaf in leaves:
        if not leaf.is_tensor or leaf.place.root not in (ARGUMENTS, KEYWORDS):
            continue
        if leaf.place.root == ARGUMENTS and len(leaf.place.steps) == 1:
            yield f"output.{index}", leaf
            index += 1
        else:
            front = "input" if leaf.place.root == ARGUMENTS else "kwargs"
            yield ".".join((front, *map(str, leaf.place.steps))), leaf


def is_zero(leaf: Leaf) -> bool:
    """Return whether a tensor is 0 in every element, as far as its statistics tell, or has none."""
    tensor = leaf.tensor
    return tensor is not None and (0 in tensor.shape or tensor.maximum == 0 == tensor.minimum)


class Vanishing:
    """The calls of a dump that get a gradient and give 0 back."""

    def __init__(self, dump: Dump) -> None:
        """Read nothing yet."""
        self._dump = dump

    def unexplained(self, parameter: str) -> Sequence[str] | None:
        """Return calls in which the gradient becomes 0, but for those that got a 0; None where not all are known.

        A factor of 0 makes what the call gives 0: a weight that is not trained yet, a mask, a part of the loss that
        does not count yet. What the parameter is multiplied with may be 0 as well, or have no element.
        """
        users = self._users.get(parameter, [])
        todo, calls = [*users], []
        if not todo:
            return None
        for call in todo:  # grows
            gradients = [leaf for leaf in self._leaves(f"{call}.backward") if leaf.is_tensor]
            got = [leaf for leaf in gradients if not leaf.is_output]
            made = [leaf for leaf in gradients if leaf.is_output]
            if got and all(0 in leaf.shape for leaf in got):
                continue
            if not got or any(leaf.tensor is None or leaf.tensor.maximum is None for leaf in got):
                return None
            if not all(map(is_zero, got)):
                if not any(map(is_zero, made)):
                    return None
                calls += [] if self._is_explained(call, takes_parameter=call in users) else [call]
            elif next_users := self._users.get(call):
                todo += [user for user in dict.fromkeys(next_users) if user not in todo]
            else:
                return None
        return calls

    def _is_explained(self, call: str, *, takes_parameter: bool) -> bool:
        leaves = self._leaves(f"{call}.forward")
        values = [leaf for leaf in leaves if not leaf.is_output]
        made = [leaf for leaf in leaves if leaf.is_output]
        if takes_parameter and any(is_zero(leaf) and not leaf.provenance.leaf for leaf in values):
            return True
        has_zero = any(is_zero(leaf) or getattr(leaf.value, "value", None) == 0 for leaf in values)
        return has_zero and all(map(is_zero, made))

    @cached_property
    def _users(self) -> dict[str, list[str]]:
        """Calls with a backward that got a value of floats, by the parameter or the call that it is of."""
        users: dict[str, list[str]] = {}
        for place, name in enumerate(self._dump.record_names):
            operation = Operation.of(name, place)
            if operation.phase != "forward" or operation.holds_calls or f"{operation.call}.backward" not in self._dump:
                continue
            for leaf in self._leaves(name):
                of = leaf.provenance.leaf or leaf.provenance.made_by.partition(".forward")[0]
                dtype = leaf.tensor.dtype if leaf.tensor is not None else None
                if of and dtype is not None and dtype.kind == "float" and not leaf.is_output:
                    users.setdefault(of, []).append(operation.call)
        return users

    def _leaves(self, record: str) -> list[Leaf]:
        with suppress(DumpError):
            return flatten(self._dump.record(record))
        return []
