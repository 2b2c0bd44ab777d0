"""Dagster IO manager: assets and op outputs as Parquet datasets.

``dagster_io_manager(store)`` keeps every output as one dataset, replaced as a whole.

Keys: the segments of the asset key, then the partition key as one more segment; an op
output lies under ``run id/step key/output name``. What a store path cannot hold, and the
names a dataset keeps for itself, are written as ``%XX``. The partition ``b`` of the asset ``a``
and the asset ``a/b`` have one place: the manifest says whose dataset it is, and the other's
writes and reads fail with ``AlreadyExists``; name one of them differently, or give them stores
of their own.

Output: anything with ``__arrow_c_stream__`` (pyarrow, polars, pandas, duckdb, a record
batch reader). A run over several partitions hands over a mapping with one value for each.
A run that is tried again replaces what its first try wrote.

Input: the type annotation says what is loaded: ``pyarrow.Table`` (also without an
annotation), ``pyarrow.RecordBatchReader`` (a stream), ``polars.DataFrame``,
``pandas.DataFrame``, or ``dict[str, …]`` of them, by partition key. Several partitions are
always such a mapping, none at all is ``None``. Input metadata: ``columns`` (a list of
names), ``allow_missing_partitions`` (as in Dagster's own managers; a partition that is being
written is waited for).

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
import types
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Union, get_args, get_origin

import pyarrow as pa
from dagster import IOManager, MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from pds import ParquetDatasetStore, errors
from pds.errors import AlreadyExists, InvalidInput, InvalidType, NotFound, RemoteStoreError

if TYPE_CHECKING:
    import remote_store
    from dagster import InputContext, OutputContext

    from pds import DatasetManifest, Store

__all__ = ["DatasetIOManager", "dagster_io_manager"]

_SERIALIZER: Final = "parquet-dataset"
# A folder that holds it has a writer, or had one that was interrupted.
_INTENT: Final = "_publish.json"
_RESERVED: Final = frozenset({".", "..", "_SUCCESS", "manifest.json", _INTENT})
# Names in a manifest that say whose dataset it is.
_ASSET_KEY: Final = "dagster/asset_key"
_PARTITION_KEY: Final = "dagster/partition_key"
_RESERVED_PREFIX: Final = ".pds-"
_FRAMES: Final = {
    "pyarrow.Table": ("pyarrow", "Table"),
    "pyarrow.RecordBatchReader": ("pyarrow", "RecordBatchReader"),
    "polars.DataFrame": ("polars", "DataFrame"),
    "pandas.DataFrame": ("pandas", "DataFrame"),
}


def dagster_io_manager(
    store: Store | remote_store.Store,
    serializer: str = _SERIALIZER,
    *,
    compression: str = "zstd",
    row_group_size: int | None = None,
    max_rows_per_file: int | None = None,
) -> DatasetIOManager:
    """Make an IO manager that keeps outputs as datasets in ``store``.

    Args:
        store: Where the datasets go; it stays open, its owner closes it.
        serializer: Only ``"parquet-dataset"``.
        compression: As for ``ParquetDatasetStore``.
        row_group_size: As for ``ParquetDatasetStore``.
        max_rows_per_file: As for ``ParquetDatasetStore``.

    Raises:
        InvalidInput: For another serializer, or an option ``ParquetDatasetStore`` refuses.
    """
    if serializer != _SERIALIZER:
        msg = f"unknown serializer {serializer!r}: there is only {_SERIALIZER!r}"
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
    """Writes outputs with, and loads inputs from, a ``ParquetDatasetStore``."""

    def __init__(self, datasets: ParquetDatasetStore) -> None:
        self._datasets = datasets

    def handle_output(self, context: OutputContext, obj: object) -> None:
        """Write ``obj`` as the dataset of this output, or one for each partition."""
        keys = _output_keys(context)
        values = _by_partition(obj, list(keys))
        owners = {partition: _owner(context, partition) for partition in values}
        for partition, owner in owners.items():
            self._check_owner(keys[partition], owner)
        written = [
            _write(self._datasets, value, keys[partition], context.run_id, owners[partition])
            for partition, value in values.items()
        ]
        context.add_output_metadata(_metadata(written))

    def load_input(self, context: InputContext) -> object:
        """Read the dataset, or the mapping of partitions, that the input asks for."""
        wanted = _Wanted.of(context.dagster_type.typing_type)
        metadata = context.definition_metadata
        columns = _columns(metadata.get("columns"))
        path = _upstream_path(context)
        if not (context.has_asset_key and context.has_asset_partitions):
            if wanted.mapping:
                msg = f"input {context.name!r} wants a mapping, but {path!r} has no partitions"
                raise InvalidType(msg)
            self._check_owner(path, _owner(context, None))
            return self._read(path, wanted.frame, columns)
        keys = _partition_keys(path, context.asset_partition_keys)
        several = wanted.mapping or len(keys) > 1
        if several and not wanted.fits_mapping:
            msg = (
                f"input {context.name!r} covers {len(keys)} partitions of {path!r}: "
                f"annotate it as dict[str, {wanted.frame}]"
            )
            raise InvalidType(msg)
        found = {}
        for partition, key in keys.items():
            self._check_owner(key, _owner(context, partition))
            if metadata.get("allow_missing_partitions") and not self._is_there(key):
                context.log.warning("partition %s has no dataset: left out", partition)
                continue
            try:
                found[partition] = self._read(key, wanted.frame, columns)
            except errors.DatasetIncomplete:
                # A writer that was waited for may have ended without a dataset.
                if not metadata.get("allow_missing_partitions") or self._is_there(key):
                    raise
                context.log.warning("partition %s has no dataset: left out", partition)
        return found if several else next(iter(found.values()), None)

    def _is_there(self, key: str) -> bool:
        """Whether there is a dataset, or a writer under way, for which a read waits."""
        datasets = self._datasets
        # The writer may end between the first two questions.
        return (
            datasets.dataset_exists(key) or datasets.store.is_file(f"{key}/{_INTENT}") or datasets.dataset_exists(key)
        )

    def _check_owner(self, key: str, owner: dict[str, str]) -> None:
        """Refuse the place of another asset's dataset."""
        try:
            there = self._datasets.read_manifest(key).metadata or {}
        except (NotFound, errors.ManifestCorrupted):
            return
        theirs: dict[str, str] = {name: there[name] for name in (_ASSET_KEY, _PARTITION_KEY) if name in there}
        if owner and theirs and theirs != owner:
            msg = (
                f"{key!r} holds {_told(theirs)}, so {_told(owner)} cannot be there too: "
                "name one of them differently, or give them stores of their own"
            )
            raise AlreadyExists(msg, path=key)

    def _read(self, key: str, frame: str, columns: list[str] | None) -> object:
        if frame == "pyarrow.RecordBatchReader":
            return self._datasets.scan_dataset(key, columns=columns)
        table = self._datasets.read_dataset(key, columns=columns)
        if frame == "polars.DataFrame":
            return sys.modules["polars"].from_arrow(table)
        return table.to_pandas() if frame == "pandas.DataFrame" else table


class _Arrow(Protocol):
    """Anything Arrow data can be taken from."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class _Wanted(NamedTuple):
    """What an input's annotation asks for."""

    frame: str
    mapping: bool
    fits_mapping: bool

    @classmethod
    def of(cls, annotation: object) -> _Wanted:
        if get_origin(annotation) in (Union, types.UnionType):
            rest = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(rest) == 1:
                return cls.of(rest[0])
        if annotation in (Any, object):
            return cls("pyarrow.Table", mapping=False, fits_mapping=True)
        origin = get_origin(annotation) or annotation
        if origin is list and get_args(annotation):
            # A fan-in: Dagster asks for one upstream output at a time and makes the list.
            return cls.of(*get_args(annotation))
        if origin in (dict, Mapping):
            inner = cls.of((*get_args(annotation), Any, Any)[1])
            if not inner.mapping:
                return cls(inner.frame, mapping=True, fits_mapping=True)
        for name, (module, attribute) in _FRAMES.items():
            # A class named in an annotation has had its module imported.
            if module in sys.modules and annotation is getattr(sys.modules[module], attribute):
                return cls(name, mapping=False, fits_mapping=False)
        msg = f"cannot load {annotation!r}: use one of {', '.join(_FRAMES)}, or a dict of it"
        raise InvalidType(msg)


class _Written(NamedTuple):
    """One dataset this output wrote."""

    manifest: DatasetManifest
    schema: pa.Schema
    size_bytes: int


def _escape(segment: str) -> str:
    """Make ``segment`` one segment of a store path; different segments stay different."""
    if not segment:
        return "%"
    if segment in _RESERVED or segment.startswith(_RESERVED_PREFIX):
        return f"%{ord(segment[0]):02X}{_escape_characters(segment[1:])}"
    return _escape_characters(segment)


def _escape_characters(text: str) -> str:
    def escaped(character: str) -> str:
        if character in "/\\%" or unicodedata.category(character) in ("Cc", "Cs"):
            raw = character.encode("utf-8", "surrogatepass")
            return "".join(f"%{byte:02X}" for byte in raw)
        return character

    return "".join(map(escaped, text))


def _join(segments: Iterable[str]) -> str:
    return "/".join(map(_escape, segments))


def _partition_keys(path: str, partitions: Iterable[str]) -> dict[str, str]:
    return {partition: f"{path}/{_escape(partition)}" for partition in partitions}


def _output_keys(context: OutputContext) -> dict[str | None, str]:
    """Dataset keys by partition; ``None`` stands for an output without partitions."""
    if not context.has_asset_key:
        return {None: _join(context.get_identifier())}
    path = _join(context.asset_key.path)
    if not context.has_asset_partitions:
        return {None: path}
    partitions: list[str | None] = list(context.asset_partition_keys)
    return {partition: f"{path}/{_escape(str(partition))}" for partition in partitions}


def _owner(context: InputContext | OutputContext, partition: str | None) -> dict[str, str]:
    """Whose dataset it is, for the manifest; nothing for an op's output."""
    if not context.has_asset_key:
        return {}
    asset = {_ASSET_KEY: context.asset_key.to_string()}
    return asset if partition is None else {**asset, _PARTITION_KEY: partition}


def _told(owner: Mapping[str, str]) -> str:
    partition = f"partition {owner[_PARTITION_KEY]!r} of " if _PARTITION_KEY in owner else ""
    return f"{partition}asset {owner.get(_ASSET_KEY, '')}"


def _upstream_path(context: InputContext) -> str:
    return _join(context.asset_key.path if context.has_asset_key else context.get_identifier())


def _by_partition(obj: object, partitions: Collection[str | None]) -> dict[str | None, _Arrow]:
    """Pair partitions with values; nothing is written unless all of them can be."""
    if isinstance(obj, Mapping) and None not in partitions:
        if obj.keys() != set(partitions):
            msg = f"this run writes exactly the partitions {partitions}, not {sorted(obj)}"
            raise InvalidInput(msg)
        values = {partition: obj[partition] for partition in partitions}
    elif len(partitions) == 1:
        values = dict.fromkeys(partitions, obj)
    else:
        msg = f"this run writes the partitions {partitions}: hand over a mapping of them"
        raise InvalidInput(msg)
    for value in values.values():
        if not hasattr(value, "__arrow_c_stream__"):
            msg = (
                f"cannot write {type(value).__name__} as a dataset: it has no __arrow_c_stream__ "
                "(annotate the output as None if there is nothing to store)"
            )
            raise InvalidType(msg)
    return values


def _columns(value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        msg = f"input metadata 'columns' must be a list of names, not {value!r}"
        raise InvalidType(msg)
    return list(value)


def _write(datasets: ParquetDatasetStore, obj: _Arrow, key: str, run_id: str, owner: dict[str, str]) -> _Written:
    """Write in the two steps, which tell the size of what was written."""
    stream = pa.RecordBatchReader.from_stream(obj)
    write = datasets.begin_write(key, overwrite=True, run_id=run_id, metadata=owner or None)
    try:
        parts = write.prepare(stream) or write.prepare_empty(stream.schema)
    except BaseException:
        # What failed is what is told.
        with contextlib.suppress(RemoteStoreError):
            write.abort_all()
        raise
    manifest = write.publish(parts, stream.schema)
    return _Written(manifest, stream.schema, sum(part.bytes for part in parts))


def _metadata(written: list[_Written]) -> dict[str, Any]:
    rows = sum(each.manifest.row_count for each in written)
    schema = written[-1].schema
    return {
        "rows": rows,
        "bytes": sum(each.size_bytes for each in written),
        "schema": MetadataValue.text(schema.to_string()),
        "version": written[-1].manifest.created_at_utc,
        "dataset_key": ", ".join(each.manifest.dataset_key for each in written),
        # These two names are the ones Dagster's own pages draw.
        "dagster/row_count": rows,
        "dagster/column_schema": TableSchema(columns=[_column(field) for field in schema]),
    }


def _column(field: pa.Field[Any]) -> TableColumn:
    return TableColumn(
        name=field.name,
        type=str(field.type),
        constraints=TableColumnConstraints(nullable=field.nullable),
    )
