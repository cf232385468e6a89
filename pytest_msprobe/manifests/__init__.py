"""What two runs are made of, and in what that differs: told from their run.json, without tensors or frameworks."""

from __future__ import annotations

from pytest_msprobe.manifests.differences import ManifestDifference, differences

__all__ = ["ManifestDifference", "differences"]
