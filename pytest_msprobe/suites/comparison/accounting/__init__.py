"""Every difference between two runs accounted for: born in an operation, inherited by it, or defined differently."""
