"""Other bounds for some API calls or dtypes; all others keep --msprobe-cosine and --msprobe-max-abs."""

from dataclasses import replace

# By the API's own name: "matmul" for mint.matmul, Tensor.matmul and ops.matmul. This table goes before the next.
BY_API = {
    "softmax": {"max_abs": 1e-6},
    "matmul": {"cosine": 0.9999, "max_abs": 1e-3},
}
# By dtype of the tested outputs or gradients, in the words of dumps; of several the first one listed here.
BY_DTYPE = {
    "BFloat16": {"cosine": 0.999, "max_abs": 5e-2},
    "Float16": {"cosine": 0.999, "max_abs": 5e-3},
}
# Gradients may differ more than outputs: their max_abs is multiplied by this.
BACKWARD_FACTOR = 2


def pytest_msprobe_standard(api, direction, dtypes, default):
    bounds = BY_API.get(api.short) or next((BY_DTYPE[dtype] for dtype in BY_DTYPE if dtype in dtypes), None)
    if bounds is None:
        return None  # the default
    standard = replace(default, **bounds)
    return replace(standard, max_abs=standard.max_abs * BACKWARD_FACTOR) if direction == "backward" else standard
