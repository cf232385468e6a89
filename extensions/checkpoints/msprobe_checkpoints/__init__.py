"""Comparing two checkpoints, whatever wrote them: what differs, and by how much. No framework is needed.

PYTEST_DONT_REWRITE: pytest need not look for assertions here.
"""
