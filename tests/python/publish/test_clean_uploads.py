"""Uploads that killed writers left are found and aborted by a clean, and no others."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

import pytest

import pds
from publish.harness import KEY, wait_until, world
from scripted_s3 import Upload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from publish.children import Children
    from publish.harness import World

pytestmark = pytest.mark.sampled(2)

DAY = 24 * 3600
OLD, YOUNG = DAY + 60, DAY - 60


@pytest.fixture(params=[0, -7 * DAY, 7 * DAY], ids=["same clock", "clock behind", "clock ahead"])
def staged(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world whose parts are uploads, with one dataset; its server has a clock of its own."""
    with world(size="staged") as found:
        found.server.bucket.skew_seconds = request.param
        # A page ends within a list.
        found.server.bucket.page_size = 2
        found.write("b", 1)
        yield found


def _upload(place: World, path: str, age: float) -> str:
    """Have an upload there that was begun so long ago."""
    bucket = place.server.bucket
    name = uuid.uuid4().hex
    bucket.uploads[name] = Upload(f"p/{path}", bucket.now() - age)
    return name


def test_old_uploads_of_the_folder_are_aborted_and_no_others(staged: World) -> None:
    names = ["part-00000.parquet", "data.parquet", ".pds-x", "ü &<>+%20' \".parquet"]
    for name in names:
        _upload(staged, f"{KEY}/{name}", OLD)
    others = {
        _upload(staged, f"{KEY}/young.parquet", YOUNG),
        _upload(staged, f"{KEY}/part-00001.parquet/below", OLD),
        _upload(staged, f"{KEY}2/data.parquet", OLD),
        _upload(staged, "data.parquet", OLD),
    }
    assert staged.datasets("a").clean_dataset(KEY) == len(names)
    assert set(staged.server.bucket.uploads) == others
    assert staged.datasets("a").clean_dataset(KEY, older_than=YOUNG - 60) == 1
    assert staged.datasets("a").clean_dataset(KEY, older_than=0) == 0
    staged.server.bucket.uploads.clear()
    staged.check(1)


def test_a_prepared_write_outlives_a_clean(staged: World) -> None:
    write = staged.datasets("a", 2).begin_write(KEY, overwrite=True)
    prepared = write.prepare(staged.table(2, 2))
    assert len(staged.server.bucket.uploads) == 2
    assert staged.datasets("b").clean_dataset(KEY) == 0
    write.publish(prepared, staged.table(2).schema)
    staged.check(2)


def test_a_write_whose_uploads_were_cleaned_away_says_so(staged: World) -> None:
    write = staged.datasets("a", 2).begin_write(KEY, overwrite=True)
    prepared = write.prepare(staged.table(2, 2))
    assert staged.datasets("b").clean_dataset(KEY, older_than=0) == 2
    with pytest.raises(pds.DatasetIncomplete):
        write.publish(prepared, staged.table(2).schema)
    staged.check(1)


def test_a_killed_writer_leaves_nothing(children: Children) -> None:
    with world(size="staged") as place:
        rule = place.server.stop("a", "pause", skip=3)
        child = place.child(children, "a", "write", 1, 3)
        rule.wait()
        child.kill()
        rule.drop()
        wait_until(lambda: bool(place.server.bucket.uploads))
        place.datasets("b").clean_dataset(KEY, older_than=0)
        assert not place.server.bucket.uploads
        place.check_absent()


@pytest.mark.parametrize("fault", ["403", "501", "405"])
def test_servers_that_do_not_list_uploads(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """The rest is cleaned all the same, and the log says what was not."""
    with world() as place:
        place.write("b", 1)
        place.server.bucket.put_object(f"p/{KEY}/.pds-other-1-1-x", b"")
        rule = place.server.on("list-uploads", "", fault)
        with caplog.at_level(logging.WARNING):
            assert place.datasets("a").clean_dataset(KEY, older_than=0) == 1
        assert len(rule.requests) == 1
        assert any("uploads" in record.message for record in caplog.records)
        place.check(1)


def test_a_server_that_fails_to_list_uploads_is_asked_again(staged: World) -> None:
    _upload(staged, f"{KEY}/data.parquet", OLD)
    rule = staged.server.on("list-uploads", "", "500", times=2)
    assert staged.datasets("a").clean_dataset(KEY) == 1
    assert len(rule.requests) == 2
    staged.check(1)
