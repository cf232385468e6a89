"""How often the accounting names the planted cause, and what it blames where nothing is wrong.

    python -m quality.accounting [--folder FOLDER] [--only measured|held-out]

Run it in the repository: it takes minutes and writes the tables of docs/accounting_quality.md. Where the environment
variable MSPROBE_REFERENCE_PYTHON names a Python that has msProbe, its comparison is asked as well and its answers are
kept in msprobe_answers.json.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from quality.accounting.page import main

    sys.exit(main())
