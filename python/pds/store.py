"""The one way to bytes: memory, local files, S3, Azure Blob and Google Cloud Storage."""

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
from pds.paths import file_path, folder_path

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
# Files whose names begin so are being written; listings leave them out.
_HIDDEN = ".pds-"


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


class FolderEntry(str):
    """A folder of a store: its name, with the path as an attribute.

    Args:
        path: The path, relative to the store.
    """

    __slots__ = ("path",)
    path: str

    def __new__(cls, path: str) -> Self:
        """The entry of a path."""
        entry = super().__new__(cls, path.rsplit("/", 1)[-1])
        entry.path = path
        return entry

    def __getnewargs__(self) -> tuple[str]:
        return (self.path,)

    @property
    def name(self) -> str:
        """The last piece of the path."""
        return str(self)


class Store:
    """Objects below a URL.

    Nothing is opened or asked before the first call. A store pickles as its URL and options; in a
    forked child it opens its own connections.

    Args:
        url: `memory://[name]`, `file:///folder`, `s3://bucket/prefix`, `az://container/prefix` or
            `gs://bucket/prefix`.
        storage_options: Options of the object_store crate, such as `aws_endpoint`, `aws_region`,
            `aws_access_key_id`, `aws_secret_access_key`; and `aws_profile`, `stall_timeout`,
            `retry_timeout` (seconds), `max_retries`. For local files `durability`: "full" (the default) has
            everything on the disk before a write is reported, "none" leaves it to the system, which a loss
            of power may forget or leave in part.
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
        shown = "".join(f", {name}={_pds.mask_option(name, value)!r}" for name, value in sorted(self._options.items()))
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
        folder = file_path(subpath)
        child = object.__new__(Store)
        child.__dict__.update(self.__dict__)
        child._handle = self._handle.child(folder)
        child._folder = f"{self._folder}/{folder}" if self._folder else folder
        return child

    def supports(self, capability: Capability) -> bool:
        """Whether the store can do it. remote-store's capabilities are understood too."""
        return getattr(capability, "value", None) in {c.value for c in _CAPABILITIES}

    def metrics(self) -> dict[str, int]:
        """Requests and bytes so far, kept over `close`.

        Returns:
            `requests` and its kinds `get`, `put`, `head`, `list`, `delete`, `copy` and `post`;
            `bytes_read` and `bytes_written`, and of both together by kind `get_bytes`, `put_bytes`
            and so on; `retries`.
        """
        return self._handle.metrics()

    def reset_metrics(self) -> None:
        """Set the counters to zero."""
        self._handle.reset_metrics()

    # -- reading ---------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            NotFound: There is no such file.
            InvalidPath: The path cannot be used, or is that of a folder.
        """
        path = file_path(path)
        with self._file_expected(path):
            return self._handle.read(path)

    def read(self, path: str) -> BinaryIO:
        """A file to read from, seekable; bytes are fetched as they are asked for.

        All bytes are of the version that is there now: FileChanged is raised by a read after the file
        was replaced.

        Raises:
            NotFound: There is no such file.
            InvalidPath: The path cannot be used, or is that of a folder.
        """
        path = file_path(path)
        info = self.get_file_info(path)
        raw = _RangedFile(self._handle, path, info)
        return cast("BinaryIO", io.BufferedReader(raw, buffer_size=1 << 20))

    read_seekable = read

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        return self.is_file(path) or self.is_folder(path)

    def is_file(self, path: str) -> bool:
        """Whether there is a file."""
        path = folder_path(path)
        return bool(path) and self._handle.head(path) is not None

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder. Where folders do not exist of their own: whether it has files."""
        path = folder_path(path)
        if not path or self._handle.is_local_folder(path):
            return True
        files, folders = self._handle.list(path, recursive=False)
        return bool(files or folders)

    def get_file_info(self, path: str) -> FileInfo:
        """Size, time and version of a file.

        Raises:
            NotFound: There is no such file.
            InvalidPath: The path cannot be used, or is that of a folder.
        """
        path = file_path(path)
        found = self._handle.head(path)
        if found is not None:
            return _info(found)
        with self._file_expected(path):
            raise NotFound(f"there is no file {path!r}", path=path)

    def list_files(self, path: str = "", *, recursive: bool = False, pattern: str | None = None) -> Iterator[FileInfo]:
        """The files of a folder, with `recursive` of all folders below it; `pattern` filters names."""
        files, _ = self._handle.list(folder_path(path), recursive=recursive)
        infos = (_info(file) for file in files)
        return (
            info
            for info in infos
            if not info.name.startswith(_HIDDEN) and (pattern is None or fnmatch.fnmatchcase(info.name, pattern))
        )

    def list_folders(self, path: str = "") -> Iterator[FolderEntry]:
        """The folders in a folder: names, with their paths as attributes."""
        _, folders = self._handle.list(folder_path(path), recursive=False)
        return map(FolderEntry, folders)

    @contextlib.contextmanager
    def _file_expected(self, path: str) -> Iterator[None]:
        """Where no file is found: tells whether a folder is there."""
        try:
            yield
        except NotFound:
            if self.is_folder(path):
                raise InvalidPath(f"not a file but a directory: {path}", path=path) from None
            raise

    @contextlib.contextmanager
    def _target(self, path: str) -> Iterator[None]:
        """Tells what is in the way of a file that is written, where folders exist of their own."""
        try:
            yield
        except RemoteStoreError as error:
            if self._handle.is_local_folder(path):
                raise InvalidPath(f"not a file but a directory: {path}", path=path) from error
            if isinstance(error, NotFound) and self._handle.is_local_folder(""):
                for folder in _folders_of(path):
                    if self.is_file(folder):
                        raise InvalidPath(f"not a directory but a file: {folder}", path=path) from error
            raise

    # -- writing ---------------------------------------------------------------

    def write(self, path: str, content: bytes | BinaryIO, *, overwrite: bool = False) -> None:
        """Write a file whole: readers see the old content or the new.

        Raises:
            AlreadyExists: The file exists and `overwrite` is not set.
            InvalidPath: The path cannot be used, or a folder is there.
        """
        path = file_path(path)
        data = content if isinstance(content, bytes | bytearray | memoryview) else content.read()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidType("content must be bytes or a binary file")
        with self._target(path):
            self._handle.write(path, bytes(data), overwrite)

    write_atomic = write

    def delete(self, path: str, *, missing_ok: bool = False) -> None:
        """Delete a file.

        Raises:
            NotFound: There is none and `missing_ok` is not set.
            InvalidPath: The path cannot be used, or is that of a folder.
        """
        path = file_path(path)
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
            NotFound: There is none and `missing_ok` is not set.
            DirectoryNotEmpty: It has content and `recursive` is not set.
            InvalidPath: The path cannot be used, is the store's root, or is that of a file.
        """
        path = folder_path(path)
        if not path:
            raise InvalidPath("the store's root cannot be deleted", path=path)
        files, _ = self._handle.list(path, recursive=True)
        if not files and not self._handle.is_local_folder(path):
            if self.is_file(path):
                raise InvalidPath(f"not a directory but a file: {path}", path=path)
            if missing_ok:
                return
            raise NotFound(f"there is no folder {path!r}", path=path)
        if not recursive and (files or any(True for _ in self.list_folders(path))):
            raise DirectoryNotEmpty(f"the folder {path!r} has content", path=path)
        self._handle.delete([file[0] for file in files])
        self._handle.remove_empty_folder(path)

    def move(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Move a file; onto itself nothing happens.

        Raises:
            NotFound: There is no `src`.
            AlreadyExists: `dst` exists and `overwrite` is not set.
            InvalidPath: A path cannot be used, or is that of a folder.
        """
        self._copy(src, dst, overwrite=overwrite, remove=True)

    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> None:
        """Copy a file inside the store; onto itself nothing happens.

        Raises:
            NotFound: There is no `src`.
            AlreadyExists: `dst` exists and `overwrite` is not set.
            InvalidPath: A path cannot be used, or is that of a folder.
        """
        self._copy(src, dst, overwrite=overwrite, remove=False)

    def _copy(self, src: str, dst: str, *, overwrite: bool, remove: bool) -> None:
        source, target = file_path(src), file_path(dst)
        try:
            with self._target(target):
                self._handle.copy(source, target, overwrite, remove)
        except (NotFound, InvalidPath):
            # What is wrong with the source comes first.
            self.get_file_info(source)
            raise


class _RangedFile(io.RawIOBase):
    """One version of a file, of which the bytes are asked for that are read."""

    def __init__(self, handle: _pds.StoreHandle, path: str, info: FileInfo) -> None:
        self._handle, self._path, self._at = handle, path, 0
        self._size, self._etag = info.size, info.etag

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
        data = self._handle.read(self._path, self._at, wanted, self._etag)
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


def _folders_of(path: str) -> Iterator[str]:
    """The folders that a file lies in, outermost first."""
    pieces = path.split("/")
    return ("/".join(pieces[:end]) for end in range(1, len(pieces)))


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
