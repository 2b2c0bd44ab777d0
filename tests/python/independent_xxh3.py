"""XXH3-64 with seed 0, in plain Python, after the algorithm's description (`xxhash_spec.md`)."""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE, _BLOCK = 64, 1024


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _swapped(number: int) -> int:
    return int.from_bytes(number.to_bytes(8, "little"), "big")


def _folded(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ (product >> 64)


def _avalanche(h: int) -> int:
    h ^= h >> 37
    h = h * _MX1 & _MASK
    return h ^ h >> 32


def _avalanche_xxh64(h: int) -> int:
    h ^= h >> 33
    h = h * _P64[1] & _MASK
    h ^= h >> 29
    h = h * _P64[2] & _MASK
    return h ^ h >> 32


def _mix16(data: bytes, at: int, secret_at: int) -> int:
    return _folded(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _up_to_16(data: bytes) -> int:
    length = len(data)
    if length == 0:
        return _avalanche_xxh64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))
    if length <= 3:
        combined = data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8
        return _avalanche_xxh64(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    if length <= 8:
        joined = (_u32(data, length - 4) + (_u32(data, 0) << 32)) & _MASK
        h = joined ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        h ^= (h << 49 | h >> 15) & _MASK ^ (h << 24 | h >> 40) & _MASK
        h = h * _MX2 & _MASK
        h ^= (h >> 35) + length
        h = h * _MX2 & _MASK
        return h ^ h >> 28
    low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
    high = _u64(data, length - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
    return _avalanche((length + _swapped(low) + high + _folded(low, high)) & _MASK)


def _up_to_240(data: bytes) -> int:
    length = len(data)
    acc = length * _P64[0]
    if length <= 128:
        for i in range((length - 1) // 32, -1, -1):
            acc += _mix16(data, 16 * i, 32 * i) + _mix16(data, length - 16 * (i + 1), 32 * i + 16)
        return _avalanche(acc & _MASK)
    acc += sum(_mix16(data, 16 * i, 16 * i) for i in range(8))
    acc = _avalanche(acc & _MASK)
    acc += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3) for i in range(8, length // 16))
    acc += _mix16(data, length - 16, 136 - 17)
    return _avalanche(acc & _MASK)


def _add_stripe(acc: list[int], data: bytes, at: int, secret_at: int) -> None:
    values = struct.unpack_from("<8Q", data, at)
    secrets = struct.unpack_from("<8Q", _SECRET, secret_at)
    for i, (value, secret) in enumerate(zip(values, secrets, strict=True)):
        key = value ^ secret
        acc[i ^ 1] = (acc[i ^ 1] + value) & _MASK
        acc[i] = (acc[i] + (key & 0xFFFFFFFF) * (key >> 32)) & _MASK


def _long(data: bytes) -> int:
    length = len(data)
    acc = [_P32[2], _P64[0], _P64[1], _P64[2], _P64[3], _P32[1], _P64[4], _P32[0]]
    for at in range(0, (length - 1) // _BLOCK * _BLOCK, _STRIPE):
        _add_stripe(acc, data, at, at % _BLOCK // 8)
        if at % _BLOCK == _BLOCK - _STRIPE:
            secrets = struct.unpack_from("<8Q", _SECRET, len(_SECRET) - _STRIPE)
            acc = [(a ^ a >> 47 ^ s) * _P32[0] & _MASK for a, s in zip(acc, secrets, strict=True)]
    begin = (length - 1) // _BLOCK * _BLOCK
    for at in range(begin, begin + (length - 1 - begin) // _STRIPE * _STRIPE, _STRIPE):
        _add_stripe(acc, data, at, (at - begin) // 8)
    _add_stripe(acc, data, length - _STRIPE, len(_SECRET) - _STRIPE - 7)
    h = length * _P64[0]
    for i in range(4):
        left, right = (acc[2 * i + j] ^ _u64(_SECRET, 11 + 16 * i + 8 * j) for j in (0, 1))
        h += _folded(left, right)
    return _avalanche(h & _MASK)


def xxh3_64(data: bytes) -> int:
    """The hash of some bytes."""
    if len(data) <= 16:
        return _up_to_16(data)
    return _up_to_240(data) if len(data) <= 240 else _long(data)
