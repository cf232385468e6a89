"""Mutated dumps and tensor files, by the thousand."""
