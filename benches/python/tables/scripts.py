"""What a user writes to work on one table: scripts for the cold mode of ``table_peers.py``.

They do what the methods of the systems do, with the same settings, on the local disk. Where a default
is the setting, nothing is said. Before its ``{rows}`` a script imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cold
from systems import GROUP_ROWS, LEVEL

from tables import rows
from tables.base import between
from tables.iceberg import TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from systems import Place

    from tables.cases import Sizes

OPEN = {
    "pds": """
import pds
result = pds.open_table({url!r}).schema.names
""",
    "deltalake": """
from deltalake import DeltaTable
table = DeltaTable({url!r})
result = [field.name for field in table.schema().fields]
""",
    "pyiceberg": """
from pyiceberg.catalog.sql import SqlCatalog
table = SqlCatalog("bench", **{catalog!r}).load_table({table!r})
result = list(table.schema().column_names)
""",
    "lance": """
import lance
result = lance.dataset({url!r}).schema.names
""",
}

SCAN = {
    "pds": """
import pds
table = pds.open_table({url!r})
result = table.scan({columns!r}, where={where!r}).to_pyarrow()
""",
    "deltalake": """
import pyarrow as pa
from deltalake import DeltaTable
table = DeltaTable({url!r})
result = pa.table(table.scan({columns!r}, {where!r}))
""",
    "pyiceberg": """
from pyiceberg.catalog.sql import SqlCatalog
table = SqlCatalog("bench", **{catalog!r}).load_table({table!r})
result = table.scan({where!r}, selected_fields={fields!r}).to_arrow()
""",
    "lance": """
import lance
table = lance.dataset({url!r})
result = table.to_table(columns={columns!r}, filter={where!r})
""",
    "duckdb": """
import duckdb
connection = duckdb.connect({url!r} + "/rows.duckdb")
result = connection.sql("SELECT {chosen} FROM rows WHERE {where}").to_arrow_table()
""",
    "duckdb-parquet": """
import duckdb
result = duckdb.sql("SELECT {chosen} FROM '{url}/*.parquet' WHERE {where}").to_arrow_table()
""",
}

APPEND = {
    "pds": """
import pds
import pyarrow as pa
{rows}
pds.open_table({url!r}).append(rows)
""",
    "deltalake": """
import pyarrow as pa
from deltalake import WriterProperties, write_deltalake
{rows}
properties = WriterProperties(compression="ZSTD", compression_level={level}, max_row_group_size={group_rows})
write_deltalake({url!r}, rows, mode="append", writer_properties=properties)
""",
    "pyiceberg": """
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
{rows}
table = SqlCatalog("bench", **{catalog!r}).load_table({table!r})
table.append(rows)
""",
    "lance": """
import lance
import pyarrow as pa
{rows}
lance.write_dataset(rows, {url!r}, mode="append")
""",
}

BY_KIND = {"open": OPEN, "lookup": SCAN, "scan-range": SCAN, "commit": APPEND}


def values(place: Place, home: Path, name: str, kind: str, sizes: Sizes) -> dict[str, Any]:
    """What the scripts are filled with."""
    columns, keys = rows.asked(kind, sizes)
    catalog = {"uri": f"sqlite:///{home / name / 'catalog.db'}", "warehouse": place.files(name).resolve().as_uri()}
    return {
        "url": place.url(name),
        "columns": columns,
        "fields": tuple(columns or ["*"]),
        "chosen": ", ".join(columns or ["*"]),
        "where": between(keys) if keys else None,
        "rows": cold.load(rows.small_path(sizes.rows)),
        "level": LEVEL,
        "group_rows": GROUP_ROWS,
        "catalog": catalog,
        "table": TABLE,
    }
