"""Queries of DuckDB over tables, datasets and chains that are named by their URLs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pds.arguments import make_empty, require_text
from pds.engines.sources import ChainSource, open_source
from pds.errors import CapabilityNotSupported, InvalidInput, InvalidType
from pds.odf import Dataset
from pds.table.dataset import SnapshotDataset
from pds.table.snapshot import Snapshot
from pds.urls import normalize_url

try:
    import duckdb
except ImportError as error:
    raise ModuleNotFoundError("pds.sql needs DuckDB: pip install 'pds[sql]'", name="duckdb") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pds.store import CredentialProvider

_OLDEST: Final = 2
# What DuckDB reads itself: files, and patterns of their names.
_FILE: Final = re.compile(
    r"[*?\[]|\.(?:parquet|csv|tsv|txt|json|jsonl|ndjson|avro|xlsx|arrows?|db|duckdb)(?:\.(?:gz|zst|bz2))?$",
    re.IGNORECASE,
)


def run_sql(
    query: str,
    params: object,
    tables: Mapping[str, object],
    storage_options: Mapping[str, object] | None,
    credential_provider: CredentialProvider | None,
) -> duckdb.DuckDBPyRelation:
    """Return the result of a query as a relation of a connection of its own; `pds.sql` says what is raised."""
    if int(duckdb.__version__.split(".")[0]) < _OLDEST:
        # Older ones lose rows: they filter datasets of pyarrow as if NaN were not above all numbers.
        raise CapabilityNotSupported(f"pds.sql needs DuckDB {_OLDEST}.0 or newer, not {duckdb.__version__}")
    if params is not None and (isinstance(params, str | bytes) or not isinstance(params, Sequence | Mapping)):
        raise InvalidType(f"params must be a list or a dict of values, not {params!r}")
    # A query must not see the variables of this module.
    connection = duckdb.connect(config={"python_enable_replacements": "false"})
    try:
        return _run(connection, require_text("query", query), params, tables, (storage_options, credential_provider))
    except duckdb.Error as error:
        raise InvalidInput(f"DuckDB refuses the query: {error}") from error


def _run(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    params: object,
    tables: Mapping[str, object],
    access: tuple[Mapping[str, object] | None, CredentialProvider | None],
) -> duckdb.DuckDBPyRelation:
    names = _find_tables(connection, query)
    registered = {name.lower() for name in tables}
    if len(registered) < len(tables):
        raise InvalidInput(f"two tables have the same name, since DuckDB ignores case: {sorted(tables)}")
    for name, table in tables.items():
        scannable = _to_scannable(name, table)
        try:
            _register(connection, name, scannable)
        except (duckdb.Error, RuntimeError, TypeError, ValueError) as error:
            raise InvalidType(
                f"{name} must be a pds.Table, a chain, a scan, a table, reader or dataset of pyarrow, or a frame of "
                f"polars or pandas, not {type(table).__name__}"
            ) from error
    urls = [name for name in names if "/" in name and name.lower() not in registered and not _FILE.search(name)]
    if len({url.lower() for url in urls}) < len(urls):
        # A store has two tables of such names, and DuckDB one.
        raise InvalidInput(f"two URLs differ only in case, which DuckDB ignores; pass one as a keyword: {sorted(urls)}")
    sources: dict[str, SnapshotDataset] = {}
    for url in urls:
        normal = normalize_url(url)[0].rstrip("/")
        if normal not in sources:
            sources[normal] = SnapshotDataset(open_source(url, None, *access))
            _check_columns(url, sources[normal].schema)
        _register(connection, url, sources[normal])
    return connection.sql(query, params=params)


def _register(connection: duckdb.DuckDBPyConnection, name: str, table: object) -> None:
    try:
        connection.register(name, table)
    except duckdb.NotSupportedError as error:
        schema = getattr(table, "schema", None)
        columns = _list_foreign_columns(schema) if isinstance(schema, pa.Schema) else []
        raise CapabilityNotSupported(
            f"DuckDB cannot read {', '.join(columns) or 'a column'} of {name!r}: {error}; pass a scan of the other "
            "columns as a keyword: t=pds.open_table(url).scan(columns)"
        ) from error


def _list_foreign_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of types that DuckDB does not have."""
    columns = []
    with duckdb.connect() as connection:
        for field in schema:
            try:
                connection.register("rows", make_empty(pa.schema([field])))
            except duckdb.NotSupportedError:
                columns.append(f"the column {field.name!r} of type {field.type}")
    return columns


def _find_tables(connection: duckdb.DuckDBPyConnection, query: str) -> set[str]:
    """Return the names that a query reads from, without those that are qualified by a schema."""
    options = "skip_default := true, skip_empty := true, skip_null := true"
    rows = connection.execute(f"SELECT json_serialize_sql($1::VARCHAR, {options})", [query]).fetchall()
    try:
        tree = json.loads(rows[0][0])
    except RecursionError:
        raise InvalidInput("the query nests expressions too deeply; compute parts of them in a WITH clause") from None
    if tree.get("error_type") == "not implemented":
        raise InvalidInput("the query must be one SELECT; to write rows, pass its result to pds.write_table")
    if tree["error"]:
        # DuckDB itself says what is wrong, and where.
        connection.sql(query)
        raise InvalidInput(f"DuckDB cannot read the query: {tree.get('error_message')}")
    if len(tree["statements"]) != 1:
        raise InvalidInput(f"the query must be one SELECT, not {len(tree['statements'])} statements")
    references = list(_find_references(tree))
    for reference in references:
        if "at_clause" in reference:
            name = reference["table_name"]
            raise InvalidInput(
                f"{name!r} AT a version is not supported; pass a keyword: t=pds.open_table(url, as_of=…)"
            )
    return {reference["table_name"] for reference in references if not reference.get("schema_name")}


def _find_references(tree: object) -> Iterator[dict[str, Any]]:
    """Yield the references to tables, without those to the common table expressions of a `WITH` around them."""
    pending: list[tuple[object, frozenset[str]]] = [(tree, frozenset())]
    while pending:
        node, common = pending.pop()
        if isinstance(node, list):
            pending += [(child, common) for child in node]
        if not isinstance(node, dict):
            continue
        if node.get("type") == "BASE_TABLE" and (node.get("schema_name") or node["table_name"].lower() not in common):
            yield node
        for entry in node.get("cte_map", {}).get("map", ()):
            # It sees those before it, and itself only if it is recursive.
            pending.append((entry["value"], common))
            common |= {entry["key"].lower()}
        if node.get("type") == "RECURSIVE_CTE_NODE":
            common |= {node["cte_name"].lower()}
        pending += [(child, common) for name, child in node.items() if name != "cte_map"]


def _check_columns(name: str, schema: pa.Schema) -> None:
    if len({column.lower() for column in schema.names}) < len(schema.names):
        # DuckDB would give the values of one for the other.
        message = f"{name!r} has columns whose names differ only in case, which DuckDB ignores: {schema.names}"
        raise InvalidInput(message)


def _to_scannable(name: str, table: object) -> object:
    if isinstance(table, Snapshot):
        _check_columns(name, table.schema)
        return table.to_pyarrow_dataset()
    if isinstance(table, Dataset):
        source = ChainSource(table, None)
        _check_columns(name, source.schema)
        return SnapshotDataset(source)
    if isinstance(table, str):
        raise InvalidType(f"{name} must be a table or rows, not a text; pass pds.open_table({table!r})")
    return table
