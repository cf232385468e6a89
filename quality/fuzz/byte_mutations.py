"""Damage to bytes, the same for the same random generator."""

from __future__ import annotations

from random import Random

#: Lengths and offsets at which readers go wrong.
_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1)


def damaged(content: bytes, random: Random, donors: list[bytes]) -> bytes:
    """`content` after one to four small damages; `donors` are files that pieces may come from."""
    mutable = bytearray(content)
    for _ in range(random.randint(1, 4)):
        random.choice(_DAMAGES)(mutable, random, donors)
    return bytes(mutable)


def _flip_bit(content: bytearray, random: Random, donors: list[bytes]) -> None:
    if content:
        content[_place(content, random)] ^= 1 << random.randrange(8)


def _set_byte(content: bytearray, random: Random, donors: list[bytes]) -> None:
    if content:
        content[_place(content, random)] = random.choice((0, 0xFF, 0x30 + random.randrange(10), random.randrange(256)))


def _set_number(content: bytearray, random: Random, donors: list[bytes]) -> None:
    width = random.choice((2, 4, 8))
    number = random.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    at = _place(content, random)
    content[at : at + width] = number.to_bytes(width, random.choice(("little", "big")))


def _cut_off(content: bytearray, random: Random, donors: list[bytes]) -> None:
    del content[_place(content, random) :]


def _delete(content: bytearray, random: Random, donors: list[bytes]) -> None:
    at = _place(content, random)
    del content[at : at + random.randint(1, 64)]


def _insert(content: bytearray, random: Random, donors: list[bytes]) -> None:
    at = _place(content, random)
    content[at:at] = random.randbytes(random.randint(1, 64))


def _repeat(content: bytearray, random: Random, donors: list[bytes]) -> None:
    at = _place(content, random)
    content[at:at] = content[at : at + random.randint(1, 256)] * random.randint(1, 50)


def _splice(content: bytearray, random: Random, donors: list[bytes]) -> None:
    donor = random.choice(donors)
    start = random.randrange(len(donor) + 1)
    at = _place(content, random)
    content[at : at + random.choice((0, 64))] = donor[start : start + random.randint(1, 512)]


def _place(content: bytearray, random: Random) -> int:
    """Often near one of the ends, where headers and directories are."""
    size = len(content)
    end = random.choice((size, size, min(size, 300), -min(size, 700)))
    return random.randrange(end) if end > 0 else size - random.randrange(-end) - 1 if end < 0 else 0


_DAMAGES = (_flip_bit, _flip_bit, _set_byte, _set_byte, _set_number, _cut_off, _delete, _insert, _repeat, _splice)
