"""Dagster IO manager: assets and op outputs as Parquet datasets.

``dagster_io_manager(store)`` stores every output as one dataset. A new run replaces the dataset atomically.

Keys: the key of a dataset has the segments of the asset key, and then the partition key as one segment. The output of
an op has the key ``run id/step key/output name``. Characters that a store path cannot have, and names that datasets
reserve, are escaped as ``%XX``. The partition ``b`` of the asset ``a`` and the asset ``a/b`` have the same key. The
manifest has the owner of a dataset, and reads and writes of the other asset fail with ``AlreadyExists``. Rename one of
the assets, or use separate stores.

Outputs: any object with ``__arrow_c_stream__`` (pyarrow, polars, pandas, duckdb, a record batch reader). A run over
several partitions returns a mapping with one value for each partition key. A retried run replaces the output of the
first attempt.

Inputs: the type annotation selects the type: ``pyarrow.Table`` (the default), ``pyarrow.RecordBatchReader`` (a
stream), ``polars.DataFrame``, ``pandas.DataFrame``, or a ``dict[str, …]`` of one of them by partition key. Several
partitions are always loaded as a mapping, and no partition as ``None``. Input metadata: ``columns`` is a list of
column names; ``allow_missing_partitions`` skips missing partitions, as in the IO managers of Dagster. A read waits for
a partition that is being written.

Example:
    ```python
    from dagster import Definitions
    from pds.dagster import dagster_io_manager

    defs = Definitions(
        assets=[orders],
        resources={"io_manager": dagster_io_manager(pds.Store("s3://bucket/silver"))},
    )
    ```
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from dagster import IOManager, MetadataValue

from pds import ParquetDatasetStore, errors
from pds.dagster.arrow import InputType, check_columns, make_table_schema
from pds.dagster.names import INTENT, escape, get_path, join
from pds.errors import AlreadyExists, InvalidInput, InvalidType, NotFound, RemoteStoreError
from pds.frames import to_pandas
from pds.streams import read_stream

if TYPE_CHECKING:
    import pyarrow as pa
    import remote_store
    from dagster import AssetKey, InputContext, OutputContext

    from pds import DatasetManifest, Store

__all__ = ["DatasetIOManager", "dagster_io_manager"]

_SERIALIZER: Final = "parquet-dataset"
# The keys of the manifest metadata that have the owner of a dataset.
_ASSET_KEY: Final = "dagster/asset_key"
_PARTITION_KEY: Final = "dagster/partition_key"


def dagster_io_manager(
    store: Store | remote_store.Store,
    serializer: str = _SERIALIZER,
    *,
    compression: str = "zstd",
    row_group_size: int | None = None,
    max_rows_per_file: int | None = None,
) -> DatasetIOManager:
    """Return an IO manager that stores outputs as datasets in ``store``.

    Args:
        store: The store of the datasets. The IO manager does not close it.
        serializer: Must be ``"parquet-dataset"``, the default.
        compression: As for ``ParquetDatasetStore``.
        row_group_size: As for ``ParquetDatasetStore``.
        max_rows_per_file: As for ``ParquetDatasetStore``.

    Raises:
        InvalidInput: The serializer is unknown, or an option has an invalid value.
        InvalidType: An option has an invalid type.
    """
    if serializer != _SERIALIZER:
        msg = f"unknown serializer {serializer!r}; the only serializer is {_SERIALIZER!r}"
        raise InvalidInput(msg)
    return DatasetIOManager(
        ParquetDatasetStore(
            store,
            compression=compression,
            row_group_size=row_group_size,
            max_rows_per_file=max_rows_per_file,
        ),
    )


class DatasetIOManager(IOManager):
    """An IO manager that writes outputs to, and reads inputs from, a ``ParquetDatasetStore``.

    Args:
        datasets: The datasets of the store.
    """

    def __init__(self, datasets: ParquetDatasetStore) -> None:
        self._datasets = datasets

    @property
    def datasets(self) -> ParquetDatasetStore:
        """The datasets of the store."""
        return self._datasets

    def list_datasets(self, asset_key: AssetKey) -> list[str]:
        """Return the keys of the datasets of an asset: its own one, or those of its partitions."""
        path = join(asset_key.path)
        own = [path] if self._datasets.dataset_exists(path) else []
        keys = own + self._datasets.list_datasets(path)
        return [key for key in keys if self._get_asset_key(key) in (None, asset_key.to_string())]

    def _get_asset_key(self, key: str) -> str | None:
        """Return the asset that wrote a dataset, or None if that is not known."""
        try:
            return (self._datasets.read_manifest(key).metadata or {}).get(_ASSET_KEY)
        except (NotFound, errors.ManifestCorrupted):
            return None

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Write ``obj`` as the dataset of the output, or as one dataset for each partition.

        Raises:
            AlreadyExists: The key has the dataset of another asset.
            InvalidInput: The mapping does not have exactly the partitions of the run; or a value is a reader that
                raised an exception, or a frame with two columns of one name.
            InvalidType: A value has no ``__arrow_c_stream__``, or Arrow has no type for a column of it.
        """
        keys = _get_output_keys(context)
        values = _map_partitions(obj, list(keys))
        owners = {partition: _get_owner(context, partition) for partition in values}
        for partition, owner in owners.items():
            self._check_owner(keys[partition], owner)
        written = [
            _write(self._datasets, value, keys[partition], context.run_id, owners[partition])
            for partition, value in values.items()
        ]
        context.add_output_metadata(_make_metadata(written))

    def load_input(self, context: InputContext) -> object:
        """Read the dataset of the input, or a mapping of the datasets of its partitions.

        Raises:
            AlreadyExists: The key has the dataset of another asset.
            InvalidType: The type annotation is not supported or does not fit the partitions, or `columns` in the
                metadata is not a list of names.
            DatasetIncomplete: The dataset does not exist or is incomplete.
        """
        target = InputType.parse(context.dagster_type.typing_type)
        metadata = context.definition_metadata
        columns = check_columns(metadata.get("columns"))
        path = get_path(context)
        if not (context.has_asset_key and context.has_asset_partitions):
            if target.is_mapping:
                msg = f"input {context.name!r} has a mapping as its type, but {path!r} has no partitions"
                raise InvalidType(msg)
            self._check_owner(path, _get_owner(context, None))
            return self._read(path, target.frame, columns)
        keys = _make_partition_keys(path, context.asset_partition_keys)
        as_mapping = target.is_mapping or len(keys) > 1
        if as_mapping and not target.allows_mapping:
            msg = (
                f"input {context.name!r} covers {len(keys)} partitions of {path!r}: "
                f"annotate it as dict[str, {target.frame}]"
            )
            raise InvalidType(msg)
        values = {}
        for partition, key in keys.items():
            self._check_owner(key, _get_owner(context, partition))
            if metadata.get("allow_missing_partitions") and not self._has_dataset(key):
                context.log.warning("skipped partition %s: it has no dataset", partition)
                continue
            try:
                values[partition] = self._read(key, target.frame, columns)
            except errors.DatasetIncomplete:
                # The read may have waited for a writer that ended without a dataset.
                if not metadata.get("allow_missing_partitions") or self._has_dataset(key):
                    raise
                context.log.warning("skipped partition %s: it has no dataset", partition)
        return values if as_mapping else next(iter(values.values()), None)

    def _has_dataset(self, key: str) -> bool:
        """Return whether a dataset exists, or a writer is running, for which a read waits."""
        datasets = self._datasets
        # The writer may end between the first two requests.
        return datasets.dataset_exists(key) or datasets.store.is_file(f"{key}/{INTENT}") or datasets.dataset_exists(key)

    def _check_owner(self, key: str, owner: dict[str, str]) -> None:
        """Raise AlreadyExists if the key has the dataset of another asset."""
        try:
            metadata = self._datasets.read_manifest(key).metadata or {}
        except (NotFound, errors.ManifestCorrupted):
            return
        existing: dict[str, str] = {name: metadata[name] for name in (_ASSET_KEY, _PARTITION_KEY) if name in metadata}
        if owner and existing and existing != owner:
            msg = (
                f"key {key!r} has the dataset of {_format_owner(existing)}, and cannot have that of "
                f"{_format_owner(owner)} too: rename one of them, or use separate stores"
            )
            raise AlreadyExists(msg, path=key)

    def _read(self, key: str, frame: str, columns: list[str] | None) -> object:
        if frame == "pyarrow.RecordBatchReader":
            return self._datasets.scan_dataset(key, columns=columns)
        table = self._datasets.read_dataset(key, columns=columns)
        if frame == "polars.DataFrame":
            return sys.modules["polars"].from_arrow(table)
        return to_pandas(lambda: table) if frame == "pandas.DataFrame" else table


class _Arrow(Protocol):
    """An object that exports Arrow data."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class _Written(NamedTuple):
    """A dataset that this output wrote."""

    manifest: DatasetManifest
    schema: pa.Schema
    size_bytes: int


def _make_partition_keys(path: str, partitions: Iterable[str]) -> dict[str, str]:
    return {partition: f"{path}/{escape(partition)}" for partition in partitions}


def _get_output_keys(context: OutputContext) -> dict[str | None, str]:
    """Return the keys of the datasets by partition; ``None`` is the partition of an output without partitions."""
    path = get_path(context)
    if not (context.has_asset_key and context.has_asset_partitions):
        return {None: path}
    partitions: list[str | None] = list(context.asset_partition_keys)
    return {partition: f"{path}/{escape(str(partition))}" for partition in partitions}


def _get_owner(context: InputContext | OutputContext, partition: str | None) -> dict[str, str]:
    """Return the owner of a dataset, for the metadata of the manifest; empty for the output of an op."""
    if not context.has_asset_key:
        return {}
    asset = {_ASSET_KEY: context.asset_key.to_string()}
    return asset if partition is None else {**asset, _PARTITION_KEY: partition}


def _format_owner(owner: Mapping[str, str]) -> str:
    partition = f"partition {owner[_PARTITION_KEY]!r} of " if _PARTITION_KEY in owner else ""
    return f"{partition}asset {owner.get(_ASSET_KEY, '')}"


def _map_partitions(obj: object, partitions: Collection[str | None]) -> dict[str | None, _Arrow]:
    """Return the values by partition. All values are checked before the first is written."""
    if isinstance(obj, Mapping) and None not in partitions:
        if obj.keys() != set(partitions):
            msg = f"the output must be a mapping with exactly the partitions {partitions}, not {sorted(obj)}"
            raise InvalidInput(msg)
        values = {partition: obj[partition] for partition in partitions}
    elif len(partitions) == 1:
        values = dict.fromkeys(partitions, obj)
    else:
        msg = f"the output of a run over the partitions {partitions} must be a mapping with these keys"
        raise InvalidInput(msg)
    for value in values.values():
        if not hasattr(value, "__arrow_c_stream__"):
            msg = (
                f"cannot write {type(value).__name__} as a dataset: the class has no __arrow_c_stream__ "
                "(annotate the output as None if there is nothing to store)"
            )
            raise InvalidType(msg)
    return values


def _write(datasets: ParquetDatasetStore, obj: _Arrow, key: str, run_id: str, owner: dict[str, str]) -> _Written:
    """Write a dataset by prepare and publish, because the staged parts have the size of the files."""
    with read_stream(obj) as rows:
        write = datasets.begin_write(key, overwrite=True, run_id=run_id, metadata=owner or None)
        try:
            parts = write.prepare(rows) or write.prepare_empty(rows.schema)
        except BaseException:
            # The first error is raised, and not an error of the cleanup.
            with contextlib.suppress(RemoteStoreError):
                write.abort_all()
            raise
        manifest = write.publish(parts, rows.schema)
    return _Written(manifest, rows.schema, sum(part.bytes for part in parts))


def _make_metadata(written: list[_Written]) -> dict[str, Any]:
    rows = sum(output.manifest.row_count for output in written)
    schema = written[-1].schema
    return {
        "rows": rows,
        "bytes": sum(output.size_bytes for output in written),
        "schema": MetadataValue.text(schema.to_string()),
        "version": written[-1].manifest.created_at_utc,
        "dataset_key": ", ".join(output.manifest.dataset_key for output in written),
        # The web interface of Dagster displays these two names.
        "dagster/row_count": rows,
        "dagster/column_schema": make_table_schema(schema),
    }
