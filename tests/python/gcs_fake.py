"""A small Google Cloud Storage over objects in memory: its XML API, as far as one client asks for it.

Every write of an object gives it a new generation; `x-goog-if-generation-match` is honoured by PUT,
copy, complete and DELETE (0: there must be none). Requests carry a bearer token, which is checked.
It is evidence for this client's requests only: it was written from the documentation.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BUCKET = "pds-test"


class Stored(NamedTuple):
    """An object, or a piece of an upload."""

    content: bytes
    generation: int
    written_at: float

    @property
    def etag(self) -> str:
        """Of the content, as for objects that were not composed."""
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'

    def headers(self) -> dict[str, str]:
        """What describes it in an answer."""
        return {
            "ETag": self.etag,
            "Last-Modified": formatdate(self.written_at, usegmt=True),
            "x-goog-generation": str(self.generation),
        }


class Request(NamedTuple):
    """One request as it came in."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """One answer as it goes out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>fake</Message></Error>".encode())


def _xml(root: str, inner: str, headers: Mapping[str, str] | None = None) -> Answer:
    text = f'<?xml version="1.0"?><{root} xmlns="http://doc.s3.amazonaws.com/2006-03-01">{inner}</{root}>'
    return Answer(200, text.encode(), headers or {})


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


@dataclass
class Bucket:
    """Objects and uploads; one request at a time."""

    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, tuple[str, float, dict[int, Stored]]] = field(default_factory=dict)
    page_size: int = 1000
    lock: threading.Lock = field(default_factory=threading.Lock)
    generations: itertools.count[int] = field(default_factory=lambda: itertools.count(1_700_000_000_000_000))

    def handle(self, request: Request) -> Answer:
        """Apply a request."""
        with self.lock:
            if not request.key:
                listed = self._list_uploads if "uploads" in request.query else self._list
                return listed(request.query) if request.method == "GET" else _error(405, "MethodNotAllowed")
            if "uploads" in request.query or "uploadId" in request.query:
                return self._multipart(request)
            handlers: dict[str, Callable[[Request], Answer]] = {
                "PUT": self._put,
                "GET": self._get,
                "HEAD": self._get,
                "DELETE": self._delete,
            }
            handler = handlers.get(request.method)
            return handler(request) if handler else _error(405, "MethodNotAllowed")

    def _store(self, content: bytes) -> Stored:
        return Stored(content, next(self.generations), time.time())

    def _is_refused(self, request: Request) -> bool:
        expected = request.headers.get("x-goog-if-generation-match")
        found = self.objects.get(request.key)
        return expected is not None and int(expected) != (found.generation if found else 0)

    def _put(self, request: Request) -> Answer:
        if self._is_refused(request):
            return _error(412, "PreconditionFailed")
        source = request.headers.get("x-goog-copy-source")
        if source is None:
            self.objects[request.key] = stored = self._store(request.body)
            return Answer(200, headers=stored.headers())
        copied = self.objects.get(unquote(source).lstrip("/").removeprefix(f"{BUCKET}/"))
        if copied is None:
            return _error(404, "NoSuchKey")
        if request.headers.get("x-goog-copy-source-if-match") not in (None, copied.etag):
            return _error(412, "PreconditionFailed")
        self.objects[request.key] = stored = self._store(copied.content)
        inner = f"<ETag>{escape(stored.etag)}</ETag><LastModified>{_iso(stored.written_at)}</LastModified>"
        return _xml("CopyObjectResult", inner, stored.headers())

    def _get(self, request: Request) -> Answer:
        found = self.objects.get(request.key)
        generation = request.query.get("generation")
        if found is None or generation not in (None, str(found.generation)):
            return _error(404, "NoSuchKey")
        if request.headers.get("if-match") not in (None, found.etag):
            return _error(412, "PreconditionFailed")
        if request.headers.get("if-none-match") == found.etag:
            return Answer(304, headers=found.headers())
        content, headers = found.content, found.headers()
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
        if self._is_refused(request):
            return _error(412, "PreconditionFailed")
        return Answer(204) if self.objects.pop(request.key, None) else _error(404, "NoSuchKey")

    def _list(self, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        entries: dict[str, str] = {}
        for key, found in sorted(self.objects.items()):
            if not key.startswith(prefix):
                continue
            head, inside, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            name = prefix + head + delimiter if inside else key
            if name <= after:
                continue
            entries[name] = (
                f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                if inside
                else f"<Contents><Key>{escape(key)}</Key><Size>{len(found.content)}</Size>"
                f"<LastModified>{_iso(found.written_at)}</LastModified><ETag>{escape(found.etag)}</ETag></Contents>"
            )
        names = list(entries)[: self.page_size]
        is_truncated = len(entries) > len(names)
        following = f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>" if is_truncated else ""
        head = f"<Name>{BUCKET}</Name><IsTruncated>{str(is_truncated).lower()}</IsTruncated>{following}"
        return _xml("ListBucketResult", head + "".join(entries[name] for name in names))

    def _list_uploads(self, query: Mapping[str, str]) -> Answer:
        listed = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{name}</UploadId><Initiated>{_iso(begun)}</Initiated></Upload>"
            for name, (key, begun, _) in self.uploads.items()
            if key.startswith(query.get("prefix", ""))
        )
        return _xml("ListMultipartUploadsResult", f"<Bucket>{BUCKET}</Bucket><IsTruncated>false</IsTruncated>{listed}")

    def _multipart(self, request: Request) -> Answer:
        if "uploads" in request.query and request.method == "POST":
            name = uuid.uuid4().hex
            self.uploads[name] = (request.key, time.time(), {})
            inner = f"<Bucket>{BUCKET}</Bucket><Key>{escape(request.key)}</Key><UploadId>{name}</UploadId>"
            return _xml("InitiateMultipartUploadResult", inner)
        name = request.query.get("uploadId", "")
        key, _, pieces = self.uploads.get(name, ("", 0.0, {}))
        if key != request.key:
            return _error(404, "NoSuchUpload")
        if request.method == "PUT":
            pieces[int(request.query["partNumber"])] = piece = self._store(request.body)
            return Answer(200, headers={"ETag": piece.etag})
        if request.method == "DELETE":
            del self.uploads[name]
            return Answer(204)
        if request.method == "GET":
            listed = "".join(
                f"<Part><PartNumber>{number}</PartNumber><LastModified>{_iso(piece.written_at)}</LastModified>"
                f"<ETag>{escape(piece.etag)}</ETag><Size>{len(piece.content)}</Size></Part>"
                for number, piece in sorted(pieces.items())
            )
            head = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
            return _xml("ListPartsResult", f"{head}<IsTruncated>false</IsTruncated>{listed}")
        return self._complete(request, name, pieces)

    def _complete(self, request: Request, name: str, pieces: Mapping[int, Stored]) -> Answer:
        if self._is_refused(request):
            return _error(412, "PreconditionFailed")
        named = [
            {child.tag.rpartition("}")[2]: child.text or "" for child in node} for node in ET.fromstring(request.body)
        ]
        chosen = [pieces.get(int(piece["PartNumber"])) for piece in named]
        if any(p is None or p.etag.strip('"') != n["ETag"].strip('"') for p, n in zip(chosen, named, strict=True)):
            return _error(400, "InvalidPart")
        self.objects[request.key] = stored = self._store(b"".join(piece.content for piece in chosen if piece))
        del self.uploads[name]
        inner = f"<Bucket>{BUCKET}</Bucket><Key>{escape(request.key)}</Key><ETag>{escape(stored.etag)}</ETag>"
        return _xml("CompleteMultipartUploadResult", inner, stored.headers())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for headers and body.
    wbufsize = 1 << 16
    server_state: ClassVar[FakeGcs]

    def log_message(self, *_args: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = parts.path.lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, unquote(key), query, headers, body)
        if unquote(bucket) != BUCKET:
            self._answer(_error(404, "NoSuchBucket"))
            return
        self._answer(self.server_state.answer(request))

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD" and answer.status not in (204, 304):
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 names of http.server


class FakeGcs:
    """A running server with one bucket."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        # Tokens it takes beside the empty one of clients without OAuth; None takes all.
        self.tokens: set[str] | None = None
        self.seen: list[Request] = []
        handler = type("Handler", (_Handler,), {"server_state": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_args: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: Request) -> Answer:
        """Check the token, and apply the request."""
        self.seen.append(request)
        token = request.headers.get("authorization", "").removeprefix("Bearer").strip()
        if self.tokens is not None and token not in self.tokens:
            return _error(401, "AuthenticationRequired")
        return self.bucket.handle(request)

    def url(self, prefix: str = "") -> str:
        """The URL of the bucket or of a prefix in it."""
        return f"gs://{BUCKET}/{prefix}".rstrip("/")

    def options(self) -> dict[str, str]:
        """Storage options: a service account that names the server and needs no tokens."""
        account = {
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(account), "allow_http": "true"}
