"""The systems under comparison, each behind the same few methods.

A system is made in the process that is measured, before the clock runs: its modules are imported
then, but no connection is opened. ``name`` is a key below the place; what a system puts there is
its own layout (a dataset, a folder of files, a table with a log), so only it reads that back.
``read_source`` is the exception: there everybody reads the same ``data.parquet``.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.metadata
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import duckdb_httpfs
import pyarrow as pa

from servers import S3Server

if TYPE_CHECKING:
    from collections.abc import Mapping

CODEC = "zstd"
LEVEL = 1
GROUP_ROWS = 1_048_576
STREAM_LIMIT_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class Place:
    """Where data lies: a local folder, or a server's bucket by way of some endpoint."""

    folder: str | None = None
    server: S3Server | None = None

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Place:
        """The place a parent process described with ``dataclasses.asdict``."""
        if value["folder"]:
            return cls(folder=value["folder"])
        server = value["server"]
        return cls(server=S3Server(**{**server, "folder": Path(server["folder"])}))

    def url(self, name: str) -> str:
        """What a client is told: a path or an ``s3://`` URL."""
        if self.server:
            return self.server.url(name)
        target = Path(str(self.folder)) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(target)

    def files(self, name: str) -> Path:
        """The same as files of this machine, for the parent to look at and to remove."""
        if self.server:
            return self.server.folder / "data" / self.server.bucket / name
        return Path(str(self.folder)) / name

    def remove(self, name: str) -> None:
        """Takes away what was written, behind the client's back."""
        shutil.rmtree(self.files(name), ignore_errors=True)

    def options(self) -> dict[str, str] | None:
        """object_store's options, which pds, polars and deltalake take."""
        return self.server.options() if self.server else None


class System(abc.ABC):
    """One system at one place; what it cannot do, it leaves out of ``operations``."""

    key: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str]
    operations: ClassVar[frozenset[str]] = frozenset({"write", "read", "small", "stream"})

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    def version(cls, store: str) -> str:
        """What to print beside the figures of a store."""
        del store
        return importlib.metadata.version(cls.package)

    def adopt(self, table: pa.Table) -> object:
        """The input as this system holds tables; not measured."""
        return table

    @abc.abstractmethod
    def write(self, data: Any, name: str) -> None:  # noqa: ANN401 each system its own type
        """Writes what ``adopt`` gave."""

    def write_stream(self, reader: pa.RecordBatchReader, name: str) -> None:
        """Writes a stream longer than memory should have to hold."""
        self.write(reader, name)

    @abc.abstractmethod
    def read_source(self, name: str, columns: list[str] | None) -> Any:  # noqa: ANN401 as above
        """The rows of the source dataset, all decoded."""

    def warm_up(self, rows: pa.Table) -> None:
        """Writes and reads a few rows, so that what is loaded late is there."""
        self.write(self.adopt(rows), "warm")
        self.read_source("warm", None)

    def shape(self, result: Any) -> tuple[int, int]:  # noqa: ANN401 as above
        """Rows and columns of what ``read_source`` gave, to see that it was everything."""
        return result.num_rows, result.num_columns


class Pds(System):
    """This project."""

    key = title = package = "pds"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import pds  # noqa: PLC0415 a process loads only what it measures

        url = place.url("") if place.server else Path(place.url(".")).as_uri()
        self._store = pds.Store(url, storage_options=place.options())
        options: dict[str, Any] = {"compression_level": LEVEL, "row_group_size": GROUP_ROWS}
        self._datasets = pds.ParquetDatasetStore(self._store, compression=CODEC, **options)
        self._bounded = pds.ParquetDatasetStore(
            self._store, compression=CODEC, memory_limit=STREAM_LIMIT_BYTES, **options
        )

    def write(self, data: pa.Table, name: str) -> None:
        """Writes a dataset."""
        self._datasets.write_dataset(data, name)

    def write_stream(self, reader: pa.RecordBatchReader, name: str) -> None:
        """Writes a dataset under a memory limit."""
        self._bounded.write_dataset(reader, name)

    def read_source(self, name: str, columns: list[str] | None) -> pa.Table:
        """Reads the dataset with every check it has."""
        table: pa.Table = self._datasets.read_dataset(name, columns=columns)
        return table


class RemoteStore(System):
    """remote-store's ParquetDatasetStore; on S3 with its s3fs backend."""

    key = "remote-store"
    title = "remote-store"
    package = "remote-store"
    operations = frozenset({"write", "read", "small"})
    backend: ClassVar[str] = "S3Backend"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import remote_store  # noqa: PLC0415 as above
        from remote_store import backends  # noqa: PLC0415
        from remote_store.ext.parquet import ParquetDatasetStore  # noqa: PLC0415

        if place.server:
            import s3fs  # noqa: F401, PLC0415 imported by the backend at its first request

            backend = getattr(backends, self.backend)(**place.server.remote_store_options())
        else:
            backend = backends.LocalBackend(place.url("."))
        # The level cannot be set; pyarrow's default for zstd is 1 as well.
        self._datasets = ParquetDatasetStore(remote_store.Store(backend), compression=CODEC, row_group_size=GROUP_ROWS)

    def write(self, data: pa.Table, name: str) -> None:
        """Writes a dataset."""
        self._datasets.write_dataset(data, name)

    def read_source(self, name: str, columns: list[str] | None) -> pa.Table:
        """Reads the dataset."""
        return self._datasets.read_dataset(name, columns=columns)


class RemoteStoreArrow(RemoteStore):
    """The same on S3 through pyarrow's client."""

    key = "remote-store-arrow"
    title = "remote-store (S3PyArrowBackend)"
    backend = "S3PyArrowBackend"


class Arrow(System):
    """pyarrow.parquet: one bare file."""

    key = "pyarrow"
    title = "pyarrow.parquet"
    package = "pyarrow"
    _options: ClassVar[dict[str, Any]] = {"compression": CODEC, "compression_level": LEVEL}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import pyarrow.dataset  # noqa: PLC0415 as above
        import pyarrow.fs  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415

        self._parquet = pyarrow.parquet
        self._dataset = pyarrow.dataset
        server = place.server
        self._files = server.arrow_filesystem() if server else pyarrow.fs.LocalFileSystem()

    def _path(self, name: str) -> str:
        return self.place.url(name).removeprefix("s3://")

    def _new_folder(self, name: str) -> str:
        path = self._path(name)
        if not self.place.server:
            self._files.create_dir(path)
        return path

    def write(self, data: pa.Table, name: str) -> None:
        """Writes a file."""
        self._parquet.write_table(
            data,
            f"{self._new_folder(name)}/data.parquet",
            filesystem=self._files,
            row_group_size=GROUP_ROWS,
            **self._options,
        )

    def write_stream(self, reader: pa.RecordBatchReader, name: str) -> None:
        """Writes a file batch by batch; its writer buffers rows up to a row group."""
        path = f"{self._new_folder(name)}/data.parquet"
        with self._parquet.ParquetWriter(path, reader.schema, filesystem=self._files, **self._options) as writer:
            rows: list[pa.RecordBatch] = []
            for batch in reader:
                rows.append(batch)
                if sum(b.num_rows for b in rows) >= GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(rows), row_group_size=GROUP_ROWS)
                    rows = []
            if rows:
                writer.write_table(pa.Table.from_batches(rows), row_group_size=GROUP_ROWS)

    def read_source(self, name: str, columns: list[str] | None) -> pa.Table:
        """Reads the file of the dataset."""
        path = f"{self._path(name)}/data.parquet"
        return self._parquet.read_table(path, filesystem=self._files, columns=columns)


class ArrowDataset(Arrow):
    """pyarrow.dataset: a folder of files."""

    key = "pyarrow-dataset"
    title = "pyarrow.dataset"

    def write(self, data: pa.Table | pa.RecordBatchReader, name: str) -> None:
        """Writes a folder of one file."""
        kind = self._dataset.ParquetFileFormat()
        self._dataset.write_dataset(
            data,
            self._new_folder(name),
            format=kind,
            filesystem=self._files,
            file_options=kind.make_write_options(**self._options),
            min_rows_per_group=GROUP_ROWS,
            max_rows_per_group=GROUP_ROWS,
            create_dir=False,
        )

    def write_stream(self, reader: pa.RecordBatchReader, name: str) -> None:
        """Streams into the same."""
        self.write(reader, name)

    def read_source(self, name: str, columns: list[str] | None) -> pa.Table:
        """Reads the file of the dataset as a dataset."""
        return self._read(f"{self._path(name)}/data.parquet", columns)

    def _read(self, path: str, columns: list[str] | None) -> pa.Table:
        data = self._dataset.dataset(path, format="parquet", filesystem=self._files)
        return data.to_table(columns=columns)

    def warm_up(self, rows: pa.Table) -> None:
        """Its files have other names than the source."""
        self.write(rows, "warm")
        self._read(self._path("warm"), None)


class Polars(System):
    """polars: one bare file from and to its own frame."""

    key = title = package = "polars"
    operations = frozenset({"write", "read", "small"})

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import polars as pl  # noqa: PLC0415 as above

        self._polars = pl

    def adopt(self, table: pa.Table) -> object:
        """Strings become views here, outside the measured time."""
        return self._polars.from_arrow(table)

    def write(self, data: Any, name: str) -> None:  # noqa: ANN401 a polars frame
        """Writes a file."""
        path = f"{self.place.url(name)}/data.parquet"
        if not self.place.server:
            Path(path).parent.mkdir(parents=True)
        data.write_parquet(
            path,
            compression=CODEC,
            compression_level=LEVEL,
            row_group_size=GROUP_ROWS,
            storage_options=self.place.options(),
        )

    def read_source(self, name: str, columns: list[str] | None) -> Any:  # noqa: ANN401 as above
        """Reads the file of the dataset into a frame."""
        return self._polars.read_parquet(
            f"{self.place.url(name)}/data.parquet",
            columns=columns,
            storage_options=self.place.options(),
        )

    def shape(self, result: Any) -> tuple[int, int]:  # noqa: ANN401 as above
        """Rows and columns of a frame."""
        return result.shape


class DuckDb(System):
    """DuckDB: one bare file from and to Arrow."""

    key = "duckdb"
    title = "DuckDB"
    package = "duckdb"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import duckdb  # noqa: PLC0415 as above

        self._connection = duckdb.connect()
        if place.server:
            for statement in duckdb_httpfs.statements(place.server):
                self._connection.execute(statement)

    @classmethod
    def version(cls, store: str) -> str:
        """On S3 another one: httpfs exists for that only."""
        return super().version(store) if store == "local" else duckdb_httpfs.VERSION

    def write(self, data: pa.Table | pa.RecordBatchReader, name: str) -> None:
        """Writes a file."""
        path = f"{self.place.url(name)}/data.parquet"
        if not self.place.server:
            Path(path).parent.mkdir(parents=True)
        self._connection.register("source", data)
        options = f"COMPRESSION {CODEC}, COMPRESSION_LEVEL {LEVEL}, ROW_GROUP_SIZE {GROUP_ROWS}"
        self._connection.execute(f"COPY source TO '{path}' (FORMAT parquet, {options})")

    def read_source(self, name: str, columns: list[str] | None) -> pa.Table:
        """Reads the file of the dataset into Arrow."""
        path = f"{self.place.url(name)}/data.parquet"
        chosen = ", ".join(columns or ["*"])
        query = f"SELECT {chosen} FROM read_parquet('{path}')"  # noqa: S608 our own names
        return self._connection.sql(query).to_arrow_table()


class Delta(System):
    """deltalake: files of its own size and a log."""

    key = title = package = "deltalake"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import deltalake  # noqa: PLC0415 as above

        self._delta = deltalake
        self._properties = deltalake.WriterProperties(
            compression="ZSTD", compression_level=LEVEL, max_row_group_size=GROUP_ROWS
        )

    def write(self, data: pa.Table | pa.RecordBatchReader, name: str) -> None:
        """Writes a table."""
        self._delta.write_deltalake(
            self.place.url(name),
            data,
            writer_properties=self._properties,
            storage_options=self.place.options(),
        )

    def warm_up(self, rows: pa.Table) -> None:
        """A table of its own serves as a converted source."""
        self.write(rows, "warm-delta")
        self.read_source("warm", None)

    def convert(self, name: str) -> None:
        """Puts a log beside the source's file, which it then reads like the others."""
        self._delta.convert_to_deltalake(self.place.url(f"{name}-delta"), storage_options=self.place.options())

    def read_source(self, name: str, columns: list[str] | None) -> pa.Table:
        """Reads the table that ``convert`` made of the source."""
        url = self.place.url(f"{name}-delta")
        table = self._delta.DeltaTable(url, storage_options=self.place.options())
        return table.to_pyarrow_table(columns=columns)


ALL: tuple[type[System], ...] = (
    Pds,
    RemoteStore,
    RemoteStoreArrow,
    Arrow,
    ArrowDataset,
    Polars,
    DuckDb,
    Delta,
)
BY_KEY = {system.key: system for system in ALL}
