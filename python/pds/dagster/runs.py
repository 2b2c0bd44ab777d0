"""Runs of Dagster: what identifies a write across retries."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from dagster import DagsterInvariantViolationError

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun, OutputContext, StepExecutionContext

# The tags of a run that continues one that failed: re-executed from failure by hand, or retried by the daemon.
_RESUMED: Final = ("dagster/is_resume_retry", "dagster/is_asset_resume_retry")
_RETRIED: Final = "dagster/retry_number"


def find_step_context(context: OutputContext) -> StepExecutionContext | None:
    """Return the context of the step, or None outside a run."""
    try:
        return context.step_context
    except DagsterInvariantViolationError:
        return None


def make_idempotency_key(
    context: OutputContext, rows: pa.Table | pa.RecordBatchReader, *, is_append: bool
) -> str | None:
    """Return the idempotency key for the write of an output, or None for a write that no attempt repeats.

    The attempts of one append have the same key, whatever their rows: one of them is committed. Attempts that replace
    rows have the same key if they have the same rows. A stream has no key, since its rows are not known before.
    """
    step = find_step_context(context)
    if step is None:
        return None
    parts = [context.step_key, context.name, context.mapping_key or ""]
    if context.has_asset_key and context.has_asset_partitions:
        parts += sorted(context.asset_partition_keys)
    if is_append:
        run_id = find_first_run(step.dagster_run, step.instance).run_id
    elif isinstance(rows, pa.Table):
        run_id = context.run_id
        parts.append(_hash_rows(rows))
    else:
        return None
    return f"dagster/{run_id}/{hashlib.sha256(repr(parts).encode()).hexdigest()}"


def find_first_run(run: DagsterRun, instance: DagsterInstance) -> DagsterRun:
    """Return the run that this one continues, or the run itself if it continues no other."""
    while run.parent_run_id and (_RETRIED in run.tags or any(run.tags.get(tag) == "true" for tag in _RESUMED)):
        parent = instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            break
        run = parent
    return run


class _HashSink(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 any buffer
        self.hash.update(data)
        return memoryview(data).nbytes


def _hash_rows(rows: pa.Table) -> str:
    sink = _HashSink()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.hash.hexdigest()
