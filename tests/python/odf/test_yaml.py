"""The YAML of blocks: whatever text comes, a block or a clear error."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pds
from pds import odf

PIECES = [
    "kind: ",
    "- ",
    "\n",
    "  ",
    "&a ",
    "*a",
    "<<: ",
    "? ",
    "!!binary ",
    "'",
    '"',
    "|",
    ">",
    "{",
    "}",
    "[",
    "]",
    "#",
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
EVENTS = st.one_of(
    st.builds(odf.SetInfo, st.none() | TEXT, st.none() | st.lists(TEXT, max_size=4)),
    st.builds(odf.SetLicense, TEXT, TEXT, TEXT, st.none() | TEXT),
    st.builds(odf.SetVocab, *[st.none() | TEXT] * 4),
    st.builds(
        lambda items: odf.SetAttachments({"kind": "Embedded", "items": items}),
        st.lists(st.fixed_dictionaries({"path": TEXT, "content": TEXT}), max_size=3),
    ),
    st.builds(
        lambda extra: odf.AddData(new_watermark=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), extra=extra),
        st.dictionaries(
            TEXT,
            st.recursive(
                st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT,
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
                max_leaves=6,
            ),
            max_size=4,
        ),
    ),
)
MOMENTS = st.datetimes(timezones=st.just(dt.UTC))


@given(EVENTS, MOMENTS, st.integers(1, 2**64 - 1))
def test_any_block_comes_back_from_its_yaml(event: odf.Event, moment: dt.datetime, number: int) -> None:
    block = odf.Block(moment, odf.Multihash.sha3_256(b"before"), number, event)
    again = odf.Block.from_yaml(block.to_yaml())
    assert again.to_bytes() == block.to_bytes()
    assert again.event == block.event
    assert again.system_time == moment


@pytest.mark.parametrize("value", [1, "text", [1, [2]], {"inner": [True]}, [{"a": 1}, {"b": None}], {}, []])
@pytest.mark.parametrize("length", [999, 1_000, 1_022, 1_024, 1_025, 5_000])
def test_long_keys_come_back(length: int, value: Any) -> None:
    extra = {"a" * length: value, "b": {"\t" * length: value, "z": 1}}
    schema = {"fields": [{"name": "city", "type": {"kind": "String"}, "extra": extra}]}
    event = {"kind": "SetDataSchema", "schema": schema}
    block = odf.Block("2026-01-01T00:00:00Z", odf.Multihash.sha3_256(b"before"), 1, event)
    again = odf.Block.from_yaml(block.to_yaml())
    assert again.to_bytes() == block.to_bytes()


@given(st.data(), EVENTS)
def test_damaged_yaml_is_an_error_or_a_block(data: Any, event: odf.Event) -> None:
    text = odf.Block("2026-01-01T00:00:00Z", odf.Multihash.sha3_256(b"before"), 1, event).to_yaml()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 6))
        text = text[:at] + data.draw(st.sampled_from(PIECES) | TEXT) + text[at + length :]
    try:
        block = odf.Block.from_yaml(text)
    except (pds.InvalidInput, pds.FormatNotSupported, pds.BlockCorrupted):
        return
    assert odf.Block.from_yaml(block.to_yaml()) == block


@given(TEXT | st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_is_an_error_or_a_block(text: str) -> None:
    try:
        odf.Block.from_yaml(text)
    except (pds.InvalidInput, pds.FormatNotSupported):
        return
    raise AssertionError(text)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_error_or_a_block(raw: bytes) -> None:
    try:
        odf.Block.from_bytes(raw)
    except (pds.BlockCorrupted, pds.FormatNotSupported):
        return
    raise AssertionError(raw)
