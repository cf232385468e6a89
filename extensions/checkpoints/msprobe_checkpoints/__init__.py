"""Comparing two checkpoints, whatever wrote them: what differs, and by how much. No framework is needed."""
