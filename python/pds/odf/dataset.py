"""Datasets of the Open Data Fabric."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from pds import _pds
from pds.arguments import check_column_names, check_schema, require_schema, require_text, require_timedelta
from pds.defaults import COMMIT_TIMEOUT_SECONDS, RETENTION
from pds.display import Summarized, Summary
from pds.errors import InvalidInput, InvalidType, NotFound, VerificationFailed
from pds.flags import require_bool
from pds.inputs import unfold_runs
from pds.odf.block import Block
from pds.odf.events import Event, SetDataSchema, check_source_state, format_rfc3339, to_plain
from pds.odf.identity import Identity, Multihash, to_hash_text
from pds.odf.results import CompactResult, IngestResult, VacuumResult, VerifyResult
from pds.odf.scan import Scan, checking_slices
from pds.predicate import to_predicate
from pds.progress import reported
from pds.streams import ArrowStream, read_stream
from pds.table.checks import check_limit, check_size, to_micros
from pds.table.location import TableLocation
from pds.table.scan import TableScan
from pds.telemetry import traces

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from pds.options import WriteOptions
    from pds.progress import ProgressArgument
    from pds.store import Store

    At = str | Multihash | Block | datetime
    Where = str | pc.Expression

_TARGET_BYTES = 512 * 2**20
# The message of a failed verification has at most this many problems.
_MAX_PROBLEMS = 3


def _resolve_position(at: At | None) -> tuple[str | None, int | None]:
    """Return a position in the chain as the hash of a block, or as microseconds since 1970; both None for the head."""
    if isinstance(at, datetime):
        return None, to_micros(at)
    if isinstance(at, Block):
        return at.hash, None
    return (None, None) if at is None else (to_hash_text(at), None)


@traces("pds.odf", "append", "ingest", "verify", "compact", "vacuum")
class Dataset(Summarized):
    """A dataset whose history is a chain of metadata blocks.

    Every call reads the current state of the chain. Several writers can use a dataset at the same time; their commits
    are applied one after the other.

    Args:
        store: The store of the dataset. It must honor conditional writes.
        path: The folder of the dataset, relative to the store.
        options: The options of data files. Defaults to zstd and row groups of 1,048,576 rows.
        timeout: The time in seconds in which a write is attempted again after conflicts with other writers.

    Raises:
        NotFound: The dataset does not exist.
        InvalidInput: An argument has an invalid value.
        InvalidType: An argument has an invalid type.
        UnsafeStore: The store is a `remote_store.Store`.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        options: WriteOptions | None = None,
        timeout: float = COMMIT_TIMEOUT_SECONDS,
    ) -> None:
        self._location = TableLocation.from_arguments(store, path, options, timeout=timeout)
        self._handle = _pds.ChainHandle.open(self._location.handle, path)
        if self._handle.head() is None:
            raise NotFound("the dataset does not exist: refs/head is missing", path=path)

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
        timeout: float = COMMIT_TIMEOUT_SECONDS,
    ) -> Self:
        """Create a dataset. Its first block is a `Seed`.

        Args:
            store: The store of the dataset.
            path: The folder of the dataset, relative to the store.
            kind: `"root"` for data from outside, or `"derivative"` for data that is computed from other datasets.
            identity: The identity of the dataset. Defaults to a new ed25519 key, whose private key is discarded;
                `Identity.generate()` returns both keys.
            system_time: The time of the first block, for a history that is recorded later. Defaults to now.
            options: As for `Dataset`.
            timeout: As for `Dataset`.

        Raises:
            AlreadyExists: The dataset exists.
            UnsafeStore: The store does not honor conditional writes, so writers would overwrite each other.
            InvalidInput: An argument has an invalid value.
            InvalidType: An argument has an invalid type.
        """
        location = TableLocation.from_arguments(store, path, options, timeout=timeout)
        handle = _pds.ChainHandle.open(location.handle, path)
        identity = Identity.generate() if identity is None else identity
        dataset_id = identity.id if isinstance(identity, Identity) else require_text("identity", identity)
        seed_time = None if system_time is None else format_rfc3339(system_time)
        handle.create(dataset_id, require_text("kind", kind), seed_time)
        return cls._from_handle(location, handle)

    @classmethod
    def _from_handle(cls, location: TableLocation, handle: _pds.ChainHandle) -> Self:
        # The constructor would read the head again, which exists, and could only fail.
        dataset = cls.__new__(cls)
        dataset._location, dataset._handle = location, handle  # noqa: SLF001 an instance of this class
        return dataset

    @staticmethod
    def exists(store: Store, path: str) -> bool:
        """Return whether a dataset exists at `path`."""
        location = TableLocation.from_arguments(store, path, None, timeout=COMMIT_TIMEOUT_SECONDS)
        return _pds.ChainHandle.open(location.handle, path).head() is not None

    @property
    def store(self) -> Store:
        """The store of the dataset."""
        return self._location.store

    @property
    def path(self) -> str:
        """The folder of the dataset, relative to the store."""
        return self._location.path

    @property
    def head(self) -> str:
        """The hash of the newest block. The reference is read from the store.

        Raises:
            NotFound: The dataset was removed.
        """
        head = self._handle.head()
        if head is None:
            raise NotFound("the dataset was removed: refs/head is missing", path=self.path)
        return head

    @property
    def identity(self) -> Identity:
        """The identity of the dataset, read from its first block."""
        seed: Any = self.log()[-1].event
        return Identity(seed.dataset_id)

    @property
    def watermark(self) -> datetime | None:
        """The event time before which no more rows are expected; None if the dataset has no watermark."""
        watermark = self._handle.facts(None, None)["watermark"]
        return None if watermark is None else datetime.fromisoformat(watermark)

    @property
    def last_offset(self) -> int | None:
        """The offset of the last row; None without rows."""
        return self._handle.facts(None, None)["last_offset"]

    def log(self, limit: int | None = None) -> list[Block]:
        """Return the blocks, newest first.

        Args:
            limit: The maximum number of blocks. Defaults to all blocks.

        Raises:
            BlockCorrupted: A block is missing or corrupted.
            InvalidInput: The limit is negative.
            InvalidType: The limit is not an integer.
        """
        handles = self._handle.blocks(check_limit(limit))
        return [Block._from_handle(handle) for handle in handles]  # noqa: SLF001 a class of this package

    def block(self, block_hash: str | Multihash) -> Block:
        """Return a block by its hash.

        Raises:
            BlockCorrupted: The block is missing or corrupted.
            InvalidInput: The text is not a multihash.
            InvalidType: It is neither a text nor a multihash.
        """
        return Block._from_handle(self._handle.block(to_hash_text(block_hash)))  # noqa: SLF001 a class of this package

    def schema(self, at: At | None = None) -> pa.Schema:
        """Return the schema of the dataset, including the system columns. Only metadata is read.

        Args:
            at: A block, the hash of a block, or a time with a time zone. Defaults to the newest block.

        Raises:
            NotFound: The dataset has no schema at this position, or begins after this time.
            VersionExpired: A vacuum removed the blocks of this time, or the slice that has the schema.
            InvalidInput: The time has no time zone, or the text is not a multihash.
        """
        # Where no SetDataSchema says it, the newest slice does.
        with checking_slices(self._handle):
            schema = self._handle.schema(*_resolve_position(at))
        if schema is None:
            raise NotFound("the dataset has no schema yet: it has neither rows nor a SetDataSchema", path=self.path)
        return schema

    def append(self, event: Event | dict[str, Any] | Block | Sequence[Event]) -> Block:
        """Append one event, or several events atomically.

        Events are appended to the block that is the newest at that moment. A `Block` is appended as it is, and only
        if it follows the newest block.

        Args:
            event: An event, a dict in the spelling of the specification, a list of events, or a block.

        Returns:
            The last of the new blocks.

        Raises:
            InvalidAppend: An event violates a rule of the chain. The attribute `rule` has the name of the rule in
                the specification.
            InvalidInput: There is no event, or an event has an invalid value.
            InvalidType: An event has an invalid type.
            CommitConflict: The block does not follow the newest block, or other writers came first until the timeout.
            CommitStateUnknown: The store did not confirm the append. The attribute `commit_id` is the hash of the
                block. Check later whether the log has this block.
            TransactionExpired: The process was suspended for more than a day. Nothing was appended.
        """
        if isinstance(event, Block):
            self._handle.append_block(event._handle)  # noqa: SLF001 a class of this package
            return event
        events = list(event) if isinstance(event, list | tuple) else [event]
        if not events:
            raise InvalidInput("the list of events is empty; append at least one event")
        for item in events:
            if not isinstance(item, Event | dict):
                raise InvalidType(f"an event must be an event of pds.odf or a dict, not {type(item).__name__}")
        fields = [item.to_dict() if isinstance(item, Event) else to_plain(item) for item in events]
        appended = self._handle.append(fields, self._location.timeout)
        return Block._from_handle(appended["blocks"][-1])  # noqa: SLF001 a class of this package

    def set_schema(self, schema: pa.Schema, *, raw_arrow: bool = False) -> Block:
        """Set the schema of the data that follows, with a `SetDataSchema` event.

        Args:
            schema: The schema. Missing system columns are added before the others.
            raw_arrow: Whether to store an Arrow flatbuffer (RFC-010), for readers that need it, instead of logical
                types (RFC-016). Such a schema may leave out and reorder columns, add required ones, and change types
                to those that can hold every value.

        Returns:
            The new block.

        Raises:
            InvalidAppend: The schema removes, renames or retypes a column, adds a column that is not nullable, gives a
                system column a type that cannot hold its values, or makes a column required after rows of a raw schema.
            InvalidInput: A column has a type without a logical type.
            InvalidType: The schema is not a `pyarrow.Schema`.
            CommitConflict, CommitStateUnknown: As for `append`.
        """
        check_schema(require_schema(schema))
        names = self._handle.facts(None, None)["system_columns"]
        fields = _pds.schema_event(schema, names, require_bool("raw_arrow", raw_arrow))
        return self.append(SetDataSchema(fields.get("schema"), fields.get("rawArrowSchema")))

    def ingest(
        self,
        data: ArrowStream,
        *,
        event_time: str | None = None,
        watermark: datetime | str | None = None,
        source_state: dict[str, str] | None = None,
        progress: ProgressArgument = False,
    ) -> IngestResult:
        """Append rows: one slice of data, and the block that references it.

        The first rows define the schema: a `SetDataSchema` is appended before the block of the rows, in the same
        commit. In a dataset of an older tool, which has rows and no `SetDataSchema`, the newest rows define it. Times
        in seconds become times in milliseconds, as files store them. The system columns come first: offset, operation,
        system time and event time of the row. A column with the name of the operation column, `op`, marks rows that
        retract (1) or correct (2, followed by 3) earlier rows; all other rows append. If another writer commits first,
        the rows get new offsets.

        Args:
            data: Any object with `__arrow_c_stream__`.
            event_time: The name of a column of timestamps or dates with the event times of the rows. The dataset
                stores them in the event time column of its vocabulary: rounded down to milliseconds in UTC, unless its
                schema gives that column another type. Defaults to the column with that name. Without such a column,
                and for nulls, the event time is the time of writing.
            watermark: The event time before which no more rows are expected: a datetime or RFC 3339 text. Defaults to
                the latest event time.
            source_state: The position from which the source continues: `sourceName`, `kind` and `value`.
            progress: As for `pds.Table.append`.

        Returns:
            The appended blocks and the slice.

        Raises:
            InvalidInput: A column is not in the schema, or has a type whose values could be lost or whose rows cannot
                be hashed; an event time has a part that its column cannot keep; an operation code is unknown; a
                correction is not a pair of rows.
            InvalidType: An argument has an invalid type.
            InvalidAppend: An event violates a rule of the chain, for example with a watermark that goes back.
            CommitConflict: Other writers came first until the timeout. Nothing was appended.
            CommitStateUnknown: The store did not confirm the append. The attribute `commit_id` is the hash of the
                block.
            TransactionExpired: The write took longer than a day. Nothing was appended.
        """
        if event_time is not None:
            require_text("event_time", event_time)
        watermark_text = None if watermark is None else format_rfc3339(watermark)
        location, state = self._location, check_source_state(source_state)
        with read_stream(data) as stream, reported("ingest", progress, data):
            ingested = self._handle.ingest(
                unfold_runs(stream), event_time, watermark_text, state, location.options, location.timeout
            )
        appended, new_slice = ingested["appended"], ingested["slice"]
        blocks = [Block._from_handle(handle) for handle in appended["blocks"]]  # noqa: SLF001 a class of this package
        if new_slice is None:
            return IngestResult(blocks, 0, None, None, 0, None, None, appended["attempts"])
        rows = new_slice["last_offset"] - new_slice["first_offset"] + 1
        return IngestResult(blocks, rows, **new_slice, attempts=appended["attempts"])

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: Where | None = None,
        as_of: At | None = None,
    ) -> Scan:
        """Return a scan of the rows as they were appended; `.to_ledger()` applies retractions and corrections.

        Args:
            columns: The names of the columns, in the order of the result. Defaults to all columns.
            where: A filter: SQL, or a `pyarrow.compute.Expression`, as for `Table.scan`. Defaults to all rows.
            as_of: A block, the hash of a block, or a time with a time zone. Defaults to the newest block.

        Raises:
            NotFound: The dataset has no schema at this position, or begins after this time.
            VersionExpired: A vacuum removed the blocks of this time, or this block.
            InvalidInput: A column does not exist, or an argument is not valid.
            InvalidType: An argument has an invalid type.
        """
        # The scan stays at this block when the head moves.
        block = self._handle.facts(*_resolve_position(as_of))["block"]
        with checking_slices(self._handle):
            handle = self._handle.snapshot(block, None)
        names = check_column_names(columns)
        for name in names or []:
            if handle.schema.get_field_index(name) < 0:
                raise InvalidInput(f"unknown column {name!r}; the dataset has the columns {handle.schema.names}")
        predicate = None if where is None else to_predicate(where, handle.schema)
        if predicate is not None:
            handle.check_filter(predicate)
        return Scan(self._handle, block, TableScan(handle, names, predicate, None, path=self.path))

    def verify(
        self,
        *,
        data: bool = True,
        at: str | Multihash | Block | None = None,
        progress: ProgressArgument = False,
    ) -> VerifyResult:
        """Read all blocks and slices again, and verify them.

        The verification checks links, numbers, times and all rules of the chain. With `data`, it also checks the
        physical hashes of all slices and checkpoints, and the logical hashes of the rows of all slices.

        Args:
            data: Whether to read the data too. Defaults to True.
            at: The block, or its hash, at which the verification begins. Defaults to the head.
            progress: As for `pds.Table.append`. Files are slices.

        Raises:
            InvalidType: An argument has an invalid type.
            VerificationFailed: The chain or its data is corrupted. The attribute `problems` lists the objects.
        """
        if isinstance(at, datetime):
            raise InvalidType("at must be a block or the hash of a block, not a time")
        require_bool("data", data)
        with reported("verify", progress):
            verified = self._handle.verify(_resolve_position(at)[0], data)
        problems = verified["problems"]
        if problems:
            first = "; ".join(f"{path}: {message}" for path, message in problems[:_MAX_PROBLEMS])
            rest = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
            raise VerificationFailed(f"the verification found problems: {first}{rest}", problems=problems)
        return VerifyResult(verified["blocks"], verified["slices"], verified["rows"])

    def compact(self, *, target_bytes: int = _TARGET_BYTES, progress: ProgressArgument = False) -> CompactResult | None:
        """Merge small slices of consecutive rows.

        Rows, offsets and times are unchanged. The hashes of the old slices are verified while they are read. The
        blocks from the first merged slice on are rewritten, and the head is moved to the new blocks. The old blocks
        and slices stay until a `vacuum`: the old chain is reachable from the hash `before` of the result, which
        `verify(at=…)` and `scan(as_of=…)` accept, and which the merged blocks record.

        Args:
            target_bytes: The approximate maximum size of a slice, in bytes. Defaults to 512 MiB.
            progress: As for `ingest`; the counts are those of the merged slices.

        Returns:
            The result, or None if there was nothing to merge.

        Raises:
            InvalidInput: `target_bytes` is not a positive integer.
            PartCorrupted: A slice is corrupted.
            FormatNotSupported: An event of a later release of the specification comes after a slice.
            TransactionExpired: The rewrite took longer than a day. Nothing was changed.
            CommitConflict: Other writers came first until the timeout.
            CommitStateUnknown: The store did not confirm the commit. The attribute `commit_id` is the new head.
        """
        if type(target_bytes) is not int or target_bytes < 1:
            raise InvalidInput(f"target_bytes must be a positive integer, not {target_bytes!r}")
        size = check_size("target_bytes", target_bytes)
        with reported("compact", progress):
            result = self._handle.compact(size, self._location.options, self._location.timeout)
        return None if result is None else CompactResult(**result)

    def vacuum(
        self, older_than: timedelta = RETENTION, *, dry_run: bool = False, progress: ProgressArgument = False
    ) -> VacuumResult:
        """Remove blocks, slices and checkpoints that are not reachable from a reference.

        Such objects belong to writes that failed, or to the chain before a compaction that is older than `older_than`
        too. A scan `as_of` a time before that compaction then raises VersionExpired. Concurrent writes are safe: a
        write that takes longer than a day raises TransactionExpired and appends nothing.

        Args:
            older_than: The minimum age of removed objects, by the clock of the store; at least 2 days. Defaults to 7
                days.
            dry_run: Whether to list the objects and remove nothing.
            progress: As for `ingest`; the files are the removed objects, and known at the end.

        Raises:
            InvalidInput: `older_than` is less than 2 days.
            InvalidType: `older_than` is not a timedelta.
            InvalidPath: A folder of the dataset is a symbolic link of local files. Nothing is removed.
            BlockCorrupted: A block is missing or corrupted. Nothing is removed.
            FormatNotSupported: A block of a later release of the specification may reference files. Nothing is
                removed.
        """
        seconds = require_timedelta("older_than", older_than)
        require_bool("dry_run", dry_run)
        with reported("vacuum", progress):
            return VacuumResult(**self._handle.vacuum(seconds, dry_run))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.store, self.path, self._location.options, self._location.timeout)

    def __repr__(self) -> str:
        return f"pds.odf.Dataset({self.store!r}, {self.path!r})"

    def _summarize(self) -> Summary:
        # The head and the rows are in the store.
        return Summary("pds.odf.Dataset", {"store": repr(self.store), "path": self.path})


def _reopen(store: Store, path: str, options: WriteOptions, timeout: float) -> Dataset:
    return Dataset(store, path, options=options, timeout=timeout)
