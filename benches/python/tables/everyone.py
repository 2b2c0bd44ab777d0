"""Everybody who takes part."""

from __future__ import annotations

from tables.delta import Delta
from tables.duck import DuckDb, DuckDbParquet
from tables.iceberg import Iceberg
from tables.lance_format import Lance
from tables.ours import Pds

ALL = (Pds, Delta, Iceberg, Lance, DuckDb, DuckDbParquet)
BY_KEY = {system.key: system for system in ALL}
PEERS = [key for key in BY_KEY if key != "pds"]
# Bare files are no table; they are shown and not counted as a peer to reach.
TABLES = [key for key in PEERS if key != "duckdb-parquet"]
