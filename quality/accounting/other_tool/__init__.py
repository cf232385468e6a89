"""Pairs of dumps that nobody tuned on: of the existing tool's collectors, and of MindSpore against PyTorch."""
