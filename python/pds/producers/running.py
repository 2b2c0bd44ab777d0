"""Which pipelines wait for the function of a stage that runs here: it cannot update them.

The engine calls functions in threads of its own, so each call notes by itself what waits for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pds.errors import InvalidInput
from pds.producers.interrupts import RunningFunctions, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from pds.producers.graph import Node
    from pds.store import Store

    Waiting = tuple[tuple[Store, str], ...]

_WAITING: ContextVar[Waiting] = ContextVar("pds_waiting_pipelines", default=())


def refuse_own_update(store: Store, path: str) -> None:
    """Refuse an update in a function that the same pipeline runs: an update that runs it waits, and so would this one.

    Raises:
        InvalidInput: Such a function runs in this context.
    """
    if (store, path) in _WAITING.get():
        message = (
            f"a function of a stage cannot update its own pipeline {path!r}: the call that runs the function waits for "
            f"it; update the pipeline after that call has ended"
        )
        raise InvalidInput(message, path=path)


@contextmanager
def marked_functions(store: Store, path: str, nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """Run a call of the engine with nodes during whose functions `refuse_own_update` refuses this pipeline.

    The functions end with the call if it is interrupted.
    """
    # Those that wait for the caller wait for these functions, too.
    waiting = (*_WAITING.get(), (store, path))
    with interruptible() as running:
        yield [
            node._replace(
                function=None if node.function is None else _Marked(waiting, running, node.function),
                preserve=None if node.preserve is None else _Marked(waiting, running, node.preserve),
            )
            for node in nodes
        ]


@contextmanager
def _waited_for(waiting: Waiting) -> Iterator[None]:
    token = _WAITING.set(waiting)
    try:
        yield
    finally:
        _WAITING.reset(token)


@dataclass(frozen=True)
class _Marked:
    """The function or the hook of a stage, during which pipelines wait."""

    waiting: Waiting
    running: RunningFunctions
    function: Callable[..., Any]

    def __call__(self, *arguments: object) -> _MarkedBatches:
        with _waited_for(self.waiting), self.running.entered():
            return _MarkedBatches(self.waiting, self.running, self.function(*arguments))


@dataclass(frozen=True)
class _MarkedBatches:
    """What a function gives; most of its work is done when a batch is asked for."""

    waiting: Waiting
    running: RunningFunctions
    batches: Any

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.running.watch(self._make())

    def _make(self) -> Iterator[pa.RecordBatch]:
        with _waited_for(self.waiting):
            batches = iter(self.batches)
        while True:
            # Not while it is suspended: the context is that of whoever asks.
            with _waited_for(self.waiting):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def get_state(self) -> str:
        """Return the state of a hook after its last row."""
        with self.running.entered():
            state: str = self.batches.get_state()
        return state
