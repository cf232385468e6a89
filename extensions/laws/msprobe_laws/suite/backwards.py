"""What the backward passes of a dump gave to each parameter: pass by pass, or call by call."""

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
