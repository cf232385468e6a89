"""One answer for every suite: `Diagnosis`, and how rows make one."""

from pytest_msprobe.diagnosis.from_rows import RunFacts, RunRows
from pytest_msprobe.diagnosis.value import AtFault, CannotSay, Diagnosis, Inherited, NextStep, Outcome, TakenStep

__all__ = ["AtFault", "CannotSay", "Diagnosis", "Inherited", "NextStep", "Outcome", "RunFacts", "RunRows", "TakenStep"]
