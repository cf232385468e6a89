"""The dump format, written: statistics, the JSON text of values and records, growing files and tensor files.

No framework and no pytest: whoever writes a dump gives a `FrameworkValues`, which says what its tensors are.
"""
