"""The format of tables: what pds writes a second reader finds right, what another engine writes pds reads.

Run as a program it writes the table of tests/golden/table-v1 anew. That is only for a new format: the table
that is there has to be read for ever.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
import random
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import independent_roaring
import independent_table as independent
import independent_writer
import pds
from table.test_table import SCHEMA, rows

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]

GOLDEN = Path(__file__).parents[2] / "golden" / "table-v1"
NOW = dt.timedelta(0)


def multiset(rows: list[Json]) -> Counter[str]:
    """Rows without their order; columns in theirs."""
    return Counter(repr(list(row.items())) for row in rows)


def alike(table: pds.Table, root: Path) -> list[Json]:
    """The rows of a snapshot, which both readers find the same."""
    snapshot = independent.at(root, table.version)
    found = table.scan().to_pyarrow()
    assert found.schema.equals(snapshot.schema, check_metadata=True)
    assert table.schema.equals(snapshot.schema, check_metadata=True)
    counts = table.files().to_pylist()
    assert counts == [{name: file[name] for name in counts[0]} for file in snapshot.files()]
    rows: list[Json] = found.to_pylist()
    assert multiset(rows) == multiset(snapshot.rows().to_pylist())
    return rows


# -- random changes ---------------------------------------------------------------

DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VALUES: dict[pa.DataType, Callable[[random.Random], Any]] = {
    pa.int8(): lambda r: r.randrange(-128, 128),
    pa.int16(): lambda r: r.randrange(-(2**15), 2**15),
    pa.int64(): lambda r: r.choice([r.randrange(-5, 5), -(2**63), 2**63 - 1]),
    pa.float32(): lambda r: r.choice([0.0, -0.0, 0.5, float("nan"), float("inf"), r.randrange(9) / 8]),
    pa.float64(): lambda r: r.choice([r.random(), float("-inf")]),
    pa.decimal128(5, 2): lambda r: decimal.Decimal(r.randrange(-99999, 99999)).scaleb(-2),
    pa.decimal128(30, 2): lambda r: decimal.Decimal(r.randrange(-(10**20), 10**20)).scaleb(-2),
    pa.string(): lambda r: r.choice(["", "a", "ž", "z" * r.randrange(100), "\U0001f600", "\uffff"]),
    pa.large_string(): lambda r: r.choice(["b", "\x00", "line\nline"]),
    pa.binary(): lambda r: r.randbytes(r.randrange(3)),
    pa.bool_(): lambda r: r.random() < 0.5,
    pa.date32(): lambda r: dt.date(1969, 12, 1) + dt.timedelta(r.randrange(60)),
    pa.timestamp("us", "UTC"): lambda r: DAY - dt.timedelta(microseconds=r.randrange(10**16)),
    pa.dictionary(pa.int32(), pa.string()): lambda r: r.choice("xyz"),
    pa.list_(pa.int16()): lambda r: [r.choice([None, 1, 2])] * r.randrange(3),
    pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.string())]): lambda r: {"x": r.choice([None, 3]), "y": "y"},
}
WIDER: dict[pa.DataType, pa.DataType] = {
    pa.int8(): pa.int16(),
    pa.int16(): pa.int64(),
    pa.float32(): pa.float64(),
    pa.decimal128(5, 2): pa.decimal128(30, 2),
    pa.string(): pa.large_string(),
}
KEYS = 60
FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("a", pa.int8()),
    pa.field("b", pa.string()),
]
FIRST = pa.schema(FIELDS)


def values(rng: random.Random, schema: pa.Schema, keys: list[int]) -> pa.Table:
    """Rows with these keys; a quarter of the other values, or all of a column, are null."""
    columns = []
    for field in schema:
        nulls = rng.choice([0, 0.25, 1])
        made = [None if rng.random() < nulls else VALUES[field.type](rng) for _ in keys]
        columns.append(pa.array(keys if field.name == "id" else made, field.type))
    return pa.table(columns, schema=schema)


class Changes:
    """Changes a table at random. Every change says what rows it should leave."""

    def __init__(self, table: pds.Table, root: Path, rng: random.Random) -> None:
        self.table = table
        self.root = root
        self.rng = rng
        self.oldest = 1
        self.tags: dict[str, int] = {}
        self.seen: dict[int, list[Json]] = {1: []}

    def some(self, count: int) -> pa.Table:
        keys = self.rng.sample(range(KEYS), count)
        return values(self.rng, self.table.schema, keys)

    def columns(self) -> list[str]:
        return [name for name in self.table.schema.names if name != "id"]

    def append(self, before: list[Json]) -> list[Json]:
        new = self.some(self.rng.randrange(1, 25))
        key = self.rng.choice([None, "first", "second"])
        done = self.table.append(new, idempotency_key=key)
        return before if done.replayed else before + new.to_pylist()

    def delete(self, before: list[Json]) -> list[Json]:
        low = self.rng.randrange(KEYS)
        high = low + self.rng.randrange(25)
        rest = self.rng.randrange(5)
        keys, where = self.rng.choice(
            [
                (range(low, high + 1), f"id BETWEEN {low} AND {high}"),
                (range(low, high + 1), f"id >= {low} AND id <= {high}"),
                (range(low, high + 1), f"id + 0 BETWEEN {low} AND {high}"),
                (range(rest, KEYS, 5), f"id % 5 = {rest}"),
                (range(low, high + 1, max(high - low, 1)), f"id = {low} OR id = {high}"),
            ]
        )
        self.table.delete(where)
        return [row for row in before if row["id"] not in keys]

    def upsert(self, before: list[Json]) -> list[Json]:
        new = self.some(self.rng.randrange(1, 12))
        self.table.upsert(new)
        rows: list[Json] = new.to_pylist()
        keys = {row["id"] for row in rows}
        return [row for row in before if row["id"] not in keys] + rows

    def overwrite(self, before: list[Json]) -> list[Json]:
        new = self.some(12)
        if self.rng.random() < 0.2:
            self.table.overwrite(new)
            return new.to_pylist()
        low, rest = self.rng.randrange(KEYS), self.rng.randrange(3)
        rows: list[Json] = new.to_pylist()
        fit = [row["id"] >= low and row["id"] % 3 == rest for row in rows]
        self.table.overwrite(new.filter(pa.array(fit)), f"id >= {low} AND id % 3 = {rest}")
        kept = [row for row in before if row["id"] < low or row["id"] % 3 != rest]
        return kept + [row for row, fits in zip(rows, fit, strict=True) if fits]

    def add(self, before: list[Json]) -> list[Json]:
        if len(self.columns()) > 6:
            return self.drop(before)
        # Names that were another column's come back.
        name = self.rng.choice([n for n in "abcdefghij" if n not in self.columns()])
        self.table.alter.add_column(name, self.rng.choice([*VALUES]))
        return [{**row, name: None} for row in before]

    def drop(self, before: list[Json]) -> list[Json]:
        if not self.columns():
            return self.add(before)
        name = self.rng.choice(self.columns())
        self.table.alter.drop_column(name)
        return [{n: value for n, value in row.items() if n != name} for row in before]

    def rename(self, before: list[Json]) -> list[Json]:
        free = self.rng.choice([n for n in "abcdefghij" if n not in self.columns()])
        if not self.columns():
            return before
        name = self.rng.choice(self.columns())
        self.table.alter.rename_column(name, free)
        return [{free if n == name else n: value for n, value in row.items()} for row in before]

    def widen(self, before: list[Json]) -> list[Json]:
        for field in self.table.schema:
            if field.name != "id" and field.type in WIDER:
                self.table.alter.widen(field.name, WIDER[field.type])
                break
        return before

    def reorder(self, before: list[Json]) -> list[Json]:
        names = self.rng.sample(self.table.schema.names, len(self.table.schema.names))
        self.table.alter.reorder(names)
        return [{name: row[name] for name in names} for row in before]

    def compact(self, before: list[Json]) -> list[Json]:
        self.table.optimize.compact(self.rng.choice([4000, 1 << 20]))
        return before

    def sort(self, before: list[Json]) -> list[Json]:
        self.table.optimize.sort(self.rng.choice(["id", ["id"]]), target_file_size=self.rng.choice([4000, 1 << 20]))
        return before

    def merge(self, before: list[Json]) -> list[Json]:
        new = self.some(self.rng.randrange(1, 12))
        rest = self.rng.randrange(3)
        merge = self.table.merge(new).when_matched_delete(f"source.id % 3 = {rest}").when_matched_update_all()
        merge.when_not_matched_insert_all(f"source.id % 2 = {rest % 2}").execute()
        rows: list[Json] = new.to_pylist()
        there = {row["id"] for row in before}
        kept = [row for row in before if row["id"] not in {new["id"] for new in rows}]
        # Of several rows with a key each is updated.
        times = Counter(row["id"] for row in before)
        updated = [row for row in rows if row["id"] % 3 != rest for _ in range(times[row["id"]])]
        return kept + updated + [row for row in rows if row["id"] not in there and row["id"] % 2 == rest % 2]

    def add_files(self, before: list[Json]) -> list[Json]:
        """A file of another maker, with some of the columns and no ids."""
        new = self.some(self.rng.randrange(1, 25))
        names = ["id", *self.rng.sample(self.columns(), self.rng.randrange(len(self.columns()) + 1))]
        buffer = io.BytesIO()
        plain = [f for f in new.schema if f.name in names and not pa.types.is_dictionary(f.type)]
        pq.write_table(new.select([f.name for f in plain]), buffer, row_group_size=self.rng.choice([4, 30]))
        path = f"t/in/{self.rng.randrange(10**9)}.parquet" if self.rng.random() < 0.3 else "elsewhere.parquet"
        self.table.store.write(path, buffer.getvalue(), overwrite=True)
        self.table.add_files(path)
        given = {f.name for f in plain}
        return before + [{n: v if n in given else None for n, v in row.items()} for row in new.to_pylist()]

    def restore(self, _: list[Json]) -> list[Json]:
        version = self.rng.choice([*self.seen])
        self.table.restore(version)
        return self.seen[version]

    def tag(self, before: list[Json]) -> list[Json]:
        name = self.rng.choice("tuv")
        if name in self.tags:
            self.table.tags.delete(name)
            del self.tags[name]
        else:
            self.tags[name] = self.rng.choice([*self.seen])
            self.table.tags.create(name, self.tags[name])
        self.forget()
        return before

    def vacuum(self, before: list[Json]) -> list[Json]:
        self.oldest = self.table.vacuum(NOW).oldest_version
        self.forget()
        return before

    def foreign_append(self, before: list[Json]) -> list[Json]:
        new = self.some(self.rng.randrange(1, 25))
        independent_writer.Writer(self.root).append(new, self.rng.choice([4, 30]))
        self.table.refresh()
        return before + new.to_pylist()

    def foreign_segment(self, before: list[Json]) -> list[Json]:
        """Another engine lists some of the files in a segment."""
        writer, snapshot = independent_writer.Writer(self.root), independent.newest(self.root)
        segments, files = snapshot.manifest["segments"], snapshot.manifest["data_files"]
        if self.rng.random() < 0.3:
            segments, files = [], snapshot.files()
        count = self.rng.randrange(len(files) + 1)
        if count:
            new = writer.segment(files[:count], b"")
            writer.commit("list", lambda m: m.update(segments=[*segments, new], data_files=files[count:]))
        self.table.refresh()
        return before

    def forget(self) -> None:
        """Versions end with a vacuum, tagged ones with their last tag."""
        kept = {*range(self.oldest, self.table.version + 1), *self.tags.values()}
        self.seen = {version: rows for version, rows in self.seen.items() if version in kept}


WEIGHTS = {
    "append": 8, "delete": 8, "upsert": 5, "overwrite": 3, "add": 3, "drop": 1, "rename": 2, "widen": 2, "reorder": 1,
    "compact": 2, "sort": 1, "merge": 3, "add_files": 2, "restore": 1, "tag": 2, "vacuum": 1,
    "foreign_append": 2, "foreign_segment": 3,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_random_changes(local_store: pds.Store, tmp_path: Path, seed: int) -> None:
    rng, root = random.Random(seed), tmp_path / "store/t"
    options = pds.WriteOptions(row_group_size=rng.choice([3, 7, 100]), max_rows_per_file=rng.choice([None, 10]))
    table = pds.Table.create(local_store, "t", FIRST, key="id", options=options)
    changes, rows = Changes(table, root, rng), list[Json]()
    for step in range(50):
        (name,) = rng.choices([*WEIGHTS], [*WEIGHTS.values()])
        expected = getattr(changes, name)(rows)
        says = f"seed {seed}, step {step}: {name} made version {table.version}"
        rows = alike(table, root)
        assert multiset(rows) == multiset(expected), says
        assert table.version == independent.newest(root).version, says
        assert dict(table.tags) == changes.tags, says
        changes.seen[table.version] = rows
        old = rng.choice([*changes.seen])
        assert multiset(alike(table.as_of(old), root)) == multiset(changes.seen[old]), says
        if step % 10 == 9:
            assert independent.check(root) == [], (says, independent.check(root))
    assert table.check().ok
    assert table.refresh().verify().ok
    changes.vacuum(rows)
    assert independent.versions(root) == sorted({*changes.seen, table.version})
    assert independent.objects(root) == independent.named(root)


# -- the table of an older pds ------------------------------------------------------


def plain(value: Any) -> str:
    """A value that JSON has no word for."""
    return value.hex() if isinstance(value, bytes) else str(value)


def golden_by_pds(folder: Path) -> pds.Table:
    """All that the format has and that pds writes of few rows."""
    options = pds.WriteOptions(row_group_size=8)
    table = pds.Table.create(pds.Store(folder.as_uri()), "table", SCHEMA, key="id", options=options)
    table.append(rows(500, 4))
    table.tags.create("before the vacuum", 2)
    table.overwrite(rows(0, 24), idempotency_key="load")
    table.vacuum(NOW)
    table.delete("id BETWEEN 3 AND 5")
    table.delete("id % 9 = 7")
    table.delete("id + 0 BETWEEN 8 AND 15")
    table.upsert(rows(20, 6))
    table.tags.create("before the columns")
    table.alter.rename_column("name", "label")
    table.alter.widen("small", pa.uint32())
    table.alter.drop_column("flag")
    table.alter.add_column("note", pa.string())
    table.alter.reorder(["note", *(name for name in table.schema.names if name != "note")])
    table.append(pa.table({"id": range(100, 104), "note": ["a", None, "c", ""]}))
    table.overwrite(pa.table({"id": [23, 24]}), "id >= 22 AND id < 26")
    table.optimize.compact()
    table.restore(table.version - 1)
    many = pds.Table(table.store, "table", options=pds.WriteOptions(row_group_size=200))
    many.append(pa.table({"id": range(1000, 1080)}))
    many.delete("id >= 1000 AND id % 2 = 0")
    return table


def golden_by_another_engine(root: Path) -> None:
    """A segment of which a file was removed, and files without seals."""
    writer = independent_writer.Writer(root)
    listing = independent.newest(root).files()
    segment = writer.segment(listing[:4], independent_roaring.roaring_bytes([1]))

    def move(manifest: Json) -> None:
        manifest["segments"], manifest["data_files"] = [segment], listing[4:]
        for entry in manifest["tombstones"]:
            entry["files"] = [path for path in entry["files"] if path != listing[1]["path"]]
        manifest["tombstones"] = [entry for entry in manifest["tombstones"] if entry["files"]]

    writer.commit("delete", move)
    writer.append(pa.table({"id": pa.array(range(2000, 2020), pa.int64())}), 10)
    own = independent.newest(root).files()[-1]["path"]
    runs = base64.b64encode(independent_roaring.roaring_bytes([0, 1, 2, 5], runs=True)).decode()
    writer.delete([{"file": own, "row_group": 0, "roaring": runs}, {"file": own, "pk_min": 2015, "pk_max": 2016}], 6)


def write_golden(folder: Path) -> None:
    """The table, and what is to be found in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = golden_by_pds(folder)
    golden_by_another_engine(folder / "table")
    table.append(pa.table({"id": [3000]}))
    record_golden(folder, table)


def record_golden(folder: Path, table: pds.Table) -> None:
    """What is to be found in a table."""
    root = folder / "table"
    distinct: dict[str, int] = {}
    schemas: dict[str, int] = {}
    expected: Json = {"tags": dict(table.tags), "versions": {}}
    for version in independent.versions(root):
        old = table.as_of(version)
        lines = [json.dumps([*row.values()], default=plain) for row in alike(old, root)]
        places = [distinct.setdefault(line, len(distinct)) for line in lines]
        columns = json.dumps([[field.name, str(field.type)] for field in old.schema])
        place = schemas.setdefault(columns, len(schemas))
        expected["versions"][str(version)] = {"columns": place, "rows": places}
    expected["columns"] = [json.loads(line) for line in schemas]
    expected["rows"] = [json.loads(line) for line in distinct]
    body = ",\n".join(f"{json.dumps(name)}: {_lines(value)}" for name, value in expected.items())
    (folder / "expected.json").write_text(f"{{\n{body}\n}}\n")


def _lines(value: Any) -> str:
    """JSON with a line for each member."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(member)}" for name, member in value.items()) + "\n}"
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


def recorded(version: str, folder: Path = GOLDEN) -> Counter[str]:
    expected = json.loads((folder / "expected.json").read_text())
    return Counter(json.dumps(expected["rows"][place]) for place in expected["versions"][version]["rows"])


def as_recorded(table: pds.Table, root: Path) -> Counter[str]:
    return Counter(json.dumps([*row.values()], default=plain) for row in alike(table, root))


@pytest.fixture
def golden(local_store: pds.Store, tmp_path: Path) -> Path:
    """A copy of the table, as `table` in the local store."""
    root = tmp_path / "store/table"
    shutil.copytree(GOLDEN / "table", root)
    return root


def test_the_golden_table_is_read(local_store: pds.Store, golden: Path) -> None:
    table = pds.Table(local_store, "table")
    check_golden(GOLDEN, table, golden)
    assert table.as_of("before the columns").schema.equals(SCHEMA, check_metadata=True)
    assert len(table.history()) == len(independent.versions(golden)) - 1  # the tagged one was vacuumed


def check_golden(folder: Path, table: pds.Table, golden: Path) -> None:
    """Compare a copy of the table in a folder with what was recorded there."""
    expected = json.loads((folder / "expected.json").read_text())
    versions = expected["versions"]
    assert independent.check(golden) == []
    assert [str(version) for version in independent.versions(golden)] == [*versions]
    assert dict(table.tags) == expected["tags"]
    for version, found in versions.items():
        old = table.as_of(int(version))
        columns = [[field.name, str(field.type)] for field in old.schema]
        assert columns == expected["columns"][found["columns"]]
        assert as_recorded(old, golden) == recorded(version, folder)
        assert old.scan().count() == len(found["rows"])
    assert str(table.version) == [*versions][-1]
    assert table.check().ok
    assert table.refresh().verify().ok


def test_long_tombstone_files_are_packed(tmp_path: Path) -> None:
    table = pds.Table.create(pds.Store(tmp_path.as_uri()), "t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": range(300_000)}))
    table.delete("(id * 7919) % 101 < 2")
    snapshot = independent.newest(tmp_path / "t")
    (entry,) = snapshot.manifest["tombstones"]
    raw = (tmp_path / "t" / entry["path"]).read_bytes()
    assert raw.startswith(b"\x28\xb5\x2f\xfd")
    assert len(raw) == entry["size_bytes"] < 3 * entry["deleted_rows"]
    assert independent.check(tmp_path / "t") == []
    kept = [number for number in range(300_000) if (number * 7919) % 101 >= 2]
    assert snapshot.rows()["id"].to_pylist() == kept
    assert table.scan().to_pyarrow()["id"].to_pylist() == kept


def test_files_of_segments_are_deleted_from_by_position(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]), key=["id"])
    expected: set[int] = set()

    def add_files(first: int, count: int) -> None:
        for start in range(first, first + 10 * count, 10):
            sink = io.BytesIO()
            pq.write_table(pa.table({"id": [start, start + 9]}), sink)
            store.write(f"in/{start}.parquet", sink.getvalue())
            expected.update((start, start + 9))
        table.add_files([f"in/{start}.parquet" for start in range(first, first + 10 * count, 10)])

    def check() -> None:
        assert independent.check(tmp_path / "t") == []
        assert set(independent.newest(tmp_path / "t").rows()["id"].to_pylist()) == expected
        assert set(table.scan().to_pyarrow()["id"].to_pylist()) == expected
        assert table.scan().count() == len(expected)

    # Of files that are listed by the manifest, and move to a segment afterwards.
    add_files(0, 20)
    table.delete("id >= 5 AND id <= 120")
    expected -= {*range(5, 121)}
    names = [independent.newest(tmp_path / "t").manifest["tombstones"][0]]
    add_files(1000, 300)
    names += independent.newest(tmp_path / "t").manifest["tombstones"]
    assert [(len(entry["files"]), len(entry.get("positions", {}))) for entry in names] == [(2, 0), (0, 1)]
    # Of files in segments, and of some that move to other segments.
    table.delete("id % 7 = 3 AND id < 2000")
    expected -= {number for number in range(2000) if number % 7 == 3}
    for first in range(10_000, 17_000, 1000):
        add_files(first, 80)
    check()
    version, deleted = table.version, set(expected)
    table.upsert(pa.table({"id": [1510, 1511, 16_000]}))
    expected |= {1510, 1511, 16_000}
    check()
    table.optimize.compact(where="id < 1500")
    check()
    table.restore(version)
    expected &= deleted
    check()


def test_older_idempotency_keys_are_found_in_lists(tmp_path: Path) -> None:
    store = pds.Store(tmp_path.as_uri())
    table = pds.Table.create(store, "t", pa.schema([("id", pa.int64())]))
    keys = [f"stapel {number} ä" for number in range(700)]
    commits = {key: table.append(pa.table({"id": [number]}), idempotency_key=key) for number, key in enumerate(keys)}
    # The check reads every version there is.
    table.vacuum(NOW)
    snapshot = independent.newest(tmp_path / "t")
    lists = snapshot.manifest["older_transactions"]
    assert sum(entry["transactions"] for entry in lists) + len(snapshot.manifest["transactions"]) == len(keys)
    assert len(lists) < 9
    assert independent.check(tmp_path / "t") == []
    assert independent.transaction(snapshot, "stapel 700 ä") is None
    reopened = pds.Table(store, "t")
    for key in keys[:3] + keys[-3:]:
        done = independent.transaction(snapshot, key)
        assert done is not None
        replay = reopened.append(pa.table({"id": [0]}), idempotency_key=key)
        assert replay.replayed
        assert (replay.version, replay.commit_id) == (done["version"], done["commit_id"])
        assert replay.version == commits[key].version
    assert table.scan().count() == len(keys)
    assert reopened.check().ok
    assert reopened.check().orphans == []


def test_the_golden_table_has_all_of_the_format(golden: Path) -> None:
    snapshot = independent.newest(golden)
    lines = [line for entry in snapshot.manifest["tombstones"] for line in snapshot.tombstone(entry)]
    kinds = {frozenset(line) - {"file"} for line in lines}
    assert kinds >= {frozenset({"row_group", "roaring"}), frozenset({"pk_min", "pk_max"})}
    older = independent.at(golden, 8)
    lines = [line for entry in older.manifest["tombstones"] for line in older.tombstone(entry)]
    kinds = {frozenset(line) - {"file"} for line in lines}
    assert kinds == {
        frozenset({"row_group"}),
        frozenset({"row_group", "deleted_rows"}),
        frozenset({"pk_min", "pk_max"}),
    }
    assert snapshot.removed(snapshot.manifest["segments"][0]) == [1]
    assert snapshot.manifest["restored_at"]
    assert snapshot.manifest["gc_floor"]
    assert snapshot.manifest["transactions"]
    assert snapshot.manifest["tags"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda m: m["data_files"][0]["max"].update({"1": 10**6}),
        lambda m: m["data_files"][0]["null_counts"].update({"1": 1}),
        lambda m: m["data_files"][0].update(footer_size=5),
        lambda m: m["data_files"][0].update(checksum="0" * 16),
        lambda m: m["data_files"].append(m["data_files"][0]),
        lambda m: m["segments"][0].update(total_rows=1),
        lambda m: m["segments"][0]["min"].update({"1": 9}),
        lambda m: m["tombstones"][0]["files"].append("data/none"),
        lambda m: m["schema"]["columns"][0].update(type="Int8"),
        lambda m: m["schema"].update(last_id=3),
        lambda m: m.update(created_at="2020-01-01T00:00:00.000000Z"),
        lambda m: m.update(previous=1),
        lambda m: m.update(oldest_version=1),
        lambda m: m["recent_commits"].reverse(),
        lambda m: m["tags"].update(none=1),
    ],
)
def test_the_check_finds_what_is_wrong(golden: Path, harm: Callable[[Json], None]) -> None:
    path = golden / independent.manifest_path(independent.newest(golden).version)
    manifest = json.loads(path.read_bytes())
    harm(manifest)
    path.write_text(json.dumps(manifest))
    assert independent.check(golden) != []


def test_the_golden_table_is_written_on(local_store: pds.Store, golden: Path) -> None:
    table = pds.Table(local_store, "table")
    newest = table.version
    before = alike(table, golden)
    assert table.append(rows(0, 1), idempotency_key="load").replayed
    table.append(pa.table({"id": [5000, 5001], "note": ["new", None]}))
    assert len(alike(table, golden)) == len(before) + 2
    table.delete("id % 2 = 1")
    assert {row["id"] for row in alike(table, golden)} == {n for n in [5000, *(r["id"] for r in before)] if n % 2 == 0}
    table.upsert(pa.table({"id": [0, 5000], "note": ["x", "y"]}))
    changed = alike(table, golden)
    assert table.optimize.compact() is not None
    assert multiset(alike(table, golden)) == multiset(changed)
    assert as_recorded(table.as_of(newest), golden) == recorded(str(newest))
    table.restore("before the vacuum")
    assert as_recorded(table, golden) == recorded("2")
    table.vacuum(NOW)
    assert as_recorded(table.as_of("before the columns"), golden) == recorded(str(table.tags["before the columns"]))
    assert independent.check(golden) == []


# -- other engines -------------------------------------------------------------------


@pytest.fixture
def table(local_store: pds.Store) -> pds.Table:
    """Three files of ten rows, in three row groups each; the places of columns are not their ids."""
    fields: list[pa.Field[Any]] = [pa.field(name, pa.int64()) for name in ("gone", "x", "id")]
    options = pds.WriteOptions(row_group_size=4)
    table = pds.Table.create(local_store, "t", pa.schema(fields), key="id", options=options)
    for begin in (0, 10, 20):
        table.append(pa.table({"id": range(begin, begin + 10), "x": range(10)}))
    table.alter.drop_column("gone")
    table.alter.rename_column("x", "y")
    table.alter.add_column("x", pa.string())
    return table


@pytest.fixture
def root(table: pds.Table, tmp_path: Path) -> Path:
    return tmp_path / "store" / table.path


def ids(table: pds.Table, root: Path) -> list[int]:
    return sorted(row["id"] for row in alike(table, root))


def base64_roaring(numbers: list[int], *, runs: bool = False) -> str:
    return base64.b64encode(independent_roaring.roaring_bytes(numbers, runs=runs)).decode()


@pytest.mark.parametrize("runs", [False, True])
def test_another_engine_appends_and_deletes(table: pds.Table, root: Path, runs: bool) -> None:
    writer, began = independent_writer.Writer(root), table.version
    writer.append(pa.table({"x": ["a", "b", None, "d", "e"], "id": pa.array(range(30, 35))}), 2)
    first, second, third, fourth = (file["path"] for file in independent.newest(root).files())
    lines: list[Json] = [
        {"file": first, "row_group": 0, "deleted_rows": [0, 3]},
        {"file": first, "row_group": 2},
        {"file": second, "row_group": 1, "roaring": base64_roaring([1, 2, 3], runs=runs)},
        {"file": second, "row_group": 1, "deleted_rows": []},
        {"file": second, "row_group": 2, "roaring": base64_roaring([])},
        {"file": third, "pk_min": 22, "pk_max": 25},
        {"file": third, "pk_min": 25, "pk_max": 25},
        {"file": fourth, "pk_min": 34, "pk_max": 2**63 - 1},
        {"file": fourth, "row_group": 0, "deleted_rows": [1]},
    ]
    writer.delete(lines, 13)
    assert independent.check(root) == []
    gone = {0, 3, 8, 9, 15, 16, 17, 22, 23, 24, 25, 31, 34}
    left = [n for n in range(35) if n not in gone]
    assert ids(table, root) == [*range(30)]
    assert ids(table.refresh(), root) == left
    assert table.scan().count() == len(left)
    assert table.scan(["id"], where="x = 'd' OR y = 1").to_pyarrow()["id"].to_pylist() == [1, 11, 21, 33]
    changes = [(row["_change_type"], row["id"]) for row in table.scan_changes(began).to_pyarrow().to_pylist()]
    assert sorted(changes) == [*(("delete", n) for n in sorted(gone)), *(("insert", n) for n in range(30, 35))]
    # What pds makes of it.
    assert table.delete("id % 10 = 0").rows == 3
    left = [n for n in left if n % 10]
    assert ids(table, root) == left
    table.append(pa.table({"id": [40], "x": ["new"]}))
    table.upsert(pa.table({"id": [33, 34], "x": ["again", "anew"]}))
    assert ids(table, root) == [*left, 34, 40]
    assert table.optimize.compact() is not None
    assert ids(table, root) == [*left, 34, 40]
    assert table.check().ok
    assert table.refresh().verify().ok
    table.vacuum(NOW)
    assert ids(table, root) == [*left, 34, 40]
    assert independent.check(root) == []


def test_who_finds_a_commit_without_a_pointer_places_it(table: pds.Table, root: Path) -> None:
    with pytest.raises(independent_writer.Interrupted):
        independent_writer.Writer(root).append(pa.table({"id": pa.array([100])}), 1, dies=True)
    assert 100 not in ids(table.refresh(), root)
    table.append(pa.table({"id": [101]}))
    assert ids(table, root)[-2:] == [100, 101]
    pointer = root / independent.POINTER
    placed = pointer.read_bytes()
    table.append(pa.table({"id": [102]}))
    pointer.write_bytes(placed)
    independent_writer.Writer(root).append(pa.table({"id": pa.array([103])}), 1)
    assert ids(table.refresh(), root)[-4:] == [100, 101, 102, 103]
    assert independent.check(root) == []


def test_segments_of_another_engine(table: pds.Table, root: Path) -> None:
    for n in range(30, 50, 2):
        table.append(pa.table({"id": [n, n + 1], "x": [str(n), None]}))
    files = independent.newest(root).files()
    writer = independent_writer.Writer(root)
    segments = [
        writer.segment(files[:4], b""),
        writer.segment(files[4:5], b""),
        writer.segment(files[5:11], independent_roaring.roaring_bytes([0, 2, 3], runs=True)),
    ]
    segments[1]["removed"] = base64_roaring([])
    writer.commit("delete", lambda manifest: manifest.update(segments=segments, data_files=files[11:]))
    left = [*range(34), *range(36, 38), *range(42, 50)]
    assert independent.check(root) == []
    assert ids(table.refresh(), root) == left
    assert table.scan(["id"], where="id >= 33 AND id < 43").to_pyarrow()["id"].to_pylist() == [33, 36, 37, 42]
    assert table.scan(where="id < 30").explain().files_read == 3
    assert table.check().ok
    assert table.refresh().verify().ok
    # A whole file of a list, some rows of one, and one behind the lists.
    table.delete("id + 0 IN (32, 33, 36, 48, 49)")
    left = [n for n in left if n not in {32, 33, 36, 48, 49}]
    assert ids(table, root) == left
    table.delete("id BETWEEN 9 AND 20")
    left = [n for n in left if not 9 <= n <= 20]
    assert ids(table, root) == left
    assert independent.check(root) == []
    table.upsert(pa.table({"id": [42], "x": ["upserted"]}))
    assert ids(table, root) == left
    assert table.optimize.compact() is not None
    assert ids(table, root) == left
    table.vacuum(NOW)
    assert ids(table, root) == left
    assert independent.check(root) == []


BITMAPS = {
    "sparse": [*range(7, 300_000, 4999)],
    "dense": [n for n in range(300_000) if n % 3],
    "one run": [*range(65_530, 200_001)],
    "all but few": [n for n in range(300_000) if n % 50_000],
    "mixed": [*range(65_536), *range(65_536, 131_072, 2), 131_072, 262_144, 299_999],
}


@pytest.mark.parametrize("numbers", BITMAPS.values(), ids=BITMAPS.keys())
def test_bitmaps_are_portable(local_store: pds.Store, tmp_path: Path, numbers: list[int]) -> None:
    table = pds.Table.create(local_store, "t", pa.schema([pa.field("id", pa.int64())]))
    root, rows = tmp_path / "store/t", 300_000
    table.append(pa.table({"id": range(rows)}))
    left = sorted({*range(rows)} - {*numbers})
    for runs in (False, True):
        assert independent_roaring.roaring_numbers(independent_roaring.roaring_bytes(numbers, runs=runs)) == numbers
        (path,) = table.files()["path"].to_pylist()
        line = {"file": path, "row_group": 0, "roaring": base64_roaring(numbers, runs=runs)}
        independent_writer.Writer(root).delete([line], len(numbers))
        assert table.refresh().scan().to_pyarrow()["id"].to_pylist() == left
        table.restore(2)
    # And the other way round.
    removed = pds.Table.create(
        local_store, "removed", pa.schema([pa.field("id", pa.int64(), nullable=False)]), key="id"
    )
    removed.append(pa.table({"id": numbers}))
    table.upsert(removed.scan(), on="id")
    assert independent.newest(root).manifest["tombstones"][0]["deleted_rows"] == len(numbers)
    assert {*independent.newest(root).rows()["id"].to_pylist()} == {*range(rows)}


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 8,
        b"",
        independent_roaring.roaring_bytes([1, 2])[:-1],
        independent_roaring.roaring_bytes([1, 2]) + b"\x00",
    ],
)
def test_what_is_no_bitmap_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        independent_roaring.roaring_numbers(data)


if __name__ == "__main__":
    write_golden(GOLDEN)
