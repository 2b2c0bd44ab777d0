"""Readers of Iceberg tables: each gives the rows of a snapshot, in the order of the column `id`, as tuples.

pyiceberg and polars run in this process; DuckDB's extensions are for another version of DuckDB, so it runs in a
process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.ipc
from pyiceberg.table import StaticTable

from duckdb_extensions import extension_directory, installed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Reads the paths of metadata, ids of snapshots, and filters as JSON lines, and writes Arrow files.
_DUCKDB_SCRIPT = """
import json, sys
import duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"SET extension_directory = '{sys.argv[1]}'")
connection.execute("SET TimeZone = 'UTC'")
connection.execute("LOAD avro")
connection.execute("LOAD iceberg")
import pyarrow.ipc
for line in sys.stdin:
    path, snapshot, where, target = json.loads(line)
    at = "" if snapshot is None else f", snapshot_from_id => {snapshot}"
    rows = connection.sql(f"SELECT * FROM iceberg_scan('{path}'{at}) WHERE {where} ORDER BY id").arrow()
    if isinstance(rows, pyarrow.RecordBatchReader):
        rows = rows.read_all()
    with pyarrow.ipc.new_file(target, rows.schema) as writer:
        writer.write_table(rows)
    print("done", flush=True)
"""


def metadata_files(folder: Path) -> dict[int, Path]:
    """The metadata of each version that a table exported, oldest first."""
    files = {int(path.name[1:].split(".")[0]): path for path in (folder / "metadata").glob("v*.metadata.json")}
    return dict(sorted(files.items()))


def read_metadata(path: Path) -> dict[str, Any]:
    """The content of a metadata file."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def snapshots(path: Path) -> dict[int, int]:
    """The ids of the snapshots of a metadata file, by version of the table."""
    return {int(s["summary"]["pds.version"]): s["snapshot-id"] for s in read_metadata(path)["snapshots"]}


def read_pyiceberg(
    metadata: Path | str, where: str = "true", *, snapshot: int | None = None, options: dict[str, str] | None = None
) -> pa.Table:
    """By pyiceberg."""
    table = StaticTable.from_metadata(str(metadata), options or {})
    selected = {} if where == "true" else {"row_filter": where}
    return table.scan(snapshot_id=snapshot, **selected).to_arrow()


def read_polars(metadata: Path, where: str = "true", *, native: bool = True) -> pa.Table:
    """By polars: its own reader, or pyiceberg's."""
    reader = "native" if native else "pyiceberg"
    scanned = pl.scan_iceberg(str(metadata), reader_override=reader)
    with warnings.catch_warnings():
        # Polars would plan faster with another package.
        warnings.simplefilter("ignore", pl.exceptions.PerformanceWarning)
        return scanned.filter(pl.sql_expr(where)).collect().to_arrow()


def read_duckdb(orders: Sequence[tuple[Path, int | None, str]], scratch: Path) -> list[pa.Table]:
    """By DuckDB: of metadata files, or of the newest ones of folders, a snapshot or the newest, with a filter."""
    targets = [scratch / f"{number}.arrow" for number in range(len(orders))]
    lines = [
        json.dumps((str(path), snapshot, where, str(target)))
        for (path, snapshot, where), target in zip(orders, targets, strict=True)
    ]
    run = subprocess.run(
        [sys.executable, "-c", _DUCKDB_SCRIPT, str(extension_directory())],
        input="\n".join(lines),
        env={"PYTHONPATH": str(installed())},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [pa.ipc.open_file(target).read_all() for target in targets]
