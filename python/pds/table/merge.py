"""Merge: the rows of a source update, delete and insert rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Self

from pds.arguments import require_text
from pds.errors import InvalidInput, InvalidType

if TYPE_CHECKING:
    from pds.progress import ProgressArgument
    from pds.table.results import CommitResult

    _Execute = Callable[["list[MergeClause]", str | None, int | None, ProgressArgument], CommitResult]


class MergeClause(NamedTuple):
    """A clause of a merge. The engine reads the fields by name.

    Args:
        rows: The rows that it is about: matched, not_matched or not_matched_by_source.
        predicate: A predicate that the rows satisfy. None is all of them.
        assignments: Columns and the SQL of their values. None deletes the rows; an empty list writes all columns.
    """

    rows: str
    predicate: str | None
    assignments: list[tuple[str, str]] | None

    @property
    def method(self) -> str:
        """The method of `Merge` that adds it."""
        if self.assignments is None:
            return f"when_{self.rows}_delete"
        verb = "insert" if self.rows == "not_matched" else "update"
        return f"when_{self.rows}_{verb}" + ("" if self.assignments else "_all")


class Merge:
    """A merge with its clauses. The methods `when_…` add clauses, and `execute` runs the merge.

    For every row, the clauses are tested in the order in which they were added, and the first clause whose
    predicate is true applies. A row without such a clause is unchanged. A clause after one without a predicate for the
    same rows could never apply, and is refused with InvalidInput. Predicates and values are SQL over the
    columns `source.…` and `target.…`. A clause can use only the rows that it has: `when_not_matched_…` has no
    `target`, and `when_not_matched_by_source_…` has no `source`.
    """

    def __init__(self, execute: _Execute) -> None:
        self._execute = execute
        self._clauses: list[MergeClause] = []

    def _add_clause(self, rows: str, predicate: str | None, assignments: list[tuple[str, str]] | None) -> Self:
        if predicate is not None:
            require_text("predicate", predicate)
        clause = MergeClause(rows, predicate, assignments)
        for earlier in self._clauses:
            if earlier.rows == rows and earlier.predicate is None:
                raise InvalidInput(
                    f"{clause.method}() can never apply: {earlier.method}() before it has no predicate; "
                    "put the clauses with predicates before it"
                )
        self._clauses.append(clause)
        return self

    def when_matched_update_all(self, predicate: str | None = None) -> Self:
        """Update matched rows of the table with all columns of the source, by name."""
        return self._add_clause("matched", predicate, [])

    def when_matched_update(self, updates: Mapping[str, str], predicate: str | None = None) -> Self:
        """Update columns of matched rows, for example `{"amount": "target.amount + source.amount"}`."""
        return self._add_clause("matched", predicate, _check_updates(updates))

    def when_matched_delete(self, predicate: str | None = None) -> Self:
        """Delete matched rows of the table."""
        return self._add_clause("matched", predicate, None)

    def when_not_matched_insert_all(self, predicate: str | None = None) -> Self:
        """Insert rows of the source that match no row of the table, by column name. Missing columns are null."""
        return self._add_clause("not_matched", predicate, [])

    def when_not_matched_insert(self, updates: Mapping[str, str], predicate: str | None = None) -> Self:
        """Insert these values for rows of the source that match no row of the table. Other columns are null."""
        return self._add_clause("not_matched", predicate, _check_updates(updates))

    def when_not_matched_by_source_update(self, updates: Mapping[str, str], predicate: str | None = None) -> Self:
        """Update columns of rows of the table that match no row of the source. These rows are held in memory."""
        return self._add_clause("not_matched_by_source", predicate, _check_updates(updates))

    def when_not_matched_by_source_delete(self, predicate: str | None = None) -> Self:
        """Delete rows of the table that match no row of the source."""
        return self._add_clause("not_matched_by_source", predicate, None)

    def execute(
        self,
        *,
        idempotency_key: str | None = None,
        if_version: int | None = None,
        progress: ProgressArgument = False,
    ) -> CommitResult:
        """Run the merge in one commit.

        After a conflict with a concurrent commit, the merge is computed again from the newest snapshot.

        Args:
            idempotency_key: As for `Table.append`.
            if_version: As for `Table.append`.
            progress: As for `Table.append`.

        Returns:
            `rows` is the number of written rows. The history has `rows_updated`, `rows_inserted` and
            `rows_deleted`. If no row changes, nothing is committed and `attempts` is 0.

        Raises:
            InvalidInput: The merge has no clause; an expression is not valid, or returns a value that its column
                cannot hold; two rows of the source have the same key, or a key has a null.
            CommitConflict: As for `Table.append`; or other commits dropped a column that the merge names, or changed
                the type of one in an expression so that it may mean something else.
            CommitStateUnknown, TransactionExpired: As for `Table.append`.
        """
        if not self._clauses:
            raise InvalidInput("a merge needs a clause; add one with when_matched_…() or when_not_matched_…()")
        return self._execute(list(self._clauses), idempotency_key, if_version, progress)


def _check_updates(updates: object) -> list[tuple[str, str]]:
    if not isinstance(updates, Mapping):
        raise InvalidType(f"updates must be a dict of column names and SQL expressions, not {updates!r}")
    if not updates:
        raise InvalidInput("updates has no column; the clauses whose names end in _all write all columns")
    return [
        (require_text("a column name in updates", name), require_text(f"updates[{name!r}]", value))
        for name, value in updates.items()
    ]
