"""Stand-ins for what tests cannot have: an engine whose faults are known, and an environment without frameworks."""
