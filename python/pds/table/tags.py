"""The tags of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pds.arguments import require_text
from pds.errors import NotFound
from pds.table.checks import check_version
from pds.table.results import CommitResult

_Commit = Callable[[str, int | None], CommitResult]


class Tags(Mapping[str, int]):
    """The tags of a table: a mapping of names to versions. A vacuum keeps tagged versions."""

    def __init__(self, path: str, version: int, versions: dict[str, int], commit: _Commit) -> None:
        self._path = path
        self._version = version
        self._versions = versions
        self._commit = commit

    def __getitem__(self, name: str) -> int:
        if name not in self._versions:
            raise NotFound(
                f"tag {name!r} does not exist; the table has the tags {sorted(self._versions)}", path=self._path
            )
        return self._versions[name]

    # The methods of Mapping expect a KeyError.
    def __contains__(self, name: object) -> bool:
        return name in self._versions

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 the signature of Mapping.get
        """Return the version of a tag, or `default` if the tag does not exist."""
        return self._versions.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._versions))

    def __len__(self) -> int:
        return len(self._versions)

    def __repr__(self) -> str:
        return f"Tags({self._versions!r})"

    def create(self, name: str, version: int | None = None) -> CommitResult:
        """Create a tag for a version.

        Args:
            name: The name of the tag, up to 255 bytes.
            version: The version. Defaults to the version of this snapshot.

        Raises:
            AlreadyExists: The tag exists and names another version.
            VersionExpired: The version does not exist or has been vacuumed.
            InvalidInput: The name or the version is not valid.
            CommitConflict, CommitStateUnknown: As for `Table.append`.
        """
        version = self._version if version is None else check_version(version)
        result = self._commit(require_text("the name of a tag", name), version)
        self._versions = {**self._versions, name: version}
        return result

    def delete(self, name: str) -> CommitResult:
        """Delete a tag. The version stays until a vacuum removes it.

        Raises:
            NotFound: The tag does not exist.
            CommitConflict, CommitStateUnknown: As for `Table.append`.
        """
        result = self._commit(require_text("the name of a tag", name), None)
        self._versions = {other: version for other, version in self._versions.items() if other != name}
        return result
