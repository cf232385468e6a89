"""APIs that quantise: their rounding to an integer hangs on a float that may be off in its last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from msprobe_collector.dump_format import ApiName

#: Functional and Primitive names. msProbe has the same rule for its list of quantising APIs: two float values that are
#: neighbours can round to neighbouring integers, however good the device is.
_QUANTISING = frozenset(
    """
    dynamic_quant_ext DynamicQuantExt quant_v2 QuantV2 dequant_swiglu_quant DequantSwigluQuant
    quant_batch_matmul QuantBatchMatmul weight_quant_batch_matmul WeightQuantBatchMatmul quant_matmul QuantMatmul
    """.split()
)


def integer_tolerance(api: ApiName, dtype: np.dtype[Any]) -> int:
    """How far an integer output of `api` may be from the benchmark: 1 for int8 results of quantising, else 0."""
    return 1 if dtype == np.int8 and api.short in _QUANTISING else 0
