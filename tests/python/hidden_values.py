"""Nested Arrow arrays, built of buffers, that hide values: under nulls, and in lists that are null or sliced off."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXTS = pa.array(["a", "", "longer than what a view holds"])
_VALUES = {
    "dictionary": _TEXTS,
    "dictionary of numbers": pa.array([7, 8, 9]),
    "dictionary with a null": pa.array(["a", None, ""]),
}
_LEAVES = ["int64", "timestamp", "string", "string_view", "dictionary", "decimal", "null"]
_LISTS = ["list", "large_list", "map"]
_VIEWS = ["list_view", "large_list_view"]
_KINDS = [
    "runs",
    "dictionary of numbers",
    "dictionary with a null",
    "fixed_size_list",
    *_LEAVES,
    *_LISTS,
    *_VIEWS,
    "struct",
]
_DEPTH = 3


def _bits(valid: Sequence[bool]) -> pa.Buffer:
    number = sum(int(bit) << at for at, bit in enumerate(valid))
    return pa.py_buffer(number.to_bytes(max(1, -(-len(valid) // 8)), "little"))


def _integers(numbers: Sequence[int], width: int) -> pa.Buffer:
    return pa.py_buffer(b"".join(number.to_bytes(width, "little", signed=True) for number in numbers))


def _with_nulls(values: pa.Array[Any], valid: Sequence[bool]) -> pa.Array[Any]:
    """The values, of which some are null and yet in their buffers."""
    buffers = [_bits(valid), *values.buffers()[1:]]
    if pa.types.is_dictionary(values.type):
        return pa.DictionaryArray.from_buffers(values.type, len(values), buffers, values.dictionary)
    return pa.Array.from_buffers(values.type, len(values), buffers)


def _leaf(kind: str, shown: Sequence[bool]) -> pa.Array[Any]:
    """Values without nulls, of which those that are not shown are none of their type."""
    count = len(shown)
    if kind == "null":
        return pa.nulls(count)
    if kind == "timestamp":
        # Seconds of which no milliseconds can be made.
        seconds = [number if is_shown else 2**62 for number, is_shown in enumerate(shown)]
        return pa.array(seconds, pa.timestamp("s"))
    if kind == "decimal":
        # More digits than the type has.
        digits = [number if is_shown else 10**20 for number, is_shown in enumerate(shown)]
        return pa.Array.from_buffers(pa.decimal128(4, 2), count, [None, _integers(digits, 16)])
    if kind in _VALUES:
        keys = [number % 3 if is_shown else 99 for number, is_shown in enumerate(shown)]
        return pa.DictionaryArray.from_arrays(pa.array(keys, pa.int8()), _VALUES[kind], safe=False)
    if kind in ("int64", "runs"):
        return pa.array(range(count), pa.int64())
    texts: Any = _TEXTS.take(pa.array([number % 3 for number in range(count)], pa.int64()))
    return texts.cast(kind)


class _Options(NamedTuple):
    """What arrays are made of, and whether fields may be not nullable."""

    kinds: Sequence[str]
    may_be_required: bool


def _is_flat(kind: str) -> bool:
    return kind not in (*_LISTS, *_VIEWS, "fixed_size_list", "struct")


@st.composite
def _child(
    draw: st.DrawFn, name: str, visible: Sequence[bool], depth: int, options: _Options
) -> tuple[pa.Field[Any], pa.Array[Any]]:
    """A field and its array: of what is not visible, a field that is not nullable may be null."""
    is_required = options.may_be_required and draw(st.booleans())
    valid = draw(st.lists(st.booleans(), min_size=len(visible), max_size=len(visible)))
    if is_required:
        valid = [is_valid or is_visible for is_valid, is_visible in zip(valid, visible, strict=True)]
        kinds = [kind for kind in options.kinds if kind not in ("null", "dictionary with a null")]
        options = options._replace(kinds=kinds)
    array = draw(_array(valid, visible, depth, options))
    return pa.field(name, array.type, nullable=not is_required), array


@st.composite
def _array(
    draw: st.DrawFn, valid: Sequence[bool], visible: Sequence[bool], depth: int, options: _Options
) -> pa.Array[Any]:
    count = len(valid)
    kinds = [kind for kind in options.kinds if (depth < _DEPTH if _is_flat(kind) else depth > 0)]
    kind = draw(st.sampled_from(kinds))
    shown = [a and b for a, b in zip(valid, visible, strict=True)]
    if _is_flat(kind):
        leaf = _leaf(kind, shown)
        if kind == "runs":
            run_ends = pa.array(range(1, count + 1), pa.int32())
            return pa.RunEndEncodedArray.from_arrays(run_ends, _with_nulls(leaf, valid))
        return leaf if kind == "null" else _with_nulls(leaf, valid)
    if kind == "struct":
        children = [draw(_child(name, shown, depth - 1, options)) for name in draw(st.sampled_from(["x", "xy"]))]
        data_type = pa.struct([field for field, _ in children])
        return pa.Array.from_buffers(data_type, count, [_bits(valid)], children=[array for _, array in children])
    if kind == "fixed_size_list":
        size = draw(st.integers(1, 2))
        # Refused by name.
        options = options._replace(kinds=[kind for kind in options.kinds if kind != "runs"])
        field, items = draw(_child("item", [row for row in shown for _ in range(size)], depth - 1, options))
        return pa.Array.from_buffers(pa.list_(field, size), count, [_bits(valid)], children=[items])
    return draw(_lists(kind, valid, shown, depth, options))


@st.composite
def _lists(
    draw: st.DrawFn, kind: str, valid: Sequence[bool], shown: Sequence[bool], depth: int, options: _Options
) -> pa.Array[Any]:
    count = len(valid)
    lengths = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    before, behind = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    offsets = list(itertools.accumulate(lengths, initial=before))
    width = 8 if kind.startswith("large") else 4
    # Views lie in another order than their items.
    order = draw(st.permutations(range(count))) if kind in _VIEWS else list(range(count))
    shown_by_place = dict(zip(order, shown, strict=True))
    visible_items = [shown_by_place[place] for place, length in enumerate(lengths) for _ in range(length)]
    visible_items = [False] * before + visible_items + [False] * behind
    if kind == "map":
        key_type = pa.field("key", pa.int64(), nullable=False)
        field, items = draw(_child("value", visible_items, depth - 1, options))
        keys = pa.array(range(len(items)), pa.int64())
        entries = pa.StructArray.from_arrays([keys, items], fields=[key_type, field])
        buffers = [_bits(valid), _integers(offsets, width)]
        return pa.Array.from_buffers(pa.map_(key_type, field), count, buffers, children=[entries])
    field, items = draw(_child("item", visible_items, depth - 1, options))
    if kind in _VIEWS:
        make_view = pa.large_list_view if kind == "large_list_view" else pa.list_view
        buffers = [_integers([numbers[place] for place in order], width) for numbers in (offsets, lengths)]
        return pa.Array.from_buffers(make_view(field), count, [_bits(valid), *buffers], children=[items])
    make_list = pa.large_list if kind == "large_list" else pa.list_
    buffers = [_bits(valid), _integers(offsets, width)]
    return pa.Array.from_buffers(make_list(field), count, buffers, children=[items])


@st.composite
def hidden_arrays(draw: st.DrawFn, *, without: Sequence[str] = (), may_be_required: bool = True) -> pa.Array[Any]:
    """Lists, structs and maps of each other, four deep at most, sliced out of longer arrays."""
    options = _Options([kind for kind in _KINDS if kind not in without], may_be_required)
    before, rows, behind = draw(st.integers(0, 1)), draw(st.integers(1, 5)), draw(st.integers(0, 1))
    count = before + rows + behind
    valid = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return draw(_array(valid, [True] * count, _DEPTH, options)).slice(before, rows)


def _required_nulls() -> dict[str, tuple[pa.Field[Any], pa.Array[Any], str]]:
    """Arrays with a null where their field has none, and the path of that within the field."""
    texts = pa.array(["a", None, "b"])
    rows = {
        "plain": texts,
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), texts),
        "runs": pa.RunEndEncodedArray.from_arrays([1, 2, 3], texts),
    }
    cases: dict[str, tuple[pa.Field[Any], pa.Array[Any], str]] = {}
    for name, items in rows.items():
        item = pa.field("item", items.type, nullable=False)
        narrow, wide = (_integers([0, 1, 3], width) for width in (4, 8))
        sizes = _integers([1, 2], 4)
        key = pa.field("key", pa.int64(), nullable=False)
        value = item.with_name("value")
        entries = pa.StructArray.from_arrays([pa.array([1, 2, 3]), items], fields=[key, value])
        structs = pa.StructArray.from_arrays([items], fields=[item])
        made = {
            "list": (pa.list_(item), [None, narrow], items, ".item"),
            "large_list": (pa.large_list(item), [None, wide], items, ".item"),
            "list_view": (pa.list_view(item), [None, narrow, sizes], items, ".item"),
            "map": (pa.map_(key, value), [None, narrow], entries, ".entries.value"),
            "struct in list": (pa.list_(structs.type), [None, narrow], structs, ".item.item"),
        }
        for where, (data_type, buffers, child, path) in made.items():
            array = pa.Array.from_buffers(data_type, 2, buffers, children=[child])
            cases[f"{where} of {name}"] = (pa.field("x", data_type), array, path)
        if name != "runs":
            fixed = pa.Array.from_buffers(pa.list_(item, 3), 1, [None], children=[items])
            cases[f"fixed_size_list of {name}"] = (pa.field("x", fixed.type), fixed, ".item")
        cases[f"struct of {name}"] = (pa.field("x", structs.type), structs, ".item")
        if name != "plain":
            cases[name] = (pa.field("x", items.type, nullable=False), items, "")
    return cases


REQUIRED_NULLS = _required_nulls()
