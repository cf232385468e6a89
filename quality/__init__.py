"""What measures this project: catalogues, material held out, fuzzers. README.md says each rate. Nothing of it ships.

The programs use helpers of the tests, which importing this makes importable.
"""

import sys

from tools import ROOT

sys.path.append(str(ROOT / "extensions" / "laws" / "tests"))
