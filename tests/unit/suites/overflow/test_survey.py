"""Levels of records among all of their dump."""

from __future__ import annotations

import json

import numpy as np
import pytest
from dump_builder import DumpBuilder
from overflow_dumps import F16, F32, INF, NAN, X, chain, edited

from msprobe_collector.dump_format import DumpError
from pytest_msprobe.suites.overflow.survey import Survey
from pytest_msprobe.suites.overflow.values import OverflowDump, read_rules

BAD = np.array([1.0, NAN, 2.0], F32)
INFINITE = np.array([1.0, INF, 2.0], F32)


def survey(path):
    return Survey(OverflowDump(path), read_rules(None))


def levels(path):
    return {name.removesuffix(".forward"): record.level for name, record in survey(path).records.items()}


def one(folder, arguments, outputs, *, name="Mint.op.0", real=True, **more):
    return survey(DumpBuilder(folder, real=real).call(name, arguments, outputs, **more).write()).records


def only(folder, arguments, outputs, **more):
    return next(iter(one(folder, arguments, outputs, **more).values()))


@pytest.mark.parametrize("real", [True, False])
def test_origin_propagated_absorbed(tmp_path, real):
    path = chain(tmp_path, real=real)
    assert levels(path) == {
        "Mint.mul.0": "clean",
        "Mint.exp.0": "origin",
        "Mint.add.0": "propagated",
        "Mint.clamp.0": "absorbed",
    }
    found = survey(path)
    assert found.first.operation.record == "Mint.exp.0.forward"
    assert found.records["Mint.add.0.forward"].source == "Mint.exp.0.forward"


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("hidden", [("Max", "Min"), ("Max", "Min", "Mean"), ("Max", "Min", "Norm")])
@pytest.mark.parametrize("real", [True, False])
def test_a_nan_that_max_and_min_do_not_show(tmp_path, place, hidden, real):
    output = X.copy()
    output[place] = NAN
    path = DumpBuilder(tmp_path, real=real).call("Mint.op.0", [X], [output]).write()
    edited(path, "Mint.op.0.forward", lambda record: record["output"][0].update(dict.fromkeys(hidden, 1.0)))
    assert levels(path) == {"Mint.op.0": "origin"}


def test_a_nan_that_only_the_data_shows(tmp_path):
    path = DumpBuilder(tmp_path).call("Mint.op.0", [X], [BAD]).write()
    edited(path, "Mint.op.0.forward", lambda record: record["output"][0].update(Max=2.0, Min=1.0, Mean=1.5, Norm=3.0))
    assert levels(path) == {"Mint.op.0": "origin"}


def test_statistics_that_say_more_than_the_data(tmp_path):
    path = DumpBuilder(tmp_path).call("Mint.op.0", [X], [X]).write()
    edited(path, "Mint.op.0.forward", lambda record: record["output"][0].update(Max=INF))
    assert levels(path) == {"Mint.op.0": "origin"}


@pytest.mark.parametrize("word", ["nan\t", "inf", "-inf", "NaN", "Infinity"])
def test_words_for_numbers_that_are_not_finite(tmp_path, word):
    path = DumpBuilder(tmp_path, real=False).call("Mint.op.0", [X], [X]).write()
    edited(path, "Mint.op.0.forward", lambda record: record["output"][0].update(Max=word, Norm=word))
    assert levels(path) == {"Mint.op.0": "origin"}


def test_counts_of_our_collector(tmp_path):
    path = DumpBuilder(tmp_path, real=False).call("Mint.op.0", [X], [X]).write()
    edited(path, "Mint.op.0.forward", lambda record: record["output"][0].update(NaN_count=2, Inf_count=1))
    outputs = survey(path).records["Mint.op.0.forward"].outputs
    assert (outputs.nan_count, outputs.inf_count) == (2, 1)


@pytest.mark.parametrize(
    "outputs",
    [[np.zeros((0, 4), F32)], [np.array([True, False])], [np.array([1, 2])], [True], ["inf"], [None]],
    ids=["empty", "bool", "int", "Python bool", "str", "null"],
)
@pytest.mark.parametrize("real", [True, False])
def test_what_cannot_overflow_is_clean(tmp_path, outputs, real):
    assert only(tmp_path, [X], outputs, real=real).level == "clean"


def test_a_python_number_that_is_returned_counts(tmp_path):
    assert only(tmp_path, [X], [NAN]).level == "origin"


def test_nested_outputs_count(tmp_path):
    assert only(tmp_path, [X], [[X, [BAD]]]).level == "origin"


def test_a_number_of_the_script_is_an_input(tmp_path):
    masked = np.array([1.0, -INF, 2.0], F32)
    builder = DumpBuilder(tmp_path).call("Mint.masked_fill.0", [X, X > 2, -INF], [masked])
    builder.call("Mint.add.0", [masked, X], [masked + X]).call("Mint.softmax.0", [masked], [X])
    found = survey(builder.write())
    first, second, third = found.records.values()
    assert (first.level, first.is_uncollected, first.source) == ("propagated", False, "")
    assert (second.level, second.is_uncollected, second.source) == ("propagated", False, "Mint.masked_fill.0.forward")
    assert third.level == "absorbed"
    assert found.first is None


def test_a_nan_from_a_mask_is_an_origin(tmp_path):
    masked = np.full(3, -INF, F32)
    builder = DumpBuilder(tmp_path).call("Mint.full.0", [[3], -INF], [masked])
    builder.call("Mint.softmax.0", [masked], [np.full(3, NAN, F32)])
    assert levels(builder.write()) == {"Mint.full.0": "propagated", "Mint.softmax.0": "origin"}


def test_a_nan_from_an_inf_that_has_an_origin_is_propagated(tmp_path):
    builder = DumpBuilder(tmp_path).call("Mint.exp.0", [X], [INFINITE]).call("Mint.sub.0", [INFINITE, INFINITE], [BAD])
    found = survey(builder.write()).records["Mint.sub.0.forward"]
    assert (found.level, found.source) == ("propagated", "Mint.exp.0.forward")


def test_the_first_record_that_gets_what_nobody_made(tmp_path):
    builder = DumpBuilder(tmp_path).call("Mint.op.0", [BAD], [BAD]).call("Mint.op.1", [BAD], [BAD])
    found = survey(builder.write())
    first, second = found.records.values()
    assert first.is_uncollected
    assert (second.level, second.source, second.is_uncollected) == ("propagated", "Mint.op.0.forward", False)
    assert found.first is first


def test_a_backward_also_gets_what_its_forward_had(tmp_path):
    records = one(tmp_path, [X], [INFINITE], incoming=[X], gradients=[INFINITE])
    assert records["Mint.op.0.backward"].level == "propagated"
    assert records["Mint.op.0.backward"].source == "Mint.op.0.forward"


def test_a_backward_that_makes_one(tmp_path):
    records = one(tmp_path, [X], [X], incoming=[X], gradients=[None, INFINITE])
    assert [record.level for record in records.values()] == ["clean", "origin"]


@pytest.mark.parametrize("name", ["Mint.empty.0", "Torch.empty_like.3", "Tensor.new_empty.0"])
def test_uninitialised_memory_is_ignored(tmp_path, name):
    assert only(tmp_path, [[3]], [BAD], name=name).level == "ignored"


def test_a_buffer_that_a_receive_fills_is_no_input(tmp_path):
    assert only(tmp_path, [BAD, 1], [X], name="MintDistributed.recv.0").level == "clean"
    assert only(tmp_path / "2", [[BAD], X], [X], name="MintDistributed.all_gather.0").level == "clean"


def test_a_call_that_gathers_and_returns_has_real_inputs(tmp_path):
    name = "Distributed.all_gather_into_tensor.0"
    assert only(tmp_path, [BAD], [BAD], name=name).level == "propagated"
    builder = DumpBuilder(tmp_path / "2", framework="pytorch").call(name, [BAD, X], [X])
    assert levels(builder.write()) == {name: "clean"}


def test_an_in_place_fill_of_a_buffer_is_ignored(tmp_path):
    assert only(tmp_path, [BAD, X > 2, 0.0], [BAD], name="Tensor.masked_fill_.0").level == "ignored"


def cells(folder, *, calls: bool):
    """A Cell with another inside it, in which something goes wrong."""
    builder = DumpBuilder(folder)
    parents = {"Cell.net.Net.forward.0": None, "Cell.net.fc.Dense.forward.0": "Cell.net.Net.forward.0"}
    builder.call("Mint.log.0", [X], [BAD])
    inner = builder.records.pop("Mint.log.0.forward")
    if calls:
        builder.records["Mint.log.0.forward"] = inner
        parents["Mint.log.0.forward"] = "Cell.net.fc.Dense.forward.0"
    builder.records = {"Cell.net.Net.forward.0": inner, "Cell.net.fc.Dense.forward.0": inner, **builder.records}
    (folder / "construct.json").write_text(json.dumps(parents))
    return survey(builder.write())


def test_a_cell_is_explained_by_the_call_inside_it(tmp_path):
    found = cells(tmp_path, calls=True)
    assert {name: (record.level, record.source) for name, record in found.records.items()} == {
        "Cell.net.Net.forward.0": ("propagated", "Cell.net.fc.Dense.forward.0"),
        "Cell.net.fc.Dense.forward.0": ("propagated", "Mint.log.0.forward"),
        "Mint.log.0.forward": ("origin", ""),
    }
    assert found.first.operation.record == "Mint.log.0.forward"


def test_without_calls_the_innermost_cell_is_the_origin(tmp_path):
    found = cells(tmp_path, calls=False)
    assert [record.level for record in found.records.values()] == ["propagated", "origin"]


def test_gradients_of_parameters_have_no_inputs(tmp_path):
    builder = DumpBuilder(tmp_path).call("Mint.log.0", [X], [X], incoming=[X], gradients=[BAD])
    builder.records["Cell.net.fc.Dense.parameters_grad"] = {"input_embedding.weight": [builder.tensor(BAD, "g.npy")]}
    found = survey(builder.write()).records["Cell.net.fc.Dense.parameters_grad"]
    assert (found.level, found.source) == ("propagated", "Mint.log.0.backward")


def test_a_tensor_file_that_is_missing_is_a_fault(tmp_path):
    path = DumpBuilder(tmp_path).call("Mint.op.0", [X], [X]).write()
    (tmp_path / "dump_tensor_data" / "Mint.op.0.forward.output.0.npy").unlink()
    (found,) = survey(path).records.values()
    assert "Mint.op.0.forward.output.0.npy' is not in" in found.fault


def test_checksums_tell_nothing(tmp_path):
    path = DumpBuilder(tmp_path, real=False).call("Mint.op.0", [X], [X]).write()

    def change(record):
        for key in ("Max", "Min", "Mean", "Norm"):
            del record["output"][0][key]
        record["output"][0]["md5"] = "0badf00d"

    assert levels(edited(path, "Mint.op.0.forward", change)) == {"Mint.op.0": "unknown"}


def test_outputs_that_were_not_dumped_are_unknown(tmp_path):
    path = DumpBuilder(tmp_path).call("Mint.op.0", [X], [X]).write()
    assert levels(edited(path, "Mint.op.0.forward", lambda record: record.pop("output"))) == {"Mint.op.0": "unknown"}


@pytest.mark.parametrize(("task", "words"), [("structure", "holds no values"), ("overflow_check", "holds no record")])
def test_dumps_without_values_are_refused(tmp_path, task, words):
    builder = DumpBuilder(tmp_path)
    builder.header["task"] = task
    with pytest.raises(DumpError, match=words):
        OverflowDump(builder.write())


def test_a_dump_of_the_overflow_task_is_read(tmp_path):
    builder = DumpBuilder(tmp_path).call("Mint.add.0", [np.full(2, 6e4, F16)] * 2, [np.full(2, INF, F16)])
    builder.header["task"] = "overflow_check"
    assert levels(builder.write()) == {"Mint.add.0": "origin"}


def discarding(folder, *, taken: bool = True, makers: bool = True):
    """log(0) as in the position buckets of T5: what a `where` does not take is -Inf; else it is added as well."""
    builder = DumpBuilder(folder)
    zero = np.array([0.0, 1.0, 4.0], F32)
    with np.errstate(divide="ignore"):
        logarithm = np.log(zero)
    scaled = logarithm * F32(2)
    small = zero < 1
    builder.call("Torch.log.0", [zero], [logarithm])
    builder.call("Tensor.mul.0", [logarithm, 2.0], [scaled])
    builder.call("Torch.isinf.0", [scaled], [np.isinf(scaled)])
    builder.call("Torch.where.0", [small, zero, scaled], [np.where(small, zero, scaled)])
    if not taken:
        builder.call("Tensor.add.0", [X, scaled], [X + scaled])
    uses = {
        "Tensor.mul.0": (0, "Torch.log.0"),
        "Torch.isinf.0": (0, "Tensor.mul.0"),
        "Torch.where.0": (2, "Tensor.mul.0"),
    }
    for call, (place, maker) in ({**uses, "Tensor.add.0": (1, "Tensor.mul.0")} if makers else {}).items():
        if f"{call}.forward" in builder.records:
            builder.records[f"{call}.forward"]["input_args"][place]["made_by"] = f"{maker}.forward.output.0"
    return builder.write()


@pytest.mark.parametrize("makers", [True, False])
def test_what_is_taken_out_again_is_discarded(tmp_path, makers):
    found = survey(discarding(tmp_path, makers=makers))
    assert {name: record.level for name, record in found.records.items()} == {
        "Torch.log.0.forward": "discarded",
        "Tensor.mul.0.forward": "discarded",
        "Torch.isinf.0.forward": "absorbed",
        "Torch.where.0.forward": "absorbed",
    }
    assert found.first is None


def test_what_is_also_computed_with_is_not_discarded(tmp_path):
    found = survey(discarding(tmp_path, taken=False))
    assert found.first.operation.record == "Torch.log.0.forward"
    assert found.records["Tensor.mul.0.forward"].level == "propagated"


def test_what_is_only_looked_at_is_not_discarded(tmp_path):
    builder = DumpBuilder(tmp_path).call("Mint.log.0", [X], [INFINITE])
    found = survey(builder.call("Mint.isfinite.0", [INFINITE], [np.isfinite(INFINITE)]).write())
    assert found.first.operation.record == "Mint.log.0.forward"


@pytest.mark.parametrize(("value", "level"), [(BAD, "origin"), (INFINITE, "discarded")])
def test_the_index_of_a_nan_is_computed_from_it(tmp_path, value, level):
    builder = DumpBuilder(tmp_path).call("Mint.log.0", [X], [value])
    builder.call("Mint.argmax.0", [value], [np.array(1)])
    assert survey(builder.write()).records["Mint.log.0.forward"].level == level


def test_a_gradient_that_is_not_finite_is_no_discard(tmp_path):
    builder = DumpBuilder(tmp_path).call("Mint.sqrt.0", [X], [INFINITE], incoming=[X], gradients=[BAD])
    builder.call("Mint.clamp.0", [INFINITE], [X])
    assert survey(builder.write()).first.operation.record == "Mint.sqrt.0.forward"
