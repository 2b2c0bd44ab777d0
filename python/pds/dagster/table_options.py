"""The metadata of an asset that says how its table is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pds.errors import InvalidInput
from pds.table.checks import check_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    import pyarrow.compute as pc

    from pds import CommitResult, Table

_PREFIX: Final = "pds/"
_MODES: Final = ("overwrite", "append", "upsert")
_SCHEMA_MODES: Final = ("strict", "merge")


class TableOptions(NamedTuple):
    """How the table of an asset is written."""

    mode: str
    key: list[str]
    sort_by: list[str]
    schema_mode: Any
    partition_expr: object

    @classmethod
    def of(cls, metadata: Mapping[str, Any], default_mode: str) -> Self:
        """Return the options in the metadata of an asset.

        Raises:
            InvalidInput: A name that begins with `pds/` is unknown, or a value is not valid.
            InvalidType: A name of a column is not a text.
        """
        own = {name.removeprefix(_PREFIX): value for name, value in metadata.items() if name.startswith(_PREFIX)}
        unknown = sorted(own.keys() - set(cls._fields))
        if unknown:
            known = ", ".join(_PREFIX + name for name in cls._fields)
            raise InvalidInput(f"unknown metadata {_PREFIX}{unknown[0]}; there are {known}")
        mode, schema_mode = own.get("mode", default_mode), own.get("schema_mode", "strict")
        for name, value, values in (("mode", mode, _MODES), ("schema_mode", schema_mode, _SCHEMA_MODES)):
            if value not in values:
                raise InvalidInput(f"{_PREFIX}{name} must be one of {', '.join(map(repr, values))}, not {value!r}")
        if schema_mode == "merge" and mode != "append":
            raise InvalidInput('pds/schema_mode "merge" is for pds/mode "append"; add columns with table.alter')
        key, sort_by = (check_names(_PREFIX + role, own.get(role, ())) for role in ("key", "sort_by"))
        return cls(mode, key, sort_by, schema_mode, own.get("partition_expr"))

    def check_table(self, table: Table | None) -> None:
        """Refuse a table with another key or sort order, and an upsert without a key.

        Args:
            table: The table, or None if it does not exist yet.

        Raises:
            InvalidInput: The options do not fit the table.
        """
        if table is None:
            if self.mode == "upsert" and not self.key:
                raise InvalidInput('an asset that is upserted needs the metadata "pds/key"')
            return
        for role, names in (("key", self.key), ("sort_by", self.sort_by)):
            existing = table._get_column_names(role)  # noqa: SLF001 of the package
            if names and names != existing:
                raise InvalidInput(f"table {table.path!r} has {role}={existing}, not {role}={names} as in the metadata")

    def write(
        self, table: Table, rows: pa.Table | pa.RecordBatchReader, where: pc.Expression | None, key: str | None
    ) -> CommitResult:
        """Commit rows; `where` is the filter of the partitions, and `key` is the idempotency key."""
        if self.mode == "append":
            return table.append(rows, schema_mode=self.schema_mode, idempotency_key=key)
        if self.mode == "upsert":
            return table.upsert(rows, idempotency_key=key)
        return table.overwrite(rows, where, idempotency_key=key)
