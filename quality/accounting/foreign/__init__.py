"""Pairs of dumps of networks that others wrote, and of training scripts of other forms than those of this project."""
