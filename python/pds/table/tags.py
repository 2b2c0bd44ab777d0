"""Names of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pds.arguments import require_text
from pds.errors import NotFound
from pds.table.checks import check_version
from pds.table.results import CommitResult

_Commit = Callable[[str, int | None], CommitResult]


class Tags(Mapping[str, int]):
    """Names of versions; vacuum keeps what they name."""

    def __init__(self, path: str, version: int, found: dict[str, int], commit: _Commit) -> None:
        self._path = path
        self._version = version
        self._found = found
        self._commit = commit

    def __getitem__(self, name: str) -> int:
        if name not in self._found:
            raise NotFound(f"there is no tag {name!r}; there are {sorted(self._found)}", path=self._path)
        return self._found[name]

    # A Mapping's own would wait for a KeyError.
    def __contains__(self, name: object) -> bool:
        return name in self._found

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 as a Mapping's
        """The version of a name, or `default`."""
        return self._found.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"Tags({self._found!r})"

    def create(self, name: str, version: int | None = None) -> CommitResult:
        """Give a version a name; None is the table's own.

        Raises:
            AlreadyExists: The name is another version's.
            VersionExpired: There is no such version.
        """
        version = self._version if version is None else check_version(version)
        result = self._commit(require_text("a tag's name", name), version)
        self._found = {**self._found, name: version}
        return result

    def delete(self, name: str) -> CommitResult:
        """Take a name away.

        Raises:
            NotFound: There is no such tag.
        """
        result = self._commit(require_text("a tag's name", name), None)
        self._found = {known: version for known, version in self._found.items() if known != name}
        return result
