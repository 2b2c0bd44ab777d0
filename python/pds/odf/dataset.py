"""Datasets of the Open Data Fabric."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from pds import _pds
from pds.arguments import ArrowStream, arrow_stream, check_schema, column_names, require_text
from pds.errors import InvalidInput, InvalidType, NotFound, VerificationFailed
from pds.odf.block import Block
from pds.odf.events import Event, SetDataSchema, plain, rfc3339
from pds.odf.identity import Identity, Multihash
from pds.odf.results import CompactResult, IngestResult, VacuumResult, VerifyResult
from pds.odf.scan import Scan
from pds.predicate import predicate_of
from pds.table.checks import check_limit
from pds.table.location import TableLocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.compute as pc

    from pds.options import WriteOptions
    from pds.store import Store

    At = str | Multihash | Block | datetime
    Where = str | pc.Expression

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMEOUT_SECONDS = 120.0
_TARGET_BYTES = 512 * 2**20
_RETENTION = timedelta(days=7)


def _place_of(at: At | None) -> tuple[str | None, int | None]:
    """A hash, or microseconds since 1970."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidInput(f"{at!r} has no time zone; datetime.now(UTC) has one")
        return None, (at - _EPOCH) // _MICROSECOND
    if isinstance(at, Block):
        return at.hash, None
    return (None, None) if at is None else (str(at), None)


class Dataset:
    """A dataset whose history is a chain of metadata blocks.

    It is read anew with every call; several writers may use it at once, and one of them comes first.

    Args:
        store: Where the dataset is. It must keep conditional writes.
        path: The dataset's folder, relative to the store.
        options: How data is written. None is zstd and row groups of 1,048,576 rows.
        timeout: Seconds that a write is tried while other writers come first.

    Raises:
        NotFound: There is no dataset.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        options: WriteOptions | None = None,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._location = TableLocation.of(store, path, options, timeout)
        self._handle = _pds.ChainHandle.open(self._location.handle, path)
        if self._handle.head() is None:
            raise NotFound("there is no dataset: it has no refs/head", path=path)

    @classmethod
    def create(
        cls,
        store: Store,
        path: str,
        *,
        kind: str = "root",
        identity: Identity | str | None = None,
        system_time: datetime | str | None = None,
        options: WriteOptions | None = None,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> Self:
        """Begin a dataset: its first block is a `Seed`.

        Args:
            store: Where the dataset shall be.
            path: The dataset's folder, relative to the store.
            kind: `"root"`, whose data comes from outside, or `"derivative"`, made of other datasets.
            identity: Which dataset it is. None is a new ed25519 key, whose private half is not kept;
                `Identity.generate()` gives both.
            system_time: The time of the first block, for a history that is told later. None is now.
            options: As for `Dataset`.
            timeout: As for `Dataset`.

        Raises:
            AlreadyExists: There is a dataset.
            UnsafeStore: The store does not keep conditions, so writers would undo one another.
        """
        location = TableLocation.of(store, path, options, timeout)
        handle = _pds.ChainHandle.open(location.handle, path)
        identity = Identity.generate() if identity is None else identity
        moment = None if system_time is None else rfc3339(system_time)
        handle.create(str(identity), require_text("kind", kind), moment)
        # As it was opened: it is there, and looking once more could only fail.
        created = cls.__new__(cls)
        created._location, created._handle = location, handle  # noqa: SLF001 an instance of this class
        return created

    @staticmethod
    def exists(store: Store, path: str) -> bool:
        """Whether there is a dataset."""
        location = TableLocation.of(store, path, None, _TIMEOUT_SECONDS)
        return _pds.ChainHandle.open(location.handle, path).head() is not None

    @property
    def store(self) -> Store:
        """Where the dataset is."""
        return self._location.store

    @property
    def path(self) -> str:
        """The dataset's folder."""
        return self._location.path

    @property
    def head(self) -> str:
        """The newest block's hash, read now."""
        found = self._handle.head()
        if found is None:
            raise NotFound("the dataset has been removed", path=self.path)
        return found

    @property
    def identity(self) -> Identity:
        """Which dataset it is, from its first block."""
        seed: Any = self.log()[-1].event
        return Identity(seed.dataset_id)

    @property
    def watermark(self) -> datetime | None:
        """No rows that happened before it are expected; None if nothing says."""
        found = self._handle.facts(None, None)[3]
        return None if found is None else datetime.fromisoformat(found)

    @property
    def last_offset(self) -> int | None:
        """The number of the last row; None without rows."""
        return self._handle.facts(None, None)[2]

    def log(self, limit: int | None = None) -> list[Block]:
        """The blocks, newest first.

        Args:
            limit: So many at most. None is all.

        Raises:
            BlockCorrupted: A block is missing, or not what was written.
        """
        return [Block._of(found) for found in self._handle.blocks(check_limit(limit))]  # noqa: SLF001 ours

    def block(self, block_hash: str | Multihash) -> Block:
        """A block by its hash.

        Raises:
            BlockCorrupted: It is missing, or not what was written.
        """
        return Block._of(self._handle.block(str(block_hash)))  # noqa: SLF001 ours

    def schema(self, at: At | None = None) -> pa.Schema:
        """The columns, system columns among them, from metadata alone.

        Args:
            at: As the chain was at a block (its hash) or at a time. None is now.

        Raises:
            NotFound: Nothing says what the columns are yet.
        """
        found = self._handle.schema(*_place_of(at))
        if found is None:
            raise NotFound("the dataset has no schema yet: no rows and no SetDataSchema", path=self.path)
        return found

    def append(self, event: Event | dict[str, Any] | Block | Sequence[Event]) -> Block:
        """Append an event, or several of which all or none are seen.

        The event is put on whatever block is the newest by then. A `Block` is appended as it is, and only
        if it follows the newest.

        Args:
            event: An event, a mapping in the specification's spelling, a list of events, or a block.

        Returns:
            The last of the new blocks.

        Raises:
            InvalidAppend: A rule of the chain; its `rule` is named as in the specification.
            CommitConflict: The block does not follow the newest.
            CommitStateUnknown: The store did not answer; `commit_id` is the block's hash, and the log
                tells later whether it is there.
        """
        if isinstance(event, Block):
            self._handle.append_block(event._handle)  # noqa: SLF001 ours
            return event
        events = list(event) if isinstance(event, list | tuple) else [event]
        if not events:
            raise InvalidInput("there is no event to append")
        for one in events:
            if not isinstance(one, Event | dict):
                raise InvalidType(f"an event must be one of pds.odf, not {type(one).__name__}")
        given = [one.to_dict() if isinstance(one, Event) else plain(one) for one in events]
        blocks, _ = self._handle.append(given, self._location.timeout)
        return Block._of(blocks[-1])  # noqa: SLF001 ours

    def set_schema(self, schema: pa.Schema, *, raw_arrow: bool = False) -> Block:
        """Say what the columns of the data that follows are.

        Args:
            schema: The columns; system columns that are missing are put in front.
            raw_arrow: In Arrow's own flatbuffer (RFC-010), for readers that know no other, and not in
                logical types (RFC-016). It may say anything: nothing is compared with what was before, and
                what rows are there may not be readable with it.

        Raises:
            InvalidAppend: It removes, renames or retypes a column, or adds one that may not be null.
            InvalidInput: A column has a type that there is no logical type for.
        """
        if not isinstance(schema, pa.Schema):
            raise InvalidType(f"schema must be a pyarrow.Schema, not {type(schema).__name__}")
        check_schema(schema)
        names = self._handle.facts(None, None)[1]
        fields = _pds.schema_event(schema, names, raw_arrow)
        return self.append(SetDataSchema(fields.get("schema"), fields.get("rawArrowSchema")))

    def ingest(
        self,
        data: ArrowStream,
        *,
        event_time: str | None = None,
        watermark: datetime | str | None = None,
        source_state: dict[str, str] | None = None,
    ) -> IngestResult:
        """Append rows: one slice of data and the block that tells of it.

        The first rows say what the columns are: a `SetDataSchema` is appended just before, and the head is
        moved once. The system columns come in front: the row's number, its operation, when it was written
        and when it happened. Rows that retract (1) or correct (2, then 3) have a column that is called as
        the operation is, `op`; all others append. If another writer comes first, rows are numbered anew.

        Args:
            data: A table or a stream of batches.
            event_time: The column that says when a row happened, a timestamp or a date; it becomes the
                dataset's event time, to the millisecond in UTC, under the name that the vocabulary has for
                it. None is the column that is called so; without one, and where it is null, the time of
                writing.
            watermark: No rows that happened before it are expected any more. None is the latest event time.
            source_state: What the source goes on from: `sourceName`, `kind` and `value`.

        Raises:
            InvalidInput: A column is not in the schema, has a type whose values could be lost or whose rows
                cannot be hashed; an operation is none; a correction is not a pair.
            InvalidAppend: A rule of the chain, such as a watermark that goes back.
            CommitConflict: Other writers came first until the timeout.
            CommitStateUnknown: The store did not answer; `commit_id` is the block's hash.
        """
        stream = arrow_stream(data)
        if event_time is not None:
            require_text("event_time", event_time)
        given = None if watermark is None else rfc3339(watermark)
        location = self._location
        blocks, attempts, slice_ = self._handle.ingest(
            stream, event_time, given, source_state, location.options, location.timeout
        )
        appended = [Block._of(found) for found in blocks]  # noqa: SLF001 ours
        if slice_ is None:
            return IngestResult(appended, 0, None, None, 0, None, None, attempts)
        first, last, size, logical, physical = slice_
        return IngestResult(appended, last - first + 1, first, last, size, logical, physical, attempts)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: Where | None = None,
        as_of: At | None = None,
    ) -> Scan:
        """The rows as they were appended; `.to_ledger()` applies retractions and corrections.

        Args:
            columns: Names of columns, in the order wanted. None is all.
            where: Only rows for which this holds: SQL, or a `pyarrow.compute.Expression`; as for
                `Table.scan`.
            as_of: As the chain was at a block (its hash) or at a time. None is now.

        Raises:
            NotFound: There is no schema yet, or the chain began later.
            InvalidInput: There is no such column, or the filter cannot be used.
        """
        # One block for all that is asked later: the head may move on.
        block = self._handle.facts(*_place_of(as_of))[0]
        handle = self._handle.snapshot(block, None)
        names = column_names(columns)
        for name in names or []:
            if handle.schema.get_field_index(name) < 0:
                raise InvalidInput(f"no column {name!r}; there are {handle.schema.names}")
        meant = None if where is None else predicate_of(where, handle.schema)
        if meant is not None:
            handle.check_filter(meant)
        return Scan(self._handle, block, handle, names, meant)

    def verify(self, *, data: bool = True, at: str | Multihash | Block | None = None) -> VerifyResult:
        """Read everything anew and check it.

        Links, numbers, times and all rules of the chain; with `data`, the physical hash of every slice and
        checkpoint and the logical hash of every slice's rows.

        Args:
            data: Read the data too, and not the blocks alone.
            at: Only what leads to this block. None is the head.

        Raises:
            InvalidType: An argument has a type that cannot be used.
            VerificationFailed: Something is not what was written; its `problems` tell the objects.
        """
        if isinstance(at, datetime):
            raise InvalidType("verify takes a block, not a time")
        if not isinstance(data, bool):
            raise InvalidType(f"data must be True or False, not {data!r}")
        blocks, slices, rows, problems = self._handle.verify(_place_of(at)[0], data)
        if problems:
            shown = "; ".join(f"{path}: {message}" for path, message in problems[:3])
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""  # noqa: PLR2004 as shown
            raise VerificationFailed(f"the dataset is not what was written: {shown}{more}", problems=problems)
        return VerifyResult(blocks, slices, rows)

    def compact(self, *, target_bytes: int = _TARGET_BYTES) -> CompactResult | None:
        """Merge small slices of rows that follow each other.

        Rows, their numbers and times stay as they are; the hashes of the old slices are checked while they
        are read. The blocks from the first merged slice on are made anew, and the head is moved to them.
        Nothing is removed before a `vacuum`: the chain as it was leads from `before` of the result, which
        `verify(at=…)` and `scan(as_of=…)` take, and which the merged blocks name.

        Args:
            target_bytes: About so large is a slice at most.

        Returns:
            What was done; None if there was nothing to merge.

        Raises:
            PartCorrupted: A slice is not what was written.
            FormatNotSupported: An event of a later release stands behind a slice.
            CommitConflict: Other writers came first until the timeout.
            CommitStateUnknown: The store did not answer; `commit_id` is the new head, if it was moved.
        """
        if type(target_bytes) is not int or target_bytes < 1:
            raise InvalidInput(f"target_bytes must be a positive whole number, not {target_bytes!r}")
        done = self._handle.compact(target_bytes, self._location.options, self._location.timeout)
        return None if done is None else CompactResult(*done)

    def vacuum(self, older_than: timedelta = _RETENTION, *, dry_run: bool = False) -> VacuumResult:
        """Remove blocks, slices and checkpoints that no reference leads to.

        They are of writes that failed or were interrupted, and of the chain as it was before a compaction,
        as soon as that is older than `older_than` too: `as_of` a time before it then raises VersionExpired.
        Writes may be under way: one that takes longer than a day raises TransactionExpired and appends nothing.

        Args:
            older_than: By the store's clock; at least 2 days.
            dry_run: Only say what would be removed.

        Raises:
            BlockCorrupted: A block is missing or not what was written; nothing is removed.
            FormatNotSupported: A block of a later release may name files; nothing is removed.
        """
        if not isinstance(older_than, timedelta):
            raise InvalidType(f"older_than must be a timedelta, not {type(older_than).__name__}")
        return VacuumResult(*self._handle.vacuum(older_than.total_seconds(), dry_run))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.store, self.path, self._location.options, self._location.timeout)

    def __repr__(self) -> str:
        return f"pds.odf.Dataset({self.store!r}, {self.path!r})"


def _reopen(store: Store, path: str, options: WriteOptions, timeout: float) -> Dataset:
    return Dataset(store, path, options=options, timeout=timeout)
