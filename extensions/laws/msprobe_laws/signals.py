"""Laws on what happens around the step: clipping, dropout, batches, labels."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from msprobe_laws.law import Checked, Law, Unchecked, Violation, few_digits
from msprobe_laws.observation import Array, Batch, Clipping, DropoutMask, Labels
from msprobe_laws.training import BATCHES_DIFFER, CLIP_NORM
from pytest_msprobe.numerics.dtypes import FLOAT32_ROUNDOFF
from pytest_msprobe.numerics.expected import Absolute, Roundoffs, Share


class ClipNorm(Law[Clipping]):
    """The norm by which gradients are clipped."""

    name = CLIP_NORM
    sentence = (
        "The norm that clipping reports is that of the gradients it clips; it leaves at most the limit, and that "
        "reaches the step."
    )
    source = "Pascanu et al., arXiv:1211.5063; torch.nn.utils.clip_grad_norm_"
    tolerance = (
        "relative: 16 units of the gradients' dtype (norms of tensors are rounded to it, and multiplied by it), and "
        "4 sqrt(n) units of float32 for sums of n squares"
    )

    def check(self, clipping: Clipping) -> Checked:
        """Compare reported and true norm, and the norm that is left."""
        first = clipping.names[0] if clipping.names else "gradients"
        findings: list[Violation] = []
        if clipping.unknown or clipping.norm_before is None or not math.isfinite(clipping.norm_before):
            return Unchecked(clipping.unknown or "the norm of the gradients is not finite")
        relative = Roundoffs.CLIP_NORM * clipping.unit
        relative += Roundoffs.SQUARES * math.sqrt(max(clipping.size, 1)) * FLOAT32_ROUNDOFF
        before = whole = clipping.norm_before
        is_larger = clipping.reported is not None and clipping.reported > (1 + relative) * before
        if clipping.has_other_ranks and clipping.reported is not None and is_larger:
            whole = clipping.reported  # of parameters that are spread over ranks
            if clipping.norm_after is None:
                return Unchecked("the norm is larger than that of the gradients here, which may be a part of all")
        elif clipping.reported is not None:
            size = abs(clipping.reported - before) / (relative * before + Absolute.ZERO_OF_FLOAT32)
            if not size <= 1:
                reported = few_digits(clipping.reported)
                factor = f", {few_digits(clipping.reported / before)} times it" if before else ""
                message = f"it reports the norm {reported} of gradients of norm {few_digits(before)}{factor}"
                findings.append(self.found(first, message, size, clipping.names[1:]))
        if clipping.norm_after is not None and clipping.max_norm > 0 and not findings:
            wanted = before if whole <= clipping.max_norm else before / whole * clipping.max_norm
            size = abs(clipping.norm_after - wanted) / (relative * wanted + Absolute.CLIPPED_NORM)
            if not size <= 1:
                norm = few_digits(clipping.norm_after)
                message = f"clipping to {clipping.max_norm:g} leaves the norm {norm} of {few_digits(before)}"
                findings.append(self.found(first, message, size, clipping.names[1:]))
        return findings


#: Masks are compared when they have this many elements that tell something, and this many of either kind.
_KNOWN, _EITHER = 64, 8
#: Masks of one step that are compared.
_MOST_MASKS = 512

IN_EVAL, INDEPENDENT, RECOMPUTED = "dropout-off-in-eval", "dropout-independent", "recomputation-repeats"


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A mask as integers, one bit an element, in which hundreds are compared in no time.

    Attributes:
        mask: itself.
        dropped, telling: see `DropoutMask`.
    """

    mask: DropoutMask
    dropped: int
    telling: int

    @classmethod
    def of(cls, mask: DropoutMask) -> _Drawn:
        """Return the bits of `mask`."""
        telling = mask.telling.astype(np.bool_)
        dropped = mask.dropped.astype(np.bool_) & telling
        return cls(mask, *(int.from_bytes(np.packbits(bits).tobytes(), "big") for bits in (dropped, telling)))

    @property
    def is_telling(self) -> bool:
        """Whether its elements are enough to tell masks apart."""
        return are_one_mask(self.dropped, self.dropped, self.telling) is not None

    def is_same(self, other: _Drawn) -> bool:
        """Return whether both are one mask, as far as both tell."""
        if self.mask.dropped.size != other.mask.dropped.size or self.mask.rate != other.mask.rate:
            return False
        return are_one_mask(self.dropped, other.dropped, self.telling & other.telling) is True


def are_one_mask(dropped: int, other: int, telling: int) -> bool | None:
    """Return whether two masks are equal where both tell something; None where that is too little.

    Args:
        dropped: elements that the first has dropped, one bit each.
        other: those that the second has dropped.
        telling: elements that both tell of.
    """
    total, lost = telling.bit_count(), (dropped & telling).bit_count()
    if total < _KNOWN or not _EITHER <= lost <= total - _EITHER:
        return None
    return dropped & telling == other & telling


class DropoutLaws:
    """Dropout, in one training: three laws that look at the same masks."""

    def __init__(self) -> None:
        #: Masks of this step and of the one before.
        self._now: list[_Drawn] = []
        self._before: list[_Drawn] = []

    def check(self, mask: DropoutMask) -> Iterator[tuple[str, Checked]]:
        """Return (law, what it says) of one call of dropout."""
        off = DropoutOffInEval()
        yield off.name, off.check(mask)
        if not mask.is_training:
            return
        drawn = _Drawn.of(mask)
        if mask.is_repeat:
            same = [other for other in self._now if other.mask.place == mask.place]
            yield RECOMPUTED, RecomputationRepeats(same).check(drawn)
            return
        yield INDEPENDENT, DropoutIndependent(self._now, self._before).check(drawn)
        if len(self._now) < _MOST_MASKS:
            self._now.append(drawn)

    def step_ends(self) -> None:
        """Note that an update is over: what was drawn before belongs to the step before."""
        if self._now:
            self._before, self._now = self._now, []


class DropoutOffInEval(Law[DropoutMask]):
    """Dropout in evaluation."""

    name = IN_EVAL
    sentence = "A layer in evaluation mode drops nothing."
    source = "Srivastava et al., JMLR 15 (2014); torch.nn.Dropout; functions have training=True as their default"

    def check(self, mask: DropoutMask) -> Checked:
        """Look at the mode of the layer."""
        if mask.is_training or not np.any(mask.dropped):
            return []
        return [
            self.found(mask.place, f"dropout of rate {mask.rate:g} drops elements although the layer is in eval mode")
        ]


class DropoutIndependent(Law[_Drawn]):
    """Two masks."""

    name = INDEPENDENT
    sentence = "Masks of two layers, of two calls and of two steps are drawn independently."
    source = "Srivastava et al., JMLR 15 (2014): each unit is dropped independently"
    tolerance = "none: equal masks of 64 elements and more do not come about by chance (2^-30 at rate 0.1)"

    def __init__(self, others: Sequence[_Drawn] = (), before: Sequence[_Drawn] = ()) -> None:
        self._others, self._before = others, before

    def check(self, drawn: _Drawn) -> Checked:
        """Compare with the masks of this step and of the one before."""
        if not drawn.is_telling:
            return Unchecked("the masks have too few elements")
        for others, when in ((self._others, "in this step"), (self._before, "in the step before")):
            for other in others:
                if drawn.is_same(other):
                    place = drawn.mask.place
                    where = "itself" if other.mask.place == place else other.mask.place
                    return [self.found(place, f"it draws the mask that {where} has drawn {when}")]
        return []


class RecomputationRepeats(Law[_Drawn]):
    """Checkpoints."""

    name = RECOMPUTED
    sentence = "A layer that a checkpoint computes again draws the mask that its forward has drawn."
    source = "torch.utils.checkpoint, preserve_rng_state; OLMo-core #828, pytorch #190758"

    def __init__(self, forwards: Sequence[_Drawn] = ()) -> None:
        self._forwards = forwards

    def check(self, drawn: _Drawn) -> Checked:
        """Look for the mask among those of the forward."""
        if not self._forwards or not drawn.is_telling:
            return Unchecked("no mask of its forward is known")
        if any(drawn.is_same(other) for other in self._forwards):
            return []
        message = "computed again in the backward, it draws another mask than in the forward"
        return [self.found(drawn.mask.place, message)]


class BatchesDiffer(Law[Batch]):
    """Batches of one training."""

    name = BATCHES_DIFFER
    sentence = "The batch of a step is none of those of the steps before it in the same pass over the data."
    source = "torch.utils.data: samplers draw without replacement; workers that share a NumPy seed repeat augmentations"
    _WINDOW = 16
    #: A model that gets the same batch in some steps may be meant to; one that gets new ones for so long is not.
    _DISTINCT = 3

    def __init__(self) -> None:
        self._last: dict[str, deque[Batch]] = {}
        self._again: dict[str, int] = {}
        self._distinct: dict[str, int] = {}

    def check(self, batch: Batch) -> Checked:
        """Compare with the batches before."""
        if batch.is_poor:
            return Unchecked("batches have too few different elements")
        last = self._last.setdefault(batch.of, deque(maxlen=self._WINDOW))
        result = self._of_loader(batch, last) if batch.from_loader else self._of_model(batch, last)
        last.append(batch)
        return result

    def _of_loader(self, batch: Batch, last: deque[Batch]) -> Checked:
        if batch.batches == 1:
            return Unchecked("the data loader has one batch", is_moot=True)
        same = [
            back
            for back, other in enumerate(reversed(last), 1)
            if other.iteration == batch.iteration and other.fingerprint == batch.fingerprint
        ]
        if same:
            ago = "the one before" if same[0] == 1 else f"the one {same[0]} before"
            return [self.found(batch.of, f"a batch equals {ago} (do its workers share a random seed?)")]
        if last and last[-1].iteration != batch.iteration and last[-1].fingerprint == batch.fingerprint:
            self._again[batch.of] = self._again.get(batch.of, 0) + 1
            if self._again[batch.of] >= 2:
                return [self.found(batch.of, "each iteration over it begins with the same batch, and takes no other")]
        return []

    def _of_model(self, batch: Batch, last: deque[Batch]) -> Checked:
        distinct = self._distinct.get(batch.of, 0)
        if not last or last[-1].fingerprint != batch.fingerprint:
            self._distinct[batch.of], self._again[batch.of] = distinct + 1, 0
            return []
        if distinct < self._DISTINCT:
            self._distinct[batch.of] = -(10**9)
            return Unchecked("the model is trained on the same batch again and again")
        self._again[batch.of] += 1
        # One batch may come twice by chance, where batches are drawn with replacement.
        if self._again[batch.of] != 2:
            return []
        return [self.found(batch.of, "it is trained on one batch in three steps one after another")]


class LabelsAligned(Law[Labels]):
    """Targets of a language model."""

    name = "labels-aligned"
    sentence = "Targets of a causal language model are the next tokens of its inputs: shifted by one."
    source = "Radford et al., 2018: p(token | earlier tokens); models of HuggingFace shift the labels themselves"
    tolerance = "99 % of the targets that count agree at the offset, and fewer at the offset of one"

    def __init__(self) -> None:
        #: A model that predicts the next token may predict further ones beside it.
        self._predicts_next = False

    def check(self, labels: Labels) -> Checked:
        """Find the offset at which targets are the tokens."""
        tokens, targets = labels.tokens, labels.targets.reshape(-1)
        if tokens.ndim != 2 or tokens.shape[1] < 8:
            return Unchecked("there are no tokens in rows of 8 and more")
        rows, length = tokens.shape
        if targets.size == rows * length:
            table = targets.reshape(rows, length)
        elif targets.size == rows * (length - 1):
            table = np.full((rows, length), labels.ignored, targets.dtype)
            table[:, :-1] = targets.reshape(rows, length - 1)
        else:
            return Unchecked("targets have another number of elements than the tokens")
        shares = {offset: _agreement(tokens, table, offset, labels.ignored) for offset in (0, 1, 2, -1)}
        best = [offset for offset, share in shares.items() if share > Share.NEXT_TOKENS]
        if 1 in best:
            self._predicts_next = True
            return [] if len(best) == 1 else Unchecked("tokens repeat, so that no offset can be told")
        if self._predicts_next or len(best) != 1 or (best[0] == 0 and not labels.is_causal):
            return Unchecked("targets are not the tokens of the inputs at any one offset")
        said = {
            0: "are the tokens that the model gets at the same place: it learns to copy them",
            2: "are the tokens two places ahead: they are shifted twice",
            -1: "are the tokens before",
        }[best[0]]
        return [self.found("labels", f"the targets {said}", None)]


OF_SIGNALS = (ClipNorm, DropoutOffInEval, DropoutIndependent, RecomputationRepeats, BatchesDiffer, LabelsAligned)


def width_of_targets(shape: Sequence[int], count: int) -> int:
    """Return how many of `count` targets belong to a row of tokens [batch, length]; 0 where they do not fit."""
    rows, length = shape if len(shape) == 2 else (0, 0)
    width = count // rows if rows and count % rows == 0 else 0
    return width if width in (length, length - 1) else 0


def _agreement(tokens: Array, targets: Array, offset: int, ignored: int) -> float:
    """Return the share of the targets that count which are the tokens `offset` places ahead; 0 for fewer than 8."""
    length = tokens.shape[1]
    if offset >= 0:
        ahead, those = tokens[:, offset:], targets[:, : length - offset]
    else:
        ahead, those = tokens[:, :offset], targets[:, -offset:]
    counts = those != ignored
    if np.count_nonzero(counts) < 8:
        return 0.0
    return float(np.mean(ahead[counts] == those[counts]))
