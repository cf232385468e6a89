"""The advisor file: the first suspect and what to look at next, in the three lines that users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msprobe_collector.dump_format.records import Operation
from msprobe_collector.dump_format.values import printable
from pytest_msprobe.apis.topics import fact_of, is_a

if TYPE_CHECKING:
    from pytest_msprobe.suites.comparison.report import Divergence

_ADVICE = {
    "plain": "The two runs call this operation with other arguments. Compare both lines that make the call, and the "
    "configuration of the model.",
    "forward input": "The value differs before any recorded operation does. Check what produces it: parameters, the "
    "batch, an operation outside of what was dumped, a tensor changed in place, memory overwritten by another stream.",
    "forward output": "The inputs of this operation agree and its output does not. Run the pre-check on this dump: "
    "pytest --msprobe-dump=<target dump.json> -k <name of the call>.",
    "backward input": "A gradient differs where it enters. Check the forward of the operations behind it and the loss.",
    "backward output": "The gradient that enters agrees and the one that leaves does not. Run the pre-check on the "
    "backward of this call.",
}
_BATCH_NORM = " For batch_norm also compare the running mean and variance and the momentum of both sides."
_DETERMINISM = " This API may sum in any order: dump both sides again with seed_all(mode=True)."
_NOTHING = "Everything that was compared agrees."


def advice(divergence: Divergence, line: int) -> str:
    """The content of the advisor file of one comparison; `line` of the table is where the first suspect stands."""
    first, answer = divergence.first, divergence.answer
    if divergence.named is not None:
        suspect = printable(f"{divergence.named.record}.{divergence.named.value}")
        return f"Line: {line or 'NA'}\nSuspect Nodes: {suspect}\nExpert Advice: {divergence.named.advice}\n"
    if answer is not None and answer.is_known and first is not None and not first.is_plain:
        return f"Line: NA\nSuspect Nodes: NA\nExpert Advice: {answer.text}\n"
    if first is None:
        return f"Line: NA\nSuspect Nodes: NA\nExpert Advice: {_NOTHING}\n"
    operation = Operation.of(first.record, first.order)
    phase = "backward" if operation.phase != "forward" else "forward"
    text = _ADVICE["plain" if first.is_plain else f"{phase} {'input' if first.is_input else 'output'}"]
    if is_a("batchnorm", operation.name) and first.is_input:
        text += _BATCH_NORM
    if not first.is_input and fact_of("nondeterministic", operation.name):
        text += _DETERMINISM
    return f"Line: {line}\nSuspect Nodes: {printable(first.first)}\nExpert Advice: {text}\n"
