"""An S3 server: versitygw over a folder in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from servers.process import program, running, scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import fsspec
    import pyarrow as pa
    import pyarrow.fs


class _SharedFile(io.RawIOBase):
    """A file for several threads: DuckDB seeks and reads one handle from all of its own at once."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__()
        self._file, self._length, self._position = file, file.size(), threading.local()

    @property
    def size(self) -> int:
        return self._length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return getattr(self._position, "value", 0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._length}[whence]
        self._position.value = start + offset
        return start + offset

    def read(self, size: int = -1) -> bytes:
        start = self.tell()
        wanted = self._length - start if size < 0 else min(size, self._length - start)
        found: bytes = self._file.read_at(wanted, start)  # type: ignore[call-arg] # the stubs lack the offset
        self._position.value = start + len(found)
        return found


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What the server saw since it started: requests by operation, bytes through its process."""

    requests: Counter[str]
    bytes_read: int
    bytes_written: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        """What came after an earlier look."""
        return Traffic(
            self.requests - earlier.requests,
            self.bytes_read - earlier.bytes_read,
            self.bytes_written - earlier.bytes_written,
        )


@dataclasses.dataclass(frozen=True)
class S3Server:
    """A running versitygw with one bucket, and how each client is told of it."""

    endpoint: str
    bucket: str
    pid: int
    folder: Path
    access_key: str
    secret_key: str = dataclasses.field(repr=False)
    region: str = "us-east-1"

    @classmethod
    @contextlib.contextmanager
    def start(cls, bucket: str = "pds-test") -> Iterator[Self]:
        """Runs a server with an empty bucket until the block ends."""
        versitygw = str(program("versitygw"))
        access_key, secret_key = secrets.token_hex(8), secrets.token_hex(16)
        with scratch("s3") as folder:
            data = folder / "data"
            (data / bucket).mkdir(parents=True)

            def command(port: int) -> list[str]:
                keys = ["--access", access_key, "--secret", secret_key, "--region", cls.region]
                log = ["--quiet", "--access-log", str(folder / "access.log")]
                return [versitygw, *keys, "--port", f"127.0.0.1:{port}", *log, "posix", str(data)]

            with running(command, folder / "server.log") as (port, pid):
                endpoint = f"http://127.0.0.1:{port}"
                yield cls(endpoint, bucket, pid, folder, access_key, secret_key)

    def at(self, endpoint: str) -> Self:
        """The same server reached another way, through a proxy for example."""
        return dataclasses.replace(self, endpoint=endpoint)

    def url(self, prefix: str = "") -> str:
        """The URL of the bucket or of a prefix in it."""
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    def options(self) -> dict[str, str]:
        """Storage options by object_store's names: for pds, polars and deltalake."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": self.region,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_virtual_hosted_style_request": "false",
            "allow_http": "true",
        }

    def arrow_filesystem(self) -> pyarrow.fs.S3FileSystem:
        """The client of pyarrow; its paths begin with the bucket."""
        from pyarrow.fs import S3FileSystem  # noqa: PLC0415 a server is started without pyarrow too

        return S3FileSystem(**self.arrow_options())

    def arrow_options(self) -> dict[str, Any]:
        """Arguments of pyarrow's S3FileSystem."""
        return {
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "region": self.region,
            "scheme": "http",
            "endpoint_override": urlsplit(self.endpoint).netloc,
        }

    def fsspec_filesystem(self) -> fsspec.AbstractFileSystem:
        """For ``duckdb.register_filesystem``: DuckDB would download its own S3 client."""
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415 as above

        class ArrowS3(ArrowFSWrapper):  # type: ignore[misc] # fsspec has no types
            protocol = "s3"

            def _open(self, path: str, mode: str = "rb", **options: object) -> object:
                if mode != "rb":
                    return super()._open(path, mode, **options)
                return _SharedFile(self.fs.open_input_file(path))

        return ArrowS3(self.arrow_filesystem())

    def remote_store_options(self) -> dict[str, str]:
        """Arguments of remote_store's S3Backend and S3PyArrowBackend."""
        return {
            "bucket": self.bucket,
            "endpoint_url": self.endpoint,
            "key": self.access_key,
            "secret": self.secret_key,
            "region_name": self.region,
        }

    def keys(self, prefix: str = "") -> list[str]:
        """The names of the visible objects, sorted, from the server's folder."""
        root = self.folder / "data" / self.bucket
        files = (p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        return sorted(key for key in files if key.startswith(prefix) and not key.startswith(".sgwtmp/"))

    def uploads(self) -> list[str]:
        """The ids of the multipart uploads that were begun and neither completed nor aborted."""
        folder = self.folder / "data" / self.bucket / ".sgwtmp" / "multipart"
        return sorted(upload.name for upload in folder.glob("*/*") if upload.is_dir())

    def traffic(self) -> Traffic:
        """The counts up to now: of all clients, read from the server's log and process."""
        log = (self.folder / "access.log").read_text(errors="replace")
        requests = Counter(re.findall(r" s3_(\w+) ", log))
        read, written = re.findall(r"^[rw]char: (\d+)", Path(f"/proc/{self.pid}/io").read_text(), re.MULTILINE)
        return Traffic(requests, int(read), int(written))
