"""Objects and uploads of one bucket, and the answers S3 gives.

What real S3 answers where it is easily taken for something else: If-Match on an absent object is
404 NoSuchKey, for PUT, complete and DELETE alike; a complete of an upload that was completed,
aborted or never begun is 404 NoSuchUpload; a complete that is refused leaves the upload as it was;
the ETag of a multipart object is no MD5 of its bytes.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
import uuid
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_T = TypeVar("_T")
BUCKET = "bucket"
# The conditions a server may ignore, by request and header.
CONDITIONS = (
    "put if-none-match", "put if-match", "complete if-none-match", "complete if-match", "delete if-match"
)  # fmt: skip
# What S3 and its compatibles keep: every condition,…
CLASS_A: frozenset[str] = frozenset()
# …all but those of completes,…
CLASS_A_PLAIN_COMPLETE = frozenset(CONDITIONS[2:4])
# …or those of PUT only.
CLASS_B = frozenset(CONDITIONS[2:])


@dataclass(frozen=True)
class Request:
    """One request as it came in."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.verb} {' '.join(self.keys)}"

    @property
    def is_probe(self) -> bool:
        """Whether it finds out what the server can do, with objects that are removed again."""
        return any("-_probe-" in key for key in self.keys)

    @cached_property
    def client(self) -> str:
        """The access key it is signed with."""
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        return found.group(1) if found else ""

    @cached_property
    def verb(self) -> str:
        """What it asks for, in one word."""
        if not self.key:
            if self.method == "POST":
                return "delete"
            return "list-uploads" if "uploads" in self.query else "list"
        if "uploads" in self.query:
            return "begin"
        if "uploadId" in self.query:
            return {"PUT": "piece", "POST": "complete", "DELETE": "abort"}.get(self.method, "list-pieces")
        if "x-amz-copy-source" in self.headers:
            return "copy"
        return self.method.lower()

    @cached_property
    def keys(self) -> list[str]:
        """The objects it is about; of a listing, its prefix."""
        if self.key:
            return [self.key]
        if self.verb == "delete":
            return [node.text or "" for node in ET.fromstring(self.body).iter() if node.tag.rpartition("}")[2] == "Key"]
        return [self.query.get("prefix", "")]

    @property
    def mutates(self) -> bool:
        """Whether it may change objects or uploads."""
        return self.verb in {"put", "copy", "delete", "begin", "piece", "complete", "abort"}

    def touches(self, verb: str, name: str) -> bool:
        """Whether it does `verb` (several: joined by ``|``) to an object whose key ends so."""
        return self.verb in verb.split("|") and any(key.endswith(name) for key in self.keys)


class Answer(NamedTuple):
    """One answer as it goes out."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}

    @property
    def is_success(self) -> bool:
        """Whether what was asked for was done."""
        return self.status < 300


class Stored(NamedTuple):
    """An object, or a piece of an upload."""

    content: bytes
    etag: str
    written_at: float


@dataclass
class Upload:
    """A multipart upload that is not complete."""

    key: str
    begun_at: float
    pieces: dict[int, Stored] = field(default_factory=dict)


def error(status: int, code: str, message: str = "scripted") -> Answer:
    """An error document."""
    text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


def _xml(root: str, inner: str) -> Answer:
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    text = f'<?xml version="1.0"?><{root} xmlns="{space}">{inner}</{root}>'
    return Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _md5(content: bytes) -> bytes:
    return hashlib.md5(content, usedforsecurity=False).digest()


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


@dataclass
class Bucket:
    """Objects and uploads; one request at a time."""

    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    # Names of `CONDITIONS`.
    ignores: frozenset[str] = CLASS_A
    # Entries on a page of a listing.
    page_size: int = 1000
    # Added to the time that answers and objects carry.
    skew_seconds: float = 0
    # Some compatibles say so where a conditional DELETE finds nothing: 404 or 412; others 204.
    absent_delete_status: int = 404
    # Some compatibles refuse a complete with a condition: the status and the code.
    conditional_complete_error: tuple[int, str] | None = None
    # The longest object that one request copies.
    max_copied_bytes: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def ignores_conditions(self) -> bool:
        """Whether no condition is kept."""
        return self.ignores == frozenset(CONDITIONS)

    @ignores_conditions.setter
    def ignores_conditions(self, value: bool) -> None:
        self.ignores = frozenset(CONDITIONS) if value else CLASS_A

    def now(self) -> float:
        """The server's time."""
        return time.time() + self.skew_seconds

    def put_object(self, key: str, content: bytes) -> None:
        """Have an object there."""
        self.objects[key] = self._stored(content)

    def _stored(self, content: bytes, etag: str | None = None) -> Stored:
        return Stored(content, etag or f'"{_md5(content).hex()}"', self.now())

    def handle(self, request: Request) -> Answer:
        """Apply a request."""
        with self.lock:
            if not request.key:
                return self._bucket(request)
            handlers: dict[str, Callable[[Request], Answer]] = {
                "put": self._put,
                "copy": self._put,
                "get": self._get,
                "head": self._get,
                "delete": self._delete,
                "begin": self._begin,
            }
            if request.verb in handlers:
                return handlers[request.verb](request)
            return self._multipart(request) if "uploadId" in request.query else error(405, "MethodNotAllowed")

    def _refused(self, request: Request, what: str) -> Answer | None:
        """What a condition says before anything is replaced."""
        found = self.objects.get(request.key)
        none_match, match = request.headers.get("if-none-match"), request.headers.get("if-match")
        if none_match == "*" and f"{what} if-none-match" not in self.ignores and found is not None:
            return error(412, "PreconditionFailed")
        if match is None or f"{what} if-match" in self.ignores:
            return None
        if found is None:
            return error(404, "NoSuchKey")
        return None if match in ("*", found.etag) else error(412, "PreconditionFailed")

    def _put(self, request: Request) -> Answer:
        refused = self._refused(request, "put")
        if refused:
            return refused
        if "x-amz-copy-source" not in request.headers:
            self.put_object(request.key, request.body)
            return Answer(200, headers={"ETag": self.objects[request.key].etag})
        copied = self._source(request)
        if isinstance(copied, Answer):
            return copied
        if self.max_copied_bytes is not None and len(copied.content) > self.max_copied_bytes:
            limit = "The specified copy source is larger than the maximum allowable size for a copy source"
            return error(400, "InvalidRequest", f"{limit}: {self.max_copied_bytes}")
        self.objects[request.key] = copied._replace(written_at=self.now())
        return _xml("CopyObjectResult", f"<ETag>{escape(copied.etag)}</ETag>")

    def _source(self, request: Request) -> Stored | Answer:
        """What a copy is of, or why it cannot be made."""
        key = unquote(request.headers["x-amz-copy-source"]).lstrip("/").removeprefix(f"{BUCKET}/")
        copied = self.objects.get(key)
        if copied is None:
            return error(404, "NoSuchKey")
        if request.headers.get("x-amz-copy-source-if-match") not in (None, copied.etag):
            return error(412, "PreconditionFailed")
        return copied

    def _get(self, request: Request) -> Answer:
        found = self.objects.get(request.key)
        if found is None:
            return error(404, "NoSuchKey")
        content = found.content
        if request.headers.get("if-match") not in (None, found.etag):
            return error(412, "PreconditionFailed")
        if request.headers.get("if-none-match") == found.etag:
            return Answer(304, headers={"ETag": found.etag})
        modified = formatdate(found.written_at, usegmt=True)
        headers = {"ETag": found.etag, "Last-Modified": modified, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if not wanted:
            return Answer(200, content, headers)
        first, last = wanted.groups()
        start = int(first) if first else max(0, len(content) - int(last))
        stop = min(len(content), int(last) + 1) if first and last else len(content)
        if start >= len(content):
            return error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        return Answer(206, content[start:stop], headers)

    def _delete(self, request: Request) -> Answer:
        refused = self._refused(request, "delete")
        if refused:
            absent = refused.status == 404 and self.absent_delete_status == 204
            return Answer(204) if absent else refused
        self.objects.pop(request.key, None)
        return Answer(204)

    def _bucket(self, request: Request) -> Answer:
        if request.verb == "delete":
            for key in request.keys:
                self.objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in request.keys)
            return _xml("DeleteResult", deleted)
        if request.method != "GET":
            return error(405, "MethodNotAllowed")
        return self._list_uploads(request.query) if request.verb == "list-uploads" else self._list(request.query)

    def _list_uploads(self, query: Mapping[str, str]) -> Answer:
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        found = sorted(
            (u.key, name, u) for name, u in self.uploads.items() if u.key.startswith(query.get("prefix", ""))
        )
        page, is_truncated = self._page([f for f in found if f[:2] > after], query.get("max-uploads"))
        listed = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
            f"<Initiated>{_iso(upload.begun_at)}</Initiated></Upload>"
            for key, name, upload in page
        )
        following = ""
        if is_truncated:
            key, name, _ = page[-1]
            following = f"<NextKeyMarker>{escape(key)}</NextKeyMarker><NextUploadIdMarker>{name}</NextUploadIdMarker>"
        head = f"<Bucket>{BUCKET}</Bucket><IsTruncated>{str(is_truncated).lower()}</IsTruncated>"
        return _xml("ListMultipartUploadsResult", head + following + listed)

    def _page(self, entries: Iterable[_T], limit: str | None) -> tuple[list[_T], bool]:
        size = min(self.page_size, int(limit or self.page_size))
        found = list(entries)
        return found[:size], len(found) > size

    def _list(self, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        # A folder stands for all that begins with its name.
        entries: dict[str, str] = {}
        for key in sorted(self.objects):
            head, inside, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            name = prefix + head + delimiter if inside else key
            if not key.startswith(prefix) or name <= after or name in entries:
                continue
            found = self.objects[key]
            entries[name] = (
                f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                if inside
                else f"<Contents><Key>{escape(key)}</Key><Size>{len(found.content)}</Size>"
                f"<LastModified>{_iso(found.written_at)}</LastModified><ETag>{escape(found.etag)}</ETag></Contents>"
            )
        page, is_truncated = self._page(entries.items(), query.get("max-keys"))
        following = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if is_truncated else ""
        return _xml(
            "ListBucketResult",
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{following}" + "".join(text for _, text in page),
        )

    def _begin(self, request: Request) -> Answer:
        name = uuid.uuid4().hex
        self.uploads[name] = Upload(request.key, self.now())
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")

    def _multipart(self, request: Request) -> Answer:
        name = request.query["uploadId"]
        upload = self.uploads.get(name)
        if upload is None or upload.key != request.key:
            return error(404, "NoSuchUpload")
        if request.verb == "piece":
            return self._add_piece(request, upload)
        if request.verb == "abort":
            del self.uploads[name]
            return Answer(204)
        if request.verb == "list-pieces":
            return self._list_pieces(request.query, upload)
        return self._complete(request, upload)

    def _add_piece(self, request: Request, upload: Upload) -> Answer:
        content, is_copy = request.body, "x-amz-copy-source" in request.headers
        if is_copy:
            copied = self._source(request)
            if isinstance(copied, Answer):
                return copied
            first, last = request.headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-")
            content = copied.content[int(first) : int(last) + 1]
        piece = self._stored(content)
        upload.pieces[int(request.query["partNumber"])] = piece
        if is_copy:
            return _xml("CopyPartResult", f"<ETag>{escape(piece.etag)}</ETag>")
        return Answer(200, headers={"ETag": piece.etag})

    def _list_pieces(self, query: Mapping[str, str], upload: Upload) -> Answer:
        after = int(query.get("part-number-marker", 0))
        later = [item for item in sorted(upload.pieces.items()) if item[0] > after]
        page, is_truncated = self._page(later, query.get("max-parts"))
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><LastModified>{_iso(piece.written_at)}</LastModified>"
            f"<ETag>{escape(piece.etag)}</ETag><Size>{len(piece.content)}</Size></Part>"
            for number, piece in page
        )
        following = f"<NextPartNumberMarker>{page[-1][0]}</NextPartNumberMarker>" if is_truncated else ""
        return _xml(
            "ListPartsResult",
            f"<Bucket>{BUCKET}</Bucket><Key>{escape(upload.key)}</Key><UploadId>{query['uploadId']}</UploadId>"
            f"<PartNumberMarker>{after}</PartNumberMarker>{following}"
            f"<IsTruncated>{str(is_truncated).lower()}</IsTruncated>{listed}",
        )

    def _complete(self, request: Request, upload: Upload) -> Answer:
        if self.conditional_complete_error and {"if-match", "if-none-match"} & request.headers.keys():
            return error(*self.conditional_complete_error)
        refused = self._refused(request, "complete")
        if refused:
            return refused
        named = [
            {child.tag.rpartition("}")[2]: child.text or "" for child in node} for node in ET.fromstring(request.body)
        ]
        pieces = [upload.pieces.get(int(piece["PartNumber"])) for piece in named]
        if any(p is None or p.etag.strip('"') != n["ETag"].strip('"') for p, n in zip(pieces, named, strict=True)):
            return error(400, "InvalidPart")
        content = b"".join(piece.content for piece in pieces if piece)
        digests = b"".join(_md5(piece.content) for piece in pieces if piece)
        stored = self._stored(content, f'"{_md5(digests).hex()}-{len(pieces)}"')
        self.objects[request.key] = stored
        del self.uploads[request.query["uploadId"]]
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(stored.etag)}</ETag>")
