"""Data frames of packages that need not be installed, made of rows that are read when the package is there."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import pandas as pd
    import polars as pl
    import pyarrow as pa


def to_pandas(read: Callable[[], pa.Table]) -> pd.DataFrame:
    """Return the rows that `read` returns, with the index of the frame that they were written from if it has a name.

    Raises:
        ModuleNotFoundError: pandas is not installed. Nothing is read then.
    """
    _import("pandas", "to_pandas")
    return fit_metadata(read()).to_pandas()


def to_polars(read: Callable[[], pa.Table]) -> pl.DataFrame:
    """Return the rows that `read` returns.

    Raises:
        ModuleNotFoundError: polars is not installed. Nothing is read then.
    """
    frame: pl.DataFrame = _import("polars", "to_polars").DataFrame(read())
    return frame


def fit_metadata(table: pa.Table) -> pa.Table:
    """Return the rows with metadata of pandas that is about them, or with none.

    A table keeps the metadata of the frame that it was created from: of columns that may have other names and types by
    now, and, from older versions of pds, of an index that counts the rows of that frame.
    """
    metadata = dict(table.schema.metadata or {})
    stored = metadata.pop(b"pandas", None)
    if stored is None:
        return table
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
