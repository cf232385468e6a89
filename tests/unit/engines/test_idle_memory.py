"""Memory of freed arrays that goes back to the system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_msprobe.engines import process

_MEGABYTE = 1 << 20


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of this process in MB, one for each time that it is looked at."""
    sizes: list[int] = []
    monkeypatch.setattr(process, "_private_bytes", lambda: sizes.pop(0) * _MEGABYTE)
    monkeypatch.setattr(process, "_held", 0)
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
