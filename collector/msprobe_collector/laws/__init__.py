"""Laws of training: what holds in every training whatever the model, checked from what optimizers get and leave.

Nothing here knows a framework. `observation.py` says what a framework hands over, `judge.py` checks it, `journal.py`
writes what was found. NumPy loads with the modules, and not with this package.
"""
