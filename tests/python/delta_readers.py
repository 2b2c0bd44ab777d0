"""Readers of Delta tables: each gives the rows of a version, in the order of the column `id`, as tuples.

delta-rs and polars run in this process; DuckDB's Delta extension is for another version of DuckDB, so it runs in a
process of its own, and reads the newest version of a log only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.ipc
from deltalake import DeltaTable, QueryBuilder

from duckdb_extensions import extension_directory, installed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Reads the paths of tables and filters as JSON lines, and writes Arrow files.
_DUCKDB_SCRIPT = """
import json, sys
import duckdb
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
connection.execute(f"SET extension_directory = '{sys.argv[1]}'")
connection.execute("SET TimeZone = 'UTC'")
connection.execute("LOAD delta")
import pyarrow.ipc
for line in sys.stdin:
    path, where, target = json.loads(line)
    rows = connection.sql(f"SELECT * FROM delta_scan('{path}') WHERE {where} ORDER BY id").arrow()
    if isinstance(rows, pyarrow.RecordBatchReader):
        rows = rows.read_all()
    with pyarrow.ipc.new_file(target, rows.schema) as writer:
        writer.write_table(rows)
    print("done", flush=True)
"""


def read_delta_rs(folder: Path, version: int | None = None, where: str = "true") -> pa.Table:
    """By delta-rs and DataFusion."""
    table = DeltaTable(str(folder), version=version)
    query = f"SELECT * FROM delta WHERE {where}"  # noqa: S608 of a test
    return pa.table(QueryBuilder().register("delta", table).execute(query))


def read_polars(folder: Path, version: int | None = None, where: str = "true") -> pa.Table:
    """By polars."""
    return pl.scan_delta(str(folder), version=version).filter(pl.sql_expr(where)).collect().to_arrow()


def read_duckdb(folders: Sequence[tuple[Path, str]], scratch: Path) -> list[pa.Table]:
    """By DuckDB: the newest versions of tables, with a filter each."""
    targets = [scratch / f"{number}.arrow" for number in range(len(folders))]
    orders = [
        json.dumps((str(folder), where, str(target))) for (folder, where), target in zip(folders, targets, strict=True)
    ]
    run = subprocess.run(
        [sys.executable, "-c", _DUCKDB_SCRIPT, str(extension_directory())],
        input="\n".join(orders),
        env={"PYTHONPATH": str(installed())},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [pa.ipc.open_file(target).read_all() for target in targets]


def copy_up_to(folder: Path, version: int, target: Path) -> Path:
    """A copy of a table whose log ends with a version, which is its newest one there."""
    shutil.copytree(folder, target)
    log = target / "_delta_log"
    (log / "_last_checkpoint").unlink(missing_ok=True)
    for path in log.iterdir():
        if int(path.name.split(".")[0]) > version:
            path.unlink()
    return target
