"""What cannot be right is refused before the first request."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = pa.table({"n": [1, 2, 3]})
BAD_KEYS = [
    "",
    "/",
    ".",
    "..",
    "./",
    "a/../b",
    "../a",
    "..\\a",
    "a\0b",
    "a\nb",
    "a\x7f",
    "a\x85b",
    "x" * 256,
    "/".join(["ab"] * 400),
    "\ud800",
]


class _Nothing:
    """Of no use to anybody, by the same name in every run."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
NOT_TEXT = [None, 7, b"a", ["a"], NOTHING]
BAD_OPTIONS: list[dict[str, Any]] = [
    {"compression": "rar"},
    {"compression": ""},
    {"compression": None},
    {"compression": 7},
    {"compression": "zstd", "compression_level": 99},
    {"compression": "snappy", "compression_level": 1},
    {"compression_level": "high"},
    {"row_group_size": 0},
    {"row_group_size": -1},
    {"row_group_size": 1.5},
    {"row_group_size": True},
    {"row_group_size": "10"},
    {"row_group_size": 2**70},
    {"max_rows_per_file": 0},
    {"max_rows_per_file": -(2**70)},
    {"max_rows_per_file": 1.0},
    {"max_rows_per_file": False},
    {"memory_limit": 0},
    {"memory_limit": 1},
    {"memory_limit": "lots"},
]
BAD_METADATA: list[Any] = [
    {"k": 1},
    {"k": None},
    {1: "v"},
    {None: "v"},
    {"k": b"v"},
    {"k": ["v"]},
    "text",
    7,
    [("k", "v")],
    {"k": "\ud800"},
    {"\ud800": "v"},
]
BAD_COLUMNS: list[Any] = ["n", 7, [7], [None], [["n"]], {"n": 1}, [b"n"]]


@pytest.fixture
def untouched(store: pds.Store) -> Iterator[pds.Store]:
    """A store that must see no request, and no retry, of the test."""
    store.reset_metrics()
    yield store
    assert store.metrics()["requests"] == 0


@pytest.fixture
def ds(untouched: pds.Store) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(untouched)


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_options(untouched: pds.Store, options: dict[str, Any]) -> None:
    with pytest.raises((pds.InvalidInput, TypeError)) as caught:
        pds.ParquetDatasetStore(untouched, **options)
    assert any(name in str(caught.value) for name in options)


@pytest.mark.parametrize("value", [True, 1.5, "10", b"1"], ids=repr)
@pytest.mark.parametrize("name", ["row_group_size", "max_rows_per_file", "memory_limit"])
def test_sizes_of_a_wrong_type(untouched: pds.Store, name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        pds.ParquetDatasetStore(untouched, **{name: value})


def test_unknown_options(untouched: pds.Store) -> None:
    with pytest.raises(TypeError, match="codec"):
        pds.ParquetDatasetStore(untouched, codec="zstd")  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [None, "memory://", 7, NOTHING], ids=repr)
def test_what_is_no_store(value: Any) -> None:
    with pytest.raises(TypeError, match="store"):
        pds.ParquetDatasetStore(value)


METHODS: dict[str, Callable[[pds.ParquetDatasetStore, Any], Any]] = {
    "write": lambda ds, key: ds.write_dataset(ROWS, key),
    "overwrite": lambda ds, key: ds.write_dataset(ROWS, key, overwrite=True),
    "begin": lambda ds, key: ds.begin_write(key),
    "read": lambda ds, key: ds.read_dataset(key),
    "scan": lambda ds, key: ds.scan_dataset(key),
    "manifest": lambda ds, key: ds.read_manifest(key),
    "exists": lambda ds, key: ds.dataset_exists(key),
    "delete": lambda ds, key: ds.delete_dataset(key),
    "verify": lambda ds, key: ds.verify_dataset(key),
    "clean": lambda ds, key: ds.clean_dataset(key),
}


@pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
@pytest.mark.parametrize("method", METHODS)
def test_keys(ds: pds.ParquetDatasetStore, method: str, key: str) -> None:
    with pytest.raises((pds.InvalidPath, pds.InvalidInput)):
        METHODS[method](ds, key)


@pytest.mark.parametrize("key", NOT_TEXT, ids=repr)
@pytest.mark.parametrize("method", METHODS)
def test_keys_that_are_no_text(ds: pds.ParquetDatasetStore, method: str, key: Any) -> None:
    with pytest.raises(TypeError):
        METHODS[method](ds, key)


@pytest.mark.parametrize("key", ["a/manifest.json", "a/_SUCCESS", "_publish.json", ".pds-x/a"])
def test_keys_named_like_files_of_a_dataset(ds: pds.ParquetDatasetStore, key: str) -> None:
    with pytest.raises(pds.InvalidPath):
        ds.write_dataset(ROWS, key)


@pytest.mark.parametrize("metadata", BAD_METADATA, ids=ascii)
@pytest.mark.parametrize("method", ["write_dataset", "begin_write"])
def test_metadata(ds: pds.ParquetDatasetStore, method: str, metadata: Any) -> None:
    arguments = (ROWS, "a") if method == "write_dataset" else ("a",)
    with pytest.raises(pds.InvalidInput, match="metadata"):
        getattr(ds, method)(*arguments, metadata=metadata)


@pytest.mark.parametrize("run_id", [7, b"r", ["r"], True, "\ud800"], ids=ascii)
@pytest.mark.parametrize("method", ["write_dataset", "begin_write"])
def test_run_id(ds: pds.ParquetDatasetStore, method: str, run_id: Any) -> None:
    arguments = (ROWS, "a") if method == "write_dataset" else ("a",)
    with pytest.raises(pds.InvalidInput, match="run_id"):
        getattr(ds, method)(*arguments, run_id=run_id)


@pytest.mark.parametrize("overwrite", ["False", 1, None, []], ids=repr)
def test_overwrite_is_yes_or_no(ds: pds.ParquetDatasetStore, overwrite: Any) -> None:
    with pytest.raises(TypeError, match="overwrite"):
        ds.write_dataset(ROWS, "a", overwrite=overwrite)


@pytest.mark.parametrize("columns", BAD_COLUMNS, ids=repr)
@pytest.mark.parametrize("method", ["read_dataset", "scan_dataset"])
def test_columns(ds: pds.ParquetDatasetStore, method: str, columns: Any) -> None:
    with pytest.raises(pds.InvalidInput, match="column"):
        getattr(ds, method)("a", columns=columns)


@pytest.mark.parametrize("where", [7, [("n", ">", 1)]], ids=repr)
def test_where(ds: pds.ParquetDatasetStore, where: Any) -> None:
    with pytest.raises(TypeError, match="where"):
        ds.scan_dataset("a", where=where)


@pytest.mark.parametrize(
    "table",
    [
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["same", "same"]),
        pa.table({"nul\0": [1]}),
        pa.table({"outer": pa.StructArray.from_arrays([[1], [2]], names=["same", "same"])}),
    ],
    ids=["twice", "NUL", "twice in a struct"],
)
def test_column_names(ds: pds.ParquetDatasetStore, table: pa.Table) -> None:
    with pytest.raises(pds.InvalidInput) as caught:
        ds.write_dataset(table, "a")
    name = table.column_names[-1]
    assert name.replace("\0", "\\0") in str(caught.value)


@pytest.mark.parametrize("table", [None, 7, "path.parquet", [1], {"n": [1]}, [{"n": 1}], NOTHING], ids=str)
def test_what_is_no_table(ds: pds.ParquetDatasetStore, table: Any) -> None:
    with pytest.raises(pds.InvalidType, match="__arrow_c_stream__"):
        ds.write_dataset(table, "a")


def test_an_array_is_no_table(ds: pds.ParquetDatasetStore) -> None:
    with pytest.raises(pds.InvalidInput):
        ds.write_dataset(pa.chunked_array([[1, 2]]), "a")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("", {}),
        ("ftp://host/x", {}),
        ("s3://", {}),
        ("s3://key:secret@bucket", {}),
        ("s3://bucket/a//b", {}),
        ("s3://bucket/../x", {}),
        ("s3://bucket/x?sig=secret", {}),
        ("az://container/x?sv=1&sig=secret", {}),
        ("gs://bucket?access_token=secret", {}),
        ("file://relative", {}),
        ("memory://", {"aws_region": "x"}),
        ("s3://bucket", {"aws_regoin": "x"}),
        ("s3://bucket", {"aws_endpoint": "no url"}),
        ("s3://bucket", {"max_retries": "many"}),
        ("s3://bucket", {"stall_timeout": "-1"}),
        ("s3://bucket", {"retry_timeout": "soon"}),
        ("az://container", {"aws_region": "x"}),
        ("file:///tmp", {"durability": "never"}),
        ("memory://", {"durability": "none"}),
        ("s3://bucket", {"durability": "full"}),
    ],
    ids=str,
)
def test_stores(url: str, options: dict[str, str]) -> None:
    with pytest.raises((pds.InvalidInput, pds.InvalidPath)) as caught:
        pds.Store(url, storage_options=options)
    assert "secret" not in str(caught.value)
    if options:
        assert next(iter(options)) in str(caught.value)


@pytest.mark.parametrize("value", [None, 7, b"memory://", ["memory://"]], ids=repr)
def test_a_url_is_text(value: Any) -> None:
    with pytest.raises(TypeError):
        pds.Store(value)


def test_an_option_given_twice() -> None:
    with pytest.raises(pds.InvalidInput, match="aws_region"):
        pds.Store("s3://bucket", storage_options={"aws_region": "a"}, aws_region="b")


@pytest.mark.parametrize("durability", ["full", "none"])
def test_datasets_and_tables_of_either_durability(tmp_path: Path, durability: str) -> None:
    store = pds.Store(tmp_path.as_uri(), durability=durability)
    rows = pa.table({"n": [1, 2]})
    ds = pds.ParquetDatasetStore(store)
    for overwrite in (False, True):
        ds.write_dataset(rows, "a", overwrite=overwrite)
    sent = pickle.loads(pickle.dumps(store))  # noqa: S301 our own
    assert pds.ParquetDatasetStore(sent).read_dataset("a").equals(rows)
    table = pds.Table.create(store, "t", rows.schema)
    table.append(rows)
    table.delete("n = 1")
    assert pds.Table(pds.Store(tmp_path.as_uri()), "t").scan().to_pyarrow()["n"].to_pylist() == [2]
