"""What measures this project: catalogues, material held out, fuzzers. README.md says each rate. Nothing of it ships.

The programs use helpers of the tests, which importing `tools` makes importable.
"""

import tools  # noqa: F401
