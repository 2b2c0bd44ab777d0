"""Roaring bitmaps in their portable format, in plain Python."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_RUNS, _WITH_RUNS = 12346, 12347
_ARRAY_LENGTH, _BITMAP_BYTES, _FEW_CONTAINERS = 4096, 8192, 4


def roaring_numbers(data: bytes) -> list[int]:
    """The numbers of a bitmap; ValueError where the bytes are none."""
    cookie, at = struct.unpack_from("<I", data)[0], 4
    runs = b""
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        runs = data[at : at + (count + 7) // 8]
        at += len(runs)
    elif cookie == _NO_RUNS:
        count, at = struct.unpack_from("<I", data, at)[0], at + 4
    else:
        raise ValueError(f"{cookie} begins no bitmap")
    heads = [struct.unpack_from("<HH", data, at + 4 * i) for i in range(count)]
    at += 4 * count
    offsets = None
    if not runs or count >= _FEW_CONTAINERS:
        offsets = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
    numbers: list[int] = []
    for i, (high, less_one) in enumerate(heads):
        if offsets is not None and offsets[i] != at:
            raise ValueError(f"container {i} is at {at} and not at {offsets[i]}")
        low, at = _container(data, at, less_one + 1, is_run=bool(runs and runs[i // 8] >> i % 8 & 1))
        if len(low) != less_one + 1:
            raise ValueError(f"container {i} has {len(low)} numbers and not {less_one + 1}")
        numbers += [high << 16 | n for n in low]
    if at != len(data) or any(a >= b for a, b in itertools.pairwise(numbers)):
        raise ValueError("the bitmap is longer than it says, or its numbers do not ascend")
    return numbers


def _container(data: bytes, at: int, cardinality: int, *, is_run: bool) -> tuple[list[int], int]:
    """The numbers of one container, and where the next one begins."""
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = [struct.unpack_from("<HH", data, at + 2 + 4 * i) for i in range(count)]
        return [n for begin, more in pairs for n in range(begin, begin + more + 1)], at + 2 + 4 * count
    if cardinality <= _ARRAY_LENGTH:
        return list(struct.unpack_from(f"<{cardinality}H", data, at)), at + 2 * cardinality
    words = data[at : at + _BITMAP_BYTES]
    if len(words) != _BITMAP_BYTES:
        raise ValueError("a bitmap container is cut off")
    return [8 * i + bit for i, byte in enumerate(words) for bit in range(8) if byte >> bit & 1], at + _BITMAP_BYTES


def roaring_bytes(numbers: Iterable[int], *, runs: bool = False) -> bytes:
    """A bitmap of some numbers; with `runs` all containers are lists of runs."""
    groups = [(high, [n & 0xFFFF for n in low]) for high, low in itertools.groupby(sorted(set(numbers)), _high)]
    bodies = [_runs(low) if runs else _plain(low) for _, low in groups]
    runs = runs and bool(groups)
    head = struct.pack("<II", _NO_RUNS, len(groups))
    if runs:
        flags = ((1 << len(groups)) - 1).to_bytes((len(groups) + 7) // 8, "little")
        head = struct.pack("<I", _WITH_RUNS | len(groups) - 1 << 16) + flags
    head += b"".join(struct.pack("<HH", high, len(low) - 1) for high, low in groups)
    if not runs or len(groups) >= _FEW_CONTAINERS:
        at = len(head) + 4 * len(groups)
        for length in [len(body) for body in bodies]:
            head += struct.pack("<I", at)
            at += length
    return head + b"".join(bodies)


def _high(number: int) -> int:
    return number >> 16


def _runs(low: list[int]) -> bytes:
    groups = [[n for _, n in group] for _, group in itertools.groupby(enumerate(low), lambda pair: pair[1] - pair[0])]
    return struct.pack("<H", len(groups)) + b"".join(struct.pack("<HH", g[0], g[-1] - g[0]) for g in groups)


def _plain(low: list[int]) -> bytes:
    if len(low) <= _ARRAY_LENGTH:
        return struct.pack(f"<{len(low)}H", *low)
    bits = sum(1 << n for n in low)
    return bits.to_bytes(_BITMAP_BYTES, "little")
