"""How far two values are apart by their sketches, where the dumps hold no tensors of both.

An estimate is a number with an uncertainty. A value is farther off than its limit beyond doubt where the estimate is
above the limit by three standard deviations of the estimate, and by what rounding leaves of the sketches. Up to there
it may be at its limit, which is a warning.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msprobe_collector.dump_format import DumpError, TensorValue
from msprobe_collector.dump_format.leaves import Leaf
from pytest_msprobe.numerics.expected import Relative, Times
from pytest_msprobe.numerics.pair import relative

if TYPE_CHECKING:
    from msprobe_collector.dump_format.sketches import Sketch
    from pytest_msprobe.suites.comparison.sides import ComparedDump


class Estimate(NamedTuple):
    """What two sketches say of target and golden.

    Attributes:
        distance: estimate of |target - golden| / |golden| (2-norms); inf where NaN or infinity meets something else.
        deviation: standard deviation of the estimate, relative to the true distance.
        resolution: distances below it may be the rounding of the sketches.
        contents: keys of both contents, `k` and hexadecimal digits.
        reason: how their NaN and infinities differ, a sentence; "" where they do not.
    """

    distance: float
    deviation: float
    resolution: float
    contents: tuple[str, str]
    reason: str = ""

    def most(self, limit: float) -> float:
        """The largest estimate of which it is not beyond doubt that the distance is above `limit`."""
        return limit * (1 + Times.DEVIATIONS * self.deviation) + self.resolution

    def judged(self, limit: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(what makes an error, what makes a warning), in whole sentences."""
        if self.reason:
            return (self.reason,), ()
        words = f"Relative distance by the sketches is {self.distance:.3g} (+-{100 * self.deviation:.0f} %)"
        if self.distance > self.most(limit):
            return (f"{words}, above {limit:g}.",), ()
        if self.distance <= limit:
            return (), ()
        if self.distance <= self.resolution:
            return (), (f"The sketches differ by {self.distance:.3g}, less than they resolve.",)
        return (), (f"{words}, at the limit {limit:g}.",)


@dataclass(frozen=True, slots=True)
class Sketches:
    """The sketches of two dumps, target first; those of tensors are computed."""

    dumps: tuple[ComparedDump, ComparedDump]

    def estimate(self, target: Leaf, golden: Leaf, slack: float) -> Estimate | str:
        """How far two tensors of one shape are apart; a sentence where sketches cannot tell, "" where there are none.

        Statistics of their dtypes may be off by the share `slack` of the norm.

        Raises:
            DumpError: a sketch, or the tensor in its place, is damaged; one line.
        """
        leaves = target, golden
        if all(leaf.tensor is None or leaf.tensor.sketch is None for leaf in leaves):
            return ""
        mine, theirs = self._sketch(0, target), self._sketch(1, golden)
        if isinstance(mine, str):
            return mine
        return theirs if isinstance(theirs, str) else _estimate((mine, theirs), leaves, slack)

    def key(self, side: int, leaf: Leaf | None) -> str:
        """The key of the content of a value that the other side lacks; "" where it has a tensor, or no sketch."""
        if leaf is None or leaf.data_name or leaf.tensor is None or leaf.tensor.sketch is None:
            return ""
        try:
            sketch = self._sketch(side, leaf)
        except DumpError:
            return ""
        return "" if isinstance(sketch, str) else _key(sketch, leaf)

    def _sketch(self, side: int, leaf: Leaf) -> Sketch | str:
        """The sketch of a value of one side, or why there is none to be used."""
        dump, name, tensor = self.dumps[side], ("target", "golden dump")[side], leaf.tensor
        assert tensor is not None
        if tensor.sketch is None:
            if not leaf.data_name:
                return f"Compared by statistics: the {name} has no sketch of it."
            from msprobe_collector.dump_format.sketches import Sketch

            return Sketch.of(dump.tensors.load(tensor, leaf.place))
        if dump.sketches_problem:
            return f"Compared by statistics: the sketches of the {name} cannot be used."
        if tensor.sketch.row >= len(dump.sketches.numbers):
            return f"Compared by statistics: the {name} lacks row {tensor.sketch.row} of its sketches."
        sketch = dump.sketch(leaf)
        assert sketch is not None
        return sketch


def _estimate(sketches: tuple[Sketch, Sketch], leaves: tuple[Leaf, Leaf], slack: float) -> Estimate:
    """See `Sketches.estimate`. Raises DumpError."""
    from msprobe_collector.dump_format.sketches import distance

    target, golden = sketches
    contents = _key(target, leaves[0]), _key(golden, leaves[1])
    if contents[0] == contents[1]:
        return Estimate(0.0, 0.0, 0.0, contents)
    apart = distance(target, golden)
    if target.not_finite != golden.not_finite:
        reason = f"NaN, +Inf and -Inf are {_counts(target)} in the target and {_counts(golden)} in the golden dump."
        return Estimate(math.inf, apart.relative, 0.0, contents, reason)
    norms = [_norm(leaf.tensor, sketch) for leaf, sketch in zip(leaves, sketches)]
    least = max(0.0, _proved(leaves) - max(slack, Relative.STATISTICS) * max(norms))
    if least > Times.CONTRADICTION * apart.value + apart.resolution:
        words = f"the statistics of both sides are {least:.3g} apart at least, their sketches {apart.value:.3g}"
        words += ": one of the two dumps is damaged, collect the step again"
        raise leaves[0].place.fault(words, "sketch")
    scale = norms[1]
    resolution = apart.resolution / scale if scale else 0.0
    return Estimate(relative(apart.value, scale), apart.relative, resolution, contents)


def _proved(leaves: tuple[Leaf, Leaf]) -> float:
    """What Norm, Max and Min of finite values prove of the distance."""
    pairs = zip(*((tensor.norm, tensor.maximum, tensor.minimum) for leaf in leaves if (tensor := leaf.tensor)))
    apart = [abs(float(mine) - float(theirs)) for mine, theirs in pairs if mine is not None and theirs is not None]
    return max(filter(math.isfinite, apart), default=0.0)


def _norm(tensor: TensorValue | None, sketch: Sketch) -> float:
    """The recorded Norm, else what the sketch says of it."""
    norm = tensor.norm if tensor is not None else None
    return sketch.norm if norm is None or not math.isfinite(norm) else abs(float(norm))


def _counts(sketch: Sketch) -> str:
    return ", ".join(map(str, sketch.not_finite))


def _key(sketch: Sketch, leaf: Leaf) -> str:
    text = f"{sketch.shape}{sketch.not_finite}{leaf.statistics}".encode()
    return f"k{hashlib.blake2b(text + sketch.counters.tobytes(), digest_size=12).hexdigest()}"
