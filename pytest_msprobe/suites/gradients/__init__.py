"""Gradients of training runs: which step is the first that differs from another run, or is broken by itself."""
