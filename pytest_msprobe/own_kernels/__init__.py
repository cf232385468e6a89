"""Kernels that stand in no dump, judged by the rules of the pre-check: `assert_rounding_only` and `rounding_of`."""
