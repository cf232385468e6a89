"""The catalogue of faults: what a broken kernel returns in place of the right result."""

from __future__ import annotations

import numpy as np

from quality.verdict_quality.target import Fault
from quality.verdict_quality.wrong_computations import (
    bfloat16_accumulator,
    epsilon_left_out,
    gradient_of_other_argument,
    index_off_by_one,
    narrower_inputs,
    other_approximation,
    wrong_axis,
    wrong_broadcast_axis,
)
from quality.verdict_quality.wrong_results import (
    floats,
    integer_off_by_one,
    narrower_output,
    noisy,
    offset,
    one_column_doubled,
    one_element,
    one_tile_not_written,
    shifted,
    swapped_elements,
    tail_not_written,
    tail_repeats_head,
    transposed,
    truncated,
)

CATALOGUE: dict[str, Fault] = {
    "one element 5 % off": one_element(lambda value: 1.05 * value),
    "one element doubled": one_element(lambda value: 2 * value),
    "one element lost (0)": one_element(lambda value: 0.0),
    "one element of the other sign": one_element(lambda value: -value),
    "one element NaN": one_element(lambda value: float("nan")),
    "one element Inf": one_element(lambda value: float("inf")),
    "two elements swapped": floats(swapped_elements),
    "last eighth not written": floats(tail_not_written),
    "last eighth repeats the first": floats(tail_repeats_head),
    "all elements 0": floats(lambda wide, rng: np.zeros_like(wide)),
    "scale 5 %": floats(lambda wide, rng: 1.05 * wide),
    "scale 1 %": floats(lambda wide, rng: 1.01 * wide),
    "scale 0.1 %": floats(lambda wide, rng: 1.001 * wide),
    "1 % of the mean size added": floats(offset),
    "sign of all elements": floats(lambda wide, rng: -wide),
    "shifted by one element": floats(shifted),
    "written in transposed layout": floats(transposed),
    "one tile not written": floats(one_tile_not_written),
    "one column doubled": floats(one_column_doubled),
    "rounded towards zero": truncated,
    "noise of 16 roundings": noisy,
    "output of lower precision": narrower_output,
    "inputs of lower precision": narrower_inputs,
    "accumulated in bfloat16": bfloat16_accumulator,
    "along the wrong axis": wrong_axis,
    "broadcast along the wrong axis": wrong_broadcast_axis,
    "indices off by one": index_off_by_one,
    "epsilon left out": epsilon_left_out,
    "other formula of gelu": other_approximation,
    "gradient of the wrong argument": gradient_of_other_argument,
    "one integer or bool wrong": integer_off_by_one,
}
