"""What names of a dump can do."""
