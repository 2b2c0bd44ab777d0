"""DuckDB: tables in its own database file, and bare Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb_httpfs
import pyarrow.fs
from systems import CODEC, GROUP_ROWS, LEVEL

from tables.base import ALL_KINDS, TableSystem, between, new_id
from tables.changes import DELETED_FROM

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from systems import Place

    from tables.base import Range


def _query(source: str, columns: Sequence[str] | None, keys: Range | None) -> str:
    where = f" WHERE {between(keys)}" if keys else ""
    return f"SELECT {', '.join(columns or ['*'])} FROM {source}{where}"  # noqa: S608 our own names


class DuckDb(TableSystem):
    """A database file, with its own encodings, on a disk; one process at a time may open it to write."""

    key = "duckdb"
    title = "DuckDB, database file"
    package = "duckdb"
    # It has no files that could be many, and no versions.
    kinds = TableSystem.kinds - {"open", "count", "commit", "scan-files", "compact", "feed"}
    stores = frozenset({"local"})
    exclusive = True

    def __init__(self, place: Place, home: Path) -> None:
        super().__init__(place, home)
        import duckdb  # noqa: PLC0415 a process loads only what it measures

        self._duckdb = duckdb

    def open(self, name: str) -> Any:  # noqa: ANN401 a connection
        """The file, with its lock."""
        folder = Path(self.place.url(name))
        folder.mkdir(parents=True, exist_ok=True)
        return self._duckdb.connect(str(folder / "rows.duckdb"))

    def create(self, name: str, schema: pa.Schema) -> None:
        """With the types it gives to Arrow's."""
        connection = self.open(name)
        connection.register("source", schema.empty_table())
        connection.execute("CREATE TABLE rows AS SELECT * FROM source")
        connection.close()

    def append(self, table: Any, rows: pa.Table) -> Any:  # noqa: ANN401 as above
        """A transaction."""
        table.register("source", rows)
        table.execute("INSERT INTO rows SELECT * FROM source")
        table.unregister("source")
        return table

    def close(self, table: Any) -> None:  # noqa: ANN401 as above
        """Writes a checkpoint and gives the lock back."""
        table.close()

    def column_names(self, table: Any) -> list[str]:  # noqa: ANN401 as above
        """From its catalogue; for the warm-up."""
        return [row[0] for row in table.execute("DESCRIBE rows").fetchall()]

    def count_files(self, table: Any) -> int:  # noqa: ANN401 as above
        """It is one."""
        del table
        return 1

    def delete(self, name: str, predicate: str) -> None:
        """A transaction."""
        connection = self.open(name)
        connection.execute(f"DELETE FROM rows WHERE {predicate}")  # noqa: S608 our own predicates
        connection.close()

    def upsert(self, name: str, source: pa.Table) -> None:
        """A transaction."""
        self._merge(name, source, "")

    def merge(self, name: str, source: pa.Table) -> None:
        """A transaction."""
        self._merge(name, source, f"WHEN MATCHED AND source.r >= {DELETED_FROM} THEN DELETE")

    def _merge(self, name: str, source: pa.Table, clause: str) -> None:
        connection = self.open(name)
        connection.register("source", source)
        rest = "WHEN MATCHED THEN UPDATE BY NAME WHEN NOT MATCHED THEN INSERT BY NAME"
        connection.execute(f"MERGE INTO rows USING source ON rows.id = source.id {clause} {rest}")
        connection.close()

    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """Into pyarrow."""
        connection = self.open(name)
        found: pa.Table = connection.sql(_query("rows", columns, keys)).to_arrow_table()
        connection.close()
        return found

    def conflict(self, error: Exception) -> bool:
        """Another process has the file open."""
        return isinstance(error, self._duckdb.IOException) and "lock" in str(error)


class DuckDbParquet(TableSystem):
    """A folder of Parquet files: no table, as nothing is committed. A change writes all rows into a new file."""

    key = "duckdb-parquet"
    title = "DuckDB, bare Parquet files"
    package = "duckdb"
    kinds = ALL_KINDS - {"open", "count", "commit", "scan-files", "delete-range", "delete-random", "writers", "feed"}

    def __init__(self, place: Place, home: Path) -> None:
        super().__init__(place, home)
        import duckdb  # noqa: PLC0415 a process loads only what it measures

        self._connection = duckdb.connect()
        self._files = place.server.arrow_filesystem() if place.server else pyarrow.fs.LocalFileSystem()
        if place.server:
            for statement in duckdb_httpfs.statements(place.server):
                self._connection.execute(statement)

    @classmethod
    def version(cls, store: str) -> str:
        """On S3 another one: httpfs exists for that only."""
        return super().version(store) if store == "local" else duckdb_httpfs.VERSION

    def create(self, name: str, schema: pa.Schema) -> None:
        """A folder."""
        del schema
        if not self.place.server:
            self.place.files(name).mkdir(parents=True)

    def open(self, name: str) -> str:
        """Its address."""
        return self.place.url(name)

    def append(self, table: str, rows: pa.Table) -> str:
        """One more file."""
        self._connection.register("source", rows)
        self._write(table, "source")
        return table

    def _write(self, table: str, query: str) -> None:
        options = f"COMPRESSION {CODEC}, COMPRESSION_LEVEL {LEVEL}, ROW_GROUP_SIZE {GROUP_ROWS}"
        self._connection.execute(f"COPY {query} TO '{table}/{new_id()}.parquet' (FORMAT parquet, {options})")

    def _rewrite(self, name: str, query: str) -> None:
        """Writes all rows of ``target`` into a new file and removes the old ones: readers meanwhile see both."""
        table = self.open(name)
        files = [row[0] for row in self._connection.execute(f"FROM glob('{table}/*.parquet')").fetchall()]
        self._connection.execute(f"CREATE OR REPLACE VIEW target AS FROM read_parquet({files})")
        self._write(table, f"({query})")
        for file in files:
            self._files.delete_file(file.removeprefix("s3://"))

    def upsert(self, name: str, source: pa.Table) -> None:
        """By the rows that the source does not have."""
        self._connection.register("source", source)
        self._rewrite(name, "FROM target ANTI JOIN source USING (id) UNION ALL BY NAME FROM source")

    def merge(self, name: str, source: pa.Table) -> None:
        """The same; of the source's rows, those that are not deleted."""
        self._connection.register("source", source)
        taken = f"FROM source WHERE r < {DELETED_FROM} OR id NOT IN (SELECT id FROM target)"  # noqa: S608
        self._rewrite(name, f"FROM target ANTI JOIN source USING (id) UNION ALL BY NAME {taken}")

    def compact(self, name: str) -> None:
        """Into one file."""
        self._rewrite(name, "FROM target")

    def column_names(self, table: str) -> list[str]:
        """Of some file; for the warm-up."""
        query = f"DESCRIBE SELECT * FROM read_parquet('{table}/*.parquet')"  # noqa: S608 our own names
        return [row[0] for row in self._connection.execute(query).fetchall()]

    def count_files(self, table: str) -> int:
        """By listing the folder."""
        return len(self._connection.execute(f"FROM glob('{table}/*.parquet')").fetchall())

    def delete(self, name: str, predicate: str) -> None:
        """It cannot."""
        self.refuse(f"delete {predicate} from {name}")

    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """Into pyarrow."""
        source = f"read_parquet('{self.place.url(name)}/*.parquet')"
        found: pa.Table = self._connection.sql(_query(source, columns, keys)).to_arrow_table()
        return found
