"""Lance: its own file format and its own encodings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tables.base import TableSystem, between, link_copies, new_id
from tables.changes import DELETED_FROM, with_change

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from systems import Place

    from tables.base import Range


COMPACTED_ROWS = 1 << 24  # as many as there are, as it has a limit by rows and not by bytes


class Lance(TableSystem):
    """Fragments and deletion files; without zstd, which made its append and its scans slower."""

    key = title = "lance"
    package = "pylance"

    def __init__(self, place: Place, home: Path) -> None:
        super().__init__(place, home)
        import lance  # noqa: PLC0415 a process loads only what it measures

        self._lance = lance

    def create(self, name: str, schema: pa.Schema) -> None:
        """With its own defaults."""
        self._write(schema.empty_table(), self.place.url(name), "create")

    def open(self, name: str) -> Any:  # noqa: ANN401 a LanceDataset
        """The newest manifest."""
        return self._lance.dataset(self.place.url(name), storage_options=self.place.options())

    def append(self, table: Any, rows: pa.Table) -> Any:  # noqa: ANN401 as above
        """The table at the new version."""
        return self._write(rows, table, "append")

    def _write(self, rows: pa.Table, table: Any, mode: str, **options: bool) -> Any:  # noqa: ANN401 as above
        return self._lance.write_dataset(rows, table, mode=mode, storage_options=self.place.options(), **options)

    def column_names(self, table: Any) -> list[str]:  # noqa: ANN401 as above
        """From the manifest."""
        return list(table.schema.names)

    def count_files(self, table: Any) -> int:  # noqa: ANN401 as above
        """From its statistics; a fragment here is one file."""
        return int(table.stats.dataset_stats()["num_fragments"])

    def delete(self, name: str, predicate: str) -> None:
        """Deletion files."""
        self.open(name).delete(predicate)

    def create_with_feed(self, name: str, schema: pa.Schema) -> None:
        """With ids of rows that stay, which its changes are read by."""
        self._write(schema.empty_table(), self.place.url(name), "create", enable_stable_row_ids=True)

    def upsert(self, name: str, source: pa.Table) -> None:
        """A deletion file and new fragments."""
        self.open(name).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)

    def merge(self, name: str, source: pa.Table) -> None:
        """In two commits: it has no delete on a condition."""
        merge = self.open(name).merge_insert("id").when_matched_update_all(f"source.r < {DELETED_FROM}")
        merge.when_not_matched_insert_all().execute(source)
        deleted = source.filter(pc.greater_equal(source["r"], DELETED_FROM))
        self.open(name).merge_insert("id").when_matched_delete().execute(deleted)

    def compact(self, name: str) -> None:
        """Into one fragment."""
        self.open(name).optimize.compact_files(target_rows_per_fragment=COMPACTED_ROWS)

    def changes(self, name: str, commits: int) -> pa.Table:
        """It lists ids of deleted rows, and has updated rows as they are now: old values are looked up by id."""
        table = self.open(name)
        before = table.checkout_version(table.version - commits)
        delta = table.delta(compared_against=before.version)
        updated, deleted = delta.get_updated_rows().read_all(), delta.get_deleted_row_ids().read_all()
        ids = [*updated["_rowid"].to_pylist(), *deleted["_rowid"].to_pylist()]
        names = table.schema.names
        new = [delta.get_inserted_rows().read_all().select(names), updated.select(names)]
        old = before._take_rows(ids)  # noqa: SLF001 its only way from these ids to rows
        return pa.concat_tables([with_change(old, "delete"), *(with_change(rows, "insert") for rows in new)])

    def scan(self, name: str, columns: Sequence[str] | None, keys: Range | None) -> pa.Table:
        """Into pyarrow."""
        options: dict[str, Any] = {"filter": between(keys)} if keys else {}
        found: pa.Table = self.open(name).to_table(columns=list(columns) if columns else None, **options)
        return found

    def conflict(self, error: Exception) -> bool:
        """What is left after its own retries."""
        text = str(error).lower()
        return isinstance(error, OSError) and ("conflict" in text or "concurrent" in text)

    def build(self, name: str, rows: pa.Table, files: int) -> None:
        """Names the file of one append many times, in one commit."""
        from lance.fragment import DataFile, FragmentMetadata  # noqa: PLC0415 as above

        self.create(name, rows.schema)
        table = self.append(self.open(name), rows)
        first = table.get_fragments()[0].metadata
        (file,) = first.files
        names = [f"{new_id()}.lance" for _ in range(files - 1)]
        link_copies(self.place.files(name) / "data" / str(file.path), names)
        rest = (file.fields, file.column_indices, file.file_major_version, file.file_minor_version)
        fragments = [
            FragmentMetadata(0, [DataFile(new, *rest, file.file_size_bytes)], first.physical_rows) for new in names
        ]
        self._lance.LanceDataset.commit(
            self.place.url(name),
            self._lance.LanceOperation.Append(fragments),
            read_version=table.version,
            storage_options=self.place.options(),
        )
