"""How often the verdicts are wrong."""
