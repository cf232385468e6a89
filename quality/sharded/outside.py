"""Sharded runs written outside: by somebody who did not read what judges them, and which nothing was mended on.

    python -m quality.sharded.outside [--only PATTERN...] [--keep DIR] [--task tensor|statistics|sketch]
                                      [--check | --list | --laws-only]

Writes the dumps, and prints for each entry what is said of it, with the run on one rank and without. --check prints, of
the runs without the collector, how far right ones and bugs are from the run on one rank: nothing is judged. --list
prints the entries with the record, setting and source line where each answer is right.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch.distributed.optim import ZeroRedundancyOptimizer

from quality.sharded import outside_data as data
from quality.sharded import outside_model as layers
from quality.sharded import outside_pipeline as pipeline
from quality.sharded import outside_sequence as sequence
from quality.sharded.__main__ import measured
from quality.sharded.answers import summary
from quality.sharded.entries import Entry
from quality.sharded.launching import Launch
from quality.sharded.outside_check import apart
from quality.sharded.public_bugs import put
from quality.sharded.tasks import TASKS

#: Trainings by the word `run` of an entry's settings.
RUNS: dict[str, Any] = {"data": data.DataRun, "flat": data.FlatRun, "tables": data.TablesRun}
RUNS |= {"sequence": sequence.SequenceRun, "window": sequence.WindowRun, "spatial": sequence.SpatialRun}

RUNS |= {"tensor": layers.TensorRun, "experts": layers.ExpertRun, "dtensor": layers.DTensorRun}
RUNS |= {"scheduled": pipeline.ScheduledRun, "tied": pipeline.TiedRun}


def _right(name: str, run: str, sizes: dict[str, int], steps: int = 1, ways: Any = None, **settings: object) -> Entry:
    return Entry(name, "outside", sizes, {"run": run, **settings}, ways or {}, steps=steps)


_DP2, _DP3, _DP4, _HSDP = {"dp": 2}, {"dp": 3}, {"dp": 4}, {"replicate": 2, "shard": 2}

RIGHT: tuple[Entry, ...] = (
    _right("DDP, qkv bias, two steps", "data", _DP2, 2),
    _right("DDP, 3 ranks", "data", _DP3),
    _right("DDP, no_sync", "data", _DP2, microbatches=2),
    _right("DDP, bfloat16 autocast", "data", _DP2, half="autocast"),
    _right("DDP, bias before GroupNorm, 4 ranks", "data", _DP4, 2, net="group norm"),
    _right("DDP, synchronised BatchNorm, two steps", "data", _DP2, 2, net="batch norm"),
    _right("DDP, LSTM, tokens that do not count", "data", _DP3, net="lstm"),
    _right("DDP, contrast over all ranks", "data", _DP2, net="towers"),
    _right("DDP, dropout off", "data", _DP4, 2, net="no dropout"),
    _right("DDP, EMA, two steps", "data", _DP2, 2, has_ema=True),
    _right("gradients averaged by hand", "data", _DP2, way="hand"),
    _right("gradients averaged by hand, clipped", "data", _DP2, way="hand", max_norm=0.5),
    _right("ZeRO 1, two steps", "data", _DP2, 2, way="zero"),
    _right("ZeRO 1, a rank that owns nothing", "data", _DP3, 2, net="line", way="zero"),
    _right("ZeRO 2 by hand, 3 ranks, two steps", "flat", _DP3, 2),
    _right("FSDP2, clipped, two steps", "data", _DP2, 2, way="fsdp", max_norm=0.5),
    _right("FSDP2, uneven, 3 ranks", "data", _DP3, 2, net="odd width", way="fsdp"),
    _right("FSDP2, bfloat16, 4 ranks", "data", _DP4, way="fsdp", half="policy"),
    _right("FSDP2, accumulated, recomputed", "data", _DP2, way="fsdp", microbatches=2, is_checkpointed=True),
    _right("HSDP", "data", _HSDP, way="fsdp"),
    _right("tables of embeddings over ranks", "tables", _DP2, 2),
    _right("tables of embeddings over 4 ranks", "tables", _DP4),
    _right("Ulysses, two steps", "sequence", {"cp": 2}, 2, {"core": "ulysses"}),
    _right("Ulysses, 4 ranks, means", "sequence", {"cp": 4}, 1, {"core": "ulysses", "is_mean": True}),
    _right("ring attention", "sequence", {"cp": 2}, 1, {"core": "ring"}),
    _right("ring attention, 3 ranks, means, two steps", "sequence", {"cp": 3}, 2, {"core": "ring", "is_mean": True}),
    _right("attention over split keys", "sequence", {"cp": 2}, 2, {"core": "split keys"}),
    _right("attention over split keys, 4 ranks", "sequence", {"cp": 4}, 1, {"core": "split keys"}),
    _right("context windows", "window", {"cp": 2}, 2),
    _right("context windows, 3 ranks", "window", {"cp": 3}),
    _right("halo of a spatial convolution", "spatial", {"rows": 2}, 2),
    _right("halo, kernel of 5, 3 ranks", "spatial", {"rows": 3}, kernel=5),
    _right("column and row parallel, two steps", "tensor", {"tp": 2}, 2),
    _right("column and row parallel, 4 ranks, clipped", "tensor", {"tp": 4}, max_norm=0.5),
    _right("one head of keys for all", "tensor", {"tp": 2}, is_shared=True),
    _right("sequence parallel, two steps", "tensor", {"tp": 2}, 2, {"is_sequence": True}),
    _right("sequence parallel, 4 ranks, clipped", "tensor", {"tp": 4}, 1, {"is_sequence": True}, max_norm=0.5),
    _right("tp2 dp2, means of the own part", "tensor", {"dp": 2, "tp": 2}, 2),
    _right("tp2 dp2, sequence parallel, clipped", "tensor", {"dp": 2, "tp": 2}, 1, {"is_sequence": True}, max_norm=0.5),
    _right("experts, one of 4", "experts", {"ep": 2}, 2),
    _right("experts, two of 8, 4 ranks", "experts", {"ep": 4}, count=8, chosen=2),
    _right("DTensor, tensor parallel, loss parallel", "dtensor", {"tp": 2}, 1, {"way": "tensor"}),
    _right("DTensor, sequence parallel, loss parallel, 4 ranks", "dtensor", {"tp": 4}, 2, {"way": "sequence"}),
    _right("DTensor, rows over ranks", "dtensor", {"dp": 2}, 2, {"way": "rows"}),
    _right("pipeline 1F1B, two steps", "scheduled", {"pp": 2}, 2, {"schedule": "1F1B"}),
    _right("pipeline GPipe, 3 ranks, clipped", "scheduled", {"pp": 3}, 1, {"schedule": "GPipe"}, blocks=3, max_norm=0.5),
    _right("pipeline interleaved", "scheduled", {"pp": 2}, 2, {"schedule": "interleaved"}, blocks=4),
    _right("pipeline by hand, tied words", "tied", {"pp": 2}, 2),
    _right("pipeline by hand, tied words, 3 ranks", "tied", {"pp": 3}, blocks=3),
)


def by_name(name: str) -> Entry:
    """The right run of this name."""
    return next(entry for entry in RIGHT if entry.name == name)


def _bug(name: str, right: str, owner: Any, old: str, new: Any, wrong: str, *expected: str, **facts: Any) -> Entry:
    """A right run with `new` in the place of an attribute of `owner`."""
    change = put(owner, old, new)
    return by_name(right).bug(name, change, wrong=wrong, expected=expected, place=new, **facts)


BUGS: tuple[Entry, ...] = (
    _bug("first values of each rank", "gradients averaged by hand", data, "first_seed", data.first_seed_of_rank, ""),
    _bug("lr of one rank", "DDP, qkv bias, two steps", data, "learning_rate", data.learning_rate_of_rank, ""),
    _bug("step left out", "DDP, qkv bias, two steps", data, "steps", data.steps_but_first_on_last_rank, ""),
    _bug("rows of one rank twice", "DDP, 3 ranks", data, "own_rows", data.rows_of_next_rank_twice, ""),
    _bug("accumulated loss not divided", "DDP, no_sync", data, "divided", data.undivided, ""),
    _bug("no_sync on the last", "DDP, no_sync", data, "synced", data.never_synced, ""),
    _bug("mean of means", "DDP, LSTM, tokens that do not count", data, "counted", data.counted_on_own_rank, ""),
    _bug("features without gradient", "DDP, contrast over all ranks", data, "everywhere", data.gathered_without_gradient, ""),
    _bug("pairs from zero", "DDP, contrast over all ranks", data, "own_pairs", data.pairs_from_zero, ""),
    _bug("bias gradients not reduced", "gradients averaged by hand", data, "reduced", data.weights_reduced, ""),
    _bug("gradients reduced twice", "gradients averaged by hand", data, "reduced", data.reduced_twice, ""),
    _bug("gradients summed", "gradients averaged by hand", data, "reduced", data.summed, ""),
    _bug("clipped before reduced", "gradients averaged by hand, clipped", data, "reduced", data.clipped_before_reduced, ""),
    _bug("FSDP2 clipped by own norm", "FSDP2, clipped, two steps", data, "clip", data.clipped_by_own_norm, ""),
    _bug("FSDP2 never synced", "FSDP2, accumulated, recomputed", data, "synced", data.never_synced, ""),
    _bug("HSDP replicas not reduced", "HSDP", data, "shard", data.shard_without_replicas, ""),
    _bug("EMA on one rank", "DDP, EMA, two steps", data, "averaged", data.averaged_on_first_rank, ""),
    _bug("EMA decay by ranks", "DDP, EMA, two steps", data, "averaged", data.averaged_by_rank_count, ""),
    _bug("BatchNorm of own images", "DDP, synchronised BatchNorm, two steps", data, "batch_norm", data.batch_norm_of_own_images, ""),
    _bug("statistics without gradient", "DDP, synchronised BatchNorm, two steps", data, "total", data.total_without_gradient, ""),
    _bug("ZeRO 1 parameters stale", "ZeRO 1, two steps", ZeroRedundancyOptimizer, "_sync_params", data.stale, ""),
    _bug("ZeRO 2 joined backwards", "ZeRO 2 by hand, 3 ranks, two steps", data, "joined", data.joined_backwards, ""),
    _bug("ZeRO 2 own gradient", "ZeRO 2 by hand, 3 ranks, two steps", data, "own_gradient", data.own_gradient_before, ""),
    _bug("tables exchanged", "tables of embeddings over ranks", data, "rows_of_all_tables", data.tables_exchanged, ""),
    _bug("table gradients not divided", "tables of embeddings over ranks", data, "gradient_divisor", data.dense_divisor, ""),
    _bug("positions from zero", "Ulysses, two steps", sequence, "start_of", sequence.start_of_zero, ""),
    _bug("labels of the own part rolled", "Ulysses, two steps", sequence, "parts_of", sequence.labels_rolled, ""),
    _bug("heads in turn", "Ulysses, two steps", sequence, "to_heads", sequence.heads_in_turn, ""),
    _bug("values of other heads", "Ulysses, 4 ranks, means", sequence.Ulysses, "forward", sequence.values_of_other_heads, ""),
    _bug("biases of a sequence not reduced", "ring attention", sequence, "reduced", sequence.weights_reduced, ""),
    _bug("mean where sum", "attention over split keys", sequence, "reduced", sequence.averaged, ""),
    _bug("ring the other way", "ring attention, 3 ranks, means, two steps", sequence, "owner_of", sequence.owner_after, ""),
    _bug("ring without gradient", "ring attention", sequence, "passed_on", sequence.passed_on_without_gradient, ""),
    _bug("ring not scaled to the new sum", "ring attention", sequence, "merged", sequence.merged_with_old_norm, ""),
    _bug("largest of own keys", "attention over split keys, 4 ranks", sequence, "largest", sequence.largest_of_own, ""),
    _bug("overlap of one layer", "context windows", sequence, "overlap", sequence.overlap_of_one_layer, ""),
    _bug("loss of the overlap", "context windows", sequence, "loss_of_own", sequence.loss_of_all, ""),
    _bug("halo too small", "halo, kernel of 5, 3 ranks", sequence, "halo_of", sequence.one_row, ""),
    _bug("halo exchanged", "halo of a spatial convolution", sequence, "with_halo", sequence.halo_exchanged, ""),
    _bug("halo without gradient", "halo of a spatial convolution", sequence, "with_halo", sequence.halo_without_gradient, ""),
    _bug("mean of own rows", "halo, kernel of 5, 3 ranks", sequence, "pooled", sequence.mean_of_own_places, ""),
    _bug("norm of own rows", "halo of a spatial convolution", sequence, "normalised", sequence.normalised_by_own, ""),
    _bug("mean of places without gradient", "halo, kernel of 5, 3 ranks", sequence, "pooled", sequence.places_summed_without_gradient, ""),
    _bug("column input not reduced", "column and row parallel, two steps", layers, "entering", layers.entering_without_gradient, ""),
    _bug("bias on each rank", "column and row parallel, 4 ranks, clipped", layers.Row, "forward", layers.biased_before, ""),
    _bug("keys of the other rank", "column and row parallel, two steps", layers, "part_of", layers.keys_of_other_rank, ""),
    _bug("vocabulary not masked", "column and row parallel, two steps", layers, "own_words", layers.all_rows, ""),
    _bug("loss over own words", "column and row parallel, 4 ranks, clipped", layers, "all_words", layers.own_sum, ""),
    _bug("norm biases not summed", "sequence parallel, two steps", layers, "sum_copies", layers.sum_weights, ""),
    _bug("row biases not summed", "sequence parallel, two steps", layers, "sum_copies", layers.sum_norms, ""),
    _bug("averaged over all ranks", "tp2 dp2, means of the own part", layers, "average", layers.average_over_all, ""),
    _bug("added up over data parallel ranks", "tp2 dp2, means of the own part", layers, "average", layers.add_up, ""),
    _bug("averaged over tensor parallel ranks", "tp2 dp2, means of the own part", layers, "average", layers.average_over_tensor_ranks, ""),
    _bug("clipped by own norm", "column and row parallel, 4 ranks, clipped", layers, "clip", layers.clip_by_own_norm, ""),
    _bug("norm counts copies", "tp2 dp2, sequence parallel, clipped", layers, "clip", layers.clip_counting_copies, ""),
    _bug("shared keys not summed", "one head of keys for all", layers, "shared", layers.shared_without_sum, ""),
    _bug("other expert", "experts, one of 4", layers, "expert_of", layers.other_expert, ""),
    _bug("rows in the order of experts", "experts, one of 4", layers, "combined", layers.combined_in_place, ""),
    _bug("gate made to add up to 1", "experts, two of 8, 4 ranks", layers, "combined", layers.combined_normalised, ""),
    _bug("experts averaged", "experts, one of 4", layers, "finish", layers.finish_all_alike, ""),
    _bug("experts not divided", "experts, two of 8, 4 ranks", layers, "finish", layers.finish_without_experts, ""),
    _bug("router not reduced", "experts, one of 4", layers, "finish", layers.finish_without_router, ""),
    _bug("DTensor gradients made local", "DTensor, rows over ranks", layers.DTensorRun, "on_rows", layers.rows_not_reduced, ""),
    _bug("DTensor output not summed", "DTensor, tensor parallel, loss parallel", layers, "plan", layers.plan_without_sum, ""),
    _bug("virtual stages in a row", "pipeline interleaved", pipeline, "blocks_of", pipeline.blocks_in_a_row, ""),
    _bug("microbatches not scaled", "pipeline 1F1B, two steps", pipeline, "scales", pipeline.unscaled, ""),
    _bug("gradients kept on a stage", "pipeline 1F1B, two steps", pipeline, "clear", pipeline.clear_first_stage, ""),
    _bug("clipped by own stage", "pipeline GPipe, 3 ranks, clipped", pipeline, "clip", pipeline.clip_by_own_stage, ""),
    _bug("tied words start apart", "pipeline by hand, tied words", pipeline, "start_tied", pipeline.start_apart, ""),
    _bug("tied words not summed", "pipeline by hand, tied words", pipeline, "sum_tied", pipeline.leave_tied, ""),
    _bug("loss of microbatches not divided", "pipeline by hand, tied words, 3 ranks", pipeline, "share", pipeline.share_of_all, ""),
    _bug("labels of microbatches exchanged", "pipeline by hand, tied words", pipeline, "label_of", pipeline.exchanged, ""),
    _bug("received gradients exchanged", "pipeline by hand, tied words", pipeline, "output_of", pipeline.exchanged, ""),
)
ENTRIES = (*RIGHT, *BUGS)


def line(entry: Entry) -> str:
    """Where the wrong line is."""
    if entry.place is None:
        return ""
    return f"{inspect.getsourcefile(entry.place)}:{inspect.getsourcelines(entry.place)[1]}"


def main() -> int:
    """Write, and check, list or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of entries")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where dumps are kept and taken from")
    parser.add_argument("--task", choices=TASKS, default="tensor", help="what is collected of values")
    parser.add_argument("--check", action="store_true", help="measure the runs without the collector; nothing is judged")
    parser.add_argument("--list", action="store_true", help="print the entries and where their answers are")
    parser.add_argument("--laws-only", action="store_true", help="judge by laws alone, not by the run on one rank")
    asked = parser.parse_args()
    entries = [one for one in ENTRIES if any(fnmatchcase(one.name, pattern) for pattern in asked.only)]
    if asked.list:
        sys.stdout.writelines(f"{described(one)}\n" for one in entries)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.keep or Path(temporary)).resolve()
        if asked.check:
            return checked(entries, folder, asked.task)
        launch, answers = measured(entries, folder, asked.task, laws_only=asked.laws_only)
        sys.stdout.write("\n".join([*summary(answers), *launch.failures, ""]))
    return 0


def described(entry: Entry) -> str:
    """An entry with the answers that are right."""
    if entry.change is None:
        return f"right: {entry.name} ({entry.world} ranks)"
    where = " | ".join((*entry.expected, *([f"says /{entry.says}/"] if entry.says else [])))
    alone = "; ranks contradict each other" if entry.is_lawless else ""
    return f"bug: {entry.name} ({entry.world} ranks; {line(entry)}): {entry.wrong} At: {where}{alone}"


def checked(entries: list[Entry], folder: Path, task: str) -> int:
    """Print how far each entry is from the run on one rank; 1 where that, or a dump, is not as it ought to be."""
    launch = Launch(folder, task)
    launch.run(entries)
    faults = 0
    for entry in entries:
        failure = launch.failures.get(entry.name)
        differences = [] if failure else list(apart(entry, launch))
        is_as_meant = not failure and bool(differences) is (entry.change is not None)
        is_as_meant &= entry.name not in launch.changed
        faults += not is_as_meant
        said = failure or "; ".join([*differences[:2], f"{len(differences)} differences"])
        changed = "; the collector changed a bit" if entry.name in launch.changed else ""
        sys.stdout.write(f"{'ok' if is_as_meant else 'FAULT'}: {entry.name}: {said}{changed}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
