"""How a write is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pds.arguments import check_schema
from pds.streams import replace_views
from pds.table.checks import check_idempotency_key, check_version

if TYPE_CHECKING:
    from collections.abc import Sequence


class CommitOptions(NamedTuple):
    """How a write is committed; the attributes are read by the engine."""

    idempotency_key: str | None
    if_version: int | None
    timeout: float

    @classmethod
    def checked(cls, idempotency_key: object, if_version: object, timeout: float) -> CommitOptions:
        """Return the options for the arguments of a public method.

        Raises:
            InvalidInput: The version is not positive.
            InvalidType: An argument has an invalid type.
        """
        version = None if if_version is None else check_version(if_version, "if_version")
        return cls(check_idempotency_key(idempotency_key), version, timeout)


class NewTable(NamedTuple):
    """The properties of a new table; the attributes are read by the engine."""

    schema: pa.Schema
    key: list[str]
    sort_by: list[str]
    exports: list[str]

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        key: Sequence[str] | None,
        sort_by: Sequence[str] | None,
        exports: Sequence[str] | None,
    ) -> NewTable:
        """Return the properties of a table for rows with these columns. Views of texts and bytes become plain ones.

        Raises:
            InvalidInput: Parquet cannot store a column.
        """
        # The engine does not convert the values of maps.
        fields = [
            field if "map<" in str(field.type) else field.with_type(replace_views(field.type)) for field in schema
        ]
        stored = pa.schema(fields).with_metadata(schema.metadata)
        check_schema(stored)
        return cls(stored, list(key or ()), list(sort_by or ()), list(exports or ()))


class NewRows(NamedTuple):
    """The first rows of a new table."""

    data: pa.Table | pa.RecordBatchReader
    in_memory: bool
    idempotency_key: str | None
