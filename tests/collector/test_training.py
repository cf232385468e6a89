"""A real training, collected: what is recorded, and that the training notices nothing."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from collector.small_gpt import Training
from mindspore import mint, nn, ops
from real_dumps import real_dumps

from msprobe_collector.dump_format import Dump, find_dtype, read_construct
from msprobe_collector.mindspore.discovery import find_apis

EXISTING = real_dumps() / "gpt_tiny_mix" / "step0" / "rank0"


def collect(debugger, training, steps=1):
    values = []
    for _ in range(steps):
        with debugger.collect(training.net, rank_id=0):
            values.append(training.step())
        training.update()
    return values


def structure(value):
    """Shapes and dtypes of a JSON value; numbers of tensors left out."""
    if isinstance(value, dict) and value.get("type") == "mindspore.Tensor":
        return value["dtype"], tuple(value["shape"])
    if isinstance(value, dict):
        return {key: structure(item) for key, item in value.items()}
    return [structure(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def existing():
    return json.loads((EXISTING / "dump.json").read_text())["data"]


def test_names_and_forward_order_are_those_of_the_existing_collector(make_debugger, records, existing):
    collect(make_debugger(level="mix", task="tensor"), Training())
    found = records()
    assert found.keys() == existing.keys()
    forward = [name for name in existing if ".forward" in name]
    assert [name for name in found if ".forward" in name] == forward
    apis = [name for name in existing if name.endswith(".backward")]
    assert [name for name in found if name.endswith(".backward")] == apis


def test_arguments_shapes_and_dtypes_are_those_of_the_existing_collector(make_debugger, records, existing):
    collect(make_debugger(level="mix", task="tensor"), Training())
    for name, record in records().items():
        if name.startswith("Primitive") and name.endswith(
            "backward"
        ):  # there in firing order, here in that of arguments
            assert sorted(map(str, structure(record)["output"])) == sorted(
                map(str, structure(existing[name])["output"])
            )
        else:
            # Attributes of a Primitive are a field of ours alone.
            shared = {key: value for key, value in record.items() if key != "attributes"}
            assert structure(shared) == structure(existing[name]), name


def test_gradients_of_a_primitive_stand_in_argument_order(make_debugger, records):
    collect(make_debugger(), Training())
    found = records()
    arguments = structure(found["Primitive.dense.Dense.0.forward"]["input_args"])
    assert structure(found["Primitive.dense.Dense.0.backward"]["output"]) == arguments


def test_construct_and_stacks_lead_to_the_training_script(make_debugger, step_folder):
    collect(make_debugger(level="mix"), Training())
    construct = read_construct(step_folder() / "construct.json")
    theirs = read_construct(EXISTING / "construct.json")
    assert {name: parent for name, parent in construct.items() if "parameters_grad" not in name} == theirs
    dump = Dump(step_folder() / "dump.json")
    frame = dump.stacks.user_frame("Mint.square.0.forward")
    assert frame.file.endswith("small_gpt.py")
    assert frame.function == "construct"
    assert "mint.square" in frame.source
    assert dump.stacks.frames("Mint.square.0.backward") == ()


def test_l0_has_cells_alone_with_parameters_and_their_gradients(make_debugger, records, existing):
    debugger = make_debugger(level="L0")
    collect(debugger, Training())
    assert set(records()) == {name for name in existing if name.startswith("Cell")}
    assert set(records()["Cell.bs.0.a.o.Linear.forward.0"]["parameters"]) == {"weight", "bias"}


def test_gradients_that_come_after_stop_are_kept(make_debugger, records, existing):
    training = Training()
    debugger = make_debugger(level="mix")
    stopped = []

    def loss(ids, labels):
        value = training.loss(ids, labels)
        debugger.stop()
        stopped.append(len(records()))
        return value

    debugger.start(training.net, rank_id=0)
    ms.value_and_grad(loss, None, training.net.trainable_params())(training.ids, training.labels)
    debugger.step()
    assert stopped == [sum(".forward" in name for name in existing)]
    assert records().keys() == existing.keys()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_training_is_bit_identical_with_the_collector_on(make_debugger, level):
    ms.set_seed(3)
    bare, expected = Training(dropout=0.1), []
    for _ in range(3):
        expected.append(bare.step())
        bare.update()
    ms.set_seed(3)
    collected = collect(make_debugger(level=level), Training(dropout=0.1), steps=3)
    for theirs, ours in zip(expected, collected):
        for one, other in zip(theirs, ours):
            np.testing.assert_array_equal(one, other)


def callables():
    owners = (mint, mint.nn.functional, ops, ms.Tensor, nn.Cell)
    return [{name: value for name, value in vars(owner).items() if callable(value)} for owner in owners]


def test_off_means_that_the_originals_are_back(make_debugger):
    debugger = make_debugger(level="mix")
    training = Training()
    before = {(target.call): target.original for target in find_apis(debugger.configuration.api_list)}
    own = callables()
    primitive = training.net.head.dense
    kind, call = type(primitive), type(primitive).__call__
    debugger.start(training.net)
    assert mint.add is not before["Mint.add"]
    assert type(primitive) is kind
    assert kind.__call__ is not call
    debugger.stop()
    assert kind.__call__ is call
    assert callables() == own
    assert {target.call: target.original for target in find_apis(debugger.configuration.api_list)} == before


def test_tensor_files_hold_what_the_record_says(make_debugger, step_folder):
    collect(make_debugger(level="mix", task="tensor"), Training())
    dump = Dump(step_folder() / "dump.json")
    record = dump.forward("Mint.matmul.1")
    for index, value in enumerate((*record.arguments, *record.outputs)):
        array = np.load(step_folder() / "dump_tensor_data" / value.data_name)
        assert array.shape == value.shape, index
        assert array.max() == value.maximum
        assert array.dtype == find_dtype(value.dtype.name).stored_as
    assert (step_folder() / "dump_tensor_data" / "Cell.head.Linear.parameters_grad.0.weight.npy").exists()


def test_each_step_has_its_folder_and_numbers_begin_anew(make_debugger, records):
    collect(make_debugger(common={"step": [1]}), training := Training(), steps=2)
    assert not (Path(make_debugger().configuration.dump_path) / "step0").exists()
    assert "Mint.square.0.forward" in records(1)
    assert training.net.head.dense.__class__.__name__ == "Dense"
