"""Files laid out in folders `name=value`, as Hive, Spark and pyarrow do, as files of a table."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import independent_table as independent
import pds

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = pa.schema(
    [
        ("region", pa.string()),
        ("day", pa.date32()),
        ("code", pa.int16()),
        ("ratio", pa.float64()),
        ("late", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)
SCHEMA = pa.schema([("id", pa.int64()), *PARTITIONS])
REGIONS = ["eu", "a b/ü%=1", "x" * 200, None]


def _rows() -> pa.Table:
    columns = {
        "id": range(40),
        "region": [REGIONS[i % 4] for i in range(40)],
        "day": [dt.date(2026, 11, 1 + i % 2) for i in range(40)],
        "code": [-7 if i % 2 else 32000 for i in range(40)],
        "ratio": [0.1 if i % 4 == 1 else -1e300 for i in range(40)],
        "late": [i % 2 == 0 for i in range(40)],
        "at": [dt.datetime(2026, 11, 1, 10, 30, i % 2, 500_000, tzinfo=dt.UTC).replace(tzinfo=None) for i in range(40)],
    }
    return pa.table(columns, schema=SCHEMA)


def _sorted(rows: pa.Table) -> list[dict[str, object]]:
    return rows.sort_by("id").to_pylist()


def _lay_out(folder: Path) -> list[str]:
    """Writes the rows as pyarrow does; returns the files relative to the folder above."""
    partitioning = ds.partitioning(PARTITIONS, flavor="hive")
    ds.write_dataset(_rows(), folder, format="parquet", partitioning=partitioning)
    return [path.relative_to(folder.parent).as_posix() for path in sorted(folder.rglob("*.parquet"))]


@pytest.mark.parametrize("folder", ["in", "t/in"])
def test_columns_have_the_values_of_folders(tmp_path: Path, folder: str) -> None:
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", SCHEMA, key=["id"])
    parent = folder.removesuffix("in")
    paths = [parent + path for path in _lay_out(tmp_path / folder)]
    assert len(paths) == 4
    table.add_files(paths, hive_partitioning=True)
    expected = _sorted(_rows())

    def check() -> None:
        assert _sorted(table.scan().to_pyarrow()) == expected
        assert _sorted(independent.newest(tmp_path / "t").rows()) == expected
        assert independent.check(tmp_path / "t") == []

    check()
    # Filters see the values, and files are pruned by them.
    for filter_sql, is_match, files in [
        # The long text has no bounds.
        ("region = 'eu'", lambda row: row["region"] == "eu", 2),
        ("region IS NULL", lambda row: row["region"] is None, 1),
        ("day = DATE '2026-11-02' AND code = -7", lambda row: row["code"] == -7, 2),
        ("ratio = 0.1", lambda row: row["ratio"] == 0.1, 4),
        ("late", lambda row: row["late"], 2),
        ("at > TIMESTAMP '2026-11-01 10:30:01'", lambda row: row["at"].second == 1, 2),
        ("id = 5 OR code = 5", lambda row: row["id"] == 5, 4),
    ]:
        scan = table.scan(where=filter_sql)
        assert _sorted(scan.to_pyarrow()) == [row for row in expected if is_match(row)], filter_sql
        assert scan.count() == sum(map(is_match, expected)), filter_sql
        assert scan.explain().files_read <= files, filter_sql
    only = table.scan(columns=["code", "region"]).to_pyarrow()
    assert sorted(map(str, only.to_pylist())) == sorted(
        str({k: row[k] for k in ("code", "region")}) for row in expected
    )
    # They stay with the column, whatever happens to it.
    table.alter.rename_column("code", "number")
    table.alter.widen("number", pa.int64())
    table.alter.add_column("code", pa.string())
    expected = [{k if k != "code" else "number": v for k, v in row.items()} | {"code": None} for row in expected]
    check()
    table.delete("region = 'eu' AND id < 10")
    expected = [row for row in expected if not (row["region"] == "eu" and row["id"] < 10)]
    check()
    table.upsert(table.scan(where="id = 21").to_pyarrow())
    check()
    table.optimize.compact()
    assert all(file.get("constants", {}) == {} for file in independent.newest(tmp_path / "t").files())
    check()
    assert table.check().ok


def _parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    return sink.getvalue()


def test_values_are_kept_in_segments(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
    body = _parquet(pa.table({"id": [0]}))
    paths = [f"in/part=p%20{number}/f.parquet" for number in range(300)]
    for path in paths:
        store.write(path, body)
    table.add_files(paths, hive_partitioning=True)
    assert independent.newest(tmp_path / "t").manifest["segments"]
    expected = [f"p {number}" for number in range(300)]
    assert table.scan().to_pyarrow()["part"].to_pylist() == expected
    assert independent.newest(tmp_path / "t").rows()["part"].to_pylist() == expected
    assert table.scan(where="part = 'p 7'").explain().files_read == 1
    assert independent.check(tmp_path / "t") == []


def test_a_file_that_holds_the_column_keeps_its_values(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
    memory_store.write("in/part=folder/f.parquet", _parquet(pa.table({"id": [1], "part": ["file"]})))
    memory_store.write("in/part=folder/g.parquet", _parquet(pa.table({"id": [2]})))
    table.add_files(["in/part=folder/f.parquet", "in/part=folder/g.parquet"], hive_partitioning=True)
    assert table.scan().to_pyarrow()["part"].to_pylist() == ["file", "folder"]
    # Without the option, folders mean nothing.
    table.add_files(["in/part=folder/g.parquet"])
    assert table.scan().to_pyarrow()["part"].to_pylist() == ["file", "folder", None]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("in/other=1/f.parquet", "'other'|\"other\""),
        ("in/code=one/f.parquet", "one"),
        ("in/code=40000/f.parquet", "40000"),
        ("in/code=/f.parquet", "code"),
        ("in/code=1/code=2/f.parquet", "two values"),
        ("in/code=__HIVE_DEFAULT_PARTITION__/f.parquet", "code"),
        ("in/day=2026-02-30/f.parquet", "2026-02-30"),
        ("in/code=%ff/f.parquet", "UTF-8"),
        ("in/parts=1/f.parquet", "parts"),
        ("in/price=1.005/f.parquet", "1.005"),
        ("in/price=1e-3/f.parquet", "price"),
        ("in/price=1e5/f.parquet", "1e5"),
        ("in/price=0E-10/f.parquet", "0E-10"),
        ("in/price=abc/f.parquet", "abc"),
        ("in/price=./f.parquet", "price"),
        ("in/price=123456789.00/f.parquet", "123456789"),
        ("in/second=10%3A30%3A00.5/f.parquet", "10:30:00.5"),
        ("in/day=2026-11-23 23%3A59%3A59/f.parquet", "23:59:59"),
        ("in/at=2026-11-23 10%3A30%3A00.0005/f.parquet", "0005"),
    ],
)
def test_folders_that_do_not_fit(memory_store: pds.Store, path: str, says: str) -> None:
    fields: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("code", pa.int16()), ("day", pa.date32())]
    fields.append(("parts", pa.list_(pa.int64())))
    fields += [("price", pa.decimal128(10, 2)), ("second", pa.time32("s")), ("at", pa.timestamp("ms"))]
    schema = pa.schema(fields)
    schema = schema.set(1, schema.field("code").with_nullable(False))
    table = pds.Table.create(memory_store, "t", schema)
    memory_store.write(path, _parquet(pa.table({"id": [1]})))
    with pytest.raises(pds.InvalidInput, match=says) as raised:
        table.add_files(path, hive_partitioning=True)
    assert path in str(raised.value) or "code" in str(raised.value)
    assert table.version == 1
    assert [entry for entry in memory_store.list_files("t", recursive=True) if "data" in str(entry)] == []


@pytest.mark.parametrize(
    ("kind", "folder", "value"),
    [
        (pa.decimal128(10, 2), "1.50", Decimal("1.50")),
        (pa.decimal128(10, 2), "-7", Decimal("-7.00")),
        (pa.decimal128(10, 2), "1.500", Decimal("1.50")),
        (pa.decimal128(10, 2), "12345678.5", Decimal("12345678.50")),
        (pa.decimal128(10, 8), "0.00000000", Decimal(0)),
        (pa.decimal128(10, 8), "0.0000000100", Decimal("1E-8")),
        (pa.time32("s"), "10%3A30%3A00", dt.time(10, 30)),
        (pa.time64("us"), "10%3A30%3A00.000001", dt.time(10, 30, 0, 1)),
        (pa.timestamp("us"), "0001-01-01 00%3A00%3A00", dt.datetime.fromisoformat("0001-01-01")),
        (pa.date32(), "9999-12-31", dt.date.max),
        (pa.float32(), "0.1", 0.10000000149011612),
        (pa.float64(), "1e300", 1e300),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
        (pa.uint64(), "18446744073709551615", 2**64 - 1),
        (pa.string(), "", ""),
    ],
)
def test_values_of_many_types(memory_store: pds.Store, kind: pa.DataType, folder: str, value: object) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("part", kind)]))
    memory_store.write(f"in/part={folder}/f.parquet", _parquet(pa.table({"id": [1, 2]})))
    table.add_files(f"in/part={folder}/f.parquet", hive_partitioning=True)
    assert table.scan().to_pyarrow()["part"].to_pylist() == [value, value]
    table.optimize.sort("id")
    assert table.scan().to_pyarrow()["part"].to_pylist() == [value, value]


@pytest.mark.parametrize(
    ("kind", "folder"),
    [(pa.float32(), "1e39"), (pa.float64(), "1e400"), (pa.float32(), "16777217"), (pa.float16(), "70000")],
)
def test_floats_that_the_type_does_not_have(memory_store: pds.Store, kind: pa.DataType, folder: str) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("part", kind)]))
    memory_store.write(f"in/part={folder}/f.parquet", _parquet(pa.table({"id": [1]})))
    with pytest.raises(pds.InvalidInput, match=folder):
        table.add_files(f"in/part={folder}/f.parquet", hive_partitioning=True)
    assert table.version == 1


def test_a_wider_type_reads_the_same_value(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("part", pa.float32())]))
    memory_store.write("in/part=0.1/f.parquet", _parquet(pa.table({"id": [1]})))
    table.add_files("in/part=0.1/f.parquet", hive_partitioning=True)
    table.append(pa.table({"id": [2], "part": pa.array([0.1], pa.float32())}))
    table.alter.widen("part", pa.float64())
    first, second = table.scan().to_pyarrow()["part"].to_pylist()
    assert first == second != 0.1


def test_more_rows_than_one_array_has(memory_store: pds.Store) -> None:
    count = 200_001
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
    memory_store.write("in/part=p/f.parquet", _parquet(pa.table({"id": range(count)})))
    table.add_files("in/part=p/f.parquet", hive_partitioning=True)
    assert table.scan(columns=["part"]).to_pyarrow()["part"].to_pylist() == ["p"] * count
    some = table.scan(where="part = 'p' AND id % 70000 = 69999").to_pyarrow()
    assert some.to_pydict() == {"id": [69_999, 139_999], "part": ["p", "p"]}
    table.delete("part = 'p' AND id >= 1")
    assert table.scan().to_pyarrow().to_pydict() == {"id": [0], "part": ["p"]}


def test_folders_above_the_table_are_no_values(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "env=prod/t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
    path = "env=prod/t/in/part=p/f.parquet"
    memory_store.write(path, _parquet(pa.table({"id": [1]})))
    table.add_files(path, hive_partitioning=True)
    assert table.scan().to_pyarrow()["part"].to_pylist() == ["p"]


def test_changes_of_a_file_that_came_back_with_other_values(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
    path = "t/in/part=p/f.parquet"
    memory_store.write(path, _parquet(pa.table({"id": [1, 2]})))
    table.add_files(path)
    table.delete("id >= 0")
    table.add_files(path, hive_partitioning=True)
    table.restore(2)
    changes = table.scan_changes(4).to_pyarrow().to_pylist()
    told = sorted((row["_change_type"], row["id"], row["part"]) for row in changes)
    assert told == [("delete", 1, "p"), ("delete", 2, "p"), ("insert", 1, None), ("insert", 2, None)]
