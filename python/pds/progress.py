"""The progress of long operations: calls of a function of the caller, or a bar."""

from __future__ import annotations

__all__ = ["Progress"]

import contextlib
import contextvars
import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pds import _pds
from pds.errors import InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterator

_INTERVAL_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 1.0
# How long the end of an operation waits for the last call of a function.
_LAST_CALL_SECONDS: Final = 10.0
_LOG_LINE_SECONDS: Final = 10.0
_BAR_CHARACTERS: Final = 30
_KILOBYTE: Final = 1000.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far an operation is. Counts never decrease, and work that is repeated after a conflict counts again.

    Args:
        operation: The name of the method, such as `append`.
        phase: What it does now, such as `write` or `commit`; empty before the first phase.
        files: The number of files that are written, verified or removed.
        files_total: How many there will be; None if that is not known.
        rows: The number of rows that are written or verified.
        rows_total: How many there will be; None if that is not known. It is an upper bound until the last call where
            deleted rows are left out.
        bytes: The number of bytes that are written, verified or removed.
        elapsed: The time since the operation began, in seconds.
        is_last: Whether this is the last call.
    """

    operation: str
    phase: str
    files: int
    files_total: int | None
    rows: int
    rows_total: int | None
    bytes: int
    elapsed: float
    is_last: bool

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1, by rows or else by files; None if no total is known."""
        for done, total in ((self.rows, self.rows_total), (self.files, self.files_total)):
            if total is not None:
                return min(done / total, 1.0) if total else float(self.is_last)
        return None

    def __str__(self) -> str:
        counts = [
            _format_count(done, total, noun)
            for done, total, noun in ((self.rows, self.rows_total, "row"), (self.files, self.files_total, "file"))
            if done or total
        ]
        if self.bytes:
            counts.append(_format_bytes(self.bytes))
        phase = f" ({self.phase})" if self.phase and not self.is_last else ""
        return f"{self.operation}{phase}: {', '.join([*counts, f'{self.elapsed:.1f} s'])}"


ProgressArgument = bool | Callable[[Progress], object]
"""The argument `progress` of an operation."""


@contextlib.contextmanager
def reported(operation: str, progress: ProgressArgument, rows_of: object = None) -> Iterator[None]:
    """Report the progress of the calls of the engine that this thread makes within.

    Args:
        operation: Its name.
        progress: The argument of the caller.
        rows_of: The input, whose number of rows is the total if it knows it.

    Raises:
        InvalidType: `progress` is neither a bool nor can be called.
    """
    if progress is False:
        yield
        return
    if progress is not True and not callable(progress):
        raise InvalidType(f"progress must be True, False or a function, not {progress!r}")
    report = _Report(operation, make_display() if progress is True else progress, _count_rows(rows_of))
    with report:
        yield


class _Report:
    """Calls a function with the progress from a thread of its own, the last time when the operation has ended."""

    def __init__(self, operation: str, callback: Callable[[Progress], object], rows_total: int | None) -> None:
        self._operation = operation
        self._callback: Callable[[Progress], object] | None = callback
        self._rows_total = rows_total
        self._handle = _pds.ProgressHandle()
        self._start = time.monotonic()
        self._has_succeeded = False
        self._end = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._report,), name="pds-progress", daemon=True)

    def __enter__(self) -> None:
        try:
            self._handle.enter()
            self._thread.start()
        except BaseException:
            self._end.set()
            self._handle.exit()
            raise

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._has_succeeded = exc_type is None
        self._end.set()
        self._handle.exit()
        # What the operation did must not depend on the function.
        self._thread.join(_LAST_CALL_SECONDS)
        if self._thread.is_alive():
            message = "%s has ended, and the function that is called with its progress has not for %s s"
            _logger.warning(message, self._operation, _LAST_CALL_SECONDS)

    def _report(self) -> None:
        while not self._end.wait(_INTERVAL_SECONDS):
            self._call(self._read(is_last=False))
        last = self._read(is_last=True)
        if self._has_succeeded:
            # What turned out to be less than expected, such as rows that are deleted.
            files_total = None if last.files_total is None else last.files
            rows_total = None if last.rows_total is None else last.rows
            last = dataclasses.replace(last, files_total=files_total, rows_total=rows_total)
        self._call(last)

    def _read(self, *, is_last: bool) -> Progress:
        counts = self._handle.counts()
        if counts["rows_total"] is None and self._rows_total is not None:
            counts["rows_total"] = max(self._rows_total, counts["rows"])
        elapsed = time.monotonic() - self._start
        return Progress(self._operation, **counts, elapsed=elapsed, is_last=is_last)

    def _call(self, progress: Progress) -> None:
        if self._callback is None:
            return
        try:
            self._callback(progress)
        except BaseException:
            self._callback = None
            _logger.exception("the progress of %s is not reported any more: the function failed", self._operation)


def _count_rows(data: object) -> int | None:
    """Return the number of rows of a table in memory."""
    for name in ("num_rows", "height"):
        rows = None
        with contextlib.suppress(Exception):
            rows = getattr(data, name, None)
        if isinstance(rows, int):
            return rows
    return None


def _format_count(done: int, total: int | None, noun: str) -> str:
    plural = "" if (done if total is None else total) == 1 else "s"
    return f"{done:,} {noun}{plural}" if total is None else f"{done:,} of {total:,} {noun}{plural}"


def _format_bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < _KILOBYTE or unit == "TB":
            break
        size /= _KILOBYTE
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def make_display() -> Callable[[Progress], object]:
    """Return a display for this process: in a notebook, on a terminal, or lines of text."""
    try:
        if (shell := _find_notebook()) is not None:
            return _NotebookBar(shell)
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    except Exception:  # noqa: BLE001 a display that fails is no reason to fail
        is_terminal = False
    if not is_terminal:
        return _Lines(_LOG_LINE_SECONDS)
    try:
        return _RichBar()
    except Exception:  # noqa: BLE001 as above, and rich may be missing
        return _Lines(_LINE_SECONDS)


def _find_notebook() -> Any:  # noqa: ANN401 a module that may be missing
    """Return the module of IPython that shows objects, in a notebook; it is not imported elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython import display  # type: ignore[import-not-found]  # noqa: PLC0415 an optional dependency

    return display


class _Lines:
    """Lines on standard error, not more often than every few seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = seconds

    def __call__(self, progress: Progress) -> None:
        if progress.is_last or progress.elapsed >= self._next:
            self._next = progress.elapsed + self._seconds
            if sys.stderr is not None:
                print(progress, file=sys.stderr, flush=True)  # noqa: T201 that is what it is for


class _RichBar:
    """A bar of rich on standard error."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 an optional dependency
        from rich.live import Live  # noqa: PLC0415 as above
        from rich.progress_bar import ProgressBar  # noqa: PLC0415 as above
        from rich.table import Table  # noqa: PLC0415 as above
        from rich.text import Text  # noqa: PLC0415 as above

        self._make_bar, self._make_table, self._make_text = ProgressBar, Table, Text
        # What other threads print is theirs.
        console = Console(stderr=True)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._is_shown = False

    def __call__(self, progress: Progress) -> None:
        if not self._is_shown:
            self._live.start()
            self._is_shown = True
        fraction = progress.fraction
        pulses = fraction is None and not progress.is_last
        bar = self._make_bar(1.0, 1.0 if fraction is None else fraction, _BAR_CHARACTERS, pulses)
        row = self._make_table.grid(padding=(0, 1))
        row.add_row(bar, self._make_text(str(progress)))
        self._live.update(row, refresh=True)
        if progress.is_last:
            self._live.stop()


class _NotebookBar:
    """A bar below the cell of a notebook."""

    def __init__(self, display: Any) -> None:  # noqa: ANN401 the module of IPython
        self._display = display
        self._shown: Any = None

    def __call__(self, progress: Progress) -> None:
        from html import escape  # noqa: PLC0415 only notebooks need it

        fraction = progress.fraction
        value = "" if fraction is None else f' value="{fraction:.4f}"'
        value = ' value="1"' if progress.is_last and fraction is None else value
        html = f"<progress{value}></progress> {escape(str(progress))}"
        content = {"text/plain": str(progress), "text/html": html}
        if self._shown is None:
            self._shown = self._display.display(content, raw=True, display_id=True)
        else:
            self._shown.update(content, raw=True)
