"""Laws of training: what holds in every training whatever the model, checked from what optimizers get and leave.

Nothing here knows a framework. `observation.py` says what a framework hands over, `session.py` has it checked
and is what the package of a framework fills in, `journal.py` writes what was found. NumPy loads with the
modules, and not with this package.
PYTEST_DONT_REWRITE: pytest need not look for assertions here.
"""
