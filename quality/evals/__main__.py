"""How often `diagnose`, or another program, names a planted fault, and what it says where nothing is wrong.

    python -m quality.evals make DIR [NAME...] [--held-out]
    python -m quality.evals run DIR [NAME...] [--held-out] [-- PROGRAM {dump} {golden}]

`make` writes the dumps of every eval, `run` asks PROGRAM (`python -m pytest_msprobe diagnose` unless given) about each
of them. Questions and answers are in quality/evals/seen.json.
"""

from quality.evals.command import main

raise SystemExit(main())
