"""What runs the tasks of large stages outside of the process that updates a pipeline."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from pds import _pds
from pds.errors import RemoteStoreError
from pds.producers.running import marked_functions
from pds.readers import make_reader
from pds.store import native_handle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pds.producers.graph import Node, UpdateArguments
    from pds.store import Store


class Engine(Protocol):
    """Runs tasks, such as `pds.spark.SparkEngine`."""

    def bind(self, store: Store, path: str, nodes: Sequence[Node]) -> BoundEngine:
        """Return the engine for the pipeline in a folder of a store, with these sources and stages."""

    def takes(self, rows: object) -> bool:
        """Whether rows are spread over the processes of the engine, as those of a DataFrame of Spark are."""

    def stage(self, target: SourceRows, rows: Any) -> list[bytes]:  # noqa: ANN401 of the engine
        """Stage such rows by tasks, and return the message of each part, in the order of the parts.

        After an error nothing is staged, as far as the engine knows.
        """

    def stage_parts(self, target: SourceRows, parts: Sequence[Part]) -> list[bytes]:
        """Stage rows that tasks read, as `stage` does."""


class Part(Protocol):
    """Some rows of a source, which a task reads; can be pickled."""

    def open(self) -> pa.RecordBatchReader:
        """Return the rows, with the columns `key` and `value`."""


class BoundEngine(NamedTuple):
    """An engine for one pipeline; the engine of Rust reads the attributes."""

    local_bytes: int
    """The most bytes of work of a stage that this process computes."""
    task_bytes: int
    """About the bytes of work of a task."""
    run_tasks: Callable[[str, bytes, int], list[bytes | Exception]]
    """Runs the tasks of a job: called with the name of the stage, the job and the number of its tasks. Returns a result
    of each task, in their order, or the exception that it raised."""
    cancel: Callable[[], None]
    """Ends the jobs that run, without waiting for that."""


@dataclass(frozen=True)
class StageTasks:
    """The tasks of a job of a stage; can be pickled if the store and the function of the stage can."""

    store: Store
    path: str
    nodes: tuple[Node, ...]
    job: bytes

    @classmethod
    def of(cls, store: Store, path: str, nodes: Sequence[Node], stage: str, job: bytes) -> StageTasks:
        """Return the tasks without the functions of other stages."""
        shipped = (node if node.name == stage else node._replace(function=None, preserve=None) for node in nodes)
        return cls(store, path, tuple(shipped), job)

    def run(self, number: int, threads: int | None = None) -> bytes:
        """Run a task, and return its result. After an error nothing that it wrote stays.

        Args:
            number: The number of the task.
            threads: How many threads encode what it writes. Defaults to one per processor.
        """
        with marked_functions(self.store, self.path, self.nodes) as nodes:
            return _pds.run_pipeline_task(native_handle(self.store), self.path, nodes, self.job, number, threads)


@dataclass(frozen=True)
class SourceRows:
    """A source, and how its rows are staged; can be pickled if the store can."""

    store: Store
    path: str
    source: Node
    arguments: UpdateArguments
    is_keys: bool = False
    """Whether they are keys alone."""
    is_canonical: bool = True
    """Whether the rows of a key are sorted by their values. Rows in parts have no other order."""

    def stage(self, rows: pa.RecordBatchReader | pa.Table, threads: int | None = None) -> bytes:
        """Sort rows and write them to the store, where nothing names them.

        Args:
            rows: The rows.
            threads: As for `StageTasks.run`.

        Returns:
            A message that stands for them in a `SourceInput`.

        Raises:
            InvalidInput: A row does not fit the source.
            Exception: What reading the rows raised.
        """
        reader = rows.to_reader() if isinstance(rows, pa.Table) else rows
        failures: list[BaseException] = []

        def watch() -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except GeneratorExit:
                raise
            except BaseException as error:
                # It passes an Arrow stream as text only.
                failures.append(error)
                raise

        watched = make_reader(reader.schema, watch())
        try:
            return _pds.stage_source_rows(native_handle(self.store), self.path, self, watched, threads)
        except BaseException as error:
            if failures and (isinstance(error, RemoteStoreError) or not isinstance(failures[0], Exception)):
                raise failures[0] from None
            raise

    def discard(self, messages: Sequence[bytes]) -> None:
        """Remove staged rows; what cannot be removed is left to a vacuum."""
        with contextlib.suppress(RemoteStoreError):
            _pds.discard_source_rows(native_handle(self.store), self.path, list(messages))
