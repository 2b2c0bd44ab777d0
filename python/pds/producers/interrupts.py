"""The end of a call that was interrupted: the functions of its stages, which threads of the engine run, end with it.

The engine ends such a call between two batches. A function may take minutes for one, and a thread that is in it when
the interpreter ends would abort the process.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pds.at_exit import stop_at_exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_calls: Final[weakref.WeakSet[RunningFunctions]] = weakref.WeakSet()


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in a thread of Python before its next instruction, or take that back."""
    kind = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)


class RunningFunctions:
    """The threads in which functions of one call run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: Counter[int] = Counter()
        self._is_interrupted = False
        _calls.add(self)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run a function in this thread.

        Raises:
            KeyboardInterrupt: The call is interrupted, before or meanwhile; also if the function catches that and
                returns, as it has not done all of its work.
        """
        thread = threading.get_ident()
        with self._lock:
            if self._is_interrupted:
                raise KeyboardInterrupt
            self._threads[thread] += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads[thread] -= 1
                if not self._threads[thread]:
                    del self._threads[thread]
                    if self._is_interrupted:
                        # It may have ended before the error came, which is not for what the thread does next.
                        _raise_in_thread(thread, None)
        if self._is_interrupted:
            raise KeyboardInterrupt

    def interrupt(self) -> None:
        """End the functions with a KeyboardInterrupt, and those that begin later."""
        with self._lock:
            self._is_interrupted = True
            for thread in self._threads:
                if thread != threading.get_ident():
                    _raise_in_thread(thread, KeyboardInterrupt)

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a function, which can be interrupted while it makes one."""
        return stop_at_exit(self._make(batches))

    def _make(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while True:
            with self.entered():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


@contextmanager
def interruptible() -> Iterator[RunningFunctions]:
    """Run a call of the engine: where Ctrl-C or the end of a thread ends it, its functions end, too."""
    running = RunningFunctions()
    try:
        yield running
    except Exception:
        raise
    except BaseException:
        running.interrupt()
        raise


@atexit.register
def _interrupt_all() -> None:
    for running in list(_calls):
        running.interrupt()


if hasattr(os, "register_at_fork"):
    # A child has none of their threads, and a lock that one of these held is never released there.
    os.register_at_fork(after_in_child=_calls.clear)
