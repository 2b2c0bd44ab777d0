"""``ParquetDatasetStore``, rule by rule (PDS-001 to PDS-012)."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import pickle
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import remote_store
from remote_store.backends import LocalBackend, MemoryBackend
from remote_store.ext.parquet import ParquetDatasetStore as TheirStore
from remote_store.ext.partition import partition_path as their_path

import pds

ROWS = pa.table(
    {"id": [1, 2, 3, 4, 5], "name": ["a", None, "c", "d", "ü"], "x": [0.5, 1.5, None, 2.5, 3.5]}
).replace_schema_metadata({"owner": "tests"})


@pytest.fixture
def ds(store: pds.Store) -> pds.ParquetDatasetStore:
    return pds.ParquetDatasetStore(store)


def _files(store: pds.Store, key: str) -> list[str]:
    return sorted(info.path.removeprefix(f"{key}/") for info in store.list_files(key, recursive=True))


class TestConstruction:
    """PDS-001."""

    def test_defaults(self, memory_store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(memory_store)
        assert ds.store is memory_store
        assert (ds.compression, ds.row_group_size, ds.max_rows_per_file)[::2] == ("zstd", None)

    def test_no_io(self, store: pds.Store) -> None:
        store.reset_metrics()
        pds.ParquetDatasetStore(store, compression="snappy", max_rows_per_file=3)
        assert store.metrics()["requests"] == 0

    @pytest.mark.parametrize("method", ["write_dataset", "read_dataset", "read_manifest", "dataset_exists"])
    def test_their_signatures_can_be_called(self, method: str) -> None:
        theirs = inspect.signature(getattr(TheirStore, method)).parameters
        ours = inspect.signature(getattr(pds.ParquetDatasetStore, method)).parameters
        assert set(theirs) <= set(ours) | {"key"}

    def test_it_pickles(self, local_store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(local_store, compression="snappy", max_rows_per_file=2)
        ds.write_dataset(ROWS, "a")
        again = pickle.loads(pickle.dumps(ds))  # noqa: S301 made right here
        assert (again.compression, again.max_rows_per_file) == ("snappy", 2)
        assert again.read_dataset("a").equals(ROWS)


class TestWrite:
    """PDS-002."""

    def test_the_folder_holds_exactly_the_files_of_the_rfc(self, ds: pds.ParquetDatasetStore) -> None:
        ds.write_dataset(ROWS, "a/b")
        assert _files(ds.store, "a/b") == ["_SUCCESS", "data.parquet", "manifest.json"]
        assert ds.store.read_bytes("a/b/_SUCCESS") == b""

    def test_manifest(self, ds: pds.ParquetDatasetStore) -> None:
        before = datetime.now(UTC)
        manifest = ds.write_dataset(ROWS, "a/b", run_id="r", metadata={"k": "v", "": "ü"})
        after = datetime.now(UTC)

        assert manifest.dataset_key == "a/b"
        assert manifest.parts == ["data.parquet"]
        assert manifest.row_count == 5
        text = ROWS.schema.to_string().encode()
        assert manifest.schema_hash == hashlib.sha256(text).hexdigest()[:16]
        assert manifest.compression == "zstd"
        written = datetime.fromisoformat(manifest.created_at_utc)
        assert before.replace(microsecond=0) <= written <= after
        assert (manifest.run_id, manifest.metadata) == ("r", {"k": "v", "": "ü"})
        assert ds.store.read_bytes("a/b/manifest.json").decode() == manifest.to_json()
        assert ds.read_manifest("a/b") == manifest

    @pytest.mark.parametrize("name", ["key", "dataset_key"])
    def test_both_names_of_the_key(self, ds: pds.ParquetDatasetStore, name: str) -> None:
        key: Any = {name: "a"}
        ds.write_dataset(ROWS, **key)
        assert ds.read_dataset(**key).equals(ROWS)
        assert ds.read_manifest(**key).dataset_key == "a"
        assert ds.dataset_exists(**key)
        ds.delete_dataset(**key)
        assert not ds.dataset_exists("a")

    def test_the_key_is_given_once(self, ds: pds.ParquetDatasetStore) -> None:
        for method in (ds.read_dataset, ds.read_manifest, ds.dataset_exists, ds.delete_dataset):
            with pytest.raises(TypeError):
                method()  # type: ignore[operator]
            with pytest.raises(TypeError):
                method(key="a", dataset_key="b")  # type: ignore[operator]

    def test_already_exists(self, ds: pds.ParquetDatasetStore) -> None:
        ds.write_dataset(ROWS, "a")
        with pytest.raises(pds.AlreadyExists, match="a") as caught:
            ds.write_dataset(ROWS.slice(1), "a")
        assert caught.value.path == "a"
        assert ds.read_dataset("a").equals(ROWS)

    def test_a_bare_folder_is_no_dataset(self, ds: pds.ParquetDatasetStore) -> None:
        ds.store.write("a/data.parquet", b"junk")
        ds.store.write("a/notes.txt", b"mine")
        with pytest.raises(pds.AlreadyExists, match="does not belong to a dataset"):
            ds.write_dataset(ROWS, "a")
        assert not ds.dataset_exists("a")
        assert ds.store.read_bytes("a/data.parquet") == b"junk"
        ds.write_dataset(ROWS, "a", overwrite=True)
        assert ds.read_dataset("a").equals(ROWS)
        assert ds.store.read_bytes("a/notes.txt") == b"mine"

    def test_every_file_is_named_after_the_order(self, memory_store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(memory_store, max_rows_per_file=2)
        assert ds.write_dataset(ROWS, "a").parts == [f"part-{n:05}.parquet" for n in range(3)]

    @pytest.mark.parametrize("missing", ["ATOMIC_WRITE", "DELETE"])
    def test_capabilities_are_checked_first(self, missing: str) -> None:
        class Without(MemoryBackend):
            @property
            def capabilities(self) -> Any:
                everything = set(remote_store.Capability) - {remote_store.Capability[missing]}
                return type(super().capabilities)(everything)

        store = remote_store.Store(Without())
        ds = pds.ParquetDatasetStore(store)
        with pytest.raises(pds.CapabilityNotSupported) as caught:
            ds.write_dataset(ROWS, "a", overwrite=True)
        assert caught.value.capability.lower() == missing.lower()
        assert not store.exists("a")


class TestRead:
    """PDS-003 and PDS-006."""

    @pytest.mark.parametrize("parts", [None, 1, 2, 5, 100])
    def test_in_order_with_metadata(self, store: pds.Store, parts: int | None) -> None:
        ds = pds.ParquetDatasetStore(store, max_rows_per_file=parts, row_group_size=2)
        ds.write_dataset(ROWS, "a")
        result = ds.read_dataset("a")
        assert result.equals(ROWS)
        assert result.schema.equals(ROWS.schema, check_metadata=True)

    def test_without_marker(self, ds: pds.ParquetDatasetStore) -> None:
        with pytest.raises(pds.DatasetIncomplete, match="_SUCCESS"):
            ds.read_dataset("nothing")
        ds.write_dataset(ROWS, "a")
        ds.store.delete("a/_SUCCESS")
        with pytest.raises(pds.DatasetIncomplete, match="_SUCCESS") as caught:
            ds.read_dataset("a")
        assert caught.value.path == "a"

    def test_without_manifest(self, ds: pds.ParquetDatasetStore) -> None:
        ds.write_dataset(ROWS, "a")
        ds.store.delete("a/manifest.json")
        with pytest.raises(pds.NotFound, match=r"manifest\.json"):
            ds.read_dataset("a")

    def test_a_missing_part_is_found_before_anything_is_read(self, store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(store, max_rows_per_file=2)
        ds.write_dataset(ROWS, "a")
        store.delete("a/part-00002.parquet")
        with pytest.raises(pds.DatasetIncomplete, match=r"part-00002\.parquet"):
            ds.read_dataset("a")
        with pytest.raises(pds.DatasetIncomplete, match=r"part-00002\.parquet"):
            ds.scan_dataset("a")

    @pytest.mark.parametrize("columns", [["x", "id"], ["name"], []])
    def test_columns_in_the_order_asked(self, ds: pds.ParquetDatasetStore, columns: list[str]) -> None:
        ds.write_dataset(ROWS, "a")
        result = ds.read_dataset("a", columns=columns)
        assert result.equals(ROWS.select(columns))
        assert result.num_rows == 5
        assert result.schema.metadata == ROWS.schema.metadata

    @pytest.mark.parametrize("read", ["read_dataset", "scan_dataset"])
    def test_an_unknown_column_lists_those_there_are(self, ds: pds.ParquetDatasetStore, read: str) -> None:
        ds.write_dataset(ROWS, "a")
        with pytest.raises(pds.InvalidInput) as caught:
            getattr(ds, read)("a", columns=["id", "nmae"])
        assert all(word in str(caught.value) for word in ("nmae", "id", "name", "x"))

    def test_only_what_is_asked_for_is_fetched(self, s3_store: pds.Store) -> None:
        noise = [pa.array(range(n, n + 40_000)) for n in range(20)]
        wide = pa.table(noise, [f"c{n}" for n in range(20)])
        ds = pds.ParquetDatasetStore(s3_store, compression="none")
        ds.write_dataset(wide, "a")
        part = s3_store.read_bytes("a/data.parquet")
        chunk = pq.ParquetFile(pa.BufferReader(part)).metadata.row_group(0).column(3)
        footer = int.from_bytes(part[-8:-4], "little")

        s3_store.reset_metrics()
        ds.read_dataset("a", columns=["c3"])

        needed = chunk.total_compressed_size + footer
        assert s3_store.metrics()["bytes_read"] < 1.25 * needed + 70_000


class TestLayout:
    """PDS-005 and PDS-011."""

    @pytest.mark.parametrize("rows", [0, 1, 4, 5, 12])
    @pytest.mark.parametrize("per_file", [1, 4, 5])
    def test_parts_hold_at_most_so_many_rows(self, memory_store: pds.Store, rows: int, per_file: int) -> None:
        table = pa.table({"n": pa.array(range(rows), pa.int64())})
        ds = pds.ParquetDatasetStore(memory_store, max_rows_per_file=per_file)
        manifest = ds.write_dataset(table, "a")
        count = max(1, -(-rows // per_file))
        assert manifest.parts == [f"part-{n:05}.parquet" for n in range(count)]
        for part in manifest.parts:
            content = pa.BufferReader(memory_store.read_bytes(f"a/{part}"))
            assert pq.ParquetFile(content).metadata.num_rows <= per_file
        assert ds.read_dataset("a").equals(table)

    def test_row_groups_hold_at_most_so_many_rows(self, memory_store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(memory_store, row_group_size=2)
        ds.write_dataset(ROWS, "a")
        content = pa.BufferReader(memory_store.read_bytes("a/data.parquet"))
        metadata = pq.ParquetFile(content).metadata
        assert [metadata.row_group(n).num_rows for n in range(3)] == [2, 2, 1]

    @pytest.mark.parametrize("before", [None, 1, 2])
    @pytest.mark.parametrize("after", [None, 1, 3])
    def test_overwrite_leaves_only_the_new_files(self, store: pds.Store, before: int | None, after: int | None) -> None:
        pds.ParquetDatasetStore(store, max_rows_per_file=before).write_dataset(ROWS, "a")
        store.write("a/part-00077.parquet", b"stray")
        store.write("a/deeper/notes.txt", b"not ours")
        ds = pds.ParquetDatasetStore(store, max_rows_per_file=after)
        pds.ParquetDatasetStore(store).write_dataset(ROWS.slice(4), "a/nested")

        manifest = ds.write_dataset(ROWS.slice(2), "a", overwrite=True)

        assert ds.read_dataset("a").equals(ROWS.slice(2))
        files = [name for name in _files(store, "a") if "/" not in name]
        assert files == sorted(["_SUCCESS", "manifest.json", *manifest.parts])
        assert ds.read_dataset("a/nested").equals(ROWS.slice(4))
        assert store.read_bytes("a/deeper/notes.txt") == b"not ours"

    def test_overwrite_with_another_schema(self, ds: pds.ParquetDatasetStore) -> None:
        first = ds.write_dataset(ROWS, "a")
        second = ds.write_dataset(ROWS.select(["x"]), "a", overwrite=True)
        assert first.schema_hash != second.schema_hash
        assert ds.read_dataset("a").equals(ROWS.select(["x"]))

    def test_overwrite_of_nothing(self, ds: pds.ParquetDatasetStore) -> None:
        ds.write_dataset(ROWS, "a", overwrite=True)
        assert ds.read_dataset("a").equals(ROWS)


class TestExistsAndDelete:
    """PDS-007 and PDS-010."""

    def test_exists_means_the_marker(self, ds: pds.ParquetDatasetStore) -> None:
        assert ds.dataset_exists("a") is False
        ds.store.write("a/manifest.json", b"{}")
        assert ds.dataset_exists("a") is False
        ds.store.write("a/_SUCCESS", b"")
        assert ds.dataset_exists("a") is True

    def test_delete_takes_the_whole_folder(self, ds: pds.ParquetDatasetStore) -> None:
        ds.write_dataset(ROWS, "a/b")
        ds.write_dataset(ROWS, "a/bc")
        ds.store.write("a/b/notes/x", b"")
        ds.delete_dataset("a/b")
        assert _files(ds.store, "a") == ["bc/_SUCCESS", "bc/data.parquet", "bc/manifest.json"]

    @pytest.mark.parametrize("key", ["a", "a/b"])
    @pytest.mark.parametrize("kind", ["table", "pipeline", "chain"])
    def test_delete_leaves_what_is_no_dataset(self, ds: pds.ParquetDatasetStore, key: str, kind: str) -> None:
        if kind == "table":
            pds.Table.create(ds.store, "a/b", ROWS.schema).append(ROWS)
        elif kind == "chain":
            pds.odf.Dataset.create(ds.store, "a/b")
        else:
            p = pds.Pipeline(ds.store, "a/b")
            p.source("s", key=pa.int64(), value=pa.string())
            p.update(s=pds.Changes([(1, "x")]))
        ds.write_dataset(ROWS, "a/c")
        before = _files(ds.store, "a")
        with pytest.raises(pds.InvalidPath, match='"a/b" holds a table, a pipeline or a chain'):
            ds.delete_dataset(key)
        assert _files(ds.store, "a") == before
        ds.delete_dataset("a/c")

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("size", [10, 300_000])
    def test_a_table_keeps_its_folder(self, ds: pds.ParquetDatasetStore, overwrite: bool, size: int) -> None:
        table = pds.Table.create(ds.store, "a", ROWS.schema)
        table.append(ROWS)
        before = _files(ds.store, "a")
        rows = pa.table({"id": range(size)})
        with pytest.raises(pds.InvalidPath, match='"a" holds a table or a pipeline'):
            ds.write_dataset(rows, "a", overwrite=overwrite)
        assert _files(ds.store, "a") == before
        assert pds.Table(ds.store, "a").scan().count() == ROWS.num_rows

    def test_delete_of_nothing(self, ds: pds.ParquetDatasetStore) -> None:
        with pytest.raises(pds.NotFound, match="ghost") as caught:
            ds.delete_dataset("ghost")
        assert caught.value.path == "ghost"

    def test_delete_of_what_is_no_longer_complete(self, ds: pds.ParquetDatasetStore) -> None:
        ds.write_dataset(ROWS, "a")
        ds.store.delete("a/_SUCCESS")
        ds.delete_dataset("a")
        assert not ds.store.exists("a")

    def test_read_manifest_of_nothing(self, ds: pds.ParquetDatasetStore) -> None:
        with pytest.raises(pds.NotFound):
            ds.read_manifest("ghost")


THEIR_BACKENDS = {
    "memory": lambda _path: MemoryBackend(),
    "local": lambda path: LocalBackend(str(path)),
}


class TestBesideRemoteStore:
    """Each side reads what the other wrote; their stores are taken as ours."""

    @pytest.mark.parametrize("parts", [None, 2])
    def test_they_read_ours(self, local_store: pds.Store, parts: int | None) -> None:
        pds.ParquetDatasetStore(local_store, max_rows_per_file=parts).write_dataset(ROWS, "a/b")
        path = local_store.url.removeprefix("file://")
        theirs = TheirStore(remote_store.Store(LocalBackend(path)))
        assert theirs.read_dataset("a/b").equals(ROWS)
        assert theirs.read_dataset("a/b", columns=["x"]).equals(ROWS.select(["x"]))
        assert theirs.read_manifest("a/b").row_count == 5
        theirs.write_dataset(ROWS.slice(1), "a/b", overwrite=True)
        assert pds.ParquetDatasetStore(local_store).read_dataset("a/b").equals(ROWS.slice(1))

    @pytest.mark.parametrize("parts", [None, 2, 100])
    def test_we_read_theirs(self, local_store: pds.Store, parts: int | None) -> None:
        path = local_store.url.removeprefix("file://")
        theirs = TheirStore(remote_store.Store(LocalBackend(path)), max_rows_per_file=parts)
        manifest = theirs.write_dataset(ROWS, "a", run_id="r", metadata={"k": "v"})
        ds = pds.ParquetDatasetStore(local_store)
        assert ds.read_dataset("a").equals(ROWS)
        assert ds.read_dataset("a", columns=["name"]).equals(ROWS.select(["name"]))
        assert ds.read_manifest("a").to_json() == manifest.to_json()
        report = ds.verify_dataset("a")
        assert (report.rows, report.checksummed_parts) == (5, 0)
        ds.write_dataset(ROWS.slice(3), "a", overwrite=True)
        assert theirs.read_dataset("a").equals(ROWS.slice(3))

    @pytest.mark.parametrize("backend", THEIR_BACKENDS)
    @pytest.mark.parametrize("parts", [None, 2])
    def test_their_stores(self, tmp_path: Any, backend: str, parts: int | None) -> None:
        store = remote_store.Store(THEIR_BACKENDS[backend](tmp_path))
        ds = pds.ParquetDatasetStore(store, max_rows_per_file=parts)
        assert ds.store is store
        ds.write_dataset(ROWS, "a/b")
        with pytest.raises(remote_store.AlreadyExists):
            ds.write_dataset(ROWS, "a/b")
        ds.write_dataset(ROWS.slice(1), "a/b", overwrite=True)
        assert ds.read_dataset("a/b").equals(ROWS.slice(1))
        assert ds.read_dataset("a/b", columns=["x"]).equals(ROWS.slice(1).select(["x"]))
        assert TheirStore(store).read_dataset("a/b").equals(ROWS.slice(1))
        assert ds.list_datasets() == ["a/b"]
        assert ds.verify_dataset("a/b").rows == 4
        ds.delete_dataset("a/b")
        assert not store.exists("a/b")
        with pytest.raises(remote_store.NotFound):
            ds.delete_dataset("a/b")


class TestMore:
    """What is beside the RFC."""

    def test_list(self, ds: pds.ParquetDatasetStore) -> None:
        for key in ["b", "a/x", "a/y/z", "ab"]:
            ds.write_dataset(ROWS, key)
        ds.store.write("a/half/data.parquet", b"")
        assert ds.list_datasets() == ["a/x", "a/y/z", "ab", "b"]
        assert ds.list_datasets("a") == ["a/x", "a/y/z"]
        assert ds.list_datasets("a/y/z") == ["a/y/z"]
        assert ds.list_datasets("nothing") == []

    def test_verify(self, store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(store, max_rows_per_file=2)
        manifest = ds.write_dataset(ROWS, "a")
        report = ds.verify_dataset("a")
        size = sum(store.get_file_info(f"a/{part}").size for part in manifest.parts)
        assert (report.rows, report.parts, report.checksummed_parts) == (5, 3, 3)
        assert report.bytes == size

    def test_two_step_write(self, store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(store, max_rows_per_file=2)
        write = pickle.loads(pickle.dumps(ds.begin_write("a", run_id="r", metadata={"k": "v"})))  # noqa: S301 made right here
        late = write.prepare(ROWS.slice(3), task=1)
        early = write.prepare(ROWS.slice(0, 3).to_reader(), task=0)
        empty = write.prepare(ROWS.slice(0, 0), task=2)
        assert not ds.dataset_exists("a")
        assert not store.exists("a/data.parquet")
        assert empty == []
        parts = [pds.StagedPart.from_bytes(part.to_bytes()) for part in late + early]
        parts = pickle.loads(pickle.dumps(parts))  # noqa: S301 made right here
        assert [(part.task, part.sequence, part.rows) for part in parts] == [
            (1, 0, 2),
            (0, 0, 2),
            (0, 1, 1),
        ]
        manifest = write.publish(parts, ROWS.schema)
        assert ds.read_dataset("a").equals(ROWS)
        assert (manifest.run_id, manifest.metadata) == ("r", {"k": "v"})
        assert manifest.parts == [f"part-{n:05}.parquet" for n in range(3)]
        assert len(_files(store, "a")) == 5

    def test_an_aborted_write_leaves_nothing(self, store: pds.Store) -> None:
        ds = pds.ParquetDatasetStore(store)
        write = ds.begin_write("a")
        write.abort(write.prepare(ROWS))
        assert list(store.list_files("", recursive=True)) == []

    def test_an_empty_part_holds_the_schema(self, ds: pds.ParquetDatasetStore) -> None:
        write = ds.begin_write("a")
        write.publish(write.prepare_empty(ROWS.schema), ROWS.schema)
        result = ds.read_dataset("a")
        assert result.schema.equals(ROWS.schema, check_metadata=True)
        assert result.num_rows == 0

    def test_partition_path(self) -> None:
        for parts in ({}, {"year": 2026, "month": 1}, {"b": "x y", "a": "ü"}):
            assert pds.partition_path("orders", **parts) == their_path("orders", **parts)
        for name, parts in [("", {}), ("a/b", {}), ("a", {"k": ""}), ("a", {"k": "x=y"})]:
            with pytest.raises(ValueError, match=r"."):
                pds.partition_path(name, **parts)
        # What a store reads as another path.
        for name, parts in [(".", {}), ("..", {}), ("a\\b", {}), ("a", {"k": "x\\y"}), ("a", {"k\\l": "x"})]:
            with pytest.raises(pds.InvalidInput, match=r"."):
                pds.partition_path(name, **parts)

    @pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "brotli", "lz4", "none"])
    def test_codecs(self, memory_store: pds.Store, codec: str) -> None:
        ds = pds.ParquetDatasetStore(memory_store, compression=codec)
        assert ds.write_dataset(ROWS, "a").compression == codec
        content = pa.BufferReader(memory_store.read_bytes("a/data.parquet"))
        found = pq.ParquetFile(content).metadata.row_group(0).column(0).compression
        assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
        assert ds.read_dataset("a").equals(ROWS)

    def test_others_read_the_folder(self, local_store: pds.Store) -> None:
        pds.ParquetDatasetStore(local_store, max_rows_per_file=2).write_dataset(ROWS, "a")
        folder = local_store.url.removeprefix("file://") + "/a"
        files = [f"{folder}/part-{n:05}.parquet" for n in range(3)]
        assert pq.ParquetDataset(files).read().equals(ROWS)
        assert pl.read_parquet(files).equals(pl.from_arrow(ROWS))

    @pytest.mark.parametrize(("key", "count"), list(itertools.product(["a", "k=v/x y", "ü/100%/~"], [1, 3])))
    def test_keys_survive(self, ds: pds.ParquetDatasetStore, key: str, count: int) -> None:
        for _ in range(count):
            ds.write_dataset(ROWS, key, overwrite=True)
        assert ds.list_datasets() == [key]
        assert ds.read_dataset(key).equals(ROWS)
