"""A relay between the executors and an S3 server, at which attempts of tasks end or are late.

The processes of Spark get the address of the relay instead of the server's. It passes everything on, but a request of
a worker can be struck: its sender is killed, or gets an error, or waits, and the request is done at once or later.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType

# The files of tables, of ODF datasets and of pipelines, written at once or by the end of an upload; and the first
# pieces of the parts of datasets, whose uploads the driver ends.
WRITES = re.compile(r"(PUT|POST) [^?]*/(data|run)/[^?]+(\?uploadId=[^&]+)?$|PUT [^?]*\.parquet\?.*\bpartNumber=1\b")
# The data files of a table.
READS = re.compile(r"GET [^?]*/data/")
# What a vacuum removes: many files at once, and manifests.
REMOVALS = re.compile(r"POST [^?]*\?delete\b|DELETE [^?]*/(data|tombstone|manifest)/")
LIMIT_SECONDS = 120
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
_REFUSED = b"<Error><Code>InvalidRequest</Code><Message>refused by the relay</Message></Error>"


class Way(enum.Enum):
    """What becomes of an attempt of a task at a request that is struck."""

    FAILED = "failed"
    """The request is done, and the task gets an error."""
    KILLED = "killed"
    """The request is done, and the worker is killed before it gets an answer."""
    EXECUTOR_KILLED = "executor killed"
    """As `KILLED`, with the JVM that the worker belongs to."""
    LATE = "late"
    """The worker is killed, and the request is done when the test says so."""
    STALLED = "stalled"
    """The worker waits for the answer until the test says so, and the request is done then."""
    TWICE = "twice"
    """The request is done, and the worker waits for the answer until enough others are done, one more than tasks."""
    DELAYED = "delayed"
    """The request is done, and what the test says, before the worker gets the answer."""


class Write(NamedTuple):
    """A request as it came in."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes


class Reply(NamedTuple):
    """What the server answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Relay:
    """Passes requests on to a server, and strikes some of those of workers."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._changed = threading.Condition()
        self._way: Way | None = None
        self._numbers: Collection[int] = ()
        self._what = WRITES
        self._meanwhile: Callable[[], object] = bool
        self._enough = self._seen = self._done = self._waiting = 0
        self._is_released = True
        self.struck: list[str] = []
        """The requests that were struck."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """Its address, for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._way, self._is_released = None, True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def striking(
        self,
        way: Way,
        numbers: Collection[int],
        *,
        what: re.Pattern[str] = WRITES,
        enough: int = 0,
        meanwhile: Callable[[], object] = bool,
    ) -> Iterator[None]:
        """Strike the requests of workers with these numbers, of those that match `what`, counted from 1 on."""
        with self._changed:
            self._way, self._numbers, self._what = way, numbers, what
            self._enough, self._meanwhile = enough, meanwhile
            self._seen = self._done = 0
            self._is_released = False
            self.struck = []
        try:
            yield
        finally:
            with self._changed:
                self._way = None

    def release(self) -> None:
        """Have done what is late, and wait for that."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._waiting == 0, LIMIT_SECONDS)

    def pass_on(self, write: Write, client: tuple[str, int]) -> Reply | None:
        """The reply to a request; None if there is no one left to get it."""
        way = self._strike(write, client)
        if way is None or way is Way.TWICE:
            reply = self._send(write)
            self._count_done(write)
            if way is Way.TWICE:
                self._wait(lambda: self._done >= self._enough)
            return reply
        if way in (Way.LATE, Way.STALLED):
            return self._pass_on_late(write, client, is_alive=way is Way.STALLED)
        reply = self._send(write)
        if way is Way.DELAYED:
            self._meanwhile()
            return reply
        if way is Way.FAILED:
            return Reply(400, [("Content-Type", "application/xml")], _REFUSED)
        _kill(client, with_executor=way is Way.EXECUTOR_KILLED)
        return None

    def _pass_on_late(self, write: Write, client: tuple[str, int], *, is_alive: bool) -> Reply | None:
        try:
            if not is_alive:
                _kill(client, with_executor=False)
            self._wait()
            reply = self._send(write)
            return reply if is_alive else None
        finally:
            with self._changed:
                self._waiting -= 1
                self._changed.notify_all()

    def _strike(self, write: Write, client: tuple[str, int]) -> Way | None:
        line = f"{write.method} {write.path}"
        with self._changed:
            if self._way is None or not self._what.search(line) or _process_of(client).pid == os.getpid():
                return None
            self._seen += 1
            if self._seen not in self._numbers:
                return None
            self.struck.append(line)
            self._waiting += self._way in (Way.LATE, Way.STALLED)
            return self._way

    def _count_done(self, write: Write) -> None:
        with self._changed:
            self._done += bool(self._what.search(f"{write.method} {write.path}"))
            self._changed.notify_all()

    def _wait(self, is_enough: Callable[[], bool] = lambda: False) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_released or is_enough(), LIMIT_SECONDS)

    def _send(self, write: Write) -> Reply:
        connection = http.client.HTTPConnection(self._upstream, timeout=LIMIT_SECONDS)
        with contextlib.closing(connection):
            connection.putrequest(write.method, write.path, skip_host=True, skip_accept_encoding=True)
            for name, value in write.headers:
                connection.putheader(name, value)
            connection.endheaders(write.body)
            answer = connection.getresponse()
            return Reply(answer.status, answer.getheaders(), answer.read())


def _process_of(client: tuple[str, int]) -> psutil.Process:
    """The process at the other end of a connection."""
    for connection in psutil.net_connections("tcp4"):
        if connection.laddr == client and connection.pid is not None:
            return psutil.Process(connection.pid)
    raise AssertionError(f"no process has the connection from {client}")


def _kill(client: tuple[str, int], *, with_executor: bool) -> None:
    worker = _process_of(client)
    if with_executor:
        executor = next(process for process in worker.parents() if process.name() == "java")
        executor.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        worker.kill()


def _handler_of(relay: Relay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            write = Write(self.command, self.path, list(self.headers.items()), self.rfile.read(length))
            reply = relay.pass_on(write, self.client_address)
            if reply is None:
                self.close_connection = True
                return
            self.send_response_only(reply.status)
            lengths = [value for name, value in reply.headers if name.lower() == "content-length"]
            for name, value in reply.headers:
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            is_head = self.command == "HEAD"
            self.send_header("Content-Length", lengths[0] if is_head and lengths else str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 as http.server calls them

        def handle(self) -> None:
            # Who was killed does not close its connections well.
            with contextlib.suppress(ConnectionError):
                super().handle()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 as http.server calls it
            """Say nothing."""

    return Handler
