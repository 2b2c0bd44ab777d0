"""Runs of Dagster: what identifies a write across retries."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from dagster import DagsterInvariantViolationError, RunsFilter

from pds.errors import InvalidInput

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun, OutputContext, StepExecutionContext

# The tag of a run that Dagster has started because its parent failed.
_RETRIED: Final = "dagster/retry_number"
_SUCCESS: Final = "SUCCESS"


def find_step_context(context: OutputContext) -> StepExecutionContext | None:
    """Return the context of the step, or None outside a run."""
    try:
        return context.step_context
    except DagsterInvariantViolationError:
        return None


def check_has_partitions(context: OutputContext) -> None:
    """Refuse a run without partitions of an asset that has some: it would replace those of other runs.

    Raises:
        InvalidInput: The asset has partitions, and the run has none.
    """
    if not context.has_asset_key or context.has_asset_partitions:
        return
    step = find_step_context(context)
    is_declared = "pds/partition_expr" in (context.definition_metadata or {})
    if is_declared or (step is not None and step.has_asset_partitions_for_output(context.name)):
        label = context.asset_key.to_user_string()
        raise InvalidInput(f"asset {label} has partitions, and this run has none: run it with a partition key")


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
        run_id = _find_first_run(step.dagster_run, context.step_key, step.instance).run_id
    elif isinstance(rows, pa.Table):
        run_id = context.run_id
        parts.append(_hash_rows(rows))
    else:
        return None
    return _format_key(run_id, parts)


def make_update_key(step: StepExecutionContext) -> str:
    """Return the idempotency key for the update of a pipeline: one for all attempts of a step."""
    run = _find_first_run(step.dagster_run, step.step.key, step.instance)
    return _format_key(run.run_id, [step.step.key])


def _format_key(run_id: str, parts: list[str]) -> str:
    # Step and partition keys may be longer than idempotency keys.
    return f"dagster/{run_id}/{hashlib.sha256(repr(parts).encode()).hexdigest()}"


def _find_first_run(run: DagsterRun, step_key: str, instance: DagsterInstance) -> DagsterRun:
    """Return the first run whose attempt of a step is completed by this run, or the run itself.

    A re-execution completes the attempt of an ancestor that did not succeed at the step, unless another re-execution
    has done so. Dagster's own retries of a run complete all of its steps. Runs without the step have no attempt.
    """
    first = run
    while run.parent_run_id is not None:
        parent = instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            break
        status = _get_status(parent, step_key, instance)
        if _RETRIED not in run.tags and (
            status == _SUCCESS or any(_is_completed(other, step_key, instance) for other in _siblings(run, instance))
        ):
            break
        if status is not None or _RETRIED in run.tags:
            first = parent
        run = parent
    return first


def _siblings(run: DagsterRun, instance: DagsterInstance) -> list[DagsterRun]:
    """Return the other re-executions of the parent of a run. Not all of them have the tag of their parent."""
    parent = instance.get_run_record_by_id(str(run.parent_run_id))
    created_after = None if parent is None else parent.create_timestamp
    runs = instance.get_runs(RunsFilter(job_name=run.job_name, created_after=created_after))
    return [other for other in runs if other.parent_run_id == run.parent_run_id and other.run_id != run.run_id]


def _is_completed(run: DagsterRun, step_key: str, instance: DagsterInstance) -> bool:
    return _get_status(run, step_key, instance) == _SUCCESS


def _get_status(run: DagsterRun, step_key: str, instance: DagsterInstance) -> str | None:
    """Return the status of a step, or None if the run did not begin it."""
    statuses = [step.status.value for step in instance.get_run_step_stats(run.run_id, [step_key]) if step.status]
    return _SUCCESS if _SUCCESS in statuses else next(iter(statuses), None)


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
