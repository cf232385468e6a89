"""Checkpoints of small random models, and right and wrong conversions of them, written without the code that judges."""
