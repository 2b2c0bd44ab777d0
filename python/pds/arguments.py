"""Checks of what users pass to datasets: a clear error before anything is asked or written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from pds.errors import InvalidInput, InvalidType


def one_key(dataset_key: object, key: object) -> str:
    """The dataset's key, given under either name."""
    if (dataset_key is None) == (key is None):
        raise InvalidType("give the dataset's key once, as dataset_key or as key")
    found = key if dataset_key is None else dataset_key
    if not isinstance(found, str):
        raise InvalidType(f"a dataset's key must be a string, not {type(found).__name__}")
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"key {found!r} is not text that can be encoded") from error
    return found


def check_text(overwrite: object, run_id: object, metadata: object) -> None:
    """Refuse what a manifest cannot hold."""
    if not isinstance(overwrite, bool):
        raise InvalidType(f"overwrite must be True or False, not {overwrite!r}")
    texts: list[tuple[str, object]] = [] if run_id is None else [("run_id", run_id)]
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise InvalidType(f"metadata must be a dict of strings, not {type(metadata).__name__}")
        for name, value in metadata.items():
            texts += [("a key of metadata", name), (f"metadata[{name!r}]", value)]
    for what, text in texts:
        if not isinstance(text, str):
            raise InvalidType(f"{what} must be a string, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{what} is not text that can be encoded: {text!r}") from error


def arrow_stream(data: object) -> pa.Table | pa.RecordBatchReader:
    """The data as a table or a reader of pyarrow, without a copy."""
    if isinstance(data, pa.Table | pa.RecordBatchReader):
        return data
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    raise InvalidType(
        f"data must be a pyarrow Table or have __arrow_c_stream__, as polars, pandas and DuckDB have; "
        f"{type(data).__name__} has not"
    )


def is_resident(source: object) -> bool:
    """Whether the data is in memory whatever the writer does."""
    return isinstance(source, pa.Table) or type(source).__module__.partition(".")[0] in {
        "polars",
        "pandas",
    }


def schema_hash(schema: pa.Schema) -> str:
    """The hash of a schema that manifests hold (PDS-004)."""
    return hashlib.sha256(schema.to_string().encode()).hexdigest()[:16]


def column_names(columns: object) -> list[str] | None:
    """The names of the columns asked for."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidType(f"columns must be a list of names, not {columns!r}")
    for name in columns:
        if not isinstance(name, str):
            raise InvalidType(f"columns must be a list of names; {name!r} is not one")
    return list(columns)


def check_task(task: object) -> None:
    """Refuse what does not number a task."""
    if isinstance(task, bool) or not isinstance(task, int) or task < 0:
        raise InvalidInput(f"task must be a whole number that is not negative, not {task!r}")
