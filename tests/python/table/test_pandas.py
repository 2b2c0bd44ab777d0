"""Frames of pandas: what becomes of their indexes, and of what they say about columns that have changed since."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import pds
from pds import frames, odf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def make_frame(start: int, name: str | None = "k") -> pd.DataFrame:
    """Return two rows, whose index is a range of numbers."""
    return pd.DataFrame({"v": [start * 10, start * 10 + 1]}, index=pd.RangeIndex(start, start + 2, name=name))


def is_range_stored(schema: pa.Schema) -> bool:
    return b"range" in (schema.metadata or {}).get(b"pandas", b"")


def test_a_range_with_a_name_is_a_column(tmp_path: Path) -> None:
    table = pds.write_table(tmp_path / "t", make_frame(2))
    assert table.schema.names == ["v", "k"]
    table.overwrite(make_frame(100))
    pd.testing.assert_frame_equal(table.scan().to_pandas(), make_frame(100), check_index_type=False)
    table.append(make_frame(2))
    assert table.scan(where="v < 100").to_pandas().index.tolist() == [2, 3]
    assert not is_range_stored(table.schema)


def test_a_range_is_stored_in_the_column_of_its_name(memory_store: pds.Store) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = pds.Table.create(memory_store, "t", schema, key="k")
    table.append(make_frame(5))
    table.upsert(make_frame(6))
    counted = pd.DataFrame({"v": [1, 2]})
    counted.index.name = "k"
    table.upsert(counted)
    write = table.begin_write()
    write.commit([write.prepare(make_frame(20))])
    assert dict(zip(*table.refresh().scan().to_pyarrow().to_pydict().values(), strict=True)) == {
        5: 50, 6: 60, 7: 61, 0: 1, 1: 2, 20: 200, 21: 201
    }  # fmt: skip
    assert pds.write_table("memory://ranges/t", make_frame(2), key="k").version == 1


def test_a_range_in_a_dataset_and_a_chain(memory_store: pds.Store) -> None:
    datasets = pds.ParquetDatasetStore(memory_store)
    datasets.write_dataset(make_frame(2), "ds")
    assert datasets.read_dataset("ds")["k"].to_pylist() == [2, 3]
    chain = odf.Dataset.create(memory_store, "chain")
    chain.ingest(make_frame(2))
    assert chain.scan(["v", "k"]).to_pandas().set_index("k")["v"].to_dict() == {2: 20, 3: 21}


@pytest.mark.parametrize(
    "index", [pd.RangeIndex(3, 5), pd.Index(["a", "b"]), pd.MultiIndex.from_tuples([(1, "a"), (2, "b")])], ids=str
)
@pytest.mark.parametrize(
    "columns", [["a", "b"], [10, 20], pd.MultiIndex.from_tuples([("a", "b"), ("c", "d")])], ids=str
)
def test_an_index_without_a_name_is_left_out(tmp_path: Path, index: Any, columns: Any) -> None:
    frame = pd.DataFrame([[1, 2], [3, 4]], index=index, columns=columns)
    table = pds.write_table(tmp_path / "t", frame)
    assert len(table.schema) == 2
    assert not is_range_stored(table.schema)
    pd.testing.assert_frame_equal(table.scan().to_pandas(), frame.reset_index(drop=True))
    pd.testing.assert_index_equal(frame.index, index)


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([7, 8], name="k"),
        pd.Index(["a", "b"], name="k"),
        pd.to_datetime(["2026-01-01", "2026-03-29"]).tz_localize("Europe/Riga").rename("k"),
        pd.CategoricalIndex(["a", "b"], name="k"),
        pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["k", "l"]),
    ],
    ids=lambda index: str(index.dtype),
)
def test_an_index_with_a_name_comes_back(tmp_path: Path, index: Any) -> None:
    frame = pd.DataFrame({"v": pd.array([1, None], "Int64"), "w": pd.array(["a", None], "string")}, index=index)
    table = pds.write_table(tmp_path / "t", frame)
    pd.testing.assert_frame_equal(table.scan().to_pandas(), frame)
    some = table.scan(["k", "v"]).to_pandas()
    assert (some.index.names, some["v"].dtype, table.scan(["v"]).to_pandas().index.names) == (["k"], "Int64", [None])


CHANGES: dict[str, Callable[[pds.Table], object]] = {
    "add": lambda table: table.alter.add_column("x", pa.string()),
    "merge": lambda table: table.append(pa.table({"x": [1]}), schema_mode="merge"),
    "rename": lambda table: table.alter.rename_column("v", "x"),
    "widen": lambda table: table.alter.widen("i", pa.int64()),
    "drop": lambda table: (table.alter.drop_column("i"), table.alter.add_column("i", pa.string())),
    "name again": lambda table: (table.alter.rename_column("k", "x"), table.alter.add_column("k", pa.int64())),
}
FRAME = pd.DataFrame(
    {"v": pd.array([1, None], "Int64"), "i": pd.array([1, None], "Int32"), "k": [5, 6]},
)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_after_a_change_of_columns_an_index_is_a_column(tmp_path: Path, change: Callable[[pds.Table], object]) -> None:
    """What was an index may be a column that was added later."""
    table = pds.write_table(tmp_path / "t", FRAME.set_index("k"))
    change(table)
    frame = table.refresh().scan().to_pandas()
    assert frame.columns.tolist() == table.schema.names
    assert frame.index.equals(pd.RangeIndex(len(frame)))
    if "v" in frame:
        assert frame["v"].dtype == "Int64"
    assert frame.astype(object).where(frame.notna(), None).to_dict("list") == table.scan().to_pyarrow().to_pydict()


@pytest.mark.parametrize(
    "columns",
    [[10, 20], pd.to_datetime(["2026-01-01", "2026-01-02"]), pd.MultiIndex.from_tuples([("a", "b"), ("c", "d")])],
    ids=["numbers", "times", "levels"],
)
@pytest.mark.parametrize("merges", [True, False])
def test_names_that_were_no_texts_after_a_change_of_columns(tmp_path: Path, columns: Any, merges: bool) -> None:
    table = pds.write_table(tmp_path / "t", pd.DataFrame([[1, 2]], columns=columns))
    if merges:
        table.append(pa.table({"x": [4]}), schema_mode="merge")
    else:
        table.alter.rename_column(table.schema.names[0], "x")
    assert table.refresh().scan().to_pandas().columns.tolist() == table.schema.names


def test_tables_that_have_stored_a_range(tmp_path: Path) -> None:
    """As older versions of pds did."""
    frame = make_frame(2)
    for name in ("k", None):
        rows = pa.Table.from_pandas(frame.rename_axis(name))
        assert is_range_stored(rows.schema)
        table = pds.write_table(tmp_path / str(name), rows)
        assert is_range_stored(table.schema)
        pd.testing.assert_frame_equal(table.scan().to_pandas(), frame.reset_index(drop=True))
        table.append(pa.table({"v": [1]}))
        assert table.scan(where="v > 1").to_pandas()["v"].to_dict() == {0: 20, 1: 21}


@pytest.mark.parametrize("stored", [b"{", b"[]", b"{}", b'{"columns": [{}]}', b'{"columns": [7], "index_columns": []}'])
def test_metadata_that_is_damaged_is_left_out(tmp_path: Path, stored: bytes) -> None:
    rows = pa.table({"v": [1]}).replace_schema_metadata({b"pandas": stored, b"mine": b"x"})
    table = pds.write_table(tmp_path / "t", rows)
    assert table.scan().to_pandas().to_dict("list") == {"v": [1]}
    assert table.schema.metadata[b"mine"] == b"x"


def test_metadata_of_the_frame_stays(tmp_path: Path) -> None:
    frame = make_frame(2, None)
    frame.attrs = {"unit": "km"}
    table = pds.write_table(tmp_path / "t", frame)
    assert table.scan().to_pandas().attrs == {"unit": "km"}
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == []


def test_a_column_that_pandas_cannot_hold_is_named(memory_store: pds.Store) -> None:
    rows = pa.table({"id": [1], "at": pa.array([0], pa.timestamp("us", "Nowhere/Nothing"))})
    table = pds.Table.create(memory_store, "t", rows.schema)
    table.append(rows)
    with pytest.raises(pds.CapabilityNotSupported, match=r"'at'.*Nowhere/Nothing.*scan\(columns\)"):
        table.scan().to_pandas()
    assert table.scan(["id"]).to_pandas()["id"].tolist() == [1]


class _TooLarge:
    """Rows whose conversion needs more memory than there is."""

    schema = pa.schema([("v", pa.int64())])

    def to_pandas(self) -> pd.DataFrame:
        raise pa.ArrowMemoryError("malloc of size 8 failed")


def test_too_little_memory_is_no_type_that_pandas_lacks() -> None:
    with pytest.raises(MemoryError, match="malloc"):
        frames.to_pandas(_TooLarge)  # type: ignore[arg-type]
