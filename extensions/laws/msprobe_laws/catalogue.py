"""All laws: what each says, who says so, and what rounding may do."""

from __future__ import annotations

from msprobe_laws import signals, updates
from msprobe_laws.training import RANKS_DRAW, REPLICAS, STATEMENTS, Statement

_CLASSES = (
    updates.UpdateFormula,
    updates.MomentsFormula,
    updates.DecayAsDeclared,
    updates.StepCounter,
    updates.OwnState,
    updates.StateContinues,
    updates.StorageKept,
    updates.SomethingUpdated,
    updates.HyperParameters,
    updates.UpdatesArrive,
    signals.ClipNorm,
    signals.DropoutOffInEval,
    signals.DropoutIndependent,
    signals.RecomputationRepeats,
    signals.BatchesDiffer,
    signals.LabelsAligned,
)
#: By name, those on updates first.
LAWS: dict[str, Statement] = {
    **{law.name: Statement(law.name, law.sentence, law.source, law.tolerance) for law in _CLASSES},
    **{law.name: law for law in STATEMENTS},
}
#: Those that compare ranks, which are checked from the files of all of them.
OF_RANKS = (REPLICAS, RANKS_DRAW)
