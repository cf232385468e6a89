"""Whether a device computes the same bytes every time, and whether all devices compute the same."""
