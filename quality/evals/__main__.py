"""python -m quality.evals make DIR [NAME...] | run DIR [NAME...] -- PROGRAM {dump} {golden}"""

from quality.evals.command import main

raise SystemExit(main())
