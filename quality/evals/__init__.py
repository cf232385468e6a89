"""Planted faults with known answers, by which `diagnose` and any other program is scored."""
