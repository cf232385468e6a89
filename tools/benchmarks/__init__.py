"""Measurements of run time and memory."""
