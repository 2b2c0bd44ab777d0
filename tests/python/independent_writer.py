"""Another engine's commits to a table, by rules 13 to 27 of docs/format.md, in plain Python; for one writer."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import secrets
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from independent_table import COUNTS, POINTER, RECENT_COMMITS, TEXTS, at, manifest_path, newest, pointer_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json = dict[str, Any]


class Interrupted(Exception):
    """A writer ended where it was told to."""


class Writer:
    """Commits to the table in a folder, as rules 13 to 27 have it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.began = newest(root).version

    def _new(self, folder: str, suffix: str, *, timed: bool = True) -> str:
        hour = dt.datetime.now(dt.UTC).strftime("%Y/%m/%d/%H/") if timed else ""
        return f"{folder}/{hour}b{self.began:08}-{secrets.token_hex(16)}.{suffix}"

    def _create(self, name: str, content: bytes) -> None:
        """Put an object where there is none, whole or not at all."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = self.root.parent / f".{secrets.token_hex(8)}"
        hidden.write_bytes(content)
        try:
            os.link(hidden, path)
        finally:
            hidden.unlink()

    def data(self, rows: pa.Table, row_group_size: int) -> Json:
        """Write a data file with the newest snapshot's columns; says what a manifest says of it."""
        snapshot = newest(self.root)
        ids = {column["name"]: column["id"] for column in snapshot.manifest["schema"]["columns"]}
        fields = [snapshot.schema.field(name) for name in rows.column_names]
        schema = pa.schema([field.with_metadata({b"PARQUET:field_id": str(ids[field.name])}) for field in fields])
        rows = pa.table(rows.columns, schema=schema)
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, row_group_size=row_group_size)
        content, name = sink.getvalue().to_pybytes(), self._new("data", "parquet")
        self._create(name, content)
        integers = [f.name for f in fields if pa.types.is_integer(f.type) and rows[f.name].null_count < rows.num_rows]
        ends: Json = {str(ids[name]): pc.min_max(rows[name]).as_py() for name in integers}
        return {
            "path": name,
            "size_bytes": len(content),
            "footer_size": 8 + struct.unpack("<I", content[-8:-4])[0],
            "row_group_count": -(-rows.num_rows // row_group_size),
            "total_rows": rows.num_rows,
            **{end: {i: both[end] for i, both in ends.items()} for end in ("min", "max")},
            "null_counts": {str(ids[name]): rows[name].null_count for name in integers},
        }

    def tombstone(self, lines: list[Json], deleted_rows: int | None) -> Json:
        """Write a tombstone file; says what a manifest says of it."""
        name, content = self._new("tombstone", "del"), "".join(json.dumps(line) + "\n" for line in lines).encode()
        self._create(name, content)
        files = sorted({line["file"] for line in lines})
        return {"path": name, "size_bytes": len(content), "files": files, "deleted_rows": deleted_rows}

    def segment(self, files: list[Json], removed: bytes) -> Json:
        """Write a list of data files; says what a manifest says of it. No bytes: nothing is removed.

        Columns are found by name: they stand in another order here than pds writes them in, with one more.
        """
        texts = {name: [json.dumps(file[name]) for file in files] for name in TEXTS[1:]}
        names = [json.dumps(file["columns"]) if "columns" in file else None for file in files]
        texts |= {"columns": pa.array(names, pa.string())} if any(names) else {}
        columns = {"path": [file["path"] for file in files], **texts}
        counts = {name: pa.array([file[name] for file in files], pa.uint64()) for name in COUNTS}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({**counts, "more": [None] * len(files), **columns}), sink)
        name = self._new("manifest/segments", "parquet", timed=False)
        self._create(name, sink.getvalue().to_pybytes())
        ids = {i for file in files for i in file["min"] if isinstance(file["min"][i], int)}
        bounded = [i for i in ids if all(i in file["min"] for file in files)]
        counted = [i for i in files[0]["null_counts"] if all(i in file["null_counts"] for file in files)]
        return {
            "path": name,
            "size_bytes": (self.root / name).stat().st_size,
            "data_files": len(files),
            "total_rows": sum(file["total_rows"] for file in files),
            "min": {i: min(file["min"][i] for file in files) for i in bounded},
            "max": {i: max(file["max"][i] for file in files) for i in bounded},
            "null_counts": {i: sum(file["null_counts"][i] for file in files) for i in counted},
            **({"removed": base64.b64encode(removed).decode()} if removed else {}),
        }

    def commit(self, name: str, change: Callable[[Json], None], *, dies: bool = False) -> int:
        """Rule 16; with `dies` it is over before the pointer is replaced."""
        commit = secrets.token_hex(16)
        while True:
            old = newest(self.root).manifest
            version = old["version"] + 1
            created = dt.datetime.fromisoformat(old["created_at"]) + dt.timedelta(microseconds=1)
            created = max(created, dt.datetime.now(dt.UTC)).replace(tzinfo=None)
            new = json.loads(json.dumps(old))
            new |= {"version": version, "previous": version - 1, "commit_id": commit, "operation": {"name": name}}
            new |= {"recent_commits": [old["commit_id"], *old["recent_commits"]][:RECENT_COMMITS]}
            new |= {"created_at": created.isoformat(timespec="microseconds") + "Z"}
            change(new)
            try:
                self._create(manifest_path(version), json.dumps(new).encode())
            except FileExistsError:
                self._point(old, at(self.root, version).manifest)
                continue
            if dies:
                raise Interrupted
            self._point(old, new)
            return int(version)

    def _point(self, old: Json, new: Json) -> None:
        """Replace the pointer if it is as it was. Here nobody else does at the same time."""
        if json.loads((self.root / POINTER).read_bytes())["version"] == old["version"]:
            hidden = self.root.parent / f".{secrets.token_hex(8)}"
            hidden.write_bytes(pointer_bytes(new))
            hidden.replace(self.root / POINTER)

    def append(self, rows: pa.Table, row_group_size: int, *, dies: bool = False) -> int:
        """Add a file of rows."""
        file = self.data(rows, row_group_size)

        def change(manifest: Json) -> None:
            manifest["data_files"].append(file)
            manifest["added_at"] = manifest["version"]

        return self.commit("append", change, dies=dies)

    def delete(self, lines: list[Json], deleted_rows: int | None) -> int:
        """Delete what the lines say."""
        entry = self.tombstone(lines, deleted_rows)
        return self.commit("delete", lambda manifest: manifest["tombstones"].append(entry))
