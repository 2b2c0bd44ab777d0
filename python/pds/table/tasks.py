"""Scans as tasks for other processes."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from pds import _pds
from pds.errors import InvalidInput
from pds.predicate import to_predicate
from pds.store import native_handle
from pds.table.results import VerifyResult
from pds.table.scan import Rows, TableScan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from pds.store import Store
    from pds.table.table import Table

    Where = str | pc.Expression


class ScanTask(Rows):
    """A part of a scan, which can be pickled and read by any process that reaches the store.

    It lists its files and what is deleted in them, so reading it reads no other list. Of a large file it may have a
    share of the row groups only. Pickled, it has the options of the store, credentials that were passed among them.

    Attributes:
        size_bytes: The length of the list in bytes, which is what a pickled task takes beside its filter.
    """

    def __init__(
        self, store: Store, path: str, columns: Sequence[str] | None, where: Where | None, files: bytes
    ) -> None:
        self._store = store
        self._path = path
        self._columns = None if columns is None else list(columns)
        self._where = where
        self._files = files
        self.size_bytes = len(files)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the selected columns."""
        return self._open().schema

    def _open(self) -> TableScan:
        handle = _pds.open_scan_task(native_handle(self._store), self._path, self._files)
        predicate = None if self._where is None else to_predicate(self._where, handle.schema)
        return TableScan(handle, self._columns, predicate, None, path=self._path)

    def _open_scan(self) -> _pds.Scan:
        return self._open()._open_scan()  # noqa: SLF001 of the same kind

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, as `TableScan.to_reader` does; the list is parsed once."""
        return self._open().to_reader()

    def count(self) -> int:
        """Return the number of rows, as `TableScan.count` does."""
        return self._open().count()

    def find_rows(self) -> bytes:
        """Find the rows that match the filter, and return a message with their numbers for a delete."""
        store = native_handle(self._store)
        handle = _pds.open_scan_task(store, self._path, self._files)
        predicate = to_predicate("true" if self._where is None else self._where, handle.schema)
        return _pds.find_deletes(store, self._path, self._files, predicate)

    def verify(self) -> VerifyResult:
        """Verify the files of the task, as `Table.verify` does.

        Raises:
            InvalidInput: The task has a share of a file: tasks of `split_verification` have none.
        """
        handle = _pds.open_scan_task(native_handle(self._store), self._path, self._files)
        return VerifyResult(**_pds.verify_table(handle))

    def to_bytes(self) -> bytes:
        """Return the list of files, without the columns and the filter."""
        return self._files

    def __repr__(self) -> str:
        return f"ScanTask({self._path!r}, {self.size_bytes} bytes)"


def split_search(table: Table, where: Where | None, *, count: int, min_bytes: int, max_bytes: int) -> list[ScanTask]:
    """Return tasks that find the rows that match a filter, for a delete; of a large file several have a share.

    Arguments and errors are those of `Table.scan_tasks`.
    """
    names, predicate = table._check_selection([], where)  # noqa: SLF001 of the same package
    check_sendable(where)
    handle = table._handle  # noqa: SLF001 as above
    tasks = _pds.split_scan(handle, predicate, names, count, min_bytes, max_bytes)
    return [ScanTask(table.store, table.path, names, where, files) for files in tasks]


def split_files(
    table: Table, columns: list[str], positions: tuple[int, int | None], *, count: int, min_bytes: int, max_bytes: int
) -> list[ScanTask]:
    """Return tasks for the files at the positions from the first to before the last, in the order of a scan.

    Of a version these are always the same; of a large file several have a share. Sizes are as for `Table.scan_tasks`;
    without a last position it is up to the last file.
    """
    handle = table._handle  # noqa: SLF001 of the same package
    tasks = _pds.split_scan_of_files(handle, columns, positions, count, min_bytes, max_bytes)
    return [ScanTask(table.store, table.path, columns, None, files) for files in tasks]


def split_verification(
    table: Table, count: int, min_bytes: int, max_bytes: int
) -> tuple[list[ScanTask], list[tuple[str, str]]]:
    """Verify the lists of a snapshot. Return tasks whose files are to be verified, and the problems of the lists."""
    split = _pds.split_verification(table._handle, count, min_bytes, max_bytes)  # noqa: SLF001 of the same package
    return [ScanTask(table.store, table.path, None, None, files) for files in split["tasks"]], split["problems"]


def pack_columns(table: Table) -> bytes:
    """Return the columns of a snapshot for `with_columns`; they outlive its vacuum."""
    return _pds.writer_task(table._handle)  # noqa: SLF001 of the same package


def with_columns(table: Table, columns: bytes) -> Table:
    """Return a snapshot whose rows are read with the columns of another one.

    Raises:
        InvalidInput: A column was widened since then.
    """
    handle = _pds.with_columns(table._handle, columns)  # noqa: SLF001 of the same package
    return table._from_handle(table._location, handle)  # noqa: SLF001 as above


def check_sendable(where: Where | None) -> None:
    """Check that a filter can be pickled.

    Raises:
        InvalidInput: It cannot.
    """
    try:
        pickle.dumps(where)
    except Exception as error:
        raise InvalidInput(
            f"the filter {where} cannot be pickled; name its columns instead of numbering them"
        ) from error
