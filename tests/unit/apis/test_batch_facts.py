"""What `batch.txt` says of rows is true of PyTorch: in float64, rows of another batch are the same but for rounding."""

from __future__ import annotations

from typing import Any

import pytest

from msprobe_collector.dump_format import ApiName
from pytest_msprobe.apis.fact_table import FOLDER, plain_name
from pytest_msprobe.engines.protocol import Call
from pytest_msprobe.suites.repeat.check import find_batch, with_rows

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def t(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64).numpy()


Q = (t(4, 2, 5, 3), t(4, 2, 5, 3), t(4, 2, 5, 3))
#: A call for each name with rows.
CALLS: dict[str, tuple[Any, ...]] = {
    "linear": (t(4, 8), t(5, 8), t(5)),
    "matmul": (t(4, 3, 8), t(4, 8, 5)),
    "mm": (t(4, 8), t(8, 5)),
    "bmm": (t(4, 3, 8), t(4, 8, 5)),
    "addmm": (t(4, 5), t(4, 8), t(8, 5)),
    "baddbmm": (t(4, 3, 5), t(4, 3, 8), t(4, 8, 5)),
    **{f"conv{n}d": (t(4, 3, *(6,) * n), t(2, 3, *(3,) * n), t(2)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (t(4, 3, *(6,) * n), t(3, 2, *(3,) * n), t(2)) for n in (1, 2, 3)},
    "layer_norm": (t(4, 3, 5), (3, 5), t(3, 5), t(3, 5)),
    "rms_norm": (t(4, 3, 5), (5,), t(5)),
    "group_norm": (t(4, 6, 5), 2, t(6), t(6)),
    "normalize": (t(4, 5),),
    **{name: (t(4, 6), -1) for name in ("softmax", "log_softmax", "softmin", "glu", "cumsum", "cumprod", "sort")},
    **{name: (t(4, 6), 1) for name in ("sum", "nansum", "mean", "prod", "amax", "amin", "logsumexp", "std", "var")},
    **{name: (t(4, 6), 1) for name in ("argmax", "argmin", "any", "all", "argsort", "logcumsumexp")},
    **{name: (t(4, 6), 1) for name in ("cummax", "cummin")},
    "topk": (t(4, 6), 2),
    "scaled_dot_product_attention": (*Q, t(4, 1, 5, 5)),
    "embedding": (torch.tensor([1, 4, 2, 2]).numpy(), t(6, 3)),
    "one_hot": (torch.tensor([1, 4, 2, 2]).numpy(), 5),
    **{f"{kind}_pool{n}d": (t(4, 3, *(6,) * n), 2) for kind in ("avg", "max") for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": (t(4, 3, *(6,) * n), 2) for kind in ("avg", "max") for n in (1, 2, 3)},
    "interpolate": (t(4, 3, 6), 3),
    "upsample": (t(4, 3, 6), 3),
}
#: Names of MindSpore and torch_npu: the same as another name here, or fused operators that PyTorch does not have.
ELSEWHERE = {"dense", "batch_mat_mul", "npu_rms_norm", "npu_swiglu", "swiglu", "npu_fusion_attention", "npu_rotary_mul"}


def test_every_name_with_rows_is_tested() -> None:
    names = set()
    shared = ""
    for line in (FOLDER / "batch.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            shared = line
        elif line and not line.startswith("#") and "-> none:" not in f"{shared if '->' not in line else ''}{line}":
            names |= {plain_name(name) for name in line.partition(" -> ")[0].split()}
    assert names == {plain_name(name) for name in (*CALLS, *ELSEWHERE)}


def run(name: str, call: Call) -> list[Any]:
    function = getattr(functional, name, None) or getattr(torch, name)
    arguments = [torch.from_numpy(value) if hasattr(value, "dtype") else value for value in call.arguments]
    returned = function(*arguments)
    return list(returned) if isinstance(returned, tuple) else [returned]


@pytest.mark.filterwarnings("ignore:.*upsample")
@pytest.mark.parametrize("name", CALLS)
def test_rows(name: str) -> None:
    given: Call = Call(ApiName("Functional", name, 0), "pytorch", CALLS[name], {})
    batch = find_batch(given)
    assert batch.size == 4
    whole = run(name, given)
    for rows in ([2], [0, 1], [3, 2, 1, 0], [0, 1, 2, 3, 0, 1, 2, 3]):
        import numpy as np

        for found, expected in zip(run(name, with_rows(given, batch, np.array(rows))), whole):
            torch.testing.assert_close(found, expected[rows], rtol=1e-12, atol=1e-12)
