"""Right and wrong kernels, and what `assert_rounding_only` makes of them: `python -m quality.kernels`."""
