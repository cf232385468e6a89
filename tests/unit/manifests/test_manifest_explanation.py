"""Which differences of two set-ups explain which faults."""

from __future__ import annotations

import pytest

from pytest_msprobe.answers.finding import ArgumentDifference
from pytest_msprobe.manifests.value import MODE, Effect, ManifestDifference, explanations

SEED = ManifestDifference("random", "seed", "1", "0", "seed of torch 1, golden 0", 0.87, ("torch",))
WEIGHTS = ManifestDifference("initial state", "parameters", "2 of 2", "", "another initial state", 0.62, ("a", "b"))
RATE = ManifestDifference("optimizer", "lr", "0.01", "0.001", "lr 0.01, golden 0.001", 0.96)
SHAPE = ManifestDifference("model", "shape", "[4]", "[8]", "shape [4], golden [8]", 0.9, ("emb.weight",))
EPS = ManifestDifference("model", "eps", "1e-05", "1e-06", "eps 1e-05, golden 1e-06", 0.86)
AFFINE = ManifestDifference("model", "affine", "True", "False", "affine True, golden False", 0.86)
EVAL = ManifestDifference("model", MODE, "eval", "training", "the model is in eval, golden in training", 0.92)
COMMAND = ManifestDifference("script", "command line", "a", "b", "command line: a, golden b", 0.2)
ALL = [RATE, SHAPE, EVAL, SEED, EPS, AFFINE, WEIGHTS, COMMAND]


@pytest.mark.parametrize(
    ("effect", "reasons"),
    [
        (Effect("parameter"), [SEED, WEIGHTS]),
        (Effect("parameter", is_later=True), [RATE, SEED, WEIGHTS]),
        (Effect("defined", is_drawn=True), [SEED]),
        (Effect("defined", is_update=True), [RATE]),
        (Effect("defined", arguments=(ArgumentDifference("kwargs.eps", "1e-05", "1e-06"),)), [EPS]),
        (Effect("defined", arguments=(ArgumentDifference("kwargs.eps", "1e-05", "1e-12"),)), []),
        (Effect("defined", arguments=(ArgumentDifference("input.4", "1e-05", "1e-06"),)), [EPS]),
        (
            Effect("defined", arguments=(ArgumentDifference("kwargs.training", "True", "False"),)),
            [],
        ),  # the reverse of what the modes are
        (Effect("defined", arguments=(ArgumentDifference("kwargs.affine", "True", "False"),)), [AFFINE]),
        (Effect("defined", arguments=(ArgumentDifference("kwargs.training", "False", "True"),)), [EVAL]),
        (Effect("defined", arguments=(ArgumentDifference("input.5", "False", "True"),)), [EVAL]),
        (Effect("defined", arguments=(ArgumentDifference("input.5", "True", "False"),)), []),
        (Effect("defined", arguments=(ArgumentDifference("kwargs.inplace", "False", "True"),)), []),
        (Effect("born", is_update=True), []),
        (Effect("rewired"), []),
    ],
)
def test_a_setting_explains_what_it_makes_and_no_more(effect: Effect, reasons: list[ManifestDifference]) -> None:
    assert explanations([one for one in ALL if one is not SHAPE], [effect]) == reasons


def test_another_model_explains_everything() -> None:
    assert explanations([SHAPE], [Effect("rewired")]) == [SHAPE]


def test_other_classes_and_names_are_those_of_a_port() -> None:
    classes = ManifestDifference("model", "model", "Llama", "LlamaPort", "model Llama, golden LlamaPort", 0.92)
    names = ManifestDifference("model", "parameters", "4", "4", "2 parameters are not in the golden model", 0.91)
    assert explanations([classes, names], [Effect("defined"), Effect("only_one_side")]) == []


def test_what_explains_the_first_difference_comes_first() -> None:
    assert explanations([RATE, SEED, WEIGHTS], [Effect("parameter"), Effect("defined", is_update=True)]) == [
        SEED,
        WEIGHTS,
        RATE,
    ]


def test_a_difference_is_an_argument_by_the_first_parameter_that_is_meant() -> None:
    assert SHAPE.argument == ArgumentDifference("emb.weight", "[4]", "[8]")
    assert SEED.argument == ArgumentDifference("seed", "1", "0")
