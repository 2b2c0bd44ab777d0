"""The one way to bytes: memory, local files, S3, Azure Blob and Google Cloud Storage."""

from __future__ import annotations

__all__ = ["FileInfo", "Store"]

import fnmatch
import io
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, Self, cast

from pds import _pds
from pds.capability import Capability
from pds.errors import (
    CapabilityNotSupported,
    DirectoryNotEmpty,
    InvalidInput,
    InvalidPath,
    InvalidType,
    NotFound,
)

if TYPE_CHECKING:
    from types import TracebackType

CredentialProvider = Callable[[], Mapping[str, object]]

_CAPABILITIES = frozenset(
    {
        Capability.READ,
        Capability.WRITE,
        Capability.DELETE,
        Capability.LIST,
        Capability.MOVE,
        Capability.COPY,
        Capability.ATOMIC_WRITE,
        Capability.METADATA,
        Capability.SEEKABLE_READ,
        Capability.LAZY_READ,
    }
)
# Key pieces that are secrets whatever the store.
_SECRET = ("secret", "key", "token", "password", "sas", "credential", "signature")


@dataclass(frozen=True)
class FileInfo:
    """A file of a store.

    Args:
        path: The path, relative to the store.
        name: Its last piece.
        size: Bytes.
        modified_at: When it was last written, by the store's clock.
        etag: The store's name of this version.
    """

    path: str
    name: str
    size: int
    modified_at: datetime
    etag: str | None = None


class Store:
    """Objects below a URL.

    Nothing is opened or asked before the first call. A store pickles as its URL and options; in a
    forked child it opens its own connections.

    Args:
        url: `memory://[name]`, `file:///folder`, `s3://bucket/prefix`, `az://container/prefix` or
            `gs://bucket/prefix`.
        storage_options: Options of the object_store crate, such as `aws_endpoint`, `aws_region`,
            `aws_access_key_id`, `aws_secret_access_key`; and `aws_profile`, `stall_timeout`,
            `retry_timeout` (seconds), `max_retries`.
        credential_provider: Called for credentials of S3, one call at a time; returns a mapping with
            `access_key_id`, `secret_access_key`, and where there are any `session_token` and
            `expires_at` (a datetime). Called again shortly before they expire.
        **options: More options, as in `storage_options`.

    Raises:
        InvalidInput: The URL or an option cannot be used; the option is named.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, object] | None = None,
        *,
        credential_provider: CredentialProvider | None = None,
        **options: object,
    ) -> None:
        if not isinstance(url, str):
            raise InvalidType(f"a store's URL must be a string, not {type(url).__name__}")
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidType("storage_options must be a mapping")
        given = {**(storage_options or {}), **options}
        for name in options.keys() & (storage_options or {}).keys():
            if options[name] != (storage_options or {})[name]:
                raise InvalidInput(f"option {name} is given twice, with different values")
        self._url = url
        self._options = {name: _option(name, value) for name, value in given.items()}
        self._credential_provider = credential_provider
        self._folder = ""
        opened = url
        if url.rstrip("/") == "memory:":
            # Named, so that copies and forked children find the same memory.
            opened = f"memory://anonymous-{uuid.uuid4().hex}"
        self._opened = opened
        self._handle = _pds.StoreHandle(opened, self._options, credential_provider)

    # -- identity --------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL as it was given, with the folder of a child."""
        return f"{self._url.rstrip('/')}/{self._folder}" if self._folder else self._url

    def __repr__(self) -> str:
        shown = "".join(
            f", {name}={'***' if any(mark in name.lower() for mark in _SECRET) else value!r}"
            for name, value in sorted(self._options.items())
        )
        return f"Store({self.url!r}{shown})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Store):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self._opened, self._folder))

    def _identity(self) -> tuple[object, ...]:
        return (self._opened, self._folder, self._options, self._credential_provider)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_handle"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._handle = _pds.StoreHandle(self._opened, self._options, self._credential_provider).child(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later call opens them again."""
        self._handle.close()

    def child(self, subpath: str) -> Store:
        """The store of a folder; it shares connections and counters.

        Raises:
            InvalidPath: The path cannot be used.
        """
        handle = self._handle.child(_text(subpath))
        child = object.__new__(Store)
        child.__dict__.update(self.__dict__)
        child._handle = handle
        child._folder = "/".join(piece for piece in (self._folder, subpath) if piece)
        return child

    def supports(self, capability: Capability) -> bool:
        """Whether the store can do it. remote-store's capabilities are understood too."""
        return getattr(capability, "value", None) in {c.value for c in _CAPABILITIES}

    def metrics(self) -> dict[str, int]:
        """Requests and bytes so far: `requests` and its kinds `get`, `put`, `head`, `list`, `delete`,
        `copy`, `post`; `bytes_read`, `bytes_written`, `retries`.
        """  # noqa: D205 one sentence
        return self._handle.metrics()

    def reset_metrics(self) -> None:
        """Set the counters to zero."""
        self._handle.reset_metrics()

    # -- reading ---------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            NotFound: There is no such file.
        """
        return self._handle.read(_text(path))

    def read(self, path: str) -> BinaryIO:
        """A file to read from, seekable; bytes are fetched as they are asked for.

        Raises:
            NotFound: There is no such file.
        """
        info = self.get_file_info(path)
        raw = _RangedFile(self._handle, path, info.size)
        return cast("BinaryIO", io.BufferedReader(raw, buffer_size=1 << 20))

    read_seekable = read

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        return self.is_file(path) or self.is_folder(path)

    def is_file(self, path: str) -> bool:
        """Whether there is a file."""
        return self._handle.head(_text(path)) is not None

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder. Where folders do not exist of their own: whether it has files."""
        if self._handle.is_local_folder(_text(path)):
            return True
        files, folders = self._handle.list(path, recursive=False)
        return bool(files or folders)

    def get_file_info(self, path: str) -> FileInfo:
        """Size, time and version of a file.

        Raises:
            NotFound: There is no such file.
        """
        found = self._handle.head(_text(path))
        if found is None:
            raise NotFound(f"there is no file {path!r}", path=path)
        return _info(found)

    def list_files(self, path: str = "", *, recursive: bool = False, pattern: str | None = None) -> Iterator[FileInfo]:
        """The files of a folder, with `recursive` of all folders below it; `pattern` filters names."""
        files, _ = self._handle.list(_text(path), recursive=recursive)
        infos = map(_info, files)
        return (info for info in infos if pattern is None or fnmatch.fnmatchcase(info.name, pattern))

    def list_folders(self, path: str = "") -> Iterator[str]:
        """The names of the folders in a folder."""
        _, folders = self._handle.list(_text(path), recursive=False)
        return (folder.rsplit("/", 1)[-1] for folder in folders)

    # -- writing ---------------------------------------------------------------

    def write(self, path: str, content: bytes | BinaryIO, *, overwrite: bool = False) -> None:
        """Write a file whole: readers see the old content or the new.

        Raises:
            AlreadyExists: The file exists and `overwrite` is not set.
        """
        data = content if isinstance(content, bytes | bytearray | memoryview) else content.read()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidType("content must be bytes or a binary file")
        self._handle.write(_text(path), bytes(data), overwrite)

    write_atomic = write

    def delete(self, path: str, *, missing_ok: bool = False) -> None:
        """Delete a file.

        Raises:
            NotFound: There is none and `missing_ok` is not set.
        """
        if not missing_ok:
            self.get_file_info(path)
        self._handle.delete([_text(path)])

    def delete_folder(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Delete a folder.

        Raises:
            NotFound: There is none and `missing_ok` is not set.
            DirectoryNotEmpty: It has content and `recursive` is not set.
        """
        if not _text(path):
            raise InvalidPath("the store's root cannot be deleted", path=path)
        files, _ = self._handle.list(path, recursive=True)
        if not files and not self._handle.is_local_folder(path):
            if missing_ok:
                return
            raise NotFound(f"there is no folder {path!r}", path=path)
        if not recursive and (files or any(True for _ in self.list_folders(path))):
            raise DirectoryNotEmpty(f"the folder {path!r} has content", path=path)
        self._handle.delete([file[0] for file in files])
        self._handle.remove_empty_folder(path)

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Move a file.

        Raises:
            NotFound: There is no `src`.
            AlreadyExists: `dst` exists and `overwrite` is not set.
        """
        self._handle.copy(_text(src), _text(dst), overwrite, remove=True)

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Copy a file inside the store.

        Raises:
            NotFound: There is no `src`.
            AlreadyExists: `dst` exists and `overwrite` is not set.
        """
        self._handle.copy(_text(src), _text(dst), overwrite, remove=False)


class _RangedFile(io.RawIOBase):
    """A file of known size that asks for the bytes that are read."""

    def __init__(self, handle: _pds.StoreHandle, path: str, size: int) -> None:
        self._handle, self._path, self._size, self._at = handle, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise InvalidInput(f"cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._handle.read(self._path, self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _option(name: str, value: object) -> str:
    if not isinstance(name, str):
        raise InvalidType("option names must be strings")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidType(f"option {name} must be text, a number or a boolean, not {type(value).__name__}")


def _text(path: str) -> str:
    if not isinstance(path, str):
        raise InvalidType(f"a path must be a string, not {type(path).__name__}")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise InvalidPath(f"path {path!r} is not text that can be encoded", path=path) from error
    return path


def _info(found: tuple[str, int, float, str | None]) -> FileInfo:
    path, size, seconds, etag = found
    return FileInfo(path, path.rsplit("/", 1)[-1], size, datetime.fromtimestamp(seconds, UTC), etag)


def require(store: object, capability: Capability, what: str, path: str) -> None:
    """Check that a store, ours or remote-store's, has a capability.

    Raises:
        CapabilityNotSupported: If not.
    """
    wanted: object = capability
    if not isinstance(store, Store):
        import remote_store  # noqa: PLC0415 only where such a store was given

        wanted = remote_store.Capability(capability.value)
    if not store.supports(wanted):  # type: ignore[attr-defined]
        raise CapabilityNotSupported(
            f"{what} requires the {capability.name} capability ({capability.value}) for {path!r}",
            path=path,
            capability=capability.value,
        )


def handle_of(store: object) -> _pds.StoreHandle:
    """The native half of a `pds.Store`, or one over a `remote_store.Store`'s own methods."""
    if isinstance(store, Store):
        return store._handle  # noqa: SLF001 the facade's own
    if is_foreign(store):
        return _pds.StoreHandle.foreign(store)
    raise InvalidType(f"store must be a pds.Store or a remote_store.Store, not {type(store).__name__}")


def is_foreign(store: object) -> bool:
    """Whether it has the methods of a `remote_store.Store`."""
    module = type(store).__module__.partition(".")[0]
    return module == "remote_store" or all(hasattr(store, name) for name in ("write_atomic", "read_bytes", "supports"))
