"""What a user writes to write or read one dataset: scripts for the cold mode of ``peers.py``.

They do what the classes of ``systems.py`` do, with the same settings; where a default is the setting,
nothing is said. Before its ``{rows}`` a script imports what it needs. Rows of pyarrow need pyarrow;
polars has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cold
import data
import duckdb_httpfs
from systems import CODEC, GROUP_ROWS, LEVEL

if TYPE_CHECKING:
    from cases import Case
    from systems import Place

WRITE = {
    "pds": """
import pds
import pyarrow as pa
{rows}
pds.write_dataset({url!r}, rows, storage_options={options!r})
""",
    "remote-store": """
import pyarrow as pa
import remote_store
from remote_store import backends
from remote_store.ext.parquet import ParquetDatasetStore
{rows}
store = remote_store.Store({backend})
ParquetDatasetStore(store, compression={codec!r}, row_group_size={group_rows}).write_dataset(rows, {name!r})
""",
    "pyarrow": """
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
{rows}
pq.write_table(
    rows,
    {file!r},
    filesystem={filesystem},
    compression={codec!r},
    compression_level={level},
    row_group_size={group_rows},
)
""",
    "pyarrow-dataset": """
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs
{rows}
kind = ds.ParquetFileFormat()
ds.write_dataset(
    rows,
    {path!r},
    format=kind,
    filesystem={filesystem},
    file_options=kind.make_write_options(compression={codec!r}, compression_level={level}),
    min_rows_per_group={group_rows},
    max_rows_per_group={group_rows},
)
""",
    "polars": """
import polars as pl
{rows}
rows.write_parquet(
    {url!r} + "/data.parquet",
    compression={codec!r},
    compression_level={level},
    row_group_size={group_rows},
    storage_options={options!r},
)
""",
    "duckdb": """
import duckdb
import pyarrow as pa
{rows}
{connect}
connection.register("source", rows)
options = "FORMAT parquet, COMPRESSION {codec}, COMPRESSION_LEVEL {level}, ROW_GROUP_SIZE {group_rows}"
connection.execute("COPY source TO '{url}/data.parquet' (" + options + ")")
""",
    "deltalake": """
import pyarrow as pa
from deltalake import WriterProperties, write_deltalake
{rows}
properties = WriterProperties(compression="ZSTD", compression_level={level}, max_row_group_size={group_rows})
write_deltalake({url!r}, rows, writer_properties=properties, storage_options={options!r})
""",
}

READ = {
    "pds": """
import pds
result = pds.read_dataset({url!r}, {columns!r}, storage_options={options!r})
""",
    "remote-store": """
import remote_store
from remote_store import backends
from remote_store.ext.parquet import ParquetDatasetStore
store = remote_store.Store({backend})
result = ParquetDatasetStore(store).read_dataset({name!r}, columns={columns!r})
""",
    "pyarrow": """
import pyarrow.parquet as pq
from pyarrow import fs
result = pq.read_table({file!r}, filesystem={filesystem}, columns={columns!r})
""",
    "pyarrow-dataset": """
import pyarrow.dataset as ds
from pyarrow import fs
result = ds.dataset({file!r}, filesystem={filesystem}).to_table({columns!r})
""",
    "polars": """
import polars as pl
result = pl.read_parquet({url!r} + "/data.parquet", columns={columns!r}, storage_options={options!r})
""",
    "duckdb": """
import duckdb
{connect}
result = connection.sql("SELECT {chosen} FROM '{url}/data.parquet'").to_arrow_table()
""",
    "deltalake": """
from deltalake import DeltaTable
result = DeltaTable({url!r} + "-delta", storage_options={options!r}).to_pyarrow_table(columns={columns!r})
""",
}

for _scripts in (WRITE, READ):
    _scripts["remote-store-arrow"] = _scripts["remote-store"]

_CONNECT = """
connection = duckdb.connect()
for statement in {statements!r}:
    connection.execute(statement)
"""


def values(place: Place, name: str, case: Case, system: str) -> dict[str, Any]:
    """What the scripts are filled with."""
    url = place.url(name)
    path = url.removeprefix("s3://")
    columns = list(data.DATA[case.data].few_columns) if case.op == "columns" else None
    return {
        "url": url,
        "path": path,
        "file": f"{path}/data.parquet",
        "name": name,
        "columns": columns,
        "chosen": ", ".join(columns or ["*"]),
        "rows": cold.load(data.path(case.data), "rows = pl.from_arrow(rows)" if system == "polars" else ""),
        "codec": CODEC,
        "level": LEVEL,
        "group_rows": GROUP_ROWS,
        **clients(place, system),
    }


def clients(place: Place, system: str) -> dict[str, Any]:
    """How each client is told of a server, or of a disk."""
    server = place.server
    if server is None:
        backend, filesystem, statements = f"backends.LocalBackend({place.url('.')!r})", "fs.LocalFileSystem()", []
    else:
        kind = "S3PyArrowBackend" if system == "remote-store-arrow" else "S3Backend"
        backend = f"backends.{kind}(**{server.remote_store_options()!r})"
        filesystem = f"fs.S3FileSystem(**{server.arrow_options()!r})"
        statements = duckdb_httpfs.statements(server) if system.startswith("duckdb") else []
    return {
        "options": place.options(),
        "backend": backend,
        "filesystem": filesystem,
        "connect": _CONNECT.format(statements=statements),
    }
