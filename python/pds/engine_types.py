"""What crosses between Python and the engine, for type checkers: attributes of arguments, keys of results."""

# ruff: noqa: D101, D102 the classes that they describe have the docstrings

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from pds._pds import BlockHandle, StoredFile


class ManifestFields(TypedDict):
    dataset_key: str
    parts: list[str]
    row_count: int
    schema_hash: str
    compression: str
    created_at_utc: str
    run_id: str | None
    metadata: dict[str, str] | None


class Manifest(Protocol):
    @property
    def dataset_key(self) -> str: ...
    @property
    def parts(self) -> list[str]: ...
    @property
    def row_count(self) -> int: ...
    @property
    def schema_hash(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def created_at_utc(self) -> str: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def metadata(self) -> dict[str, str] | None: ...


class BeginFields(TypedDict):
    write_id: int
    created_at: str


class DatasetVerifyFields(TypedDict):
    rows: int
    bytes: int
    parts: int
    checksummed_parts: int


class PartSelection(Protocol):
    @property
    def index(self) -> int: ...
    @property
    def share(self) -> tuple[int, int] | None: ...


class Options(Protocol):
    @property
    def compression(self) -> str: ...
    @property
    def compression_level(self) -> int | None: ...
    @property
    def row_group_size(self) -> int | None: ...
    @property
    def max_rows_per_file(self) -> int | None: ...
    @property
    def memory_limit(self) -> int | None: ...


class NewWrite(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def overwrite(self) -> bool: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def metadata(self) -> Mapping[str, str] | None: ...
    @property
    def options(self) -> Options: ...


class Task(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def input_in_memory(self) -> bool: ...
    @property
    def keep_empty(self) -> bool: ...
    @property
    def shared(self) -> bool: ...


class Write(NewWrite, Protocol):
    @property
    def write_id(self) -> int: ...
    @property
    def created_at(self) -> str: ...


class CountFields(TypedDict):
    phase: str
    files: int
    files_total: int | None
    rows: int
    rows_total: int | None
    bytes: int


class ListingFields(TypedDict):
    files: list[StoredFile]
    folders: list[str]


class CommitFields(TypedDict):
    version: int
    commit_id: str
    rows: int | None
    files: int
    bytes: int
    attempts: int
    waited: float
    replayed: bool


class ScanPlanFields(TypedDict):
    files: int
    files_read: int
    row_groups: int
    row_groups_read: int
    rows_read: int
    tombstones_read: int


class VerifyFields(TypedDict):
    version: int
    files: int
    rows: int
    bytes: int
    problems: list[tuple[str, str]]


class SplitVerificationFields(TypedDict):
    tasks: list[bytes]
    problems: list[tuple[str, str]]


class SortPlanFields(TypedDict):
    by: list[int]
    tasks: list[bytes]


class RangePlanFields(TypedDict):
    runs: bytes
    ranges: list[bytes]


class StagedSizeFields(TypedDict):
    rows: int
    bytes: int


class TargetTaskFields(TypedDict):
    tasks: list[bytes]
    parts: list[list[int]]
    searches: int


class DeltaExportFields(TypedDict):
    version: int
    versions: int
    bytes: int


class IcebergExportFields(DeltaExportFields):
    metadata_location: str


class CheckFields(TypedDict):
    version: int
    missing: list[str]
    mismatched: list[str]
    orphans: list[str]


class VacuumFields(TypedDict):
    oldest_version: int
    files: list[str]
    manifests: list[str]
    bytes: int


class ExpiredFields(VacuumFields):
    e_tags: list[str | None]
    version: int
    commit_id: str


class CommitOptions(Protocol):
    @property
    def idempotency_key(self) -> str | None: ...
    @property
    def if_version(self) -> int | None: ...
    @property
    def timeout(self) -> float: ...


class NewTable(Protocol):
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def key(self) -> list[str]: ...
    @property
    def sort_by(self) -> list[str]: ...
    @property
    def exports(self) -> list[str]: ...


class StagedSource(Protocol):
    @property
    def task(self) -> bytes: ...
    @property
    def parts(self) -> list[list[bytes]]: ...
    @property
    def on(self) -> list[str] | None: ...
    @property
    def is_merge(self) -> bool: ...
    @property
    def reads_all(self) -> bool: ...


class MergePart(Protocol):
    @property
    def target(self) -> bytes: ...
    @property
    def source(self) -> bytes: ...
    @property
    def lists(self) -> list[bytes]: ...
    @property
    def on(self) -> list[str] | None: ...
    @property
    def clauses(self) -> Sequence[MergeClause]: ...
    @property
    def now(self) -> int: ...
    @property
    def options(self) -> Options: ...


class MergeClause(Protocol):
    @property
    def rows(self) -> str: ...
    @property
    def predicate(self) -> str | None: ...
    @property
    def assignments(self) -> list[tuple[str, str]] | None: ...


class Node(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def feeders(self) -> list[str] | None: ...
    @property
    def is_join(self) -> bool: ...
    @property
    def fields(self) -> pa.Schema: ...
    @property
    def descending(self) -> bool: ...
    @property
    def skip_unchanged(self) -> bool: ...
    @property
    def definition(self) -> dict[str, int]: ...
    @property
    def operator(self) -> str | None: ...
    @property
    def order_by(self) -> tuple[list[str], bool] | None: ...
    @property
    def function(self) -> Callable[[Sequence[pa.RecordBatchReader]], Iterable[pa.RecordBatch]] | None: ...
    @property
    def preserve(self) -> Callable[[pa.RecordBatchReader, str | None], Any] | None: ...
    @property
    def function_digest(self) -> tuple[str, str] | None: ...


class ConsumedTable(Protocol):
    @property
    def location(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def commit_id(self) -> str: ...
    @property
    def columns(self) -> list[int]: ...


class SourceInput(Protocol):
    @property
    def source(self) -> str: ...
    @property
    def upserts(self) -> object: ...
    @property
    def deletes(self) -> object: ...
    @property
    def scope(self) -> str: ...
    @property
    def consumed(self) -> ConsumedTable | None: ...
    @property
    def consumed_before(self) -> ConsumedTable | None: ...
    @property
    def is_canonical(self) -> bool: ...


class UpdateOptions(Protocol):
    @property
    def base_version(self) -> int | None: ...
    @property
    def idempotency_key(self) -> str | None: ...
    @property
    def memory_limit(self) -> int: ...
    @property
    def page_rows(self) -> int | None: ...
    @property
    def file_rows(self) -> int | None: ...
    @property
    def commit_timeout(self) -> float: ...
    @property
    def rebuilt(self) -> Sequence[str]: ...
    @property
    def rebuilds_changed(self) -> bool: ...
    @property
    def sample(self) -> float | None: ...
    @property
    def changed_function(self) -> Callable[[str], None] | None: ...
    @property
    def engine(self) -> Engine | None: ...


class Engine(Protocol):
    @property
    def local_bytes(self) -> int: ...
    @property
    def task_bytes(self) -> int: ...
    @property
    def run_tasks(self) -> Callable[[str, builtins.bytes, int], list[builtins.bytes | Exception]]: ...


class SourceRows(Protocol):
    @property
    def source(self) -> Node: ...
    @property
    def is_keys(self) -> bool: ...
    @property
    def is_canonical(self) -> bool: ...
    @property
    def arguments(self) -> UpdateOptions: ...


class NodeFields(TypedDict):
    name: str
    keys_in: int
    rows_out: int
    keys_out: int
    read_requests: int
    bytes_read: int
    files_written: int
    bytes_written: int
    tasks: int


class ChangeCountFields(TypedDict):
    name: str
    keys_added: int
    keys_updated: int
    keys_deleted: int
    rows_added: int
    rows_updated: int
    rows_deleted: int


class CompactFields(TypedDict):
    version: int
    tables: int
    runs: int
    bytes_written: int


class UpdateFields(TypedDict):
    version: int
    commit_id: str
    replayed: bool
    nodes: list[NodeFields]


class FactFields(TypedDict):
    block: str
    system_columns: list[str]
    last_offset: int | None
    watermark: str | None


class AppendFields(TypedDict):
    blocks: list[BlockHandle]
    attempts: int


class SliceFields(TypedDict):
    first_offset: int
    last_offset: int
    bytes: int
    logical_hash: str
    physical_hash: str


class IngestFields(TypedDict):
    appended: AppendFields
    slice: SliceFields | None


class ChainVerifyFields(TypedDict):
    blocks: int
    slices: int
    rows: int
    problems: list[tuple[str, str]]


class ChainCompactFields(TypedDict):
    before: str
    after: str
    slices_before: int
    slices_after: int


class ChainVacuumFields(TypedDict):
    files: list[str]
    bytes: int


class IdentityFields(TypedDict):
    id: str
    private_key: bytes


class DatasetIdFields(TypedDict):
    id: str
    did_key: str


class MultihashFields(TypedDict):
    code: int
    digest: bytes
    base16: str
    base58: str


class ContractCheckFields(TypedDict):
    name: str
    expectation: str
