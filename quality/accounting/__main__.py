"""How often the accounting names the planted cause, and what it blames where nothing is wrong.

    python -m quality.accounting [--folder FOLDER] [--only measured|held-out] [--write-results]

It takes minutes. Where the environment variable MSPROBE_REFERENCE_PYTHON names a Python that has msProbe, its
comparison is asked as well and its answers are kept in msprobe_answers.json. --write-results writes what is said of
each pair into quality/results: the column msProbe has how many rows of its table are marked `error` or `warning`, and
whether one of the operation that was changed (for data: of the first one that uses it) is the first of them.

Causes are planted in one of two runs of a small GPT (about 500 records) and of a small CNN, in PyTorch on a CPU; clean
pairs differ by rounding only. In pairs of MindSpore (target) and PyTorch (golden) it is the GPT of collector/examples,
from equal weights.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from quality.accounting.table import main

    sys.exit(main())
