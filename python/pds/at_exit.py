"""The end of the interpreter, when no thread of another library may be in a Python generator of pds.

pyarrow and the engine read Python generators in threads of their own. A thread that asks for the GIL of an interpreter
that has ended never gets it: the process waits for that thread, or is aborted with it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from pds import _pds
from pds.errors import RemoteStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import GeneratorType

Item = TypeVar("Item")

# How long the end waits for generators that run.
_WAIT_SECONDS: Final = 5.0
# How long none may run or end until the end goes on: threads between two calls come and get their error, and one that
# got it asks for the GIL once more, to drop it.
_QUIET_SECONDS: Final = 0.25
_TICK_SECONDS: Final = 0.01

_streams: set[weakref.ref[GeneratorType[Any, None, None]]] = set()
"""The generators that other threads may read."""

_ending_thread: int | None = None
"""The thread that ends the interpreter. It may read on, as functions do that `atexit` calls."""


def stop_at_exit(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items. When the interpreter ends, another thread that asks for the next one gets an error.

    An error, and not the end of the items: to whoever reads them, these would be all. For the same reason every call
    after one that raised does, too.

    Raises:
        RemoteStoreError: The interpreter ends.
        InvalidInput: An earlier call raised an exception, or was interrupted.
    """
    if _ending_thread is not None:
        # A function that `atexit` calls begins to read.
        return cast("Iterator[Item]", _pds.ItemStream(items))
    stream = cast("GeneratorType[Any, None, None]", _yield_items(items))
    _streams.add(weakref.ref(stream, _streams.discard))
    return cast("Iterator[Item]", _pds.ItemStream(stream))


def _yield_items(items: Iterator[Item]) -> Iterator[Item]:
    while True:
        if _ending_thread not in (None, threading.get_ident()):
            raise RemoteStoreError("the rows are not read to their end, because the Python interpreter ends")
        try:
            item = next(items)
        except StopIteration:
            return
        yield item


def _unfinished_streams() -> list[GeneratorType[Any, None, None]]:
    streams = (ref() for ref in list(_streams))
    return [stream for stream in streams if stream is not None and stream.gi_frame is not None]


def _end_streams() -> None:
    global _ending_thread  # noqa: PLW0603 a process ends once
    _ending_thread = threading.get_ident()
    count = len(_unfinished_streams())
    if count == 0:
        return
    end = time.monotonic() + _WAIT_SECONDS
    last_change = time.monotonic()
    while (now := time.monotonic()) < end:
        streams = _unfinished_streams()
        if len(streams) != count or any(stream.gi_running for stream in streams):
            count, last_change = len(streams), now
        elif now - last_change > _QUIET_SECONDS:
            return
        del streams
        time.sleep(_TICK_SECONDS)


atexit.register(_end_streams)
if hasattr(os, "register_at_fork"):
    # A child has not the threads that read them.
    os.register_at_fork(after_in_child=_streams.clear)
