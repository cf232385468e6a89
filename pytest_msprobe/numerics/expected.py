"""One table of tolerances and thresholds: how far two values of one computation may be apart, and what follows from it.

Rows are sorted by their unit, which the class of a row names. The comment of a row says what it is for and where it is
from: a source, a measurement, or else nothing but a choice. Standards, which compare a result with a benchmark in
float64, keep the constants of their formulas in `standards`; sketches keep theirs in the collector, which imports
nothing of this package.
"""

from __future__ import annotations

from typing import NamedTuple


class OfDtype(NamedTuple):
    """How far values of one dtype may be apart, by its name in dumps.

    Attributes:
        step: of its norm, in a step of hundreds of operations: some roundings of the dtype (float32: 839 epsilons,
            float16: 8, bfloat16: 4), far above what two right devices differ by in one operation, and below what a
            wrong weight or formula does.
        operation: of its norm, in one operation of two right devices (torch.testing.assert_close). Float64 as Float32,
            11 epsilons; float8 one epsilon.
        spacing: distance of the least numbers, of dtypes that training reaches them in.
    """

    step: float
    operation: float
    spacing: float = 0.0


DTYPES = {
    "Float64": OfDtype(step=1e-8, operation=2.5e-15),
    "Complex128": OfDtype(step=1e-8, operation=2.5e-15),
    "Float32": OfDtype(step=1e-4, operation=1.3e-6),
    "Complex64": OfDtype(step=1e-4, operation=1.3e-6),
    "Float16": OfDtype(step=8e-3, operation=1e-3, spacing=2.0**-24),
    "BFloat16": OfDtype(step=3e-2, operation=1.6e-2),
    "Float8E4M3FN": OfDtype(step=0.25, operation=0.125, spacing=2.0**-9),
    "Float8E5M2": OfDtype(step=0.5, operation=0.25, spacing=2.0**-16),
    "HiFloat8": OfDtype(step=0.5, operation=0.25),
}


class Roundoffs:
    """In unit roundoffs of the coarsest dtype of what is compared, see `unit_roundoff`."""

    #: What one operation may change a statistic by.
    STATISTIC = 8.0
    #: From so many on in both runs it is not said that their dtypes make them.
    FAR = 1000.0
    #: Of a run on several ranks, times the square root of the number of records before: distances
    #: of right runs of the catalogue of `quality.sharded` stay below it.
    RUN = 8
    #: Values that ranks compute for themselves, each in the same way.
    SAME_COMPUTATION = 1024
    #: A sum over ranks in any order, for each rank, of the sum of magnitudes.
    SUM_OVER_RANKS = 4
    #: The norm by which gradients are clipped, where ranks hold parts of them.
    NORM_OF_GRADIENTS = 64
    #: A value that is the same in both runs but for casts: a parameter before it was updated.
    SAME_VALUE = 4


class Relative:
    """Of the size of what is compared: of a norm, or of the largest magnitude."""

    #: What sums of thousands of terms in float32, of which statistics are some, may be off.
    LONG_SUMS = 50 * 2.0**-24
    #: The same of sums of few terms.
    SHORT_SUMS = 8 * 2.0**-24
    #: Norms of parameters that start equal.
    EQUAL_NORMS = 2e-6
    #: Statistics that are no farther apart are equal: one rounding of float32.
    EQUAL_STATISTICS = 2.0**-24
    #: Recorded statistics: decimal numbers of float32 sums, of integers as well.
    STATISTICS = 1e-5
    #: What collectors of any origin may round a norm or an extreme to; `STATISTICS` is what ours
    #: leave.
    ROUNDED_STATISTICS = 1e-4
    #: A number that is written in decimals.
    DECIMALS = 1e-6
    #: Recorded extremes, of the larger one: a cast rounds them.
    CAST_EXTREMES = 2.0**-6
    #: Relative errors whose shares tables list.
    LISTED = (0.001, 0.005)
    #: Results of the benchmark, in float64, are nearer to each other than this where they are the
    #: same.
    EXACT_RESULTS = 1e-13
    #: An argument that is a number, rounded to float32, changes results by less.
    ARGUMENT_ROUNDED = 2.0**-22
    #: From this difference from the benchmark on it is no rounding.
    NO_ROUNDING = 0.02
    #: A factor between two runs is at least that far from 1.
    LEAST_FACTOR = 1e-4
    #: Values of the same size that are farther apart correspond to nothing.
    CORRESPONDING = 0.3
    #: What differs by more is another value in any precision.
    OTHER_VALUE = 0.15
    #: Values are looked up by cells up to this distance.
    WIDEST_CELL = 0.5
    #: From this error on two runs that agree compute something else than the exact one; less may
    #: be lost digits.
    OTHER_COMPUTATION = 0.01
    #: From this error on a value has no digit of the exact one, and shows nothing of the other
    #: run.
    NO_DIGIT = 0.1
    #: From this error on in both runs the exact value is zero, but for rounding, or the runs scale
    #: it.
    NO_VALUE = 10.0
    #: From this tolerance on no difference says anything.
    ANYTHING = 1.0
    #: However long and coarse a run on several ranks is: wrong placements are farther away than
    #: this.
    LARGEST_OF_A_RUN = 0.25
    #: Copies on ranks are nearer to each other than this, whatever the rounding of a whole run
    #: explains.
    COPIES = 0.05
    #: The order of what is farther from the logical value, as noise is, is not known.
    ORDERED = 0.05
    #: Parameters that are those of the row: what is in another order is farther away.
    ROW = 0.1
    #: A placement that is nearer than this leaves no doubt.
    NO_DOUBT = 1e-3
    #: Elements of a gradient that are nearer than this need no room of their own.
    NEAR_ELEMENT = 1e-4


class Times:
    """Multiples of another figure: of a tolerance, of a distance that was measured, or of a standard deviation."""

    #: A difference must be larger than so many times the noise. One decimal digit, for what one
    #: sample cannot tell. Measured (`tools.benchmarks.noise`): right values of a training step
    #: whose sums ran in another order stay below a fifth of the tolerance in float32, below one in
    #: float16.
    NOISE = 10
    #: Four statistics may all be small by chance, in one of 10,000 tensors by this factor; the
    #: record's others tell then.
    NOISE_BY_CHANCE = 100
    #: One element may be off by this many limits of the largest magnitude.
    ELEMENT = 10
    #: Standard deviations of an estimate.
    DEVIATIONS = 3
    #: Of a distance by 16 shard counters, relative to the true one: two standard deviations.
    ESTIMATE = 1.25
    #: A distance that statistics prove is nowhere so many times that of the sketches, see
    #: `quality.sketches.distances`.
    CONTRADICTION = 4.0
    #: A call is to blame only when its error is this many times what rounding explains: of ten
    #: thousand right outputs a few are slightly beyond.
    EXCESS = 2.0
    #: So many times the difference of its inputs a call may give, of which it cannot be told what
    #: it does with them.
    GROWTH = 10
    #: So many times as far off as what it is made of, and as the other run, a value may be:
    #: measured where runs differ by rounding alone.
    GROWTH_OF_ROUNDING = 8.0
    #: The same by statistics, which show less than the difference.
    GROWTH_BY_STATISTICS = 64.0
    #: What goes in and one rounding, of a linear operation: right runs of the catalogue of
    #: `quality.sharded` stay below 4.
    GROWTH_ON_RANKS = 16
    #: From this growth on it is looked whether something in the inputs has a size beside which
    #: their differences vanish.
    STEEP_GROWTH = 100.0
    #: A rounding of float32 cannot grow by more and be told from what was there before.
    LARGEST_GROWTH = 2.0**23
    #: Values of few elements may be near by chance: of one element so many times as much.
    ONE_ELEMENT = 16
    #: So many times farther off is not chance.
    SURELY = 2.0
    #: The same of the farthest values of two runs; of two right ones a half as much was measured.
    FARTHEST_VALUES = 4.0
    #: A view cannot enlarge the largest difference of an element; figures are rounded.
    VIEW = 1.01
    #: Two differences from the benchmark are alike up to this factor.
    ALIKE = 4
    #: A sum that is farther off than this many times what rounding explains is another one; in
    #: between neither is shown.
    OTHER_SUM = 8.0
    #: Of the limit of the dtype: sketches of a sum are off by more where it is none.
    NO_SUM_OF_SKETCHES = 4.0
    #: Ratios of updates that differ by less have one cause.
    ONE_FACTOR = 1.3
    #: Of a norm, in steps of the learning rate: 6 sqrt(p), where a share p = 0.001 of the elements
    #: has gradients that are rounding, so that Adam may move them either way by one step.
    UNSURE_STEP = 0.2
    #: Of inputs that are off by d, Adam moves a share d of the elements either way: so many times
    #: sqrt(d) in the norm.
    UNSURE_SIGNS = 16.0
    #: The same on ranks, where updates are made of the signs of gradients: the share of elements
    #: that change sign is about the relative error, and each of them changes the update by twice
    #: its size.
    UNSURE_SIGNS_ON_RANKS = 4
    #: An element of an update is off by at most this many times what its gradient is; from a noise
    #: of this part of the gradient on, the element may be anything.
    ELEMENT_OF_UPDATE = 8
    #: A placement that is nearer than its tolerance by this factor leaves no doubt.
    NO_DOUBT = 16
    #: So many times their distance are two values at most apart in what a cell divides.
    CELL = 2.0


class Share:
    """Of a number of elements, of values, or of parts of a difference."""

    #: A part is to blame only when it is this share of the difference: rounding alarms of later
    #: operations are far less.
    BLAMED = 0.05
    #: A difference is called inherited when the inputs made this share of it.
    INHERITED = 0.5
    #: All statistics agree in a factor to this part of its way from 1.
    SAME_FACTOR = 0.01
    #: Parameters that two runs of one model have in common; a port may join or transform the
    #: others.
    ONE_MODEL = 0.2
    #: Floats of a run that have another dtype in the other one, where it runs in another
    #: precision.
    OTHER_PRECISION = 0.25


class Absolute:
    """In the unit of the values themselves, or in bits."""

    #: Any finite difference counts, as of selected values, which must be equal: the smallest
    #: number.
    ANY_DIFFERENCE = 5e-324
    #: Elements from here on mask others, whatever their dtype lets them be.
    MASK = 1e30
