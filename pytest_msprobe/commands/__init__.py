"""The sub-commands of `python -m pytest_msprobe`, one module each."""
