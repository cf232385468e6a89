"""`python -m pytest_msprobe diagnose`: looks at dumps, runs the suites that answer most, says one answer."""
