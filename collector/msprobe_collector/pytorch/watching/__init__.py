"""How calls of PyTorch are seen."""
