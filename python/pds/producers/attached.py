"""Sources that are fed by a table: what is new in it since the version that was read last.

The changes between two versions of the table give keys only. Each of these keys is read whole at the newer version, so
that compactions and updates of other columns are no changes, and a restored row is what it was.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pds.arguments import arrow_stream
from pds.errors import InvalidInput, InvalidType, VersionExpired
from pds.producers.graph import SourceInput
from pds.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# So many keys are listed in the filter of a scan; above, the filter is the range of the keys.
_MAX_LISTED_KEYS = 1_000


class Columns(NamedTuple):
    """Columns of a table as one field: a column alone, or a struct of some."""

    names: list[str]
    field: pa.Field[Any]
    is_single: bool

    @classmethod
    def of(cls, argument: str, columns: object, schema: pa.Schema) -> Columns:
        """Return the columns that a caller names.

        Raises:
            InvalidInput: The table has no such column, or the list is empty or has a name twice.
            InvalidType: The names are neither a text nor a list of texts.
        """
        names = [columns] if isinstance(columns, str) else columns
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise InvalidType(f"{argument} must be the name of a column or a list of names, not {columns!r}")
        unknown = [name for name in names if schema.get_field_index(name) < 0]
        if unknown or not names or len(set(names)) < len(names):
            raise InvalidInput(f"{argument} must name columns of the table, each once: {schema.names}, not {names}")
        fields = [schema.field(name).remove_metadata() for name in names]
        if isinstance(columns, str):
            return cls(list(names), fields[0].with_name(argument), is_single=True)
        return cls(list(names), pa.field(argument, pa.struct(fields), nullable=False), is_single=False)

    def take(self, batch: pa.RecordBatch) -> pa.Array[Any]:
        """Return the column of a batch, or the struct of columns."""
        arrays = [batch.column(name) for name in self.names]
        return arrays[0] if self.is_single else pa.StructArray.from_arrays(arrays, fields=list(self.field.type))


class AttachedTable:
    """A table that feeds a source.

    Args:
        table: The table, the newest version of which is read.
        key: The columns of the key.
        value: The columns of the value.
    """

    def __init__(self, table: Table, key: Columns, value: Columns) -> None:
        self._table = table
        self.key = key
        self.value = value

    def read(self, source: str, consumed: dict[str, Any] | None) -> SourceInput | None:
        """Return what is new since the version that was read last, or everything.

        Args:
            source: The name of the source.
            consumed: The version that was read last, as the manifest of the pipeline has it.

        Returns:
            The changes, or None if nothing is new.

        Raises:
            NotFound: The table does not exist any more.
        """
        newest = Table(self._table.store, self._table.path)
        mark = self._table.path, newest.version, _commit_id(newest)
        if consumed is None or consumed["location"] != self._table.path:
            return self._read_all(source, newest, mark)
        if (consumed["version"], consumed["commit_id"]) == mark[1:]:
            return None
        keys = self._find_changed_keys(newest, consumed)
        if keys is None:
            return self._read_all(source, newest, mark)
        if keys.num_rows == 0:
            return None
        return SourceInput(source, self._read(newest, keys), self._to_stream(keys), "listed", mark)

    def _read_all(self, source: str, newest: Table, mark: tuple[str, int, str]) -> SourceInput:
        return SourceInput(source, self._read(newest, None), None, "all", mark)

    def _find_changed_keys(self, newest: Table, consumed: dict[str, Any]) -> pa.Table | None:
        """Return the key columns of the rows that changed since, or None if nobody can tell."""
        version = consumed["version"]
        try:
            # After the table was dropped and made anew, or restored from a copy, the version is another.
            if version >= newest.version or _commit_id(newest.as_of(version)) != consumed["commit_id"]:
                return None
            changes = newest.scan_changes(version)
            batches = [batch.select(self.key.names) for batch in changes.to_reader()]
        except VersionExpired:
            return None
        schema = pa.schema([newest.schema.field(name).remove_metadata() for name in self.key.names])
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(b.columns, schema=schema) for b in batches], schema)

    def _read(self, newest: Table, keys: pa.Table | None) -> pa.Table | pa.RecordBatchReader:
        """Return the rows of some keys, and maybe of others, as a stream of `key` and `value`."""
        names = list(dict.fromkeys([*self.key.names, *self.value.names]))
        where, key_values = (None, None) if keys is None else self._make_filter(keys)
        schema = pa.schema([self.key.field, self.value.field])

        def pairs() -> Iterator[pa.RecordBatch]:
            for batch in newest.scan(names, where=where).to_reader():
                rows = batch
                if key_values is not None:
                    rows = batch.filter(pc.is_in(batch.column(self.key.names[0]), key_values))
                yield pa.RecordBatch.from_arrays([self.key.take(rows), self.value.take(rows)], schema=schema)

        return arrow_stream(pa.RecordBatchReader.from_batches(schema, pairs()))

    def _to_stream(self, keys: pa.Table) -> pa.Table | pa.RecordBatchReader:
        schema = pa.schema([self.key.field])
        batches = (pa.RecordBatch.from_arrays([self.key.take(batch)], schema=schema) for batch in keys.to_batches())
        return arrow_stream(pa.RecordBatchReader.from_batches(schema, batches))

    def _make_filter(self, keys: pa.Table) -> tuple[pc.Expression | None, pa.Array[Any] | None]:
        """Return a filter by the first column of the key, and the values to keep of what it gives."""
        column: Any = pc.unique(keys.column(0)) if _is_discrete(keys.column(0).type) else None
        if column is None:
            # The engine compares the keys in the order that they are stored in.
            return None, None
        name = pc.field(self.key.names[0])
        values = column.drop_null()
        if len(values) == 0:
            where: Any = name.is_null()
        elif len(values) <= _MAX_LISTED_KEYS:
            where = name.isin(values)
        else:
            limits: Any = pc.min_max(values)
            where = (name >= limits["min"]) & (name <= limits["max"])
        return (where | name.is_null()) if column.null_count else where, column


def attach(table: object, key: object, value: object) -> AttachedTable:
    """Return a table as what feeds a source; errors are those of `Columns.of`.

    Raises:
        InvalidType: It is not a `pds.Table`.
    """
    if not isinstance(table, Table):
        raise InvalidType(f"a source is fed by a pds.Table, not {type(table).__name__}")
    columns: Sequence[str] | object = table.schema.names if value is None else value
    return AttachedTable(table, Columns.of("key", key, table.schema), Columns.of("value", columns, table.schema))


def _commit_id(table: Table) -> str:
    return str(json.loads(table._handle.manifest())["commit_id"])  # noqa: SLF001 of the package


def _is_discrete(data_type: pa.DataType) -> bool:
    """Whether equal values of the type are equal bit by bit, and pyarrow finds them."""
    tests = (
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(test(data_type) for test in tests)
