"""Tables, datasets and pipelines by their URLs and paths."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pds
from pds.urls import normalize_url, split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = pa.table({"id": [1, 2, 3], "city": ["Riga", "Oslo", None]})
MORE = pa.table({"id": [3, 4], "city": ["Bonn", "Rome"]})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a name that needs escapes in a URL, and a home in it."""
    folder = tmp_path / "a b%20c#d?e ü"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "home"))
    return folder


def test_paths(here: Path) -> None:
    """Relative, absolute, of the home, as text or path: one file system."""
    for place, folder in {
        "lake/events": here / "lake/events",
        "./lake/./more//events/": here / "lake/more/events",
        "~/lake/events": here / "home/lake/events",
        str(here / "whole/events"): here / "whole/events",
        Path("paths/events"): here / "paths/events",
        Path("~/paths/events"): here / "home/paths/events",
        "per%20cent/x%": here / "per%20cent/x%",
        "a:b/c": here / "a:b/c",
    }.items():
        table = pds.write_table(place, ROWS, key="id")
        assert (folder / "_latest_manifest").is_file(), place
        assert pds.open_table(place).scan().to_pyarrow().equals(ROWS)
        assert pds.open_table(folder).version == table.version == 1
        assert pds.open_table(f"{table.store.url}/{table.path.replace('%', '%25')}").version == 1
        manifest = pds.write_dataset(folder.parent / "dataset", ROWS, overwrite=True, run_id="7")
        assert (manifest.row_count, manifest.run_id) == (3, "7")
        assert pds.read_dataset(folder.parent / "dataset", ["city"]).equals(ROWS.select(["city"]))
    scanned = pds.scan_dataset("lake/dataset", ["id"], where="city = 'Oslo'").read_all()
    assert scanned["id"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/lake/events", ("s3://bucket/lake", "events", {})),
        ("s3a://bucket/events/", ("s3a://bucket", "events", {})),
        ("gcs://bucket/a/b/c", ("gs://bucket/a/b", "c", {})),
        ("GS://bucket/a", ("gs://bucket", "a", {})),
        ("az://container/a/b", ("az://container/a", "b", {})),
        ("abfs://container/a", ("az://container", "a", {})),
        (
            "abfss://data@lake1.dfs.core.windows.net/gold/events",
            ("az://data/gold", "events", {"azure_storage_account_name": "lake1"}),
        ),
        (
            "wasbs://data@lake1.blob.core.windows.net/events",
            ("az://data", "events", {"azure_storage_account_name": "lake1"}),
        ),
        (
            "abfss://w@onelake.dfs.fabric.microsoft.com/events",
            ("az://w", "events", {"azure_storage_account_name": "onelake", "azure_use_fabric_endpoint": "true"}),
        ),
        ("memory://name/a/b", ("memory://name", "a/b", {})),
        ("file:///lake/a%20b", ("file:///lake", "a b", {})),
        ("file:///lake", ("file:///", "lake", {})),
    ],
)
def test_urls_are_split(url: str, expected: tuple[str, str, dict[str, str]]) -> None:
    assert split_url(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("s3://bucket", "must name a folder"),
        ("s3://bucket/", "must name a folder"),
        ("file:///", "must name a folder"),
        ("/", "must name a folder"),
        ("memory://name", "must name a folder"),
        ("memory://", "give it one"),
        ("memory:///table", "give it one"),
        ("s3:/bucket/table", "two slashes"),
        ("file:table", "two slashes"),
        ("file://lake/table", "absolute path"),
        ("s3://bucket/table?X-Amz-Signature=secret", "query"),
        ("abfss://data@account.example.com/table", "azure_storage_endpoint"),
        ("ftp://host/table", "unknown scheme"),
        ("s3://user:secret@bucket/table", "bucket/container name"),
    ],
)
def test_urls_that_name_nothing(url: str, message: str) -> None:
    with pytest.raises(pds.InvalidInput, match=message) as raised:
        pds.open_table(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", [None, 1, b"s3://bucket/x", ROWS])
def test_urls_of_other_types(url: Any) -> None:
    for call in (pds.open_table, pds.read_dataset, pds.list, pds.Store, lambda url: pds.write_table(url, ROWS)):
        with pytest.raises(pds.InvalidType):
            call(url)


def test_options_of_urls() -> None:
    url = "abfss://data@lake1.dfs.core.windows.net/gold"
    options: dict[str, object] = {"azure_storage_account_key": "c2VjcmV0"}
    store = pds.Store(url, options)
    assert store.url == "az://data/gold"
    assert "lake1" in repr(store)
    assert pds.Store(url, {**options, "azure_storage_account_name": "lake1"}) == store
    with pytest.raises(pds.InvalidInput, match="another value than the URL"):
        pds.Store(url, {**options, "azure_storage_account_name": "lake2"})
    with pytest.raises(pds.InvalidInput, match="another value than the URL"):
        pds.open_table(f"{url}/t", storage_options={"azure_storage_account_name": "lake2"})
    assert normalize_url("s3://b/x") == ("s3://b/x", {})


def test_modes(here: Path) -> None:
    table = pds.write_table("events", ROWS, key="id", sort_by="id")
    assert (table.version, table.history()[0]["operation"]["rows"]) == (1, 3)
    with pytest.raises(pds.AlreadyExists, match='pass mode="append"'):
        pds.write_table("events", MORE)
    assert pds.write_table("events", MORE, mode="ignore").version == 1
    assert pds.write_table("events", MORE, mode="append", key="id").version == 2
    assert pds.open_table("events").scan().count() == 5
    assert pds.write_table("events", MORE, mode="overwrite").scan().to_pyarrow().equals(MORE)
    assert pds.open_table("events", as_of=1).scan().to_pyarrow().equals(ROWS)
    assert pds.open_table("events").tags == {}
    for mode in ("append", "overwrite", "ignore"):
        assert pds.write_table(f"new-{mode}", ROWS, mode=mode).scan().to_pyarrow().equals(ROWS)
    with pytest.raises(pds.InvalidInput, match="the table has key="):
        pds.write_table("events", MORE, mode="append", key="city")
    with pytest.raises(pds.InvalidInput, match="the table has sort_by="):
        pds.write_table("events", MORE, mode="append", sort_by=())
    with pytest.raises(pds.InvalidInput, match="mode must be one of"):
        pds.write_table("events", MORE, mode="replace")  # type: ignore[arg-type]
    with pytest.raises(pds.InvalidInput, match="schema_mode"):
        pds.write_table("events", MORE, mode="overwrite", schema_mode="merge")
    for place, mode in (("new", "error"), ("new", "append"), ("events", "overwrite"), ("events", "ignore")):
        with pytest.raises(pds.InvalidInput, match='schema_mode must be "strict" or "merge", not \'x\''):
            pds.write_table(place, MORE, mode=mode, schema_mode="x")  # type: ignore[arg-type]
    with pytest.raises(pds.NotFound):
        pds.open_table("nothing")
    wider = MORE.append_column("n", pa.array([1, 2]))
    assert "n" in pds.write_table("events", wider, mode="append", schema_mode="merge").schema.names
    assert here.is_dir()


def test_a_table_appears_with_its_rows(here: Path) -> None:
    """Rows that cannot be written leave no table, and no file."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        message = "the source broke"
        raise ValueError(message)

    with pytest.raises(Exception, match="the source broke"):
        pds.write_table("events", pa.RecordBatchReader.from_batches(ROWS.schema, batches()), key="id")
    with pytest.raises(pds.InvalidInput, match="unknown column"):
        pds.write_table("events", ROWS, key="nothing")
    with pytest.raises(pds.InvalidInput):
        pds.write_table("events", ROWS, mode="append", idempotency_key="")
    for mode in ("error", "ignore"):
        with pytest.raises(pds.InvalidInput, match="may be repeated"):
            pds.write_table("events", ROWS, mode=mode, idempotency_key="k")  # type: ignore[arg-type]
    required = pa.table({"id": [1, None]}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    with pytest.raises(pds.InvalidInput, match="null"):
        pds.write_table("events", required)
    for mode in ("error", "append", "overwrite", "ignore"):
        with pytest.raises(pds.InvalidInput, match="must have a name"):
            pds.write_table("events", pa.table({"id": [1], "": ["x"]}), mode=mode)  # type: ignore[arg-type]
    assert [path for path in here.rglob("*") if path.is_file()] == []
    assert pds.write_table("events", ROWS).version == 1


@pytest.mark.parametrize(
    "url",
    [
        " s3://bucket/x",
        "\ns3://bucket/x",
        "\ufeffs3://bucket/x",
        "s3://bucket/x\n",
        "dbfs:/mnt/x",
        "C:/lake/t",
        "C:\\lake\\t",
        "s3//bucket/x",
        "~nosuch/t",
        " https://account.blob.core.windows.net/c/t?sig=secret",
        "file:///lake/%FF",
        Path("C:/lake/t"),
    ],
)
def test_what_is_not_meant_as_a_path(here: Path, url: str | Path) -> None:
    for call in (pds.write_table, pds.write_dataset):
        with pytest.raises(pds.InvalidInput) as raised:
            call(url, ROWS)
        assert "secret" not in str(raised.value)
    assert [*here.iterdir()] == []
    pds.write_table("./C:/lake/t", ROWS)
    pds.write_table("./~nosuch/t", ROWS)


CALLS: dict[str, Callable[[str | Path], object]] = {
    "write_table": lambda url: pds.write_table(url, ROWS, mode="append"),
    "write_dataset": lambda url: pds.write_dataset(url, ROWS, overwrite=True),
    "read_dataset": pds.read_dataset,
    "scan_dataset": pds.scan_dataset,
    "open_table": pds.open_table,
    "open_pipeline": pds.open_pipeline,
    "open_chain": pds.open_chain,
    "scan_polars": pds.scan_polars,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_backslash_names_no_other_folder(here: Path, call: Callable[[str | Path], object]) -> None:
    """The keys of datasets take it for a slash."""
    pds.write_dataset("a/b", MORE)
    for url in ("./a\\b", str(here / "a\\b"), Path("a\\b"), f"file://{here.parent}/a%5Cb", "memory://name/a\\b/c"):
        with pytest.raises(pds.InvalidPath, match="has a backslash"):
            call(url)
    with pytest.raises(pds.InvalidPath, match="has a backslash"):
        pds.sql("FROM './a\\b'")
    assert pds.read_dataset("a/b").equals(MORE)
    assert [path.name for path in here.iterdir()] == ["a"]


@pytest.mark.parametrize("call", [pds.write_table, pds.write_dataset])
@pytest.mark.parametrize("place", ["x.parquet", "x.parquet/y", "x.parquet/y/z"])
def test_a_file_in_the_place_of_a_folder(here: Path, call: Callable[..., object], place: str) -> None:
    (here / "x.parquet").write_bytes(b"mine")
    for url in (place, (here / place).as_uri()):
        with pytest.raises(pds.InvalidPath, match="a file is in the place of a folder"):
            call(url, ROWS)
    assert (here / "x.parquet").read_bytes() == b"mine"


def test_links_and_what_is_above_them(here: Path) -> None:
    (here / "real/y").mkdir(parents=True)
    (here / "link").symlink_to("real/y")
    pds.write_table("link/../above", ROWS)
    assert (here / "real/above/_latest_manifest").is_file()
    pds.write_table("link/inside", ROWS)
    assert (here / "real/y/inside/_latest_manifest").is_file()
    (here / "current").symlink_to("real/y/inside")
    assert pds.open_table("current").append(MORE).version == 2


def test_urls_of_names_with_escapes(here: Path) -> None:
    """What is listed opens what is meant, and nothing else."""
    for name in ("a b", "a%20b", "ü", "100%"):
        pds.write_table(f"lake/{name}", pa.table({"name": [name]}))
    for entry in pds.list("lake"):
        assert pds.open_table(entry.url).scan().to_pyarrow()["name"].to_pylist() == [entry.path]
        child = pds.Store("lake").child(entry.path)
        assert pds.Store(child.url).exists("_latest_manifest")
    assert here.is_dir()


def test_a_table_needs_a_folder_of_its_own(here: Path) -> None:
    pds.write_dataset("lake/people", ROWS)
    with pytest.raises(pds.AlreadyExists, match="is a dataset"):
        pds.write_table("lake/people", ROWS)
    assert here.is_dir()


def test_damaged_things_are_listed(here: Path) -> None:
    for name in ("lost pointer", "lost manifest", "other", "whole"):
        pds.write_table(f"lake/{name}", ROWS)
    (here / "lake/lost pointer/_latest_manifest").unlink()
    (here / "lake/lost manifest/manifest/v00000001.json").write_text("{")
    (here / "lake/other/_latest_manifest").write_text("[1]")
    assert [entry.path for entry in pds.list("lake")] == ["lost manifest", "lost pointer", "other", "whole"]


def test_columns_that_no_table_can_have(here: Path) -> None:
    polars = pytest.importorskip("polars")
    deep = pa.int64()
    for _ in range(61):
        deep = pa.struct([("f", deep)])
    with pytest.raises(pds.InvalidInput, match="cannot have these columns"):
        pds.Table.create(pds.Store("lake"), "deep", pa.schema([("x", deep)]))
    with pytest.raises(pds.InvalidInput, match="cannot have these columns"):
        pds.write_table("lake/deep", pa.schema([("x", deep)]).empty_table())
    with pytest.raises(pds.InvalidType, match="Python objects"):
        pds.write_table("lake/deep", polars.DataFrame({"x": polars.Series([{1}, {2}], dtype=polars.Object)}))
    assert [path for path in here.rglob("*") if path.is_file()] == []
    views = pa.map_(pa.string_view(), pa.string_view())
    table = pds.write_table("lake/maps", pa.table({"m": pa.array([[("a", "b")]], views)}))
    assert table.scan().to_pyarrow()["m"].to_pylist() == [[("a", "b")]]


def test_a_key_of_the_first_write_is_remembered(here: Path) -> None:
    for _ in range(2):
        pds.write_table("events", ROWS, mode="append", idempotency_key="day 1")
    assert pds.open_table("events").version == 1
    assert pds.open_table("events").append(ROWS, idempotency_key="day 1").replayed
    pds.write_table("events", MORE, mode="append", idempotency_key="day 2")
    assert pds.open_table("events").scan().count() == 5
    assert here.is_dir()


def test_many_files_of_the_first_write(here: Path) -> None:
    """The first manifest lists as few files as any other."""
    options = pds.WriteOptions(max_rows_per_file=1)
    table = pds.write_table("events", pa.table({"id": range(700)}), sort_by="id", options=options)
    assert len(table.files()) == 700
    assert (here / "events/manifest/v00000001.json").stat().st_size < 60_000
    assert table.check().ok
    assert table.verify().problems == []
    assert table.scan(where="id = 350").explain().files_read == 1
    table.append(pa.table({"id": [700]}))
    table.vacuum()
    assert table.scan().to_pyarrow()["id"].to_pylist() == [*range(701)]


RACE = """
import sys, pyarrow as pa, pds
url, writer, mode = sys.argv[1:]
rows = pa.table({"id": [int(writer)] * 1000})
try:
    pds.write_table(url, rows, mode=mode)
except pds.AlreadyExists:
    print("exists")
else:
    print("written")
"""


@pytest.mark.parametrize("mode", ["error", "append"])
def test_writers_that_race_for_a_new_table(here: Path, mode: str) -> None:
    for number in range(3):
        url = str(here / f"events-{number}")
        writers = [
            subprocess.Popen([sys.executable, "-c", RACE, url, str(n), mode], stdout=subprocess.PIPE, text=True)
            for n in range(3)
        ]
        results = [writer.communicate(timeout=60)[0].strip() for writer in writers]
        winners = [n for n, result in enumerate(results) if result == "written"]
        rows = pds.open_table(url).scan().to_pyarrow()["id"].to_pylist()
        assert sorted(rows) == sorted(winners * 1000)
        assert len(winners) == (1 if mode == "error" else 3), results
        # What the losers had uploaded is gone.
        assert len([*Path(url).rglob("*.parquet")]) == len(winners)


def test_what_other_libraries_bring(here: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"s": ["a", None], "l": [["x"], ["y", "z"]], "b": [b"1", b"2"], "t": [{"u": "v"}, None]})
    table = pds.write_table("frame", frame)
    assert table.schema.field("s").type == pa.string()
    assert table.schema.field("l").type == pa.large_list(pa.string())
    assert table.schema.field("b").type == pa.binary()
    assert table.schema.field("t").type == pa.struct([("u", pa.string())])
    assert polars.from_arrow(table.scan().to_pyarrow()).equals(frame)
    table.append(frame)
    assert table.scan().count() == 4
    assert pq.read_table(next((here / "frame/data").rglob("*.parquet")))["s"].to_pylist() == ["a", None]


def test_a_pipeline_by_its_url(here: Path) -> None:
    pipeline = pds.open_pipeline("lake/pipeline", memory_limit=1 << 24)
    pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    pipeline.update(numbers=pds.Changes([(1, 2)]))
    assert (here / "lake/pipeline/_latest_manifest").is_file()
    assert pds.open_pipeline("lake/pipeline")["numbers"].read()["value"].to_pylist() == [2]


def test_what_lies_below_a_url(here: Path) -> None:
    assert pds.list("lake") == []
    pds.write_table("lake/gold/events", ROWS)
    pds.write_table("lake/empty", ROWS.slice(0, 0))
    pds.write_dataset("lake/silver/people", ROWS)
    pipeline = pds.open_pipeline("lake/counts")
    pipeline.source("numbers", key=pa.int64(), value=pa.int64())
    pipeline.update(numbers=pds.Changes([(1, 2)]))
    pds.odf.Dataset.create(pds.Store("lake"), "weather")
    found = pds.list("lake")
    assert [(entry.kind, entry.path) for entry in found] == [
        ("pipeline", "counts"),
        ("table", "empty"),
        ("table", "gold/events"),
        ("dataset", "silver/people"),
        ("chain", "weather"),
    ]
    by_kind = {entry.kind: entry.url for entry in found}
    assert pds.open_table(by_kind["table"]).scan().to_pyarrow().equals(ROWS)
    assert pds.read_dataset(by_kind["dataset"]).equals(ROWS)
    assert pds.open_chain(by_kind["chain"]).head is not None
    assert [entry.path for entry in pds.list("lake/gold")] == ["events"]
    assert [entry.kind for entry in pds.list("lake/gold/events")] == ["table"]
    assert here.is_dir()


def test_by_url_on_every_store(store: pds.Store) -> None:
    """The URL of a folder leads to the objects that its store has."""
    if store.url.startswith("memory:") and store.url.rstrip("/") == "memory:":
        # Another call would see another memory.
        with pytest.raises(pds.InvalidInput, match="give it one"):
            pds.write_table("memory:///events", ROWS)
        return
    options = dict(store._options)
    url = f"{store.url.rstrip('/')}/by url/ü/events"
    if url.startswith("file:"):
        url = url.replace(" ", "%20")
    pds.write_table(url, ROWS, key="id", storage_options=options)
    assert pds.Table(store, "by url/ü/events").scan().to_pyarrow().equals(ROWS)
    assert pds.open_table(url, storage_options=options).scan(where="id = 2").count() == 1
    (entry,) = pds.list(store.url, storage_options=options)
    assert (entry.kind, entry.path) == ("table", "by url/ü/events")


def test_modules_of_extras() -> None:
    """A module that needs a package that is not there says how to install it."""
    program = """
import sys
sys.modules["pyspark"] = None
sys.modules["dagster"] = None
import pds
for name, package in (("spark", "pyspark"), ("dagster", "dagster")):
    try:
        getattr(pds, name)
    except ImportError as error:
        assert f"pip install 'pds[{name}]'" in str(error), error
    else:
        raise AssertionError(name)
assert pds.doctor.probe
"""
    subprocess.run([sys.executable, "-c", program], check=True)
