"""Cells inside compiled graphs: what `static graph` level L0 taps, and how its values become records."""
