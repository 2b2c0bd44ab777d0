"""The inputs of an update: from what callers push, or what is new in tables, to what the engine reads."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pds.errors import InvalidInput
from pds.inputs import keep_cause
from pds.producers.changes import is_spread, stage_input, to_input
from pds.producers.engine import SourceRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from pds.producers.attachment import Attachment
    from pds.producers.changes import Changes, Replace
    from pds.producers.engine import BoundEngine, Engine, Part
    from pds.producers.graph import Node, SourceInput, UpdateArguments
    from pds.store import Store


@dataclass(frozen=True)
class TableStager:
    """Stages the rows of a table that feeds a source."""

    engine: Engine | None
    bound: BoundEngine | None
    """The engine, bound to the pipeline."""
    rows: SourceRows

    @property
    def local_bytes(self) -> int | None:
        """The most bytes of changed rows that are read here; None for any."""
        return None if self.bound is None else self.bound.local_bytes

    def stage(self, split: Callable[[], Sequence[Part]]) -> list[bytes] | None:
        """Stage the parts of a table; None if they are to be read here."""
        if self.engine is None:
            return None
        parts = split()
        # For one part a task has no less to do than this process.
        return self.engine.stage_parts(self.rows, parts) if parts[1:] else None

    def stage_keys(self, keys: pa.RecordBatchReader | pa.Table, staged: list[bytes]) -> list[bytes]:
        """Stage keys from here. After an error the rows that were staged before are removed."""
        try:
            return [replace(self.rows, is_keys=True).stage(keys)]
        except BaseException:
            self.rows.discard(staged)
            raise


@dataclass(frozen=True)
class Inputs:
    """Makes the inputs of one update of a pipeline."""

    store: Store
    path: str
    nodes: Mapping[str, Node]
    attachments: Mapping[str, Attachment]
    engine: Engine | None
    arguments: UpdateArguments

    def are_spread(self, changes: Mapping[str, Changes | Replace]) -> bool:
        """Whether `of_changes` has the engine stage some of the changes.

        Raises:
            InvalidInput: No such source exists, or a table or another pipeline feeds it.
        """
        self._check_sources(changes)
        engine = self.engine
        return engine is not None and any(is_spread(engine, each) for each in changes.values())

    def of_changes(self, changes: Mapping[str, Changes | Replace]) -> list[SourceInput]:
        """Return the inputs for pushed changes. After an error nothing is staged.

        Raises:
            InvalidInput, InvalidType: No such source exists, or a table or another pipeline feeds it; or as
                `to_input`.
        """
        self._check_sources(changes)

        def read(name: str) -> SourceInput:
            staged = None if self.engine is None else stage_input(self.engine, self._rows_of(name), changes[name])
            return staged or to_input(name, changes[name], self.nodes[name].fields)

        return self._collect(read, changes)

    def _check_sources(self, changes: Mapping[str, Changes | Replace]) -> None:
        for name in changes:
            node = self.nodes.get(name)
            if node is None or node.feeders is not None:
                sources = [node.name for node in self.nodes.values() if node.feeders is None]
                raise InvalidInput(f"there is no source {name!r}; there are {sources}")
            if name in self.attachments:
                raise InvalidInput(f"source {name!r} is fed by {self.attachments[name].advice}, and call refresh()")

    def of_attachments(self, stored: Mapping[str, Any]) -> list[SourceInput]:
        """Return the inputs for what is new in the attached tables and pipelines.

        Each is read at one version, whichever sources it feeds.

        Args:
            stored: The sources and stages of the newest version, by name.

        Raises:
            NotFound: A table or a stage does not exist any more.
            DefinitionChanged: As for `Attachment.read`.
        """
        opened: dict[tuple[Store, str], Any] = {}

        def read(name: str) -> SourceInput | None:
            attached = self.attachments[name]
            if attached.identity not in opened:
                opened[attached.identity] = attached.open_newest()
            stager = TableStager(self.engine, self.arguments.engine, self._rows_of(name))
            return attached.read(name, stored.get(name, {}).get("consumed"), stager, opened[attached.identity])

        return self._collect(read, self.attachments)

    @contextmanager
    def used(self, inputs: list[SourceInput]) -> Iterator[list[SourceInput]]:
        """Yield the inputs as the engine reads them. Leave nothing behind if the update fails: no jobs, no staged rows.

        Raises:
            InvalidInput: A reader raised an exception, which is the cause.
        """
        with ExitStack() as readers:
            try:
                yield [
                    source._replace(
                        upserts=readers.enter_context(keep_cause(source.upserts)),
                        deletes=readers.enter_context(keep_cause(source.deletes)),
                    )
                    for source in inputs
                ]
            except BaseException as error:
                if self.arguments.engine is not None and not isinstance(error, Exception):
                    self.arguments.engine.cancel()
                self._discard(inputs)
                raise

    def _collect(self, read: Callable[[str], SourceInput | None], names: Mapping[str, Any]) -> list[SourceInput]:
        inputs: list[SourceInput] = []
        with self.used(inputs):
            for name in names:
                new = read(name)
                inputs.extend([] if new is None else [new])
        return inputs

    def _discard(self, inputs: list[SourceInput]) -> None:
        for source in inputs:
            parts = [part for part in (source.upserts, source.deletes) if isinstance(part, list)]
            if parts:
                self._rows_of(source.source).discard([message for part in parts for message in part])

    def _rows_of(self, name: str) -> SourceRows:
        return SourceRows(self.store, self.path, self.nodes[name], self.arguments._replace(engine=None))
