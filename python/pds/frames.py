"""Data frames of packages that need not be installed, made of rows that are read when the package is there."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pds.errors import CapabilityNotSupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pandas as pd
    import polars as pl

_ADVICE = "use to_pyarrow(), cast the column, or leave it out with scan(columns)"


def to_pandas(read: Callable[[], pa.Table]) -> pd.DataFrame:
    """Return the rows that `read` returns, with the index of the frame that they were written from if it has a name.

    Raises:
        ModuleNotFoundError: pandas is not installed. Nothing is read then.
        CapabilityNotSupported: pandas cannot hold a column.
    """
    _import("pandas", "to_pandas")
    rows = fit_metadata(read())
    try:
        return rows.to_pandas()
    except MemoryError:
        # That of pyarrow is an ArrowException, too.
        raise
    except (pa.ArrowException, KeyError, OverflowError, TypeError, ValueError) as error:
        # One of pandas for a time zone is a KeyError.
        raise CapabilityNotSupported(
            f"pandas cannot read the columns {rows.schema.names}: {type(error).__name__}: {error}; {_ADVICE}"
        ) from error


def to_polars(read: Callable[[], pa.Table], get_schema: Callable[[], pa.Schema]) -> pl.DataFrame:
    """Return the rows that `read` returns, which have the columns that `get_schema` returns.

    Raises:
        ModuleNotFoundError: polars is not installed. Nothing is read then.
        CapabilityNotSupported: polars has no type for a column. Nothing is read then, except where only the conversion
            of values tells.
    """
    polars = _import("polars", "to_polars")
    schema = get_schema()
    check_polars_types(schema)
    _convert_to_polars(polars, pa.Table.from_batches([], schema))
    return _convert_to_polars(polars, read())


def _convert_to_polars(polars: ModuleType, rows: pa.Table) -> pl.DataFrame:
    try:
        frame: pl.DataFrame = polars.DataFrame(rows)
    except polars_errors() as error:
        raise refuse_polars(rows.schema, error) from error
    return frame


def polars_errors() -> tuple[type[BaseException], ...]:
    """Return what polars raises for types that it does not have. Its PanicException is not an Exception."""
    exceptions = _import("polars", "to_polars").exceptions
    return exceptions.PolarsError, exceptions.PanicException, NotImplementedError, TypeError, ValueError


def refuse_polars(schema: pa.Schema, error: BaseException) -> CapabilityNotSupported:
    """Return the error for columns that polars refused."""
    return CapabilityNotSupported(f"polars cannot read the columns {schema.names}: {error}; {_ADVICE}")


def check_polars_types(schema: pa.Schema) -> None:
    """Raise an error if polars has no type for a column: polars panics for some, and prints that to stderr.

    Raises:
        CapabilityNotSupported: It has none.
    """
    for field in schema:
        if _is_foreign_to_polars(field.type):
            raise CapabilityNotSupported(
                f"polars cannot read the column {field.name!r} of type {field.type}; {_ADVICE}"
            )


def _is_foreign_to_polars(data_type: Any) -> bool:  # noqa: ANN401 a type of any kind
    if isinstance(data_type, pa.BaseExtensionType):
        return _is_foreign_to_polars(data_type.storage_type)
    types: Any = pa.types
    if types.is_dictionary(data_type):
        return bool(types.is_dictionary(data_type.value_type)) or _is_foreign_to_polars(data_type.value_type)
    children = [data_type.field(position) for position in range(data_type.num_fields)]
    return (
        (types.is_timestamp(data_type) and data_type.tz is not None and not _has_zone(data_type.tz))
        or (types.is_decimal(data_type) and (types.is_decimal256(data_type) or data_type.scale < 0))
        or (types.is_interval(data_type) and "POLARS_IMPORT_INTERVAL_AS_STRUCT" not in os.environ)
        or any(is_foreign(data_type) for is_foreign in (types.is_union, types.is_run_end_encoded))
        or any(is_foreign(data_type) for is_foreign in (types.is_list_view, types.is_large_list_view))
        or len({child.name for child in children}) < len(children)
        or any(_is_foreign_to_polars(child.type) for child in children)
    )


def _has_zone(name: str) -> bool:
    """Whether polars has a time zone. A cast raises an error where the conversion of an empty column panics."""
    polars = _import("polars", "to_polars")
    try:
        polars.Series([0]).cast(polars.Datetime("us", name))
    except polars_errors():
        return False
    return True


def fit_metadata(table: pa.Table) -> pa.Table:
    """Return the rows with metadata of pandas that is about them, or with none.

    A table keeps the metadata of the frame that it was created from: of columns that may have other names and types by
    now, and, from older versions of pds, of an index that counts the rows of that frame.
    """
    metadata = dict(table.schema.metadata or {})
    stored = metadata.pop(b"pandas", None)
    if stored is None:
        return table
    import json  # noqa: PLC0415 only metadata of pandas needs it

    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        metadata[b"pandas"] = json.dumps(_fit(json.loads(stored), table.schema)).encode()
    return table.replace_schema_metadata(metadata)


def _fit(metadata: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return metadata of pandas without ranges as indexes, and without an index if not all columns are as it says."""
    # Most programs need no pandas, and this loads numpy.
    from pyarrow.pandas_compat import get_logical_type  # noqa: PLC0415

    types = {field.name: get_logical_type(field.type) for field in schema}
    named = {column.get("field_name", column["name"]): column for column in metadata["columns"]}
    fitting = {name: column for name, column in named.items() if types.get(name) == column["pandas_type"]}
    if len(fitting) == len(types):
        index = [column for column in metadata["index_columns"] if isinstance(column, str)]
        return {**metadata, "index_columns": index}
    # A column may have been renamed, and another one added with its name.
    columns = [column for name, column in fitting.items() if name == column["name"]]
    return {**metadata, "columns": columns, "index_columns": [], "column_indexes": []}


def _import(package: str, method: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(f"{method} needs {package}: pip install {package}", name=package) from error
