"""The running server: connections, faults by number or by rule, the log of what was applied."""

from __future__ import annotations

import itertools
import select
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import parse_qs, unquote, urlsplit

from scripted_s3.bucket import BUCKET, CLASS_A, Answer, Bucket, Request, Stored, error
from scripted_s3.faults import CODES, Event, Fault, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The regions of this process; signatures are not checked.
_REGIONS = itertools.count()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[ScriptedS3]

    def log_message(self, *_args: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.script.bucket.now() if timestamp is None else timestamp, usegmt=True)

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        key = unquote(parts.path).lstrip("/").removeprefix(BUCKET).lstrip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, key, query, headers, body)

    def _serve(self) -> None:
        request = self._request()
        self.script.call_before(request)
        name, rule = self.script.next_fault(request)
        fault = Fault.parse(name)
        doing = fault.doing
        answer = self.script.apply(request) if fault.is_applied else None
        if rule is not None:
            rule.hit.set()
        if doing == "pause" and rule is not None:
            self._wait_for_client(rule.resumed, rule)
            if rule.is_dropped and answer is None:
                doing = "drop"
            else:
                answer, doing = answer or self.script.apply(request), rule.answered
        if doing.isdigit():
            self._answer(error(int(doing), CODES[doing]))
        elif doing == "error body":
            self._answer(error(500, "InternalError")._replace(status=200))
        elif doing in ("stall", "hold"):
            self.script.held.set()
            self._wait_for_client(self.script.released, rule)
            self.close_connection = True
        elif doing == "drop":
            self.close_connection = True
        elif answer is not None:
            if doing == "no etag":
                answer = answer._replace(headers={k: v for k, v in answer.headers.items() if k != "ETag"})
            self._answer(answer, is_cut=doing == "cut")

    def _wait_for_client(self, released: threading.Event, rule: Rule | None) -> None:
        """Until released; or, unless it is paused, until the client closes.

        A client never sends a second request on this connection.
        """
        is_closed = False
        while not released.is_set():
            if not is_closed and select.select([self.connection], [], [], 0.02)[0]:
                is_closed = True
                if rule is None or rule.fault.partition(" ")[0] != "pause":
                    break
            if is_closed:
                released.wait(0.02)
        if is_closed and rule is not None:
            rule.closed.set()

    def _answer(self, answer: Answer, *, is_cut: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        body = b"" if self.command == "HEAD" or answer.status in (204, 304) else answer.body
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("x-amz-request-id", "scripted")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_cut else body)
        self.close_connection = self.close_connection or is_cut

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 names of http.server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A client whose connection finds no place in the queue waits for a second.
    request_queue_size = 128


class ScriptedS3:
    """A running server.

    Faults come by the number of a request (from 0), see `restart`, or by rules, see `on`.
    """

    def __init__(self, ignores: frozenset[str] = CLASS_A) -> None:
        self.bucket = Bucket(ignores=ignores)
        # What came in, in order; and before the last restart. Likewise what was applied.
        self.seen: list[Request] = []
        self.seen_before: list[Request] = []
        self.log: list[Event] = []
        self.log_before: list[Event] = []
        # Called after every request that changed something, while nothing else changes.
        self.watch: Callable[[Event], None] | None = None
        # Called before every request, while it waits and nothing is locked: it may send requests itself.
        self.before: Callable[[Request], None] | None = None
        # What `watch` and `before` raised.
        self.failures: list[BaseException] = []
        self.held = threading.Event()
        self.released = threading.Event()
        self._faults: dict[int, str] = {}
        self._rules: list[Rule] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"script": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._server.handle_error = lambda *_args: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.released.set()
        for rule in self._rules:
            rule.drop()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def restart(self, faults: Mapping[int, str] | None = None) -> None:
        """Count requests from 0 again, with these faults and no others."""
        with self._lock:
            for rule in self._rules:
                rule.drop()
            self._rules = []
            self._faults = dict(faults or {})
            self._numbers = itertools.count()
            self.seen, self.seen_before = [], self.seen
            self.log, self.log_before = [], self.log
            self.held.clear()
            self.released.clear()

    def add(self, rule: Rule) -> Rule:
        """Have a rule; the first one that matches a request counts."""
        rule.apply = lambda request: self.apply(request, is_late=True)
        with self._lock:
            self._rules.append(rule)
        return rule

    def on(self, verb: str, name: str, fault: str, *, client: str = "", skip: int = 0, times: int = 1) -> Rule:
        """A fault for `verb` of objects whose keys end with `name`, see `Request.touches`."""

        def matches(request: Request) -> bool:
            return client in ("", request.client) and request.touches(verb, name)

        return self.add(Rule(matches, fault, skip, times))

    def stop(self, client: str, fault: str = "pause", *, skip: int = 0, after: Rule | None = None) -> Rule:
        """Whatever the client sends, after the first `skip` or after another rule has hit, is paused, but probes."""

        def matches(request: Request) -> bool:
            return request.client == client and not request.is_probe and (after is None or after.hit.is_set())

        return self.add(Rule(matches, fault, skip))

    def call_before(self, request: Request) -> None:
        """Have the test do what it likes before a request."""
        if self.before is None:
            return
        try:
            self.before(request)
        except BaseException as failure:  # noqa: BLE001 the test raises it
            self.failures.append(failure)

    def next_fault(self, request: Request) -> tuple[str, Rule | None]:
        """Note a request; the fault that hits it, or nothing."""
        with self._lock:
            self.seen.append(request)
            fault = self._faults.get(next(self._numbers), "")
            rule = None if fault else next((rule for rule in self._rules if rule.take(request)), None)
        return (rule.fault if rule else fault), rule

    def apply(self, request: Request, *, is_late: bool = False) -> Answer:
        """Do what a request says, note it, and have it watched."""
        with self.bucket.lock:
            answer = self.bucket.handle(request)
            event = Event(request.client, request, answer, is_late)
            self.log.append(event)
            if self.watch is not None and request.mutates and answer.is_success:
                try:
                    self.watch(event)
                except BaseException as failure:  # noqa: BLE001 the test raises it
                    self.failures.append(failure)
            return answer

    def options(self, client: str = "key") -> dict[str, str]:
        """Store options under which tests do not take long.

        Each call names another region: for a store with options of its own, nothing is known from a probe by another
        one, also where a server has the port of an earlier one or ignores other conditions than before.
        """
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": f"region-{next(_REGIONS)}",
            "aws_access_key_id": client,
            "aws_secret_access_key": "secret",
            "allow_http": "true",
            "stall_timeout": "0.6",
            "retry_timeout": "5",
            "max_retries": "2",
        }

    def snapshot(self) -> dict[str, bytes]:
        """The objects there are."""
        with self.bucket.lock:
            return {key: stored.content for key, stored in self.bucket.objects.items()}

    def save(self) -> dict[str, Stored]:
        """The objects there are, for `restore`."""
        with self.bucket.lock:
            return dict(self.bucket.objects)

    def restore(self, objects: Mapping[str, bytes | Stored]) -> None:
        """Put these objects in place of all there are, and forget all uploads."""
        with self.bucket.lock:
            self.bucket.objects = {}
            self.bucket.uploads = {}
            for key, found in objects.items():
                if isinstance(found, Stored):
                    self.bucket.objects[key] = found
                else:
                    self.bucket.put_object(key, found)
