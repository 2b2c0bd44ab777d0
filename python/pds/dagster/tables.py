"""The IO manager for tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from dagster import ConfigurableIOManager, DataVersion
from pydantic import Field

from pds import Table
from pds.dagster.arrow import FRAMES, InputType, check_columns, make_table_schema
from pds.dagster.names import get_path, join
from pds.dagster.new_tables import create_table
from pds.dagster.partitions import PartitionGuard, Partitions
from pds.dagster.runs import check_has_partitions, find_step_context, make_idempotency_key
from pds.dagster.settings import StoreSettings
from pds.dagster.table_options import TableOptions
from pds.errors import InvalidType, VersionExpired
from pds.streams import arrow_stream, is_in_memory
from pds.table.existing import find_table
from pds.table.options import NewRows, NewTable
from pds.urls import join_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl
    import pyarrow.compute as pc
    from dagster import AssetKey, InputContext, OutputContext

    from pds import CommitResult, TableScan

_FRAMES: Final = {
    **FRAMES,
    "polars.LazyFrame": ("polars", "LazyFrame"),
    "pds.TableScan": ("pds", "TableScan"),
    "pds.Table": ("pds", "Table"),
}


class PdsTableIOManager(StoreSettings, ConfigurableIOManager):
    """Stores each asset as one table, and the partitions of an asset as rows of that table.

        @dg.asset(partitions_def=days, metadata={"pds/partition_expr": "day"})
        def orders(context) -> pa.Table: ...

        defs = dg.Definitions(assets=[orders], resources={"io_manager": PdsTableIOManager(url="s3://bucket/lake")})

    The table of the asset `["silver", "orders"]` is the folder `silver/orders` of the store. The first run creates it,
    together with its rows and with their columns, so a run that fails leaves no table. Only for streams that are
    upserted, or that have partitions, it is created before. The output of an op is the table
    `run id/step key/output name`.

    The metadata of an asset says how it is written:

    - `pds/mode`: `"overwrite"` replaces all rows, or those of the partitions of the run; `"append"` adds rows;
      `"upsert"` replaces rows with the same key and inserts the others. Defaults to `mode` of the IO manager.
    - `pds/key`, `pds/sort_by`: The columns of the key and of the sort order of a new table.
    - `pds/schema_mode`: `"merge"` adds new columns to the table; for `"append"`.
    - `pds/partition_expr`: The column that has the partition; of an asset with several dimensions, a dict of columns by
      dimension. For time windows it is a column of timestamps, of dates, or of the texts of partition keys. Otherwise
      it is a column whose values are the partition keys: texts, whole numbers, booleans or dates. In a column of
      timestamps without a time zone, windows are in the time zone of the partitions.

    Outputs are objects with `__arrow_c_stream__` (pyarrow, polars, pandas, DuckDB, a record batch reader), or a polars
    LazyFrame. A run over several partitions returns their rows together; one commit replaces all of them. A row outside
    the partitions of the run is refused, and nothing is committed.

    Inputs have the type of their annotation: `pyarrow.Table` (the default), `pyarrow.RecordBatchReader`,
    `polars.DataFrame`, `polars.LazyFrame`, `pandas.DataFrame` or `pds.TableScan`, with the rows of the partitions that
    the input maps to; or `pds.Table`, the whole snapshot. The input metadata `columns` is a list of column names.

    Retries: an append is committed once by all attempts of a step: retries in a run, re-executions of a run in which
    the step did not succeed, and Dagster's own retries of a run. The rows of the attempt that was committed stay, even
    if a later one has other rows; the log has a warning then, and the metadata `replayed` is true. The other modes
    replace rows, so they have those of the last attempt, and a retry in a run with the same rows commits nothing. A new
    run writes anew, and so does a re-execution of a step that had succeeded.

    Args:
        url: The URL or path of the store, as for `pds.Store`.
        storage_options: The options of the store, as for `pds.Store`. Values may be `dagster.EnvVar`.
        mode: How assets without `pds/mode` are written.
    """

    mode: str = Field(default="overwrite", description="How assets without pds/mode are written.")

    def open_table(self, asset_key: AssetKey) -> Table:
        """Open the table of an asset.

        Raises:
            NotFound: The asset has no table yet.
        """
        return Table(self.store, join(asset_key.path))

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Write an output to its table.

        Raises:
            InvalidInput: The metadata of the asset is not valid; the rows do not fit the table; the table has another
                key or sort order; or a row is outside the partitions of the run.
            InvalidType: The value has no `__arrow_c_stream__`.
            CommitConflict, CommitStateUnknown, TransactionExpired: As for `pds.Table.append`.
        """
        options = TableOptions.of(context.definition_metadata, self.mode)
        check_has_partitions(context)
        partitions = Partitions.of(context, options.partition_expr)
        rows, path = _to_arrow(obj), get_path(context)
        existing = find_table(self.store, path)
        options.check_table(existing)
        schema = NewTable.of(rows.schema, (), (), ()).schema if existing is None else existing.schema
        where = None
        if partitions is not None:
            guard = PartitionGuard(partitions, schema)
            rows, where = guard.check(rows), guard.where
        key = make_idempotency_key(context, rows, is_append=options.mode == "append")
        if existing is None:
            new = NewTable(schema, options.key, options.sort_by, [])
            first = NewRows(rows, is_in_memory(rows), key)
            is_upsert, has_partitions = options.mode == "upsert", partitions is not None
            table, result = create_table(
                self.store, path, new, first, is_upsert=is_upsert, has_partitions=has_partitions
            )
        else:
            table, result = existing, None
        if result is None:
            result = options.write(table, rows, where, key)
            if result.replayed and options.mode != "append" and table.refresh().version != result.version:
                # Another commit may have replaced the rows of the earlier attempt.
                result = options.write(table, rows, where, None)
        counts_partition = options.mode == "overwrite" and partitions is not None and len(partitions.keys) == 1
        self._report(context, table, result, counts_partition=counts_partition)

    def _report(self, context: OutputContext, table: Table, result: CommitResult, *, counts_partition: bool) -> None:
        """Log the metadata of a commit, and set the data version of the asset.

        Args:
            context: The context of the output.
            table: The table.
            result: The result of the commit.
            counts_partition: Whether the rows of the commit are those of one partition.
        """
        rows = result.rows
        if result.replayed:
            rows = _count_committed_rows(table, result.version)
            message = "an earlier attempt of this step has committed version %d of table %s, so this one wrote no rows"
            context.log.warning(message, result.version, table.path)
        url = join_url(self.store.url, table.path)
        metadata: dict[str, Any] = {
            "rows": rows,
            "bytes": result.bytes,
            "files": result.files,
            "version": result.version,
            "commit_id": result.commit_id,
            "replayed": result.replayed,
            "dagster/uri": url,
            "dagster/column_schema": make_table_schema(table.schema),
        }
        if counts_partition:
            metadata["dagster/partition_row_count"] = rows
        # What the asset itself has reported stays: the rows are committed, and must not be reported as failed.
        context.add_output_metadata({k: v for k, v in metadata.items() if k not in context.output_metadata})
        step = find_step_context(context)
        if step is not None and context.has_asset_key:
            step.set_data_version(context.asset_key, DataVersion(result.commit_id))

    def load_input(self, context: InputContext) -> object:
        """Read the rows of an input, or return an object that reads them.

        Raises:
            NotFound: The table does not exist.
            InvalidInput: A column does not exist, or the metadata of the asset is not valid.
            InvalidType: The type annotation is not supported, or `columns` in the metadata is not a list of names.
        """
        target = InputType.parse(context.dagster_type.typing_type, _FRAMES)
        if target.is_mapping:
            raise InvalidType(f"input {context.name!r}: the rows of all partitions are one table, not a dict")
        columns = check_columns(context.definition_metadata.get("columns"))
        upstream = context.upstream_output
        options = TableOptions.of({} if upstream is None else upstream.definition_metadata, self.mode)
        partitions = Partitions.of(context, options.partition_expr)
        if partitions is not None and not partitions.keys and find_table(self.store, get_path(context)) is None:
            # The first partition of an asset that depends on its own earlier ones.
            return None
        table = Table(self.store, get_path(context))
        if target.frame == "pds.Table":
            return table
        where = None if partitions is None else partitions.to_expression(table.schema)
        return _load(table, target.frame, columns, where)


def _to_arrow(obj: Any) -> pa.Table | pa.RecordBatchReader:  # noqa: ANN401 a value of any type
    if type(obj).__module__.startswith("polars") and type(obj).__name__ == "LazyFrame":
        obj = obj.collect()
    if not hasattr(obj, "__arrow_c_stream__"):
        message = (
            f"cannot write {type(obj).__name__} to a table: the class has no __arrow_c_stream__ "
            "(annotate the output as None if there is nothing to store)"
        )
        raise InvalidType(message)
    stream = arrow_stream(obj)
    return stream.read_all() if is_in_memory(obj) and isinstance(stream, pa.RecordBatchReader) else stream


def _count_committed_rows(table: Table, version: int) -> int | None:
    """Return the number of rows that a commit wrote, or None if a vacuum removed its version."""
    try:
        (entry,) = table.as_of(version).history(1)
    except VersionExpired:
        return None
    rows: int | None = entry["operation"].get("rows")
    return rows


def _load(table: Table, frame: str, columns: list[str] | None, where: pc.Expression | None) -> object:
    if frame == "polars.LazyFrame":
        lazy = table.scan_polars() if where is None else _scan_partitions(table, where)
        return lazy if columns is None else lazy.select(columns)
    scan = table.scan(columns, where=where)
    read: dict[str, Callable[[], object]] = {
        "pds.TableScan": lambda: scan,
        "pyarrow.Table": scan.to_pyarrow,
        "pyarrow.RecordBatchReader": scan.to_reader,
        "polars.DataFrame": scan.to_polars,
        "pandas.DataFrame": scan.to_pandas,
    }
    return read[frame]()


def _scan_partitions(table: Table, where: pc.Expression) -> pl.LazyFrame:
    from pds.table.polars import scan_polars  # noqa: PLC0415 an optional dependency

    return scan_polars(_PartitionRows(table.as_of(table.version), where))


@dataclass(frozen=True)
class _PartitionRows:
    """The rows of partitions, for polars."""

    table: Table
    where: pc.Expression

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: str | pc.Expression | None = None,  # noqa: ARG002 polars applies it to what it gets
        limit: int | None = None,
    ) -> TableScan:
        return self.table.scan(columns, where=self.where, limit=limit)
