"""What data loaders give: batches, the order of a pass over the data, and the random numbers that elements are made of.

Elements may be drawn in processes of their own. Those are forked with what is replaced here, and write digests of
their random states into memory that they share with the process that trains.
"""

from __future__ import annotations

import functools
import mmap
import random
import struct
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils import data
from torch.utils.data import dataloader

from msprobe_collector.recording.guard import Guard
from msprobe_collector.recording.swaps import MethodSwaps
from msprobe_laws.law import Violation
from msprobe_laws.observation import Batch
from msprobe_laws.pytorch.models import is_away
from msprobe_laws.pytorch.tensors import fingerprint_of, tensors_in
from msprobe_laws.replacing import Replacing
from msprobe_laws.session import LawSession
from msprobe_laws.training import BATCHES_DIFFER

_SOURCES = ("Python's random", "NumPy", "PyTorch", "the generators of the dataset")
#: Of each process that loads: id of the dataset, states before and after its first fetch by source, whether it seeds.
_ROW = struct.Struct(f"<{2 * len(_SOURCES) + 2}Q")
_MOST_WORKERS = 64
#: Indices of a pass over the data that stand for its order, and the fewest that tell one.
_ORDER, _TELLING = 64, 8
#: Calls of one function with one seed while elements are fetched that are no chance.
_ALIKE = 3


class _Pass:
    """One pass of a data loader over its data.

    Attributes:
        number: of all passes.
        dataset: id of what is loaded, or of its first tensor.
        order: its first indices.
        step: how many steps had been taken when it began.
        rows: random states by process, as far as they are known.
        is_judged: whether they were compared.
    """

    def __init__(self, number: int, dataset: int, step: int) -> None:
        self.number, self.dataset, self.step = number, dataset, step
        self.order: list[int] = []
        self.rows: dict[int, tuple[int, ...]] = {}
        self.is_judged = False


class Loading:
    """Sees data loaders."""

    def __init__(self, session: LawSession, guard: Guard) -> None:
        """See nothing yet."""
        self._session, self._guard = session, guard
        self._passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self._count = 0
        #: Whether data were loaded, and no pass over them with steps in it has come to its end.
        self.is_cut = False
        self._has_ended = False
        #: The last pass over each dataset, by its id, and names of datasets.
        self._last: dict[int, _Pass] = {}
        self._names: dict[int, str] = {}
        self._shared = mmap.mmap(-1, _ROW.size * _MOST_WORKERS)
        #: (function, seed) that were called while the elements of a batch are fetched here; None outside.
        self._seeds: list[tuple[str, str]] | None = None

    def put(self, swaps: MethodSwaps) -> None:
        """See what is loaded from now on."""
        swaps.put(dataloader._BaseDataLoaderIter, "__next__", self._seen_next)
        replacing = Replacing(self._guard, functools.partial(is_away, self._guard))
        swaps.put(dataloader._BaseDataLoaderIter, "_next_index", replacing.after("an order of data", self._note_index))
        for fetcher in (data._utils.fetch._MapDatasetFetcher, data._utils.fetch._IterableDatasetFetcher):
            swaps.put(fetcher, "fetch", self._seen_fetch)
        for owner, name in ((random, "seed"), (np.random, "seed"), (np.random, "default_rng"), (torch, "manual_seed")):
            swaps.put(owner, name, functools.partial(self._seen_seeding, f"{owner.__name__}.{name}"))

    # In the process that fetches

    def _seen_seeding(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def seed(*args: Any, **kwargs: Any) -> Any:
            if self._seeds is not None and args:
                self._seeds.append((name, repr(args[0])[:40]))
            return original(*args, **kwargs)

        return seed

    def _seen_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            worker = data.get_worker_info()
            number = 0 if worker is None else worker.id
            if number >= _MOST_WORKERS or self._row(number, fetcher.dataset) or self._guard.activity.is_inside:
                return original(fetcher, index)
            before = self._guard.enter("laws: random states", _states_of, fetcher.dataset)
            outer, self._seeds = self._seeds, []
            try:
                return original(fetcher, index)
            finally:
                seeds, self._seeds = self._seeds, outer
                if before is not None:
                    self._guard.enter("laws: random states", self._write, number, before, fetcher.dataset, seeds)

        return fetch

    def _row(self, number: int, dataset: Any) -> tuple[int, ...]:
        """Return what a process has written of a dataset; () for nothing yet."""
        of, *row = _ROW.unpack_from(self._shared, number * _ROW.size)
        return tuple(row) if of == id(dataset) and all(row[:-1]) else ()

    def _write(self, number: int, before: list[int], dataset: Any, seeds: list[tuple[str, str]]) -> None:
        names = {name for name, _ in seeds}
        alike = 0
        for name in names:
            values = [value for other, value in seeds if other == name]
            if len(values) >= _ALIKE and len(set(values)) == 1:
                alike = 1
        _ROW.pack_into(self._shared, number * _ROW.size, id(dataset), *before, *_states_of(dataset), alike)

    # In the process that trains

    def _note_index(self, index: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        order = self._pass_of(args[0]).order
        for item in index if isinstance(index, list) else [index]:
            if isinstance(item, int) and len(order) < _ORDER:
                order.append(item)

    def _pass_of(self, iterator: Any) -> _Pass:
        current = self._passes.get(iterator)
        if current is None:
            self._count += 1
            self.is_cut = not self._has_ended
            held = (*getattr(iterator._dataset, "tensors", ()), iterator._dataset)  # a dataset may be made anew of them
            current = self._passes[iterator] = _Pass(self._count, id(held[0]), self._session.step)
            self._shared[:] = bytes(len(self._shared))
        return current

    def _seen_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            try:
                batch = original(iterator)
            except StopIteration:
                if (ended := self._passes.pop(iterator, None)) is not None:
                    self._guard.enter("laws: a pass over the data ends", self._judge, ended, iterator)
                    self._has_ended |= self._session.step > ended.step
                    self.is_cut = not self._has_ended
                raise
            if not is_away(self._guard):
                self._guard.enter("laws: a batch is loaded", self._loaded, iterator, batch)
            return batch

        return __next__

    def _loaded(self, iterator: Any, batch: Any) -> None:
        here = self._pass_of(iterator)
        name = self._names.setdefault(here.dataset, f"DataLoader of {type(iterator._dataset).__name__}")
        workers = min(max(1, iterator._num_workers), _MOST_WORKERS)
        for number in range(workers):
            if number not in here.rows and (row := self._row(number, iterator._dataset)):
                here.rows[number] = row
        if len(here.rows) == workers and (len(here.order) >= _TELLING or not here.order):
            self._judge(here, iterator)
        tensors = list(tensors_in(batch))
        if not tensors:
            return
        fingerprint, is_poor = fingerprint_of(tensors)
        sampler = getattr(iterator, "_index_sampler", None)
        with_replacement = getattr(_inner(sampler), "replacement", False) is True
        try:
            count = len(sampler) if sampler is not None else 0
        except TypeError:
            count = 0
        self._session.batch(Batch(name, fingerprint, True, count, here.number, is_poor or with_replacement))

    def _judge(self, here: _Pass, iterator: Any) -> None:
        """Compare random states of processes and passes, and orders of passes, where the training has taken steps."""
        if here.is_judged or self._session.step == here.step:
            return
        here.is_judged = True
        before, self._last[here.dataset] = self._last.get(here.dataset), here
        name = self._names.get(here.dataset, "DataLoader")
        messages = list(_of_states(here.rows, before.rows if before is not None else {}))
        is_shuffled = _shuffles(_inner(iterator._index_sampler))
        telling = min(len(here.order), len(before.order)) if before is not None else 0
        if (
            before is not None
            and is_shuffled
            and telling >= _TELLING
            and here.order[:telling] == before.order[:telling]
        ):
            messages.append(
                "each pass over the data has the order of the one before, although it is shuffled (set_epoch missing, "
                "or its generator is made anew?)"
            )
        findings = [Violation(BATCHES_DIFFER, name, message) for message in messages]
        self._session.say(BATCHES_DIFFER, f"{name}: random numbers and order", findings)


def _of_states(rows: dict[int, tuple[int, ...]], earlier: dict[int, tuple[int, ...]]) -> Iterator[str]:
    """Return what is wrong with the random states of processes that load, in this pass and since the one before."""
    size = len(_SOURCES)
    for at, source in enumerate(_SOURCES):
        drawn = {number: row[at] for number, row in rows.items() if row[at] != row[at + size]}
        first: dict[int, int] = {}
        for number, state in drawn.items():
            if (other := first.setdefault(state, number)) != number:
                yield (
                    f"workers {other} and {number} draw the same random numbers of {source}: their elements are "
                    "changed alike (do they share a seed?)"
                )
                break
        else:
            if drawn and all(earlier.get(number, ())[at : at + 1] == (state,) for number, state in drawn.items()):
                yield f"each pass over the data draws the same random numbers of {source} (seeded alike in each pass?)"
    if any(row[-1] for row in rows.values()):
        yield "each element is made after the random numbers were seeded alike: all are changed alike"


def _states_of(dataset: Any) -> list[int]:
    """Return the digests of random states by source; none is 0."""
    kinds = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
    generators = [item for item in _held(dataset) if isinstance(item, kinds)]
    states = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state().numpy(),
        [_state_of(item) for item in generators],
    )
    return [_digest(state) | 1 for state in states]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _digest(state: Any) -> int:
    if isinstance(state, np.ndarray):
        return xxhash.xxh64_intdigest(state.tobytes())
    with np.printoptions(threshold=1 << 20):
        return xxhash.xxh64_intdigest(repr(state).encode())


def _held(owner: Any, depth: int = 0) -> Iterator[Any]:
    """Return what a dataset holds, and what its parts hold: subsets, transforms and lists of them."""
    items = list(owner) if isinstance(owner, (list, tuple)) and len(owner) < 32 else []
    for item in (*items, *list(getattr(owner, "__dict__", {}).values())):
        yield item
        if depth < 3 and not isinstance(item, (torch.Tensor, np.ndarray, str)):
            yield from _held(item, depth + 1)


def _inner(sampler: Any) -> Any:
    return getattr(sampler, "sampler", sampler)


def _shuffles(sampler: Any) -> bool:
    kinds = (data.RandomSampler, data.SubsetRandomSampler)
    return isinstance(sampler, kinds) or getattr(sampler, "shuffle", False) is True
