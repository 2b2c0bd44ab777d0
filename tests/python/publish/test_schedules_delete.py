"""Deletes of large folders, and of folders in which others write."""

from __future__ import annotations

import pyarrow as pa
import pytest

import pds
from publish.harness import CLASSES, KEY, MANIFEST, MARKER, Call, world
from scripted_s3 import ScriptedS3

pytestmark = pytest.mark.sampled(2)

MANY = 1100


@pytest.mark.parametrize("stores", CLASSES)
def test_more_files_than_one_request_deletes(stores: str) -> None:
    with world(CLASSES[stores]) as place:
        place.write("b", 1)
        for number in range(MANY):
            place.server.bucket.put_object(f"p/{KEY}/more/{number:04}", b"x")
        place.datasets("a").delete_dataset(KEY)
        place.check_absent()


@pytest.mark.parametrize("stores", CLASSES)
def test_strays_that_are_more_than_one_request_deletes(stores: str) -> None:
    with world(CLASSES[stores]) as place:
        place.write("b", 1)
        # There is more in the folder than a dataset at first.
        place.server.watch = None
        for number in range(2, 2 + MANY):
            place.server.bucket.put_object(f"p/{KEY}/part-{number:05}.parquet", b"PAR1")
        place.write("a", 2)
        place.check(2)


@pytest.mark.parametrize("stores", CLASSES)
@pytest.mark.parametrize("name", ["data.parquet", MANIFEST, MARKER, "_publish.json"])
def test_a_create_in_a_folder_that_is_deleted_is_whole_or_gone(stores: str, name: str) -> None:
    """The delete has listed what the create has put so far, which goes on then."""
    inner = f"{KEY}/day=2"
    with world(CLASSES[stores]) as place:
        place.write("b", 1)
        rows = place.table(2)
        creates = place.server.on("put|delete", f"day=2/{name}", "pause", client="a")
        create = Call(lambda: place.datasets("a").write_dataset(rows, inner))
        creates.wait()
        lists = place.server.on("list", f"{KEY}/", "pause after", client="c", skip=1)
        delete = Call(lambda: place.datasets("c").delete_dataset(KEY))
        lists.wait()
        creates.resume()
        create._thread.join(5)
        lists.resume()
        create.wait()
        delete.check()
        ds = place.datasets("z")
        if ds.dataset_exists(inner):
            assert create.error is None
            assert ds.read_dataset(inner).equals(rows)
        else:
            assert [key for key in place.server.snapshot() if KEY in key] == [], place.story()


def test_a_nested_dataset_goes_with_its_folder() -> None:
    with ScriptedS3() as server:
        ds = pds.ParquetDatasetStore(pds.Store("s3://bucket/p", storage_options=server.options()))
        rows = pa.table({"n": [1]})
        for key in ("a", "a/x", "a/x/y", "a/x-y/z"):
            ds.write_dataset(rows, key)
        ds.delete_dataset("a/x")
        assert ds.list_datasets() == ["a", "a/x-y/z"]
        ds.delete_dataset("a")
        assert server.snapshot() == {}


@pytest.mark.parametrize("stores", CLASSES)
@pytest.mark.parametrize("name", ["", "sub/"])
def test_the_object_of_a_folder_ends_no_delete(stores: str, name: str) -> None:
    """Consoles make empty objects whose names end with a slash; they are listed without it."""
    with world(CLASSES[stores]) as place:
        place.write("b", 1)
        place.server.bucket.put_object(f"p/{KEY}/{name}", b"")
        place.datasets("a").delete_dataset(KEY)
        assert not place.datasets("z").dataset_exists(KEY)
        assert place.intent() is None
        place.write("c", 2, overwrite=False)
        assert place.read() == 2


def test_a_delete_that_failed_takes_no_dataset_that_came_after_it() -> None:
    with world() as place:
        place.write("b", 1)
        ds = place.datasets("a")
        ds.write_dataset(place.table(1), f"{KEY}/x")
        refused = place.server.on("put", "x/_publish.json", "403", client="a", times=100)
        with pytest.raises(pds.PermissionDenied):
            ds.delete_dataset(KEY)
        assert refused.hit.is_set()
        place.datasets("c").write_dataset(place.table(2), f"{KEY}/x", overwrite=True)
        # Who comes next finishes the delete of the outer dataset.
        with pytest.raises(pds.DatasetIncomplete):
            place.datasets("c").read_dataset(KEY)
        assert place.intent() is None
        assert place.datasets("c").read_dataset(f"{KEY}/x").equals(place.table(2))


@pytest.mark.parametrize("folder", [KEY, f"{KEY}/below"])
@pytest.mark.parametrize("finish", ["clean", "delete", "write"])
def test_a_table_that_came_after_an_interrupted_deletion_stays(folder: str, finish: str) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    with world() as place:
        place.write("b", 1, 2)
        denied = place.server.on("delete", "part-00000.parquet", "403", times=1000)
        with pytest.raises(pds.RemoteStoreError, match="interrupted"):
            place.datasets("a").delete_dataset(KEY)
        denied.drop()
        datasets = place.datasets("c")
        # Not all Parquet files in the folder are the dataset's.
        place.server.watch = None
        pds.Table.create(datasets.store, folder, rows.schema).append(rows)
        if finish == "clean":
            datasets.clean_dataset(KEY)
            assert place.intent() is None
            assert not datasets.dataset_exists(KEY)
        elif finish == "delete":
            with pytest.raises(pds.InvalidPath, match="holds a table"):
                datasets.delete_dataset(KEY)
        elif folder == KEY:
            with pytest.raises(pds.InvalidPath, match="holds a table"):
                place.write("c", 2, 2)
        else:
            place.write("c", 2, 2)
            assert place.read() == 2
        table = pds.Table(datasets.store, folder)
        assert table.scan().to_pyarrow().equals(rows)
        table.append(rows)
