"""Whoever applies all changes has the table's rows: also across dropped columns, compactions and restores."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string())])


def _row(values: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in values.items() if not name.startswith("_"))


def _applied(changes: pa.Table, rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Rows after changes; what is deleted has to be there as it is told."""
    rows = rows.copy()
    for change in changes.to_pylist():
        row = _row(change)
        if change["_change_type"] == "insert":
            rows[row] += 1
        else:
            assert rows[row] > 0, change
            rows[row] -= 1
    return +rows


def _rows(table: pds.Table) -> Counter[tuple[Any, ...]]:
    return Counter(_row(row) for row in table.scan().to_pyarrow().to_pylist())


def _check(table: pds.Table) -> None:
    table.refresh()
    assert _applied(table.scan_changes(1).to_pyarrow(), Counter()) == _rows(table)
    columns = table.schema.names[::-2]
    changes = table.scan_changes(1, columns=columns).to_pyarrow()
    assert changes.column_names == [*columns, "_change_type", "_commit_version", "_commit_timestamp"]
    rows = table.scan(columns).to_pyarrow().to_pylist()
    assert _applied(changes, Counter()) == Counter(map(_row, rows))


def test_columns_of_changes(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, key="id")
    table.append(pa.table({"id": [1, 2, 3], "a": [1, 2, 3], "b": ["x", "y", "z"]}, schema=SCHEMA))
    # Rows that are deleted by their key are found by a column that is not returned.
    table.delete("id = 2")
    changes = table.scan_changes(1, columns=["b"]).to_pyarrow().to_pydict()
    assert (changes["b"], changes["_change_type"]) == (["x", "y", "z", "y"], ["insert"] * 3 + ["delete"])
    assert table.scan_changes(2, columns=[]).to_pyarrow().num_rows == 1
    for columns, error in ((["no"], pds.InvalidInput), (["b", "b"], pds.InvalidInput), ([1], pds.InvalidType)):
        with pytest.raises(error, match="column"):
            table.scan_changes(1, columns=columns)  # type: ignore[arg-type]


def test_changes_from_the_first_version_on(tmp_path: Path) -> None:
    rows = pa.table({"id": range(100), "a": range(100), "b": ["x"] * 100}, schema=SCHEMA)
    table = pds.write_table(tmp_path / "t", rows, key="id")
    first = table.scan_changes(0).to_pyarrow()
    assert first.drop_columns(["_change_type", "_commit_version", "_commit_timestamp"]).sort_by("id") == rows
    assert set(first["_change_type"].to_pylist()) == {"insert"}
    assert set(first["_commit_version"].to_pylist()) == {1}
    assert set(first["_commit_timestamp"].to_pylist()) == {table.history(1)[0]["created_at"]}
    table.delete("id < 50")
    table.upsert(rows.slice(40, 20))
    table.optimize.compact()
    changes = table.scan_changes(0).to_pyarrow()
    assert changes.num_rows == 100 + table.scan_changes(1).count()
    assert _applied(changes, Counter()) == _rows(table)
    assert table.scan_changes(0, 1, columns=["a"]).to_pyarrow()["a"].to_pylist() == first["a"].to_pylist()
    assert pds.Table.create(table.store, "empty", SCHEMA).scan_changes(0).count() == 0
    table.vacuum(dt.timedelta(0))
    with pytest.raises(pds.VersionExpired):
        table.scan_changes(0)
    for since in (False, 0.0, -1):
        with pytest.raises(pds.Error):
            table.scan_changes(since)  # type: ignore[arg-type]


def test_a_column_that_was_dropped_when_files_were_compacted(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    for number in (1, 2):
        table.append(pa.table({"id": [number], "a": [10 * number], "b": ["x"]}, schema=SCHEMA))
    both = table.version
    table.alter.drop_column("a")
    table.optimize.compact()
    assert table.scan_changes(both).count() == 0
    compacted = table.version
    table.restore(both)

    _check(table)
    told = table.scan_changes(both).to_pyarrow().to_pylist()
    assert [(row["_change_type"], row["a"]) for row in told if row["_commit_version"] == compacted] == [
        ("delete", 10),
        ("delete", 20),
        ("insert", None),
        ("insert", None),
    ]


@pytest.mark.parametrize(
    ("narrow", "wide", "value"), [(pa.int32(), pa.int64(), 1 << 40), (pa.float32(), pa.float64(), 0.1)]
)
def test_a_column_that_a_restore_made_narrower(
    memory_store: pds.Store, narrow: pa.DataType, wide: pa.DataType, value: float
) -> None:
    """Its values need not fit any more; also the bounds of deleted keys need not."""
    table = pds.Table.create(
        memory_store, "t", pa.schema([("id", narrow), ("v", narrow), ("w", pa.string())]), key="id"
    )
    table.append(pa.table({"id": [1, 2], "v": [1, 2], "w": ["a", "b"]}).cast(table.schema))
    begin = table.version
    table.alter.widen("v", wide)
    table.append(pa.table({"id": [3], "v": [value], "w": ["c"]}).cast(table.schema))
    widened = table.version
    table.restore(begin)
    table.append(pa.table({"id": [4], "v": [4], "w": ["d"]}).cast(table.schema))
    for since in (begin, widened):
        with pytest.raises(pds.InvalidInput, match=r'column "v" is .* in version .* a restore made it'):
            table.scan_changes(since).to_pyarrow()
    before = table.as_of(widened)
    assert _applied(before.scan_changes(1).to_pyarrow(), Counter()) == _rows(before)
    after = table.scan_changes(widened + 1).to_pyarrow()
    assert after["id"].to_pylist() == [4]
    assert table.scan_changes(begin, columns=["w"]).to_pyarrow()["w"].to_pylist() == ["c", "c", "d"]
    table.alter.widen("id", wide)
    table.append(pa.table({"id": [5], "v": [5], "w": ["e"]}).cast(table.schema))
    table.delete("id BETWEEN 4 AND 1099511627776")
    table.restore(begin)
    with pytest.raises(pds.InvalidInput, match="a restore made it narrower"):
        table.scan_changes(widened + 2, columns=["w"]).to_pyarrow()


def test_a_column_that_came_after_a_compaction(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    for number in (1, 2):
        table.append(pa.table({"id": [number], "a": [10 * number], "b": ["x"]}, schema=SCHEMA))
    version = table.version
    table.optimize.compact()
    table.alter.add_column("c", pa.int8())

    assert table.scan_changes(version).count() == 0
    _check(table)


def _do_something(table: pds.Table, chance: random.Random, turn: int) -> None:
    names = table.schema.names
    values = {"id": [turn, turn + 1], "a": [turn, None], "b": ["x", f"{turn}"]}
    rows = pa.table({name: cells for name, cells in values.items() if name in names})
    droppable = [name for name in ("a", "b") if name in names]
    actions = [
        lambda: table.append(rows.cast(pa.schema([table.schema.field(name) for name in rows.schema.names]))),
        lambda: table.append(rows.cast(pa.schema([table.schema.field(name) for name in rows.schema.names]))),
        lambda: table.delete(f"id % 3 = {turn % 3}"),
        table.optimize.compact,
        table.optimize.compact,
        lambda: table.restore(chance.randrange(2, table.version + 1)),
        lambda: table.restore(chance.randrange(2, table.version + 1)),
        lambda: table.alter.add_column(f"c{turn}", pa.int8()),
        lambda: table.overwrite(rows.slice(0, 0), where="id > 3"),
    ]
    if droppable:
        actions.append(lambda: table.alter.drop_column(chance.choice(droppable)))
        actions.append(lambda: table.alter.rename_column(droppable[0], f"{droppable[0]}{turn}"))
    chance.choice(actions)()


@pytest.mark.parametrize("seed", range(40))
def test_all_changes_are_the_rows(memory_store: pds.Store, seed: int) -> None:
    chance = random.Random(seed)
    table = pds.Table.create(memory_store, "t", SCHEMA)
    for number in range(3):
        table.append(pa.table({"id": [number, 9], "a": [number, 9], "b": ["x", None]}, schema=SCHEMA))
    for turn in range(14):
        _do_something(table, chance, turn)
    _check(table)
