"""Pairs of implementations of one model: right ones, and ports with the bugs that ports have."""
