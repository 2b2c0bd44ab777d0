"""What is looked at rather than read: `layout`, `plot_history` and `explain().plot()`."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds

if TYPE_CHECKING:
    from pathlib import Path

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MAKERS: dict[str, tuple[pa.DataType, Any]] = {
    "id": (pa.int64(), lambda n: n),
    "unsigned": (pa.uint64(), lambda n: n + 2**63),
    "name": (pa.string(), lambda n: f"é{n % 7}{n}"),
    "at": (pa.timestamp("us", "UTC"), lambda n: DAY + dt.timedelta(microseconds=n * 250_000)),
    "local": (pa.timestamp("ns"), lambda n: DAY.replace(tzinfo=None) + dt.timedelta(hours=n)),
    "day": (pa.date32(), lambda n: DAY.date() + dt.timedelta(days=n)),
    "clock": (pa.time64("us"), lambda n: dt.time(n % 24, n % 60)),
    "price": (pa.decimal128(10, 2), lambda n: Decimal(n) / 100),
    "flag": (pa.bool_(), lambda n: n > 50),
}
SCHEMA = pa.schema([(name, data_type) for name, (data_type, _) in MAKERS.items()] + [("x", pa.float64())])


def make_rows(numbers: list[int]) -> pa.Table:
    columns = [pa.array([make(n) for n in numbers], data_type) for data_type, make in MAKERS.values()]
    return pa.table([*columns, pa.nulls(len(numbers), pa.float64())], schema=SCHEMA)


def read_svg(drawing: Any) -> ET.Element:
    return ET.fromstring(drawing._repr_svg_())


def count_bars(drawing: Any) -> int:
    return len(read_svg(drawing).findall("{http://www.w3.org/2000/svg}rect"))


@pytest.mark.parametrize("column", list(MAKERS))
def test_a_layout_is_that_of_the_files(local_store: pds.Store, tmp_path: Path, column: str) -> None:
    table = pds.Table.create(local_store, "t", SCHEMA, key="id")
    chance = random.Random(3)
    for _ in range(8):
        begin = chance.randrange(80)
        table.append(make_rows(list(range(begin, begin + chance.randrange(1, 30)))))
    local_store.reset_metrics()
    layout = table.layout(column)
    assert local_store.metrics()["requests"] == 0
    bounds = []
    for path in table.files()["path"].to_pylist():
        rows = pq.read_table(pa.BufferReader(local_store.read_bytes(f"t/{path}")), columns=[column])
        values = rows[column].to_pylist()
        bounds.append((path, min(values), max(values), rows.num_rows))
    assert [(entry.path, entry.min, entry.max, entry.rows) for entry in layout.entries] == bounds
    assert layout.files == 8
    assert layout.overlap == max(sum(low <= value <= high for _, low, high, _ in bounds) for _, value, *_ in bounds)
    assert len(str(layout).splitlines()) == 9
    assert count_bars(layout) == 8


def test_deletes_nulls_and_what_is_not_known(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, sort_by="name", key="id")
    table.append(make_rows([1, 2]))
    table.append(make_rows([3, 4]))
    table.append(pa.table({"id": [5]}))
    table.append(pa.table({"id": [6], "name": ["z" * 500]}))
    table.delete("id = 3")
    layout = table.layout()
    assert layout.column == "name"
    assert [entry.has_deletes for entry in layout.entries] == [False, True, False, False]
    assert [entry.has_nulls_only for entry in layout.entries] == [False, False, True, False]
    # A long text has no bounds, so it may be anywhere.
    assert layout.entries[3].min is None
    assert layout.overlap == 2
    lines = str(layout).splitlines()
    assert lines[2].endswith("2 rows, with deletes")
    assert "▒" in lines[2]
    assert lines[3].endswith("1 row, nulls only")
    assert "█" not in lines[3]
    assert lines[4].endswith("no statistics")
    assert count_bars(layout) == 3
    table.optimize.sort("id")
    assert table.layout("id").overlap == 1


def test_lists_of_files_are_one_bar(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", pa.schema([("id", pa.int64())]), key="id")
    for number in range(300):
        table.append(pa.table({"id": [2 * number, 2 * number + 1]}))
    table.delete("id = 2")
    # Files leave the lists with their last rows.
    table.delete("id IN (20, 21) OR id BETWEEN 40 AND 45")
    memory_store.reset_metrics()
    layout = table.layout()
    assert memory_store.metrics()["requests"] == 0
    assert layout.files == table.file_count < 300
    assert len(layout.entries) < 200
    assert [entry.has_deletes for entry in layout.entries] == [True] + [False] * (len(layout.entries) - 1)
    assert (layout.entries[0].min, layout.entries[-1].max) == (0, 599)
    assert 1 <= layout.overlap < 300
    assert count_bars(layout) == len(layout.entries)


def test_layouts_that_cannot_be_drawn(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA)
    assert table.layout("id").overlap == 0
    assert "without statistics" in str(table.layout("id"))
    for error, column in ((pds.InvalidInput, "nothing"), (pds.InvalidInput, "x"), (pds.InvalidType, 7)):
        with pytest.raises(error):
            table.layout(column)  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="pass the name"):
        table.layout()


def test_the_history_is_drawn(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t & <u>", SCHEMA)
    table.append(make_rows(list(range(10))))
    table.append(make_rows([1]))
    table.delete("id = 3")
    memory_store.reset_metrics()
    lines = str(table.plot_history()).splitlines()
    assert lines[0] == "4 versions, newest first"
    assert [line.split("|")[0].strip() for line in lines[1:]] == ["4 delete", "3 append", "2 append", "1 create"]
    assert [line.count("█") + line.count("▒") for line in lines[1:]] == [4, 4, 40, 0]
    assert lines[3].endswith("10 rows, 1 file")
    assert len(str(table.plot_history(2)).splitlines()) == 3
    assert count_bars(table.plot_history()) == 3
    assert memory_store.metrics()["bytes_read"] < 40_000
    chart = pds.Table.create(memory_store, "v", SCHEMA).plot_history()
    assert count_bars(chart) == 0
    assert repr(chart)


def test_a_plan_is_drawn(memory_store: pds.Store) -> None:
    table = pds.Table.create(memory_store, "t", SCHEMA, options=pds.WriteOptions(row_group_size=5))
    for begin in (0, 20, 40, 60):
        table.append(make_rows(list(range(begin, begin + 20))))
    plan = table.scan(where="id BETWEEN 21 AND 23").explain()
    lines = str(plan.plot()).splitlines()
    assert lines[0] == f"{plan.rows_read} rows and 0 tombstone files read"
    assert lines[1].endswith("1 of 4 read")
    assert lines[1].count("█") == 10
    assert lines[2].endswith(f"{plan.row_groups_read} of {plan.row_groups} read")
    assert count_bars(plan.plot()) == 2
    assert count_bars(table.scan(where="id < 0").explain().plot()) == 0


def test_names_are_escaped(memory_store: pds.Store) -> None:
    name = 'a<b>&"c'
    table = pds.Table.create(memory_store, "t", pa.schema([(name, pa.string())]))
    table.append(pa.table({name: ["<script>"]}))
    assert name in "".join(read_svg(table.layout(name)).itertext())
