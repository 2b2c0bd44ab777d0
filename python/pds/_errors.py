"""The errors that remote-store has too, for where it is not installed."""

from __future__ import annotations


class RemoteStoreError(Exception):
    """Base class of all errors of pds.

    Args:
        message: What went wrong and what to do.
        path: The path concerned, relative to the store.
        backend: The store's name.
    """

    def __init__(self, message: str = "", *, path: str | None = None, backend: str | None = None) -> None:
        self.path = path
        self.backend = backend
        super().__init__(message)

    def _context(self) -> list[str]:
        pairs = (("path", self.path), ("backend", self.backend))
        return [f"{name}={value!r}" for name, value in pairs if value is not None]

    def __str__(self) -> str:
        return " | ".join([super().__str__(), *self._context()])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(super().__str__()), *self._context()])})"


class NotFound(RemoteStoreError):
    """The file or folder does not exist."""


class AlreadyExists(RemoteStoreError):
    """The target exists and may not be replaced."""


class PermissionDenied(RemoteStoreError):
    """The store denies access, or credentials are missing."""


class InvalidPath(RemoteStoreError):
    """The path is malformed, leaves the store, or names the wrong type."""


class CapabilityNotSupported(RemoteStoreError):
    """The store cannot do what was asked.

    Args:
        message: What was asked.
        path: The path concerned.
        backend: The store's name.
        capability: The missing capability's name.
    """

    def __init__(
        self,
        message: str = "",
        *,
        path: str | None = None,
        backend: str | None = None,
        capability: str = "",
    ) -> None:
        self.capability = capability
        super().__init__(message, path=path, backend=backend)

    def _context(self) -> list[str]:
        named = [f"capability={self.capability!r}"] if self.capability else []
        return super()._context() + named


class DirectoryNotEmpty(RemoteStoreError):
    """The folder has content and `recursive` was not given."""


class BackendUnavailable(RemoteStoreError):
    """The store cannot be reached, or did not do it after retries."""


class ResourceLocked(RemoteStoreError):
    """Another living process holds what is needed."""
