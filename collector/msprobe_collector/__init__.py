"""The training side of pytest-msprobe, and the owner of the dump format.

Importing this package imports neither a framework nor NumPy: `dump_format` reads names, records and
stacks with the standard library and msgspec, and loads NumPy when a tensor's values are first asked for.
"""
