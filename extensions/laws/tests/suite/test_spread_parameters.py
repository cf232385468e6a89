"""A step on parameters that are spread over ranks as DTensor says, of which a dump holds what one rank has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_builder import DumpBuilder

from msprobe_collector.dump_format import Dump
from msprobe_laws.formula_check import FormulaCheck
from msprobe_laws.observation import Update
from msprobe_laws.suite.recorded import clipping_of, update_of

RECORD, CLIP = "Optimizer.SGD.0.forward", "Optimizer.clip_grad_norm.0.forward"
RNG = np.random.default_rng(5)
BEFORE, TERM, OTHER_TERM = RNG.standard_normal((3, 4, 8))


def dump(folder: Path, of_parameter: str, of_gradient: str) -> Dump:
    """A dump of a step that takes the sum of the terms that two ranks have of a gradient."""
    builder = DumpBuilder(folder, framework="pytorch")
    builder.header["ranks"] = {"world_size": 2, "rank": 0}

    def spread(array: np.ndarray[Any, Any], name: str, placement: str) -> dict[str, Any]:
        said = {"placements": [placement], "mesh": [0, 1], "global_shape": list(array.shape)}
        return builder.tensor(array, f"{name}.npy") | {"dtensor": said}

    plain = {"lr": 0.5, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "parameters": 1}
    settings = [{name: builder.value(value, "") for name, value in plain.items()}]
    law = {"formula": builder.value("SGD", "")}
    keywords = {
        "settings": settings,
        "law": law,
        "parameters.w": spread(BEFORE, "before", of_parameter),
        "gradients.w": spread(TERM, "gradient", of_gradient),
    }
    after = {"parameters.w": spread(BEFORE - 0.5 * (TERM + OTHER_TERM), "after", of_parameter)}
    builder.records[RECORD] = {"input_args": [], "input_kwargs": keywords, "output": [after]}
    norm = builder.tensor(np.array(2 * np.linalg.norm(TERM)), "norm.npy")
    clipped = {"max_norm": builder.value(1.0, ""), "gradients.w": builder.tensor(TERM, "clipped.npy")}
    builder.records[CLIP] = {"input_args": [], "input_kwargs": clipped, "output": [norm]}
    return Dump(builder.write())


def update(folder: Path, of_parameter: str, of_gradient: str) -> Update:
    return update_of(dump(folder, of_parameter, of_gradient), RECORD, 0)


@pytest.mark.parametrize(("placement", "deviations"), [("P(sum)", 0), ("R", 1)])
def test_a_term_of_a_gradient_is_not_what_the_step_takes(tmp_path: Path, placement: str, deviations: int) -> None:
    computed = FormulaCheck(update(tmp_path, "R", placement))
    assert computed.reason == ""
    assert len(computed.deviations) == deviations
    assert bool(computed.compared) == bool(deviations)


@pytest.mark.parametrize(("placement", "is_whole"), [("S(0)", False), ("R", True)])
def test_a_shard_is_no_whole_parameter_over_which_a_formula_may_add_up(
    tmp_path: Path, placement: str, is_whole: bool
) -> None:
    (parameter,) = update(tmp_path, placement, placement).parameters
    assert parameter.is_whole is is_whole


def test_the_header_says_that_other_ranks_clip_as_well(tmp_path: Path) -> None:
    assert clipping_of(dump(tmp_path, "R", "R"), CLIP).has_other_ranks
