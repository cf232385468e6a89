"""python -m tools.evals make DIR [NAME...] | run DIR [NAME...] -- PROGRAM {dump} {golden}"""

from tools.evals.command import main

raise SystemExit(main())
