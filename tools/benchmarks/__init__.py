"""Measurements of run time and memory: `python -m tools.benchmarks.NAME`; docs/figures.md has the figures.

`make_dump`, `make_big`, `make_matmuls`, `make_pair`, `make_ranks`, `make_large_ranks`, `make_rows` and
`make_checkpoints` write what the others measure. What the words of their tables mean:

- *whole process*: pytest from start to exit, with imports; CPU is user and system time of all threads.
- *loop*: pytest_runtestloop in a process in which every API call of the dump has run once on both sides.
- *bare*: the same calls in that process, straight into the frameworks, results back to NumPy.

Figures are the smallest of several fresh processes, since other work on the machine can only add to a time.
"""
