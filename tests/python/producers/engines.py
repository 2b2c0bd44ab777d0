"""An engine that runs the tasks of pipelines in this process, as badly as an engine may."""

from __future__ import annotations

import dataclasses
import pickle
import random
from typing import TYPE_CHECKING

from pds.producers.engine import BoundEngine, StageTasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    import pds
    from pds.producers.engine import Part, SourceRows
    from pds.producers.graph import Node


@dataclasses.dataclass(frozen=True)
class Spread:
    """Rows in parts, as those of a DataFrame are."""

    parts: list[pa.Table]


class RepeatingEngine:
    """Runs tasks in any order, and some of them twice, of which either result counts."""

    def __init__(self, local_bytes: int = 0, task_bytes: int = 1 << 10, *, repeats: bool = True) -> None:
        self.local_bytes, self.task_bytes = local_bytes, task_bytes
        self.jobs: list[tuple[str, int]] = []
        self.staged_parts = 0
        self._repeats = [1, 1, 2] if repeats else [1]
        self._random = random.Random(1)

    def bind(self, store: pds.Store, path: str, nodes: Sequence[Node]) -> BoundEngine:
        def run_tasks(stage: str, job: bytes, count: int) -> list[bytes | Exception]:
            self.jobs.append((stage, count))
            tasks = StageTasks.of(store, path, nodes, stage, job)
            attempts = [number for number in range(count) for _ in range(self._random.choice(self._repeats))]
            self._random.shuffle(attempts)
            results: dict[int, bytes | Exception] = {}
            for number in attempts:
                try:
                    results[number] = tasks.run(number)
                except Exception as error:  # noqa: BLE001 the engine raises it
                    results[number] = error
            return [results[number] for number in range(count)]

        return BoundEngine(self.local_bytes, self.task_bytes, run_tasks, lambda: None)

    def takes(self, rows: object) -> bool:
        return isinstance(rows, Spread)

    def stage(self, target: SourceRows, rows: Spread) -> list[bytes]:
        self.staged_parts += len(rows.parts)
        return [target.stage(part) for part in rows.parts]

    def stage_parts(self, target: SourceRows, parts: Sequence[Part]) -> list[bytes]:
        self.staged_parts += len(parts)
        target, parts = pickle.loads(pickle.dumps((target, parts)))  # noqa: S301 as engines do
        return [target.stage(part.open()) for part in parts]
