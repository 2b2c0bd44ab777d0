"""Tables, datasets and chains for other engines: polars and DuckDB, by URL."""

from __future__ import annotations

__all__ = ["scan_polars", "sql"]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import duckdb
    import polars as pl

    from pds.by_url import Url
    from pds.store import CredentialProvider


def scan_polars(
    url: Url,
    *,
    as_of: int | str | datetime | None = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> pl.LazyFrame:
    """Return the rows of a table, a dataset or a chain as a lazy frame of polars, as `Table.scan_polars` does.

    The frame stays at what is there now: if a dataset is replaced later, reads raise DatasetIncomplete. The rows of a
    chain are those that were appended, retractions and corrections among them.

    Args:
        url: The folder, as for `open_table`.
        as_of: A version, a time with a time zone, or a tag of a table; a time or the hash of a block of a chain.
            Defaults to the newest one.
        storage_options: As for `Store`.
        credential_provider: As for `Store`.

    Raises:
        NotFound: The folder is not a table, dataset or chain, or the tag or block does not exist.
        VersionExpired: A vacuum removed the version.
        InvalidInput: The URL, the version or an option is not valid; or the folder is a pipeline; or `as_of` is for a
            dataset, which has one version.
        InvalidType: An argument has an invalid type.
        ModuleNotFoundError: polars is not installed.
        CapabilityNotSupported: polars has no type for a column.
    """
    from pds.engines.sources import open_source  # noqa: PLC0415 few need it
    from pds.table.polars import scan_polars as scan_source  # noqa: PLC0415 an optional dependency

    return scan_source(open_source(url, as_of, storage_options, credential_provider))


def sql(
    query: str,
    /,
    *,
    params: object = None,
    storage_options: Mapping[str, object] | None = None,
    credential_provider: CredentialProvider | None = None,
    **tables: object,
) -> duckdb.DuckDBPyRelation:
    """Run a query of DuckDB over tables, datasets and chains, which are named by their URLs in the query.

        pds.sql("SELECT city, count(*) FROM 's3://bucket/lake/people' WHERE age > 30 GROUP BY city").pl()

    A name in quotes with a slash is a URL or a path as for `open_table`, such as `'./people'`; but names of files, such
    as `'x/*.parquet'`, are read by DuckDB itself. DuckDB passes columns and filters on, which prune files, row groups
    and pages. Each table is read at one version, that of the call, also if the query names it twice. A query does not
    see variables of Python.

    Args:
        query: One SELECT statement.
        params: The values of the parameters `?` or `$name` of the query: a list or a dict. Use it for values from
            outside.
        storage_options: As for `Store`, for all URLs of the query.
        credential_provider: As for `Store`, for all URLs of the query.
        tables: More tables, by their names in the query: a `Table`, which may be of an older version
            (`t=pds.open_table(url, as_of=3)`), a chain, or what DuckDB reads: scans of pds, tables of pyarrow, frames
            of polars and pandas.

    Returns:
        The result as a relation, which runs the query when rows are asked for: print it, or call `.pl()`, `.df()`,
        `.arrow()`, `.fetchall()` or `.filter(…)`. It can be passed to `write_table`.

    Raises:
        NotFound: A URL is neither a table nor a dataset nor a chain.
        InvalidInput: DuckDB refuses the query, with an error that is the `__cause__`; or the query is not one SELECT;
            or two of its names differ only in case, which DuckDB ignores; or a URL or an option is not valid.
        InvalidType: An argument has an invalid type.
        ModuleNotFoundError: DuckDB is not installed.
        CapabilityNotSupported: DuckDB is older than 2.0, or has no type for a column of a table.
        duckdb.Error: From the relation, while rows are read. Errors of reads are in the messages of such errors.
    """
    from pds.engines.duckdb import run_sql  # noqa: PLC0415 an optional dependency

    return run_sql(query, params, tables, storage_options, credential_provider)
