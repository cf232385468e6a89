"""Memory of freed arrays that goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_msprobe.engines import process
from pytest_msprobe.engines.process import give_pool_back

_MEGABYTE = 1 << 20


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of this process in MB, one for each time that it is looked at."""
    sizes: list[int] = []
    monkeypatch.setattr(process, "_private_bytes", lambda: sizes.pop(0) * _MEGABYTE)
    monkeypatch.setattr(process, "_held", 0)
    monkeypatch.setattr(process, "_pools", [])
    yield sizes
    assert not sizes


class Library:
    """A C library that counts how often it is asked to give back."""

    def __init__(self) -> None:
        self.asked = 0

    def malloc_trim(self, pad: int) -> int:
        self.asked += 1
        return 1


def test_it_is_given_back_only_where_the_process_has_grown(held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(process, "_c_library", lambda name: library)
    held += [500, 300]
    process.give_idle_memory_back()
    assert library.asked == 1
    held += [310, 364]
    process.give_idle_memory_back()
    process.give_idle_memory_back()
    assert library.asked == 1
    held += [365, 365, 400]  # what is in use cannot be given back, and is not looked for again
    process.give_idle_memory_back()
    process.give_idle_memory_back()
    assert library.asked == 2


@pytest.mark.parametrize("library", [None, object()], ids=["no library", "another one than glibc"])
def test_nothing_is_done_without_glibc(library: object, held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_c_library", lambda name: library)
    held += [500]
    process.give_idle_memory_back()


def test_a_system_that_does_not_say_how_large_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", _refused)
    assert process._private_bytes() == 0


def _refused(*arguments: object) -> None:
    raise FileNotFoundError


def test_a_framework_is_asked_together_with_the_c_library(held: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    library, asked = Library(), []
    monkeypatch.setattr(process, "_c_library", lambda name: library)
    process.add_pool(lambda own, size: asked.append((own, size)) or 0)
    held += [500, 300, 310]
    process.give_idle_memory_back()
    process.give_idle_memory_back()
    assert asked == [(library, 500 * _MEGABYTE)]


class Pool:
    """A MindSpore whose pool has room for some pieces, and a C library that gets pages back."""

    uint8 = "uint8"

    def __init__(self, room: int) -> None:
        self.room = room
        self.recycled = 0
        self.given: list[tuple[int, int]] = []
        self.mint = SimpleNamespace(empty=self._empty)
        self.Tensor = SimpleNamespace(data_ptr=None)

    def ms_memory_recycle(self) -> None:
        self.recycled += 1

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        if not self.room:
            raise RuntimeError("no memory")
        self.room -= 1
        address = 16 + self.room * shape[0]
        return SimpleNamespace(data_ptr=lambda: address)

    def madvise(self, address: Any, size: Any, advice: Any) -> None:
        self.given.append((address.value, size.value))


@pytest.mark.parametrize(("room", "pieces"), [(9, 4), (3, 3), (0, 0)])
def test_the_pool_is_asked_for_no_more_than_the_process_has(room: int, pieces: int) -> None:
    pool = Pool(room)
    assert give_pool_back(pool, pool, 70 * _MEGABYTE) == pieces * 16 * _MEGABYTE
    assert pool.recycled == 1
    assert len(pool.given) == pieces
    for address, size in pool.given:  # whole pages, and only those of the piece
        assert address % 4096 == size % 4096 == 0
        assert address >= 16
        assert (address - 16) // (16 * _MEGABYTE) == (address + size - 17) // (16 * _MEGABYTE)


@pytest.mark.parametrize("lacking", ["mint", "Tensor"])
def test_a_version_that_cannot_say_where_a_tensor_is(lacking: str) -> None:
    pool = Pool(3)
    setattr(pool, lacking, SimpleNamespace())
    assert give_pool_back(pool, pool, 70 * _MEGABYTE) == 0
    assert not pool.given


_REAL_POOL = """
import ctypes

import mindspore
import numpy as np

from pytest_msprobe.engines import process
from pytest_msprobe.engines.mindspore_engine import MindSporeEngine
from pytest_msprobe.engines.process import give_pool_back

assert MindSporeEngine(is_raised=False)._mindspore is mindspore
ones = mindspore.Tensor(np.ones(1 << 22, np.float32))
kept, released = ones + 1, [ones * number for number in range(4)]
del released
before = process._private_bytes()
looked_at = give_pool_back(mindspore, ctypes.CDLL("libc.so.6"), before)
assert before - process._private_bytes() >= 3 * ones.nbytes
assert looked_at <= before
assert (kept.asnumpy() == 2).all()
assert ((ones + kept).asnumpy() == 3).all()
"""


def test_pages_of_released_tensors_go_back_and_those_in_use_stay() -> None:
    pytest.importorskip("mindspore")
    # A process of its own: what other tests left in the pool would be counted, too.
    subprocess.run([sys.executable, "-c", _REAL_POOL], check=True)
