"""pyiceberg, its SQL catalogue on SQLite on this machine's disk."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from systems import CODEC, GROUP_ROWS, LEVEL

from tables.base import ALL_KINDS, TableSystem, between, link_copies, new_id
from tables.changes import DELETED_FROM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    from systems import Place

    from tables.base import Range

TABLE = "bench.rows"


class Iceberg(TableSystem):
    """Metadata, manifest lists and manifests; deletes write files anew."""

    key = title = package = "pyiceberg"
    kinds = ALL_KINDS - {"feed"}

    def __init__(self, place: Place, home: Path) -> None:
        super().__init__(place, home)
        import pyiceberg.io.pyarrow  # noqa: F401, PLC0415 a process loads only what it measures
        import sqlalchemy.exc  # noqa: PLC0415 as above
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 as above
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 as above
        from pyiceberg.expressions import In  # noqa: PLC0415 as above

        self._conflict, self._locked = CommitFailedException, sqlalchemy.exc.OperationalError
        self._kind, self._in = SqlCatalog, In
        self._client: dict[str, str] = {}
        if place.server:
            place.server.arrow_filesystem()  # the client of AWS is loaded late
            self._client = {
                "s3.endpoint": place.server.endpoint,
                "s3.region": place.server.region,
                "s3.access-key-id": place.server.access_key,
                "s3.secret-access-key": place.server.secret_key,
            }
        self._catalogs: dict[str, Any] = {}

    def _root(self, name: str) -> str:
        return self.place.url(name) if self.place.server else self.place.files(name).resolve().as_uri()

    def _catalog(self, name: str) -> Any:  # noqa: ANN401 a SqlCatalog
        if name not in self._catalogs:
            file = self.home / name / "catalog.db"
            file.parent.mkdir(parents=True, exist_ok=True)
            options = {"uri": f"sqlite:///{file}", "warehouse": self._root(name), **self._client}
            self._catalogs[name] = self._kind("bench", **options)
        return self._catalogs[name]

    def create(self, name: str, schema: pa.Schema) -> None:
        """With the codec as properties of the table."""
        catalog = self._catalog(name)
        catalog.create_namespace(TABLE.split(".", maxsplit=1)[0])
        properties = {
            "write.parquet.compression-codec": CODEC,
            "write.parquet.compression-level": str(LEVEL),
            "write.parquet.row-group-limit": str(GROUP_ROWS),
        }
        catalog.create_table(TABLE, schema, location=f"{self._root(name)}/table", properties=properties)

    def open(self, name: str) -> Any:  # noqa: ANN401 a pyiceberg Table
        """The catalogue and the metadata."""
        return self._catalog(name).load_table(TABLE)

    def append(self, table: Any, rows: pa.Table) -> Any:  # noqa: ANN401 as above
        """The table then is at its own commit."""
        table.append(rows)
        return table

    def column_names(self, table: Any) -> list[str]:  # noqa: ANN401 as above
        """From the metadata."""
        return list(table.schema().column_names)

    def count_files(self, table: Any) -> int:  # noqa: ANN401 as above
        """From the snapshot's summary."""
        return int(table.current_snapshot().summary["total-data-files"])

    def delete(self, name: str, predicate: str) -> None:
        """Writes the files concerned anew."""
        self.open(name).delete(predicate)

    def upsert(self, name: str, source: pa.Table) -> None:
        """Writes the files concerned anew."""
        self.open(name).upsert(source, ["id"])

    def merge(self, name: str, source: pa.Table) -> None:
        """In one transaction: its upsert has no deletes."""
        deleted = pc.greater_equal(source["r"], DELETED_FROM)
        with self.open(name).transaction() as change:
            change.delete(self._in("id", source.filter(deleted)["id"].to_pylist()))
            change.upsert(source.filter(pc.invert(deleted)), ["id"])

    def compact(self, name: str) -> None:
        """All rows read and written again: it has no compaction."""
        table = self.open(name)
        table.overwrite(table.scan().to_arrow())

    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """Into pyarrow."""
        options: dict[str, Any] = {"row_filter": between(keys)} if keys else {}
        found: pa.Table = self.open(name).scan(selected_fields=tuple(columns or ("*",)), **options).to_arrow()
        return found

    def conflict(self, error: Exception) -> bool:
        """Another snapshot came first, or the catalogue was locked."""
        locked = isinstance(error, self._locked) and "locked" in str(error)
        return locked or isinstance(error, self._conflict)

    def build(self, name: str, rows: pa.Table, files: int) -> None:
        """Names the file of one append many times, in one manifest.

        ``add_files`` would read a footer for each.
        """
        self.create(name, rows.schema)
        table = self.append(self.open(name), rows)
        (task,) = table.scan().plan_files()
        first = task.file
        parent, _, last = first.file_path.rpartition("/")
        names = [f"{new_id()}.parquet" for _ in range(files - 1)]
        (found,) = self.place.files(name).rglob(last)
        link_copies(found, names)
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            for new in names:
                file = copy.copy(first)
                file._data = [*first._data]  # noqa: SLF001 a record has no other way to copy it
                file[1] = f"{parent}/{new}"
                append.append_data_file(file)
