"""A small S3 over objects in memory that misbehaves on demand, at the n-th request.

Enough of the protocol for one client: conditional PUT, ranged GET, HEAD, DELETE (one and
many), listing, multipart uploads. Signatures are not checked. A fault is a name; what it does
to the request it hits:

==============  =====================================================================
``403`` …       that status with an S3 error document, nothing done
``500 after``   done, then that status
``drop``        connection closed, nothing done
``drop after``  done, then connection closed without an answer
``stall``       nothing done, no answer until the client gives up
``stall after`` done, no answer until the client gives up
``cut``         done; the headers and half of the body, then connection closed
``error body``  nothing done; 200 with an S3 error document as the body
``hold``        as ``stall``; what a test waits for by ``held``, and ends by ``released``
``hold after``  as ``stall after``, likewise
==============  =====================================================================
"""

from __future__ import annotations

import hashlib
import itertools
import re
import select
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STATUSES = ("403", "404", "409", "412", "500", "503")
AFTER = tuple(f"{name} after" for name in ("500", "503", "drop", "stall"))
FAULTS = (*STATUSES, *AFTER, "drop", "stall", "cut", "error body")
BUCKET = "bucket"
WHEN = "Thu, 01 Jan 2026 00:00:00 GMT"
CODES = {
    "403": "AccessDenied",
    "404": "NoSuchKey",
    "409": "ConditionalRequestConflict",
    "412": "PreconditionFailed",
    "500": "InternalError",
    "503": "SlowDown",
}


class Request(NamedTuple):
    """One request as it came in."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        query = "&".join(sorted(self.query))
        return f"{self.method} {self.key}{'?' if query else ''}{query}"


class Answer(NamedTuple):
    """One answer as it goes out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def _error(status: int, code: str) -> Answer:
    text = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


def _xml(root: str, inner: str) -> Answer:
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    text = f'<?xml version="1.0"?><{root} xmlns="{space}">{inner}</{root}>'
    return Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


@dataclass
class Bucket:
    """Objects and uploads; one request at a time."""

    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    ignores_conditions: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, request: Request) -> Answer:
        with self.lock:
            return self._handle(request)

    def _handle(self, request: Request) -> Answer:
        if not request.key:
            return self._bucket(request)
        if "uploadId" in request.query or "uploads" in request.query:
            return self._multipart(request)
        handlers: dict[str, Callable[[Request], Answer]] = {
            "PUT": self._put,
            "GET": self._get,
            "HEAD": self._get,
            "DELETE": self._delete,
        }
        handler = handlers.get(request.method)
        return handler(request) if handler else _error(405, "MethodNotAllowed")

    def _refused(self, request: Request) -> Answer | None:
        """What a condition says before anything is replaced."""
        if self.ignores_conditions:
            return None
        found = self.objects.get(request.key)
        if request.headers.get("if-none-match") == "*" and found is not None:
            return _error(412, "PreconditionFailed")
        expected = request.headers.get("if-match")
        if expected is not None and (found is None or _etag(found) != expected):
            return _error(412 if found is not None else 404, "PreconditionFailed")
        return None

    def _put(self, request: Request) -> Answer:
        refused = self._refused(request)
        if refused:
            return refused
        source = request.headers.get("x-amz-copy-source")
        if source is None:
            self.objects[request.key] = request.body
            return Answer(200, headers={"ETag": _etag(request.body)})
        copied = self.objects.get(unquote(source).lstrip("/").removeprefix(f"{BUCKET}/"))
        if copied is None:
            return _error(404, "NoSuchKey")
        self.objects[request.key] = copied
        return _xml("CopyObjectResult", f"<ETag>{escape(_etag(copied))}</ETag>")

    def _get(self, request: Request) -> Answer:
        content = self.objects.get(request.key)
        if content is None:
            return _error(404, "NoSuchKey")
        if request.headers.get("if-match") not in (None, _etag(content)):
            return _error(412, "PreconditionFailed")
        headers = {"ETag": _etag(content), "Last-Modified": WHEN, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if not wanted:
            return Answer(200, content, headers)
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        if start >= len(content):
            return _error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return Answer(206, content[start:stop], headers)

    def _delete(self, request: Request) -> Answer:
        self.objects.pop(request.key, None)
        return Answer(204)

    def _bucket(self, request: Request) -> Answer:
        if request.method == "POST" and "delete" in request.query:
            keys = [node.text or "" for node in ET.fromstring(request.body).iter() if _is_key(node)]
            for key in keys:
                self.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            return _xml("DeleteResult", deleted)
        if request.method == "GET" and "uploads" in request.query:
            return _xml("ListMultipartUploadsResult", self._listed_uploads(request.query))
        return self._list(request.query) if request.method == "GET" else _error(405, "No")

    def _listed_uploads(self, query: Mapping[str, str]) -> str:
        listed = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            "<Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>"
            for upload, (key, _) in self.uploads.items()
            if key.startswith(query.get("prefix", ""))
        )
        return f"<Bucket>{BUCKET}</Bucket><IsTruncated>false</IsTruncated>{listed}"

    def _list(self, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        objects, folders = [], []
        for key in sorted(self.objects):
            if not key.startswith(prefix) or key <= after:
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folders.append(prefix + head + delimiter)
                continue
            content = self.objects[key]
            objects.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(_etag(content))}</ETag></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in dict.fromkeys(folders)
        )
        return _xml(
            "ListBucketResult",
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(objects)}</KeyCount><IsTruncated>false</IsTruncated>" + "".join(objects) + common,
        )

    def _multipart(self, request: Request) -> Answer:
        if "uploads" in request.query and request.method == "POST":
            upload = uuid.uuid4().hex
            self.uploads[upload] = (request.key, {})
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        upload = request.query["uploadId"]
        if upload not in self.uploads:
            return _error(404, "NoSuchUpload")
        if request.method == "PUT":
            self.uploads[upload][1][int(request.query["partNumber"])] = request.body
            return Answer(200, headers={"ETag": _etag(request.body)})
        if request.method == "DELETE":
            del self.uploads[upload]
            return Answer(204)
        return self._complete(request, upload)

    def _complete(self, request: Request, upload: str) -> Answer:
        refused = self._refused(request)
        if refused:
            return refused
        parts = self.uploads[upload][1]
        text = request.body.decode()
        wanted = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", text)]
        if any(number not in parts for number in wanted):
            return _error(400, "InvalidPart")
        content = b"".join(parts[number] for number in wanted)
        self.objects[request.key] = content
        del self.uploads[upload]
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(_etag(content))}</ETag>")


def _is_key(node: ET.Element) -> bool:
    return node.tag.rpartition("}")[2] == "Key"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: ClassVar[ScriptedS3]

    def log_message(self, *_args: object) -> None:
        pass

    def _request(self) -> Request:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, True).items()}
        key = unquote(parts.path).lstrip("/").removeprefix(BUCKET).lstrip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(self.command, key, query, headers, body)

    def _serve(self) -> None:
        request = self._request()
        fault = self.script.next_fault(request)
        doing = fault.removesuffix(" after")
        done = not fault or fault == "cut" or fault.endswith(" after")
        answer = self.script.bucket.handle(request) if done else None
        if doing.isdigit():
            self._answer(_error(int(doing), CODES[doing]))
        elif doing == "error body":
            self._answer(_error(500, "InternalError")._replace(status=200))
        elif doing in ("stall", "hold"):
            self.script.held.set()
            # Until the client closes: it never sends a second request on this connection.
            while not self.script.released.is_set():
                if select.select([self.connection], [], [], 0.05)[0]:
                    break
            self.close_connection = True
        elif doing == "drop":
            self.close_connection = True
        elif answer is not None:
            self._answer(answer, cut=fault == "cut")

    def _answer(self, answer: Answer, *, cut: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("x-amz-request-id", "scripted")
        self.end_headers()
        body = b"" if self.command == "HEAD" else answer.body
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 names of http.server


class ScriptedS3:
    """A running server; ``faults`` maps the number of a request (from 0) to a fault."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.seen: list[Request] = []
        self.held = threading.Event()
        self.released = threading.Event()
        self._faults: dict[int, str] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"script": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def restart(self, faults: Mapping[int, str] | None = None) -> None:
        """Count requests from 0 again, with these faults and no others."""
        with self._lock:
            self._faults = dict(faults or {})
            self._numbers = itertools.count()
            self.seen = []
            self.held.clear()
            self.released.clear()

    def next_fault(self, request: Request) -> str:
        """Note a request; the fault that hits it, or nothing."""
        with self._lock:
            self.seen.append(request)
            return self._faults.get(next(self._numbers), "")

    def options(self) -> dict[str, str]:
        """Store options under which tests do not take long."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "allow_http": "true",
            "stall_timeout": "0.6",
            "retry_timeout": "5",
            "max_retries": "2",
        }

    def snapshot(self) -> dict[str, bytes]:
        """The objects there are."""
        with self.bucket.lock:
            return dict(self.bucket.objects)

    def restore(self, objects: Mapping[str, bytes]) -> None:
        """Put these objects in place of all there are, and forget all uploads."""
        with self.bucket.lock:
            self.bucket.objects = dict(objects)
            self.bucket.uploads = {}
