"""What the parts of all outputs of an operation amount to, and what they cannot show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import structs

from pytest_msprobe.suites.comparison.accounting.account import Kind, OutputAccount, ValueKey
from pytest_msprobe.suites.comparison.accounting.parts import DEFINED, INHERITED
from pytest_msprobe.suites.comparison.value_comparison import ValueComparison

#: A part is to blame only when it is this share of the difference: rounding alarms of later operations are far less.
SHARE = 0.05
#: Results of the benchmark, in float64, are nearer to each other than this where they are the same.
_EXACT = 1e-13
#: A difference is called inherited when the inputs made this share of it.
_MOSTLY = 0.5


def kind_of_outputs(outputs: Sequence[OutputAccount]) -> Kind:
    """`fault`, `inherited` or `rounding`."""
    if any(output.blamed for output in outputs):
        return "fault"
    is_inherited = any(abs(output.shares.get(INHERITED, 0.0)) >= _MOSTLY for output in outputs)
    return "inherited" if is_inherited else "rounding"


def of_equal_inputs(output: OutputAccount) -> OutputAccount:
    """Equal inputs pass no difference on: the two calls differ in something that is no tensor, and not in the dumps."""
    if output.blamed or abs(output.shares[INHERITED]) < SHARE or output.sizes[INHERITED] < _EXACT:
        return output
    words = "defined differently: all inputs are equal, and the exact results are not"
    return structs.replace(output, blamed={DEFINED: words})


def of_other_shapes(
    definition: str, inputs: Sequence[ValueKey], outputs: Sequence[ValueComparison]
) -> Iterator[OutputAccount]:
    """Outputs whose shapes differ though those of the inputs do not."""
    if not definition or any(key.distance is None and key.target and key.golden for key in inputs):
        return
    for value in outputs:
        if value.target is not None and value.golden is not None and value.target.shape != value.golden.shape:
            shapes = f"shape {list(value.target.shape)} against {list(value.golden.shape)}"
            words = f"defined differently: {definition}, and so {shapes}"
            yield OutputAccount(value.path, math.inf, {}, {}, None, {DEFINED: words})


def with_growth(output: OutputAccount, inputs: float) -> OutputAccount:
    """The account with its growth: relative size of the inherited part over the largest difference among `inputs`."""
    return structs.replace(output, growth=output.sizes[INHERITED] / inputs) if 0 < inputs < math.inf else output
