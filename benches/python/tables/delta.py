"""deltalake, the Python package of delta-rs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from systems import GROUP_ROWS, LEVEL

from tables.base import COMPACTED_BYTES, TableSystem, between, link_copies, new_id
from tables.changes import CHANGE, DELETED_FROM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from systems import Place

    from tables.base import Range

CHECKPOINT_COMMITS = 100  # its default


class Delta(TableSystem):
    """A log of JSON commits with checkpoints; deletes write files anew."""

    key = title = package = "deltalake"

    def __init__(self, place: Place, home: Path) -> None:
        super().__init__(place, home)
        import deltalake  # noqa: PLC0415 a process loads only what it measures
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415 as above

        self._delta = deltalake
        self._conflict = CommitFailedError
        self._properties = deltalake.WriterProperties(
            compression="ZSTD", compression_level=LEVEL, max_row_group_size=GROUP_ROWS
        )

    def create(self, name: str, schema: pa.Schema) -> None:
        """With its own defaults, a checkpoint every 100 commits."""
        self._delta.DeltaTable.create(self.place.url(name), schema=schema, storage_options=self.place.options())

    def open(self, name: str) -> Any:  # noqa: ANN401 a DeltaTable
        """The log since the last checkpoint, and that."""
        return self._delta.DeltaTable(self.place.url(name), storage_options=self.place.options())

    def append(self, table: Any, rows: pa.Table) -> Any:  # noqa: ANN401 as above
        """The table then is at its own commit."""
        self._delta.write_deltalake(table, rows, mode="append", writer_properties=self._properties)
        return table

    def column_names(self, table: Any) -> list[str]:  # noqa: ANN401 as above
        """From the log."""
        return [field.name for field in table.schema().fields]

    def count_files(self, table: Any) -> int:  # noqa: ANN401 as above
        """By its list of files."""
        return len(table.file_uris())

    def delete(self, name: str, predicate: str) -> None:
        """Writes the files concerned anew."""
        self.open(name).delete(predicate, writer_properties=self._properties)

    def create_with_feed(self, name: str, schema: pa.Schema) -> None:
        """Its later commits write files of changes."""
        feed = {"delta.enableChangeDataFeed": "true"}
        url, options = self.place.url(name), self.place.options()
        self._delta.DeltaTable.create(url, schema=schema, configuration=feed, storage_options=options)

    def _merge(self, name: str, source: pa.Table) -> Any:  # noqa: ANN401 a TableMerger
        names = {"source_alias": "source", "target_alias": "target"}
        on = "target.id = source.id"
        return self.open(name).merge(source, on, **names, writer_properties=self._properties)

    def upsert(self, name: str, source: pa.Table) -> None:
        """Writes the files concerned anew."""
        self._merge(name, source).when_matched_update_all().when_not_matched_insert_all().execute()

    def merge(self, name: str, source: pa.Table) -> None:
        """The same."""
        merge = self._merge(name, source).when_matched_delete(f"source.r >= {DELETED_FROM}")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self, name: str) -> None:
        """Into files of the common size."""
        self.open(name).optimize.compact(target_size=COMPACTED_BYTES, writer_properties=self._properties)

    def changes(self, name: str, commits: int) -> pa.Table:
        """An update has the row before and the row after."""
        table = self.open(name)
        feed = pa.table(table.load_cdf(starting_version=table.version() - commits + 1))
        kinds = pc.replace_substring(feed[CHANGE].cast(pa.string()), "update_preimage", "delete")
        kinds = pc.replace_substring(kinds, "update_postimage", "insert")
        return feed.set_column(feed.column_names.index(CHANGE), CHANGE, kinds)

    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """By its own engine: faster here than its pyarrow dataset."""
        reader = self.open(name).scan(list(columns) if columns else None, between(keys) if keys else None)
        return pa.table(reader)

    def conflict(self, error: Exception) -> bool:
        """What is left after its own retries."""
        return isinstance(error, self._conflict)

    def build(self, name: str, rows: pa.Table, files: int) -> None:
        """Names the file of one append many times in one commit; many have a checkpoint."""
        self.create(name, rows.schema)
        self.append_all(name, [rows])
        folder = self.place.files(name)
        lines = (folder / "_delta_log" / f"{1:020}.json").read_text().splitlines()
        actions = [json.loads(line) for line in lines]
        add = next(action["add"] for action in actions if "add" in action)
        info = [action for action in actions if "commitInfo" in action]
        names = [f"part-00000-{new_id()}.zstd.parquet" for _ in range(files - 1)]
        link_copies(folder / add["path"], names)
        commit = "\n".join(json.dumps(a) for a in [*info, *({"add": {**add, "path": new}} for new in names)])
        self._put(f"{name}/_delta_log/{2:020}.json", commit.encode())
        if files >= CHECKPOINT_COMMITS:
            self.open(name).create_checkpoint()

    def _put(self, key: str, content: bytes) -> None:
        if not self.place.server:
            self.place.files(key).write_bytes(content)
            return
        with self.place.server.arrow_filesystem().open_output_stream(f"{self.place.server.bucket}/{key}") as sink:
            sink.write(content)
