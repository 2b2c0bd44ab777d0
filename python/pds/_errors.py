"""The errors that pds shares with remote-store. They are used where remote-store is not installed."""

from __future__ import annotations


class RemoteStoreError(Exception):
    """Base class of all errors of pds.

    Args:
        message: What failed and what to do.
        path: The path of the object or folder, relative to the store.
        backend: The name of the store.

    Attributes:
        hint: What to do next, where that is known. The message ends with it.
        retryable: Whether the same call may succeed when it is repeated.
    """

    hint: str | None = None
    retryable: bool = False

    def __init__(self, message: str = "", *, path: str | None = None, backend: str | None = None) -> None:
        self.path = path
        self.backend = backend
        super().__init__(message)

    def _format_context(self) -> list[str]:
        pairs = (("path", self.path), ("backend", self.backend))
        return [f"{name}={value!r}" for name, value in pairs if value is not None]

    def __str__(self) -> str:
        return " | ".join([super().__str__(), *self._format_context()])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(super().__str__()), *self._format_context()])})"


class NotFound(RemoteStoreError):
    """The file or folder does not exist."""


class AlreadyExists(RemoteStoreError):
    """The target exists already and may not be replaced."""


class PermissionDenied(RemoteStoreError):
    """The store denies access, or credentials are missing."""


class InvalidPath(RemoteStoreError):
    """The path is malformed, leaves the store, or names the wrong type."""


class CapabilityNotSupported(RemoteStoreError):
    """The store does not support the operation.

    Args:
        message: The operation that failed.
        path: The path of the object or folder, relative to the store.
        backend: The name of the store.
        capability: The name of the missing capability.
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

    def _format_context(self) -> list[str]:
        fields = [f"capability={self.capability!r}"] if self.capability else []
        return super()._format_context() + fields


class DirectoryNotEmpty(RemoteStoreError):
    """The folder is not empty, and `recursive` is not set."""


class BackendUnavailable(RemoteStoreError):
    """The store cannot be reached, or a request failed in every retry."""


class ResourceLocked(RemoteStoreError):
    """Another live process holds the resource."""
