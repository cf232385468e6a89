"""Laws of random outputs, and counts of independent events that show whether a sample follows one."""
