"""Merge: rows of a source decide which rows of a table are changed, deleted and added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType
from pds.table.checks import check_key

if TYPE_CHECKING:
    from pds.table.results import CommitResult

    Clauses = list[tuple[str, str | None, list[tuple[str, str]] | None]]
    _Execute = Callable[[Clauses, str | None], CommitResult]


class Merge:
    """A merge that is put together; `execute` does it.

    Clauses are tried in the order in which they were added, and the first whose predicate holds decides on
    a row; a row for which none does stays as it is. Predicates and values are SQL over `source.…` and
    `target.…`, each where there is such a row.
    """

    def __init__(self, execute: _Execute) -> None:
        self._execute = execute
        self._clauses: Clauses = []

    def _add(self, when: str, predicate: str | None, written: list[tuple[str, str]] | None) -> Self:
        if predicate is not None:
            require_text("predicate", predicate)
        self._clauses.append((when, predicate, written))
        return self

    def when_matched_update_all(self, predicate: str | None = None) -> Self:
        """Rows with a counterpart take over the columns of the source, by name."""
        return self._add("matched", predicate, [])

    def when_matched_update(self, updates: Mapping[str, str], predicate: str | None = None) -> Self:
        """Rows with a counterpart get new values, for instance `{"amount": "target.amount + source.amount"}`."""
        return self._add("matched", predicate, _assigned(updates))

    def when_matched_delete(self, predicate: str | None = None) -> Self:
        """Rows with a counterpart go."""
        return self._add("matched", predicate, None)

    def when_not_matched_insert_all(self, predicate: str | None = None) -> Self:
        """Rows of the source without a counterpart are added, by name; columns it does not have are null."""
        return self._add("not_matched", predicate, [])

    def when_not_matched_insert(self, updates: Mapping[str, str], predicate: str | None = None) -> Self:
        """Rows of the source without a counterpart are added with these values; other columns are null."""
        return self._add("not_matched", predicate, _assigned(updates))

    def when_not_matched_by_source_update(self, updates: Mapping[str, str], predicate: str | None = None) -> Self:
        """Rows of the table that the source does not have get new values; they are held in memory."""
        return self._add("not_matched_by_source", predicate, _assigned(updates))

    def when_not_matched_by_source_delete(self, predicate: str | None = None) -> Self:
        """Rows of the table that the source does not have go."""
        return self._add("not_matched_by_source", predicate, None)

    def execute(self, *, idempotency_key: str | None = None) -> CommitResult:
        """Do it, in one commit.

        If others bring rows meanwhile it is made anew from what there is then.

        Args:
            idempotency_key: As for `Table.append`.

        Returns:
            `rows` is what was written; the history has `rows_updated`, `rows_inserted` and `rows_deleted`.
            Where nothing is to be done nothing is committed, and `attempts` is 0.

        Raises:
            InvalidInput: There is no clause; an expression cannot be used, or gives a value that the column
                cannot hold; two rows of the source have the same key, or one a null in it.
            CommitConflict, CommitStateUnknown, TransactionExpired: As for `Table.append`.
        """
        if not self._clauses:
            raise InvalidInput("a merge needs a clause: when_matched_…, when_not_matched_…")
        return self._execute(list(self._clauses), check_key(idempotency_key))


def _assigned(updates: object) -> list[tuple[str, str]]:
    if not isinstance(updates, Mapping):
        raise InvalidType(f"updates must be a dict of columns and SQL, not {updates!r}")
    if not updates:
        raise InvalidInput("updates name no column; use the clause that ends in _all for all of them")
    return [
        (require_text("a column in updates", name), require_text(f"updates[{name!r}]", value))
        for name, value in updates.items()
    ]
