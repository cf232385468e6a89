"""Worker processes of xdist: devices, scheduling, other hosts, time limits."""
