"""pds."""

from __future__ import annotations

import base64
import io
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from systems import CODEC, GROUP_ROWS, LEVEL

from tables.base import ALL_KINDS, COMPACTED_BYTES, TableSystem, between, link_copies, new_id
from tables.changes import DELETED_FROM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from systems import Place

    from tables.base import Range

SEGMENT_FILES = 4096
# Between a half and all of what a manifest lists.
INLINE_BYTES = 12 << 10
# The portable Roaring format: no run containers, no containers.
EMPTY_BITMAP = base64.b64encode(struct.pack("<II", 12346, 0)).decode()


class Pds(TableSystem):
    """This project."""

    key = title = package = "pds"
    kinds = ALL_KINDS | {"scan-by-two"}

    def __init__(self, place: Place, home: Path) -> None:
        super().__init__(place, home)
        import pds  # noqa: PLC0415 a process loads only what it measures

        url = place.url("") if place.server else Path(place.url(".")).resolve().as_uri()
        self._pds = pds
        self._store = pds.Store(url, storage_options=place.options())
        self._options = pds.WriteOptions(compression=CODEC, compression_level=LEVEL, row_group_size=GROUP_ROWS)

    def create(self, name: str, schema: pa.Schema) -> None:
        """With the key that ranges are deleted by."""
        self._pds.Table.create(self._store, name, schema, key="id", options=self._options)

    def open(self, name: str) -> Any:  # noqa: ANN401 a pds.Table
        """Pointer and manifest."""
        return self._pds.Table(self._store, name, options=self._options)

    def append(self, table: Any, rows: pa.Table) -> Any:  # noqa: ANN401 as above
        """The table then shows what it made."""
        table.append(rows)
        return table

    def column_names(self, table: Any) -> list[str]:  # noqa: ANN401 as above
        """From the manifest."""
        return list(table.schema.names)

    def count_files(self, table: Any) -> int:  # noqa: ANN401 as above
        """From the manifest."""
        return int(table.file_count)

    def delete(self, name: str, predicate: str) -> None:
        """Tombstones."""
        self.open(name).delete(predicate)

    def upsert(self, name: str, source: pa.Table) -> None:
        """Tombstones and new files."""
        self.open(name).upsert(source)

    def merge(self, name: str, source: pa.Table) -> None:
        """The same."""
        merge = self.open(name).merge(source)
        merge = merge.when_matched_delete(f"source.r >= {DELETED_FROM}").when_matched_update_all()
        merge.when_not_matched_insert_all().execute()

    def compact(self, name: str) -> None:
        """Into files of the common size."""
        self.open(name).optimize.compact(COMPACTED_BYTES)

    def changes(self, name: str, commits: int) -> pa.Table:
        """Of every table."""
        table = self.open(name)
        return pa.table(table.scan_changes(table.version - commits))

    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """Into pyarrow."""
        found: pa.Table = self.open(name).scan(columns, where=between(keys) if keys else None).to_pyarrow()
        return found

    def scan_by_two(self, name: str) -> pa.Table:
        """A task for each file, by two threads."""
        tasks = self.open(name).scan_tasks(min_bytes=1, max_bytes=1)
        with ThreadPoolExecutor(2) as threads:
            return pa.concat_tables(threads.map(lambda task: task.to_pyarrow(), tasks))

    def build(self, name: str, rows: pa.Table, files: int) -> None:
        """Names the file of one append many times: in segments, as many appends would leave them."""
        self.create(name, rows.schema)
        self.append_all(name, [rows])
        folder = self.place.files(name)
        pointer = json.loads((folder / "_latest_manifest").read_text())
        at = folder / pointer["manifest"]
        manifest = json.loads(at.read_text())
        (first,) = manifest["data_files"]
        parent, _, last = first["path"].rpartition("/")
        names = [f"{last.split('-', 1)[0]}-{new_id()}.parquet" for _ in range(files - 1)]
        link_copies(folder / first["path"], names)
        listed = [{**first, "path": f"{parent}/{new}"} for new in names]
        inline = min(len(listed), INLINE_BYTES // len(json.dumps(first)))
        older, newest = listed[: len(listed) - inline], listed[len(listed) - inline :]
        places = range(0, len(older), SEGMENT_FILES)
        manifest["segments"] = [self._segment(name, older[i : i + SEGMENT_FILES]) for i in places]
        manifest["data_files"] = [first, *newest]
        at.write_text(json.dumps(manifest))

    def _segment(self, name: str, files: list[dict[str, Any]]) -> dict[str, Any]:
        """One list of files as docs/format.md has it, and what the manifest says of it."""
        texts = {key: [json.dumps(f[key]) for f in files] for key in ("min", "max", "null_counts")}
        columns: dict[str, pa.Array] = {"path": pa.array([f["path"] for f in files]), **texts}
        for key in ("size_bytes", "footer_size", "row_group_count", "total_rows"):
            columns[key] = pa.array([f[key] for f in files], pa.uint64())
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="zstd", store_schema=False)
        path = f"manifest/segments/b00000002-{new_id()}.parquet"
        self._store.write(f"{name}/{path}", sink.getvalue())
        first = files[0]
        return {
            "path": path,
            "size_bytes": len(sink.getvalue()),
            "data_files": len(files),
            "total_rows": sum(f["total_rows"] for f in files),
            "min": first["min"],
            "max": first["max"],
            "null_counts": {column: count * len(files) for column, count in first["null_counts"].items()},
            "removed": EMPTY_BITMAP,
        }
