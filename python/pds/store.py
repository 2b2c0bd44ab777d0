"""Stores: memory, local files, S3, Azure Blob Storage and Google Cloud Storage."""

from __future__ import annotations

__all__ = ["FileInfo", "FolderEntry", "Store"]

import contextlib
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
    RemoteStoreError,
)
from pds.flags import require_bool, require_utf8
from pds.handles import open_handle
from pds.paths import normalize_file_path, normalize_folder_path
from pds.urls import join_url, merge_options, normalize_url

if TYPE_CHECKING:
    import os
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
# The names of files that are being written begin with this prefix; listings omit them.
_HIDDEN_PREFIX = ".pds-"


@dataclass(frozen=True)
class FileInfo:
    """A file of a store.

    Args:
        path: The path, relative to the store.
        name: The last segment of the path.
        size: The size in bytes.
        modified_at: The time of the last write, by the clock of the store, in UTC.
        etag: The ETag of this version of the file, if the store has ETags.
    """

    path: str
    name: str
    size: int
    modified_at: datetime
    etag: str | None = None


class FolderEntry(str):
    """A folder of a store: a string with its name, and the path as an attribute.

    Args:
        path: The path, relative to the store.
    """

    __slots__ = ("path",)
    path: str

    def __new__(cls, path: str) -> Self:
        """Return the entry for a path."""
        entry = super().__new__(cls, path.rsplit("/", 1)[-1])
        entry.path = path
        return entry

    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)

    @property
    def name(self) -> str:
        """The last segment of the path."""
        return str(self)


class Store:
    """The objects below a URL.

    The constructor sends no request. A store pickles as its URL and options; equal cloud stores that are unpickled in a
    process share connections and counters, a forked child opens its own. Methods that send requests also raise
    PermissionDenied if the store denies access, and BackendUnavailable if the store cannot be reached.

    Args:
        url: `memory://[name]`, `file:///folder`, `s3://bucket/prefix`, `az://container/prefix` or
            `gs://bucket/prefix`; `s3a://`, `gcs://` and `abfss://container@account.dfs.core.windows.net/prefix`, as
            other tools write them; or a path of the local file system, which may be relative and may begin with `~`.
        storage_options: Options of the object_store crate, such as `aws_endpoint`, `aws_region`, `aws_access_key_id`,
            `aws_secret_access_key`; and `aws_profile`, `stall_timeout`, `retry_timeout` (both in seconds),
            `max_retries`; `publish_lease`, the seconds without a sign of life after which another writer of a dataset
            takes over (equal for all its writers). Without keys, S3 uses those of AWS' tools: the environment, the
            profile (`~/.aws/config`, `~/.aws/credentials`: keys, SSO, assumed roles, `credential_process`), a web
            identity, the container, the instance. Without a region, that of the bucket is looked up at the first
            request. For local files `durability`: with "full" (the default), a write returns after the data is on the
            disk; with "none", the operating system decides when, and a power failure may lose or truncate files.
        credential_provider: A function that returns a mapping with the credentials: `access_key_id`,
            `secret_access_key` and optionally `session_token` for S3; `bearer_token`, `sas_token` or `account_key`
            for Azure; `bearer_token` for Google Cloud. With `expires_at` (a datetime; in UTC if it has no time zone),
            the first request of the last 5 minutes before that time calls the function again. Calls do not overlap.
        **options: More options, as in `storage_options`.

    Raises:
        InvalidInput: The URL or an option is not valid. The message names the option.
        InvalidType: An argument has an invalid type.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        *,
        credential_provider: CredentialProvider | None = None,
        **options: object,
    ) -> None:
        url, implied = normalize_url(url)
        merged = merge_options(implied, {**merge_options({}, storage_options), **options})
        for name in options.keys() & (storage_options or {}).keys():
            if options[name] != (storage_options or {})[name]:
                raise InvalidInput(f"option {name} is passed twice, with different values")
        self._url = url
        self._options = {name: _format_option(name, value) for name, value in merged.items()}
        self._credential_provider = credential_provider
        self._folder = ""
        self._native_url = url
        if url.rstrip("/") == "memory:":
            # With a name, copies and forked children find the same memory.
            self._native_url = f"memory://anonymous-{uuid.uuid4().hex}"
        self._handle = _pds.StoreHandle(self._native_url, self._options, credential_provider)

    # -- identity --------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL, with the folder of a child store appended. That of a path is an absolute `file://` URL."""
        return join_url(self._url, self._folder)

    def __repr__(self) -> str:
        masked = ((name, _pds.mask_option(name, value)) for name, value in sorted(self._options.items()))
        return f"Store({', '.join([repr(self.url), *(f'{name}={value!r}' for name, value in masked)])})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Store):
            return NotImplemented
        return self._get_identity() == other._get_identity()

    def __hash__(self) -> int:
        return hash((self._native_url, self._folder))

    def _get_identity(self) -> tuple[object, ...]:
        return (self._native_url, self._folder, self._options, self._credential_provider)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_handle"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._handle = open_handle(self._native_url, self._options, self._credential_provider).child(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A later request opens them again."""
        self._handle.close()

    def child(self, subpath: str) -> Store:
        """Return a store for a folder of this store. Both share connections and counters.

        Raises:
            InvalidPath: The path is not valid.
        """
        folder = normalize_file_path(subpath)
        child = object.__new__(Store)
        child.__dict__.update(self.__dict__)
        child._handle = self._handle.child(folder)
        child._folder = f"{self._folder}/{folder}" if self._folder else folder
        return child

    def supports(self, capability: Capability) -> bool:
        """Return whether the store supports a capability: one of pds or one of remote-store."""
        return getattr(capability, "value", None) in {c.value for c in _CAPABILITIES}

    def metrics(self) -> dict[str, int]:
        """Return the counters of requests and bytes. A `close` does not reset them.

        Returns:
            `requests`, and the requests of each kind: `get`, `put`, `head`, `list`, `delete`, `copy`, `post`;
            `bytes_read`, `bytes_written`, and the bytes of each kind in both directions (`get_bytes`, …); `retries`.
        """
        return self._handle.metrics()

    def reset_metrics(self) -> None:
        """Set the counters to zero."""
        self._handle.reset_metrics()

    # -- reading ---------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotFound: The file does not exist.
            InvalidPath: The path is not valid, or is the path of a folder.
        """
        path = normalize_file_path(path)
        with self._explain_missing_file(path):
            return self._handle.read(path)

    def read(self, path: str) -> BinaryIO:
        """Open a file for reading. The file object is seekable and fetches ranges of the file on demand.

        All bytes are of the version that exists at the time of the call. A read raises FileChanged after the
        file was replaced.

        Raises:
            NotFound: The file does not exist.
            InvalidPath: The path is not valid, or is the path of a folder.
        """
        path = normalize_file_path(path)
        info = self.get_file_info(path)
        raw = _RangedFile(self._handle, path, info)
        return cast("BinaryIO", io.BufferedReader(raw, buffer_size=1 << 20))

    read_seekable = read

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists. An invalid path raises InvalidPath."""
        return self.is_file(path) or self.is_folder(path)

    def is_file(self, path: str) -> bool:
        """Return whether a file exists. An invalid path raises InvalidPath."""
        path = normalize_folder_path(path)
        return bool(path) and self._handle.head(path) is not None

    def is_folder(self, path: str) -> bool:
        """Return whether a folder exists. In stores without real folders, a folder exists if it has files."""
        path = normalize_folder_path(path)
        if not path or self._handle.is_local_folder(path):
            return True
        listing = self._handle.list(path, recursive=False)
        return bool(listing["files"] or listing["folders"])

    def get_file_info(self, path: str) -> FileInfo:
        """Return the size, time and ETag of a file.

        Raises:
            NotFound: The file does not exist.
            InvalidPath: The path is not valid, or is the path of a folder.
        """
        path = normalize_file_path(path)
        entry = self._handle.head(path)
        if entry is not None:
            return _to_file_info(entry)
        with self._explain_missing_file(path):
            raise NotFound(f"file {path!r} does not exist", path=path)

    def list_files(self, path: str = "", *, recursive: bool = False, pattern: str | None = None) -> Iterator[FileInfo]:
        """Return the files of a folder; with `recursive`, those of all folders below it too.

        Args:
            path: The folder. Defaults to the root of the store.
            recursive: Whether to descend into the folders below.
            pattern: A pattern of `fnmatch` for the names of the files. Defaults to all files.
        """
        files = self._handle.list(normalize_folder_path(path), require_bool("recursive", recursive))["files"]
        infos = (info for info in map(_to_file_info, files) if not info.name.startswith(_HIDDEN_PREFIX))
        return (info for info in infos if pattern is None or fnmatch.fnmatchcase(info.name, pattern))

    def list_folders(self, path: str = "") -> Iterator[FolderEntry]:
        """Return the folders directly in a folder, which defaults to the root of the store."""
        return map(FolderEntry, self._handle.list(normalize_folder_path(path), recursive=False)["folders"])

    @contextlib.contextmanager
    def _explain_missing_file(self, path: str) -> Iterator[None]:
        """Replace NotFound by InvalidPath if the path is the path of a folder."""
        try:
            yield
        except NotFound:
            if self.is_folder(path):
                raise InvalidPath(f"not a file but a directory: {path}", path=path) from None
            raise

    @contextlib.contextmanager
    def _explain_failed_write(self, path: str) -> Iterator[None]:
        """Replace an error by InvalidPath if a local folder has the path, or a file has the path of a parent."""
        try:
            yield
        except RemoteStoreError as error:
            if self._handle.is_local_folder(path):
                raise InvalidPath(f"not a file but a directory: {path}", path=path) from error
            if isinstance(error, NotFound) and self._handle.is_local_folder(""):
                for folder in _list_parents(path):
                    if self.is_file(folder):
                        raise InvalidPath(f"not a directory but a file: {folder}", path=path) from error
            raise

    def write(self, path: str, content: bytes | BinaryIO, *, overwrite: bool = False) -> None:
        """Write a file atomically: readers see the old content or the new content.

        Raises:
            AlreadyExists: The file exists and `overwrite` is not set.
            InvalidPath: The path is not valid, or is the path of a folder.
            InvalidType: The content is neither bytes nor a binary file.
        """
        path, overwrite = normalize_file_path(path), require_bool("overwrite", overwrite)
        is_bytes = isinstance(content, bytes | bytearray | memoryview)
        data = content.read() if not is_bytes and hasattr(content, "read") else content
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidType(f"content must be bytes or a binary file, not {type(content).__name__}")
        with self._explain_failed_write(path):
            self._handle.write(path, bytes(data), overwrite)

    write_atomic = write

    def delete(self, path: str, *, missing_ok: bool = False) -> None:
        """Delete a file.

        Raises:
            NotFound: The file does not exist and `missing_ok` is not set.
            InvalidPath: The path is not valid, or is the path of a folder.
        """
        path, missing_ok = normalize_file_path(path), require_bool("missing_ok", missing_ok)
        try:
            self.get_file_info(path)
        except NotFound:
            if missing_ok:
                return
            raise
        self._handle.delete([path])

    def delete_folder(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Delete a folder.

        Raises:
            NotFound: The folder does not exist and `missing_ok` is not set.
            DirectoryNotEmpty: The folder is not empty and `recursive` is not set.
            InvalidPath: The path is not valid, the root, a file or a symbolic link; or objects without a path are left.
        """
        path, recursive = normalize_folder_path(path), require_bool("recursive", recursive)
        require_bool("missing_ok", missing_ok)
        if not path:
            raise InvalidPath("the root of the store cannot be deleted", path=path)
        files = self._handle.list_to_delete(path)["files"]
        is_missing = not files and not self._handle.is_local_folder(path)
        if is_missing and self.is_file(path):
            raise InvalidPath(f"not a directory but a file: {path}", path=path)
        if not recursive and (files or any(True for _ in self.list_folders(path))):
            raise DirectoryNotEmpty(f"folder {path!r} is not empty; recursive=True deletes its content", path=path)
        if is_missing:  # consoles create an object of the folder itself
            if self._handle.remove_empty_folder(path) or missing_ok:
                return
            raise NotFound(f"folder {path!r} does not exist", path=path)
        self._handle.delete([file.path for file in files])
        self._handle.remove_empty_folder(path)

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Move a file. A move of a file to its own path does nothing.

        Raises:
            NotFound: `src` does not exist.
            AlreadyExists: `dst` exists and `overwrite` is not set.
            FileChanged: `src` was replaced while it was moved. It stays; `dst` is as it was, or has the old `src`.
            InvalidPath: A path is not valid, or is the path of a folder.
        """
        self._copy(src, dst, overwrite=overwrite, remove=True)

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Copy a file within the store. A copy of a file to its own path does nothing.

        Raises:
            NotFound: `src` does not exist.
            AlreadyExists: `dst` exists and `overwrite` is not set.
            InvalidPath: A path is not valid, or is the path of a folder.
        """
        self._copy(src, dst, overwrite=overwrite, remove=False)

    def _copy(self, src: str, dst: str, *, overwrite: bool, remove: bool) -> None:
        source, target = normalize_file_path(src), normalize_file_path(dst)
        try:
            with self._explain_failed_write(target):
                self._handle.copy(source, target, require_bool("overwrite", overwrite), remove)
        except (NotFound, InvalidPath):
            # An error of the source comes before an error of the target.
            self.get_file_info(source)
            raise


class _RangedFile(io.RawIOBase):
    """One version of a file, read by ranges."""

    def __init__(self, handle: _pds.StoreHandle, path: str, info: FileInfo) -> None:
        self._handle, self._path, self._position = handle, path, 0
        self._size, self._etag = info.size, info.etag

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise InvalidInput(f"cannot seek to the negative position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0
        data = self._handle.read(self._path, self._position, length, self._etag)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _format_option(name: str, value: object) -> str:
    if not isinstance(name, str):
        raise InvalidType(f"the name of an option must be a string, not {type(name).__name__}")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return require_utf8(f"option {name}", str(value))
    raise InvalidType(f"option {name} must be a string, a number or a boolean, not {type(value).__name__}")


def _list_parents(path: str) -> Iterator[str]:
    """Return the folders that contain a file, outermost first."""
    segments = path.split("/")
    return ("/".join(segments[:end]) for end in range(1, len(segments)))


def _to_file_info(file: _pds.StoredFile) -> FileInfo:
    name = file.path.rsplit("/", 1)[-1]
    return FileInfo(file.path, name, file.size, datetime.fromtimestamp(file.modified_at, UTC), file.etag)


def require_capability(store: object, capability: Capability, operation: str, path: str) -> None:
    """Raise CapabilityNotSupported if a store, of pds or of remote-store, does not support a capability."""
    own_capability: object = capability
    if not isinstance(store, Store):
        import remote_store  # noqa: PLC0415 imported only for a store of remote-store

        own_capability = remote_store.Capability(capability.value)
    if not store.supports(own_capability):  # type: ignore[attr-defined]
        raise CapabilityNotSupported(
            f"{operation} requires the {capability.name} capability ({capability.value}) for {path!r}",
            path=path,
            capability=capability.value,
        )


def native_handle(store: object) -> _pds.StoreHandle:
    """Return the native handle of a `pds.Store`, or a native handle that calls a `remote_store.Store`."""
    if isinstance(store, Store):
        return store._handle  # noqa: SLF001 the class is in this module
    if is_remote_store(store):
        return _pds.StoreHandle.foreign(store)
    raise InvalidType(f"store must be a pds.Store or a remote_store.Store, not {type(store).__name__}")


def is_remote_store(store: object) -> bool:
    """Return whether the object has the methods of a `remote_store.Store`."""
    module = type(store).__module__.partition(".")[0]
    return module == "remote_store" or all(hasattr(store, name) for name in ("write_atomic", "read_bytes", "supports"))
