"""Which operators a record may call, and which strings it may pass to them: the only way from a dump to a callable.

A name of a record is looked up in the tables of this package (`mindspore_2_10.txt`, `torch_2_13.txt`, one per framework
and version family, read as one). What is found is a constant of ours, the path of the callable; a name that is not
found is never looked up anywhere else. The tables are written by `python -m tools.operators` from the public
operators of an installed framework, without those of `excluded.txt`, and are reviewed like code.
"""

from __future__ import annotations

from pytest_msprobe.apis.operators.strings import refused_argument
from pytest_msprobe.apis.operators.table import find_operator, operator_names, unknown_operator

__all__ = ["find_operator", "operator_names", "refused_argument", "unknown_operator"]
