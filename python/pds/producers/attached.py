"""Sources that are fed by a table: what is new in it since the version that was read last.

The changes between two versions of the table give keys only. Each of these keys is read whole at the newer version, so
that compactions and updates of other columns are no changes, and a restored row is what it was.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pds.errors import DefinitionChanged, InvalidInput, InvalidType, VersionExpired
from pds.producers.attachment import Attachment
from pds.producers.graph import ConsumedTable, SourceInput
from pds.producers.groups import take
from pds.readers import make_reader
from pds.streams import arrow_stream
from pds.table import Table
from pds.table.scan import CHANGE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pds.store import Store
    from pds.table.tasks import ScanTask

# So many keys are always listed in the filter of a scan, which then reads no page without one of them.
_FEW_KEYS = 10_000
# Of more keys the filter is their range, unless they are up to so many, and the table has so many rows for each: a
# look-up in a long list takes longer than to read a row more.
_MAX_LISTED_KEYS = 1_000_000
_MIN_ROWS_OF_LISTED_KEY = 40
# The most bytes of changed keys that are held. More are read again, and rows are chosen by their range.
_MAX_HELD_BYTES = 128 << 20


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


class Stager(Protocol):
    """Stages the rows of a table by the tasks of an engine."""

    @property
    def local_bytes(self) -> int | None:
        """The most bytes of changed rows that are read here; None for any."""

    def stage(self, split: Callable[[], Sequence[TablePart]]) -> list[bytes] | None:
        """Stage the parts of a table; None if they are to be read here."""

    def stage_keys(self, keys: pa.RecordBatchReader | pa.Table, staged: list[bytes]) -> list[bytes]:
        """Stage keys from here. After an error the rows that were staged before are removed."""


@dataclass(frozen=True)
class Selection:
    """The rows of some keys, and maybe of others, which do no harm."""

    where: pc.Expression | None = None
    name: str | None = None
    """The column by which rows are chosen from those of the filter."""
    values: pa.Array[Any] | None = None
    """Its values; None for all rows of the filter."""

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the chosen rows of those of the filter."""
        if self.name is None or self.values is None:
            return batch
        return _take_rows(batch, pc.is_in(batch.column(self.name), self.values))


@dataclass(frozen=True)
class TablePart:
    """Some rows of a table, as `key` and `value`."""

    task: ScanTask
    key: Columns
    value: Columns
    selection: Selection

    def open(self) -> pa.RecordBatchReader:
        """Return the rows."""
        schema = pa.schema([self.key.field, self.value.field])
        pairs = (
            pa.RecordBatch.from_arrays([self.key.take(rows), self.value.take(rows)], schema=schema)
            for rows in map(self.selection.take, self.task.to_reader())
        )
        return make_reader(schema, pairs)


@dataclass(frozen=True)
class ChangedKeys:
    """The keys of rows that changed."""

    rows: int
    """How many rows; a key may be there more than once."""
    batches: list[pa.RecordBatch] | None
    """The keys, or None if they are too many to be held."""
    limits: pa.Array[Any] | None
    """Then the least and the greatest value of their first column, or no value; None for a type without."""
    has_nulls: bool
    """Then whether that column may have nulls."""
    read: Callable[[], Iterator[pa.RecordBatch]]
    """Reads the keys."""

    @classmethod
    def of(cls, read: Callable[[], Iterator[pa.RecordBatch]], most_bytes: int) -> ChangedKeys:
        """Read keys, and hold up to so many bytes of them."""
        rows = size = 0
        held: list[pa.RecordBatch] | None = []
        limits: Any = None
        has_nulls = False
        for batch in read():
            first = batch.column(0)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if size > most_bytes:
                held = None
            if held is not None:
                held.append(batch)
            has_nulls = has_nulls or first.null_count > 0
            if _is_discrete(first.type):
                limits = _find_limits(first if limits is None else pa.concat_arrays([limits, first]))
        if held is None:
            return cls(rows, None, limits, has_nulls, read)
        return cls(rows, held, limits, has_nulls, functools.partial(iter, held))


class AttachedTable(Attachment):
    """A table that feeds a source.

    Args:
        table: The table; which version is read is said by the caller.
        key: The columns of the key.
        value: The columns of the value.
    """

    kind = "table"
    is_compared = True
    advice = "a table; write to the table"

    def __init__(self, table: Table, key: Columns, value: Columns) -> None:
        super().__init__()
        self._table = table
        self.key = key
        self.value = value

    @property
    def title(self) -> str:
        """The path of the table."""
        return self._table.path

    @property
    def fields(self) -> pa.Schema:
        """The fields `key` and `value`."""
        return pa.schema([self.key.field, self.value.field])

    def describe_reads(self) -> str:
        """Say what is read for a changed key."""
        return f"the changes of {self._table.path!r}, and its rows of the key{self._describe_lookup()}"

    def _describe_lookup(self) -> str:
        """Say what it takes to find the rows of a key; nothing where they are side by side."""
        order = self._table._get_column_names("sort_by")  # noqa: SLF001 of this package
        if order[: len(self.key.names)] == self.key.names:
            return ""
        return f", for which it reads {', '.join(self.key.names)} of all files: the table is not sorted by the key"

    @property
    def identity(self) -> tuple[Store, str]:
        """What sources that the same table feeds have in common."""
        return self._table.store, self._table.path

    def open_newest(self) -> Table:
        """Return the table at its newest version.

        Raises:
            NotFound: The table does not exist any more.
        """
        return Table(self._table.store, self._table.path)

    def read(self, source: str, consumed: dict[str, Any] | None, stager: Stager, newest: Table) -> SourceInput | None:
        """Return what is new since the version that was read last, or everything.

        Args:
            source: The name of the source.
            consumed: The version that was read last, as the manifest of the pipeline has it.
            stager: Stages parts of the table if everything is read, or if much has changed.
            newest: The table at the version to read.

        Returns:
            The changes, or None if nothing is new.

        Raises:
            DefinitionChanged: A column does not exist any more, or has another type.
        """
        self._check_columns(source, newest.schema)
        before = None if consumed is None else ConsumedTable(**{"columns": [], **consumed})
        now = ConsumedTable(self._table.path, newest.version, _parse(newest)["commit_id"], self._column_ids(newest))
        if now == before:
            return None
        keys = None
        # A column of the same name may be another.
        if before is not None and (now.location, now.columns) == (before.location, before.columns):
            keys = self._find_changed_keys(newest, before)
        if keys is not None and keys.rows == 0:
            return None
        selection = Selection() if keys is None else self._select(newest, keys)

        def split() -> list[TablePart]:
            tasks = newest.scan_tasks(self._column_names(), where=selection.where)
            return [TablePart(task, self.key, self.value, selection) for task in tasks]

        make_input = functools.partial(SourceInput, consumed=now, consumed_before=before, is_canonical=True)
        if keys is None:
            staged = stager.stage(split)
            return make_input(source, staged or self._read(newest, selection), None, "all")
        deletes, limit = self._to_stream(keys), stager.local_bytes
        staged = None if limit is None or _estimate_bytes(newest, keys.rows) <= limit else stager.stage(split)
        if staged:
            return make_input(source, staged, stager.stage_keys(deletes, staged), "listed")
        return make_input(source, self._read(newest, selection), deletes, "listed")

    def _column_names(self) -> list[str]:
        return list(dict.fromkeys([*self.key.names, *self.value.names]))

    def _check_columns(self, source: str, schema: pa.Schema) -> None:
        for columns in (self.key, self.value):
            declared = [columns.field] if columns.is_single else list(columns.field.type)
            for name, field in zip(columns.names, declared, strict=True):
                at = schema.get_field_index(name)
                actual = schema.field(at).remove_metadata() if at >= 0 else None
                if actual is None or not actual.with_name(field.name).equals(field):
                    state = "does not exist any more"
                    if actual is not None:
                        state = f"is {describe_field(actual)} now, not {describe_field(field)}"
                    message = f"column {name!r} of the table that feeds {source!r} {state}; declare another source"
                    raise DefinitionChanged(message, path=self._table.path)

    def _column_ids(self, table: Table) -> list[int]:
        ids = {column["name"]: column["id"] for column in _parse(table)["schema"]["columns"]}
        return [ids[name] for name in (*self.key.names, *self.value.names)]

    def _find_changed_keys(self, newest: Table, before: ConsumedTable) -> ChangedKeys | None:
        """Return the key columns of the rows that changed since, or None if nobody can tell."""
        try:
            # After the table was dropped and made anew, or restored from a copy, the version is another.
            if before.version >= newest.version:
                return None
            older = newest.as_of(before.version)
            # The columns of another table need not be there.
            if _parse(older)["commit_id"] != before.commit_id:
                return None
            changes = newest.scan_changes(before.version, columns=self.key.names)
        except VersionExpired:
            return None
        schema = pa.schema([newest.schema.field(name).remove_metadata() for name in self.key.names])
        required = [field.name for field in schema if not field.nullable]

        def read() -> Iterator[pa.RecordBatch]:
            for batch in changes.to_reader():
                keys = batch.select(self.key.names)
                # Rows of a version without the column, which a restore brought back. No source has such a key.
                for name in required:
                    if keys.column(name).null_count:
                        keys = _take_rows(keys, pc.is_valid(keys.column(name)))
                yield pa.RecordBatch.from_arrays(keys.columns, schema=schema)

        try:
            return ChangedKeys.of(read, _MAX_HELD_BYTES)
        except (InvalidInput, VersionExpired):
            # A restore may have made a key narrower than it is in a version.
            return None

    def _read(self, newest: Table, selection: Selection) -> pa.Table | pa.RecordBatchReader:
        """Return rows as a stream of `key` and `value`."""
        schema = pa.schema([self.key.field, self.value.field])

        def pairs() -> Iterator[pa.RecordBatch]:
            for batch in newest.scan(self._column_names(), where=selection.where).to_reader():
                rows = selection.take(batch)
                yield pa.RecordBatch.from_arrays([self.key.take(rows), self.value.take(rows)], schema=schema)

        return arrow_stream(make_reader(schema, self._noting_failure(pairs())))

    def _to_stream(self, keys: ChangedKeys) -> pa.Table | pa.RecordBatchReader:
        schema = pa.schema([self.key.field])
        batches = (pa.RecordBatch.from_arrays([self.key.take(batch)], schema=schema) for batch in keys.read())
        return arrow_stream(make_reader(schema, self._noting_failure(batches)))

    def _select(self, newest: Table, keys: ChangedKeys) -> Selection:
        """Return the rows of some keys, by the first column of the key."""
        name = pc.field(self.key.names[0])
        if not _is_discrete(newest.schema.field(self.key.names[0]).type):
            # The engine compares the keys in the order that they are stored in.
            return Selection()
        if keys.batches is None:
            has_values = keys.limits is not None and len(keys.limits) > 0
            where: Any = _is_between(name, keys.limits) if has_values else name.is_null()
            return Selection((where | name.is_null()) if keys.has_nulls else where)
        column: Any = pc.unique(pa.chunked_array([batch.column(0) for batch in keys.batches]))
        values = column.drop_null()
        is_listed = len(values) <= _FEW_KEYS or (
            len(values) <= _MAX_LISTED_KEYS and len(values) * _MIN_ROWS_OF_LISTED_KEY <= _count_rows(newest)
        )
        if len(values) == 0:
            where = name.is_null()
        elif is_listed:
            where = name.isin(values)
        else:
            where = _is_between(name, values)
        where = (where | name.is_null()) if column.null_count else where
        return Selection(where) if is_listed else Selection(where, self.key.names[0], column)


def attach_table(table: object, key: object, value: object) -> AttachedTable:
    """Return a table as what feeds a source; errors are those of `Columns.of`.

    Raises:
        InvalidType: It is not a `pds.Table`.
        InvalidInput: Its changes cannot be read, because it has columns of their names.
    """
    if not isinstance(table, Table):
        raise InvalidType(
            f"a source is fed by a pds.Table, or by a stage of another pipeline as pipeline['name'], "
            f"not {type(table).__name__}"
        )
    reserved = [name for name in CHANGE_COLUMNS if name in table.schema.names]
    if reserved:
        raise InvalidInput(f"a table with the column {reserved[0]!r} cannot feed a source; rename the column")
    columns: Sequence[str] | object = table.schema.names if value is None else value
    return AttachedTable(table, Columns.of("key", key, table.schema), Columns.of("value", columns, table.schema))


def _count_rows(table: Table) -> int:
    """Return the number of rows, deleted ones included. No request is sent."""
    manifest = _parse(table)
    return sum(entry["total_rows"] for entry in (*manifest["segments"], *manifest["data_files"]))


def _estimate_bytes(table: Table, rows: int) -> int:
    """Return about how many bytes so many rows have in the data files, as in those that the manifest lists."""
    files: list[dict[str, int]] = _parse(table)["data_files"] or table.files().to_pylist()
    total_bytes = sum(file["size_bytes"] - file.get("footer_size", 0) for file in files)
    return rows * total_bytes // max(1, sum(file["total_rows"] for file in files))


def _take_rows(batch: pa.RecordBatch, mask: Any) -> pa.RecordBatch:  # noqa: ANN401 an array of pyarrow
    rows = pc.indices_nonzero(mask)
    return pa.RecordBatch.from_arrays([take(column, rows) for column in batch.columns], schema=batch.schema)


def _find_limits(values: Any) -> Any:  # noqa: ANN401 arrays of pyarrow
    """Return the least and the greatest of some values; nothing of nulls alone."""
    limits: Any = pc.min_max(values)
    return pa.array([limits["min"], limits["max"]], values.type).drop_null()


def _is_between(name: Any, values: Any) -> Any:  # noqa: ANN401 expressions of pyarrow
    limits: Any = pc.min_max(values)
    return (name >= limits["min"]) & (name <= limits["max"])


def describe_field(field: pa.Field[Any]) -> str:
    """Say the type of a field, and whether it has no nulls."""
    return str(field.type) if field.nullable else f"{field.type} not null"


def _parse(table: Table) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(table._handle.manifest())  # noqa: SLF001 of the package
    return manifest


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
