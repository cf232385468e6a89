"""pytest-msprobe: the dump of a training step as a pytest suite.

Kept empty on purpose: pytest imports this package in every project where it is installed.
"""
