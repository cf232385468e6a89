"""Which APIs of the installed MindSpore can be judged, by what, and why not."""

from __future__ import annotations


def make_page() -> str:
    """The page for the installed MindSpore and PyTorch. Imports both; ImportError when one is missing."""
    import mindspore
    import torch

    from tools.coverage.page import coverage_page
    from tools.coverage.states import covered
    from tools.operators.mindspore_surface import public_apis

    versions = {"mindspore": mindspore.__version__, "torch": torch.__version__.partition("+")[0]}
    return coverage_page(tuple(covered(public_apis())), versions)
