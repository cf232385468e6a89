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
        least: the least number that devices keep, absolute: they flush subnormals of wide ranges, while float16 and
            float8 need theirs.
    """

    step: float
    operation: float
    least: float


DTYPES = {
    "Float64": OfDtype(step=1e-8, operation=2.5e-15, least=2.0**-1022),
    "Complex128": OfDtype(step=1e-8, operation=2.5e-15, least=2.0**-1022),
    "Float32": OfDtype(step=1e-4, operation=1.3e-6, least=2.0**-126),
    "Complex64": OfDtype(step=1e-4, operation=1.3e-6, least=2.0**-126),
    "Float16": OfDtype(step=8e-3, operation=1e-3, least=2.0**-24),
    "BFloat16": OfDtype(step=3e-2, operation=1.6e-2, least=2.0**-126),
    "Float8E4M3FN": OfDtype(step=0.25, operation=0.125, least=2.0**-9),
    "Float8E5M2": OfDtype(step=0.5, operation=0.25, least=2.0**-16),
    "HiFloat8": OfDtype(step=0.5, operation=0.25, least=2.0**-22),
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
    #: Records before count as so many at least.
    FIRST_RECORDS = 4
    #: A sum over ranks in any order, for each rank, of the sum of magnitudes.
    SUM_OVER_RANKS = 4
    #: The norm by which gradients are clipped, where ranks hold parts of them.
    NORM_OF_GRADIENTS = 64
    #: A value that is the same in both runs but for casts: a parameter before it was updated.
    SAME_VALUE = 4
    #: Another order of additions, of the largest value; also what ranks compute for themselves,
    #: each in the same way. Theirs add up over calls: see `RUN` for what goes through a whole run.
    OTHER_ORDER = 1024
    #: The same at least, where it is limited by `Relative.HALF_SUMS`.
    SHORTEST_SUM = 4
    #: The error of an output that rounding explains, as a whole: a norm, of the norm of the
    #: output.
    RIGHT_OUTPUT = 2.0
    #: Between an input and its scaled and shifted output: of the scale, of its use, and one to
    #: spare on each side.
    SCALED_AND_SHIFTED = 4
    #: Elementary functions are polynomials on a device, and may lose a few roundings.
    ELEMENTARY = 4.0
    #: Standard deviation of the error of adding n terms one by one, over sqrt(n), of the norm of
    #: the terms.
    SUM_THAT_CANCELS = 0.3
    #: The same of the result, where terms do not cancel.
    SUM = 0.24
    #: Root mean square of one rounding to nearest.
    ROOT_MEAN_SQUARE = 0.41
    #: Elements move by different distances, 1 on average: the effects of two equal ones then do
    #: not cancel to nothing.
    SMALL_MOVE = 2.0**-12
    #: The norm of gradients before and after clipping, of the dtype of the gradients;
    #: `NORM_OF_GRADIENTS` is of ranks.
    CLIP_NORM = 16
    #: The same of float32, times the square root of the number of elements, whose squares are
    #: added.
    SQUARES = 4
    #: Quotients of gradients that were divided by one number.
    SAME_DIVISOR = 16
    #: Of a parameter: the rounding of a shorter update says nothing of its formula.
    HIDDEN = 16
    #: Roundings of an average of parameters, in units of its summands.
    AVERAGE = 8
    #: What a pattern puts in the place of a wrong element: rounded once, and by the operation.
    INSTEAD = 4
    #: The median of errors below this is called noise. A choice.
    NOISE = 64
    #: Of a mean of n numbers, beside 2 sqrt(n): blocked sums stay far below both.
    MEAN = 4
    #: Of a gradient that is a sum, beside its terms: the factor and the result are rounded, too.
    GRADIENT = 4


class Relative:
    """Of the size of what is compared: of a norm, or of the largest magnitude."""

    #: What sums of thousands of terms in float32, of which statistics are some, may be off, those
    #: of parameters that start equal among them: 50 roundings. `STATISTICS` allows what other
    #: collectors leave as well.
    LONG_SUMS = 50 * 2.0**-24
    #: The same of sums of few terms.
    SHORT_SUMS = 8 * 2.0**-24
    #: Statistics that are no farther apart are equal: one rounding of float32.
    EQUAL_STATISTICS = 2.0**-24
    #: Recorded statistics: decimal numbers of sums that collectors of any origin take in float32,
    #: of integers as well. Of 1,537 pairs of tensors none was contradicted by statistics in
    #: float32, added up one by one, down to 1e-7; `LONG_SUMS` is what was measured where runs
    #: differ by rounding alone.
    STATISTICS = 1e-5
    #: A number that is written in decimals.
    DECIMALS = 1e-6
    #: Recorded extremes, of the larger one: a cast rounds them.
    CAST_EXTREMES = 2.0**-6
    #: Rounding of the recorded mean, and of probabilities in half precision.
    RECORDED_MEAN = 2.0**-7
    #: Relative errors whose shares tables list.
    LISTED = (0.001, 0.005)
    #: Results in float64 of the same operations are nearer to each other than this: of the
    #: benchmark, and distances of parts of a checkpoint with the same content.
    EXACT_RESULTS = 1e-13
    #: Two float64 results of one computation, in another order or on another device: a million
    #: roundings, and a thousandth of one in float32.
    FLOAT64_RESULTS = 1e-10
    #: The same of rows that are computed again, of the largest element of the row. Of 3,000 calls
    #: of softmax and norms 18 are between `FLOAT64_RESULTS` and this: of layer_norm, where the
    #: mean is 1,000 times what differs from it.
    FLOAT64_ROWS = 1e-9
    #: Kernels of exp, log, erf and the like in float32. MindSpore 2.10's CPU exp was measured to
    #: be off by up to 57 ulp (3.6e-6) for arguments of a training step.
    ELEMENTARY = 2.0**-18
    #: One rounding to HiFloat8, which no array has: 3 bits of mantissa around 1, fewer elsewhere
    #: (Luo et al., "Ascend HiFloat8 format for deep learning", arXiv 2409.16626).
    HIFLOAT8 = 2.0**-4
    #: A dtype whose unit roundoff is no larger computes as float64 does.
    FLOAT64_LIKE = 2.0**-40
    #: Nothing continuous moves so far when its input moves by `Roundoffs.SMALL_MOVE`.
    JUMP = 2.0**-4
    #: An argument that is a number, rounded to float32, changes results by less.
    ARGUMENT_ROUNDED = 2.0**-22
    #: From this difference from the benchmark on it is no rounding.
    NO_ROUNDING = 0.02
    #: A factor between two runs is at least that far from 1.
    LEAST_FACTOR = 1e-4
    #: Values of the same size that are farther apart correspond to nothing.
    CORRESPONDING = 0.3
    #: The same of values further on, or behind more calls.
    CORRESPONDING_LATER = CORRESPONDING / 3
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
    #: Another order of additions in half dtypes, whose sums are kept in more bits, of the largest
    #: element.
    HALF_SUMS = 2.0**-8
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
    #: The change of a parameter along that of its formula, of which bfloat16 makes a few percent.
    ALONG_UPDATE = 0.3
    #: Factors of two parameters that are the same: each is fitted to rounded values.
    SAME_FACTORS = 0.02
    #: By how much the share of an average in its successor may differ between parameters, and
    #: fall.
    SHARE_OF_AVERAGE = 0.02
    #: By how much of its distance from 1 a share may differ from one that is declared.
    DECLARED_SHARE = 0.05
    #: An average whose share differs from 0 or 1 by less is a copy.
    COPY = 2.0**-12
    #: A layout of a checkpoint fits when it is nearer than this.
    LAYOUT = 0.5
    #: No other layout is tried where one is so near.
    SURE_LAYOUT = 1e-2
    #: A factor that is so near to -1 is another sign. A choice.
    OTHER_SIGN = 1e-3
    #: Least cosine of two outputs, of the standard `CosineMaxAbs`.
    COSINE = 0.99
    #: A factor that is so near to the size of a dimension of ranks, or to its root, comes from it.
    SIZE_OF_DIMENSION = 1e-3
    #: What records with half dtypes round by, on ranks: half a roundoff of bfloat16, four of
    #: float16.
    HALF_DTYPES = 2.0**-9
    #: Cosine from which on parts of a sum are too alike to tell their factors.
    PARALLEL = 0.999
    #: What is left of a sum of parts in float16.
    SUM_OF_PARTS = 2e-3
    #: Factors of two parts of a gradient that are added up differ by less.
    SAME_SUM = 0.05
    #: Shares of an average that are nearer to each other, or to 0, differ by rounding.
    SAME_SHARE = 2.0**-16
    #: Shares of an average over steps of one decay stay within this.
    SETTLED_SHARE = 2.0**-8
    #: An average that keeps more than 1 and this of its distance moves away from its parameter.
    AWAY_FROM_PARAMETER = 1e-4
    #: Of the sizes of an average and of its parameter: elements of the parameter that are smaller
    #: do not show their share.
    CLEAR_PART = 2.0**-6
    #: The same of how far both are apart.
    CLEAR_DISTANCE = 2.0**-12
    #: A factor that gradients were multiplied with is that of a divisor.
    DIVIDED = 2.0**-6
    #: Of the decay of a parameter: what it may differ by from the declared one.
    DECAY = 2.0**-6


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
    #: thousand right outputs a few are slightly beyond (docs/figures.md).
    EXCESS = 2.0
    #: From so many tolerances on narrower sums inside a kernel do not explain an error.
    HOPELESS = 2.0**18
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
    #: How many times its tolerance an error is says nothing beyond this: the tolerance is that of
    #: a benchmark of 0.
    COUNTABLE = 1e9
    #: Above so many units of the last place the largest ULP and relative errors stand at an
    #: element near 0, and mislead.
    MISLEADING_ULP = 2.0**20
    #: A matrix whose inverse loses more digits than float16 has is as good as singular.
    WORST_CONDITION = 2.0**10
    #: A margin over the bound of the running error analysis, whose constants count each operation
    #: twice already.
    RUNNING_ERROR = 2.0
    #: A layout of a checkpoint fits when it is nearer than any other by this factor.
    OTHER_LAYOUT = 3.0
    #: Of the smallest normal number: devices may flush what is smaller, or round it coarsely.
    SMALLEST_NORMAL = 4
    #: Of the least number of a dtype: elements that are smaller say nothing of a sum.
    FLUSHED = 16
    #: As `SMALLEST_NORMAL`, where a slope is the quotient of two such numbers.
    SLOPED = 2.0**8
    #: What is handed on without being changed, of how far it was off before.
    HANDED_ON = 2
    #: Of one index of two tensors, of its even part of their distance.
    INDEX = 4
    #: Of the tolerance of an element: changes of a parameter that are larger show their factor.
    VISIBLE = 8
    #: Of the limit of clipping: a larger norm was not left by it.
    CLIPPED = 1.01
    #: Of a step between whole numbers: half of it, and what rounding of its size adds.
    WHOLE_STEP = 0.502
    #: Of the excess that a baseline knows, where its file says no other: a failure is worse.
    WORSE = 2.0


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
    #: A region counts as off when so many of its elements are: some of a wrong block are right by
    #: chance.
    FILLED = 0.7
    #: Where so many elements are off, no region is named.
    NO_REGION = 0.9
    #: How many of the elements that should have gone the other way have to be on the suspected
    #: side.
    ONE_DIRECTION = 0.9
    #: A hypothesis must explain so many of the wrong elements.
    EXPLAINED = 0.98
    #: Of the error that it explains, a hypothesis may be off by this. A choice.
    OF_ERROR = 0.25
    #: The same of a number that was added to all elements, besides.
    OF_OFFSET = 0.125
    #: A gradient that adds up positions gets something from nearly each block.
    REACHED = 0.9
    #: From this share of the largest possible variance on, all values are at the ends.
    TWO_POINTS = 0.98
    #: A larger share of the whole call is no small call.
    SMALL_CALL = 0.25
    #: Elements of an average that must be within their roundings.
    OF_AVERAGE = 0.8
    #: Elements of an optimizer's parameters of one dtype, the updates of which rounding takes.
    LOST_UPDATES = 0.75
    #: Mean sign of errors from which on they are to one side. A choice.
    ONE_SIDE = 0.9
    #: On each side, of the values of a law, which moments count as if they stood where it begins.
    OUTER = 2.0**-12
    #: The same of a Cauchy law, which has no moments.
    OUTER_OF_CAUCHY = 0.125
    #: Of the largest possible variance: with less, all values are equal.
    NO_SPREAD = 1e-12
    #: Elements that must stay in their range for drawn ones to be moved to the recorded moments.
    ADJUSTED = 0.9
    #: Shapes that two dumps of one model and one batch have in common, at least. A choice.
    SHAPES_OF_ONE_MODEL = 0.3
    #: The same where both hold whole models, apart from a call or two.
    SHAPES_OF_WHOLE_MODELS = 0.9
    #: A smaller share of a difference is not printed.
    SHOWN = 0.005
    #: Factors of an update that are smaller are compared as if they were this.
    LEAST_OF_UPDATE = 0.05
    #: Of a decay, or of its rest: a smaller share of a parameter is none.
    OF_DECAY = 0.01
    #: Targets that are the tokens at one offset, at least.
    NEXT_TOKENS = 0.99
    #: Rows of one cause that are less wrong than this share of the worst one do not stand for it.
    OF_WORST = 0.1


class Chance:
    """Probabilities."""

    #: How often a correct output is called wrong, at most, over all that is tested of it.
    FALSE_ALARM = 1e-9
    #: Two equal neighbours, at least: generators draw from fewer values than float32 and float64
    #: can hold.
    TIE = 2.0**-16


class Absolute:
    """In the unit of the values themselves, or in bits."""

    #: Any finite difference counts, as of selected values, which must be equal: the smallest
    #: number.
    ANY_DIFFERENCE = 5e-324
    #: Devices flush subnormals of wide exponent ranges only; float16 needs its own.
    FLUSHED_BELOW = 2.0**-126
    #: Four steps of the subnormal numbers of float16.
    SUBNORMALS_OF_FLOAT16 = 2.0**-22
    #: From here up to inf, sums of squares have lost nothing to underflow that a float64 cosine
    #: could show.
    RELIABLE_SQUARES = 1e-250
    #: Largest finite Float32, 2**128 - 2**104: the widest range that training uses.
    LARGEST_FLOAT32 = 3.4028234663852886e38
    #: Elements from here on mask others, whatever their dtype lets them be.
    MASK = 1e30
    #: Bits by which elements must agree before a sum is what a step got.
    BITS_OF_A_SUM = 20.0
    #: The same where one factor is fitted to them.
    BITS_OF_FITTED = 40.0
    #: Largest error of an element, of the standard `CosineMaxAbs`.
    MAX_ABS = 1e-4
    #: Stands for a benchmark of 0 in relative errors (msProbe's formula).
    ZERO_REFERENCE = 1e-8
    #: Stands for 0 as a divisor, where values are of float32 at most: training reaches it nowhere.
    ZERO_OF_FLOAT32 = 1e-30
    #: The same of float64.
    ZERO_OF_FLOAT64 = 1e-300
    #: Drawn probabilities are so far from 0 and from 1: their logarithms exist after rounding, too.
    INSIDE = 2.0**-7
    #: Whole numbers below this count, label or index something.
    COUNTING = 2.0**20
    #: Rounding of a similarity and of its limit, which are between 0 and 1.
    ROUNDED_SIMILARITY = 1e-12
    #: How far an average and its parameter are apart, at least, where their share is told.
    CLEAR_DISTANCE = 1e-12
    #: Of a norm after clipping: twice what PyTorch adds to the norm before it divides by it.
    CLIPPED_NORM = 2e-6
    #: Scores of attention are masked out from here on down.
    MASKED_SCORE = -1e4
