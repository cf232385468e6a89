"""Planted faults with known answers, by which `python -m pytest_msprobe diagnose` and any other program is scored.

`python -m quality.evals make DIR` writes the dumps of every eval, `python -m quality.evals run DIR -- PROGRAM {dump}
{golden}` asks PROGRAM about each of them. Questions and answers are in skills/localise-numerics/evals.json.
"""
